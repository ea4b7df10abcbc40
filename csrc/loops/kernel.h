// The loop program of one kernel: explicit loops, index arithmetic, loads, computations, stores. Both dialects print
// it.
//
// Everything between a load and a store is a register of `width` lanes. A Vector statement runs its body for `width`
// consecutive values of its variable; inside it an access moves by `lane_stride` elements from lane to lane: 0 loads
// one element into all lanes, 1 is a contiguous vector, anything else is gathered. Outside a Vector statement all
// strides are 0 and only lane 0 means anything. Registers hold compute_dtype of the value they stand for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "ir/fusion.h"

namespace jf::loops {

// Integer arithmetic over loop variables. What is divided is not negative; offsets and steps may be.
struct Index;
using IndexPtr = std::shared_ptr<const Index>;
enum class IndexKind : uint8_t { kConst, kVar, kAdd, kMul, kDiv, kMod, kXor, kMin };
struct Index {
  IndexKind kind;
  int64_t value = 0;  // kConst: the number; kVar: the variable
  IndexPtr a, b;      // the others
};
IndexPtr constant(int64_t value);
IndexPtr variable(int64_t id);
bool is_zero(const IndexPtr& index);
// These fold constants, x+0, x*1, x*0, x/1, x%1, x^0.
IndexPtr add(IndexPtr a, IndexPtr b);
IndexPtr mul(IndexPtr a, IndexPtr b);
IndexPtr div(IndexPtr a, IndexPtr b);
IndexPtr mod(IndexPtr a, IndexPtr b);
IndexPtr bit_xor(IndexPtr a, IndexPtr b);
IndexPtr least(IndexPtr a, IndexPtr b);
// A place in memory `by` elements on, which may be negative where only what is inside is read.
IndexPtr moved(IndexPtr offset, int64_t by);
// Likewise `less` elements back.
IndexPtr minus(IndexPtr offset, IndexPtr less);
// The index with another one in the place of a variable.
IndexPtr replace(const IndexPtr& index, int64_t variable, const IndexPtr& by);
bool depends(const IndexPtr& index, int64_t variable);
// Whether two indices go with one variable.
bool share_variable(const IndexPtr& a, const IndexPtr& b);
// The value of an index where variable i is variables[i].
int64_t evaluate(const IndexPtr& index, std::span<const int64_t> variables);

// Where a loop's iterations go. kTask: one call of a CPU kernel; kCluster: the blocks of a cluster; the others: CUDA's
// blockIdx, counted in clusters, and threadIdx.
enum class Parallel : uint8_t { kSerial, kUnroll, kTask, kBlock, kBlockY, kCluster, kThread, kThreadY };

struct Stmt;
using Body = std::vector<Stmt>;
using RegisterId = int;

// index < bound; with a variable, index < it, which is at most `bound`.
struct Below {
  IndexPtr index;
  int64_t bound;
  int variable = -1;
  bool implied = false;  // what stands under it has no effect elsewhere anyway, but this is known further out
};
bool depends(const Below& below, int64_t variable);
// True where all of it holds.
using Condition = std::vector<Below>;
// A serial loop ends before the first iteration in which `runs` does not hold.
struct For {
  int variable;
  int64_t extent;
  Parallel parallel;
  Body body;
  bool reverse = false;  // a serial or unrolled loop from its last iteration on
  Condition runs = {};
};
// The body runs for variable = base .. base + width - 1, those that are below every limit when its index is added;
// where there are no limits, all of them always are. With `before`, less than the width, they begin so far before base,
// and only those that are not negative run.
struct Vector {
  int variable;
  IndexPtr base;
  Condition limits;
  Body body;
  IndexPtr before = {};
};
// Whether a limit has an index of its own, so that lanes may lie behind an array.
bool ends_ahead(const Vector& vector);
struct Guard;
// begin <= index < end, which may be kNoEnd. In `lanes`, each lane by itself: the index is that of lane 0, one less
// than the next lane's.
struct Range {
  IndexPtr index;
  int64_t begin, end;
  bool lanes = false;
};
// `weight` times the register's integer, brought into [0, limit]. With `each`, every lane has its own; else all lanes
// have that of lane 0.
struct Step {
  RegisterId index;
  int64_t limit, weight;
  bool each;
};
// Lanes along the rows of an array: `row` is that of lane 0, and `last` the last one of the array.
struct Rows {
  IndexPtr row;
  int64_t last;
};
// Lanes that go round: lane l is at place (start + l) % period of turn (start + l) / period, which are so many elements
// from the one before. Lane 0 is in the first turn.
struct Cycle {
  IndexPtr start;
  int64_t period, place_step, turn_step;
};
struct Load {
  RegisterId result;
  int buffer;
  IndexPtr offset;  // elements, of lane 0
  int64_t lane_stride;
  Condition when = {};             // elsewhere nothing is read and the register holds zeros
  std::vector<Range> within = {};  // likewise; one in lanes at most
  std::vector<Step> steps = {};    // added to the offset
  Condition or_first = {};         // elsewhere the buffer's first elements are read, and mean nothing
  // Of elements side by side, those of lanes that do not run mean nothing: `whole`: the offset is a multiple of the
  // width, and all of the vector is read; `around`: the offset is any, but only of so many elements some are read.
  bool whole = false;
  int64_t around = 0;
  std::optional<Rows> rows = {};    // lanes behind the last row read that one
  std::optional<Cycle> cycle = {};  // CPU: in place of lane_stride
  // CPU: where loads beside this one take the first and the last of lane_stride elements that each lane has side by
  // side, the number of the element that this one takes; else -1.
  int64_t phase = -1;
};
// The variable is an integer of a buffer, brought into [0, high]; 0 where `when` does not hold.
struct ReadIndex {
  int variable;
  int buffer;
  IndexPtr offset;
  int64_t high;
  Condition when = {};
};
// The lane's own value of an index, in the register's dtype: base + lane * lane_stride (iota).
struct FromIndex {
  RegisterId result;
  IndexPtr base;
  int64_t lane_stride;
};
// How many of the `count` elements from an offset on, in ascending order, are not above each lane's number, or with
// `left` below it. With `each`, every lane searches by itself; else all lanes have what lane 0 finds.
struct Search {
  RegisterId result;
  int buffer;
  IndexPtr offset;  // elements, of lane 0
  int64_t lane_stride, count;
  RegisterId number;
  bool left, each;
  Condition when = {};  // elsewhere nothing is read and the register holds zeros
};
struct Compute {
  RegisterId result;
  ir::OpKind op;  // pointwise or constant
  std::vector<RegisterId> operands;
  ir::Attribute attribute;
  DType from;  // dtype of the first operand's value (a convert or bitcast needs both)
  std::string comment;
  bool loose = false;  // only sums and products that are rounded to 16 bits come of it: some bits may be wrong
};
struct Store {
  int buffer;
  IndexPtr offset;
  int64_t lane_stride;
  RegisterId value;
  bool whole = false;             // the offset is a multiple of the width
  std::optional<Rows> rows = {};  // lanes behind the last row store nothing
};
// CPU: each lane has as many elements side by side as there are buffers, one for each; `offset` is that of lane 0's
// first one. The buffers may all be one array.
struct StoreInterleaved {
  std::vector<int> buffers;
  IndexPtr offset;
  std::vector<RegisterId> values;
};
// Element e of an array gets what a load gives at offset + e, where that is lane_stride elements from lane to lane: for
// all elements of the array, those e for which index + e is below every limit. Each line that it loads has it fetch the
// one `ahead` elements on.
struct TurnedLoad {
  int array;
  int buffer;
  IndexPtr offset;  // elements, of lane 0
  int64_t lane_stride, ahead;
  Condition limits = {};
};
// All threads of the block bring a tile of an array to shared memory: element (r, c) of the tile, 0 <= c < tile and
// -before <= r < tile, gets to `to` + c * pitch + r, if row + r and column + c are in the array; other elements of
// whole vectors of its rows get next to those, up to a vector more on either side. Rows of the array may begin
// anywhere.
struct TurnTile {
  int shared;
  IndexPtr to;
  int64_t pitch, tile, before;
  int buffer;
  IndexPtr from;  // of element (0, 0), in the array
  int64_t step;   // from row to row
  IndexPtr row, column;
  int64_t rows, columns;
};
// The vector of elements from here on, which may lie outside of the buffer, is on its way to a cache afterwards.
struct Prefetch {
  int buffer;
  IndexPtr offset;
  std::vector<Step> steps = {};  // added to the offset, the same in all lanes
};
// The body runs where the condition holds.
struct Guard {
  Condition below;
  Body body;
};
// The body runs where the register, the same in all lanes, holds, or does not. With `together` all threads of the block
// agree; else the body has nothing in it that they do together.
struct If {
  RegisterId which;
  bool holds, together;
  Body body;
};
// A register array comes to life here and lives to the end of the enclosing body. Where `fill` names a fold (kAdd,
// kMul, kMax, kMin, kAnd, kOr, kXor), every element starts as what that op leaves unchanged.
struct Declare {
  int array;
  std::optional<ir::OpKind> fill;
};
// One element (a register of all lanes) of an array.
struct Get {
  RegisterId result;
  int array;
  IndexPtr at;
};
struct Set {
  int array;
  IndexPtr at;
  RegisterId value;
  bool existing = false;  // lanes that do not exist keep what they hold
};
// element = op(element, value), in the lanes that exist.
struct Accumulate {
  int array;
  IndexPtr at;
  ir::OpKind op;
  RegisterId value;
};
// Folds every element of the arrays, all of one dtype, over its lanes, over the threads along x, over those along y,
// over the blocks of the cluster: whichever are set; with `cluster` over all threads. Afterwards all of them hold the
// result. Every thread of the block, or of the cluster, gets here.
struct Combine {
  std::vector<int> arrays;
  ir::OpKind op;
  bool lanes, threads, threads_y, cluster;
};
// carry = op(carry, value), and that is the result. With `lanes`, each lane takes in those before it as well (after it
// with `reverse`), and the carry all of them. Without a carry (-1) a scan begins anew. A linear recurrence, whose op is
// add, takes in the carry `factor` times, and its result is the carry before that; with `resets`, the value alone is
// the next carry where the factor is NaN.
struct Scan {
  RegisterId result;
  int carry;
  IndexPtr at;  // of the carry's array
  ir::OpKind op;
  bool reverse, lanes;
  RegisterId value;
  std::optional<RegisterId> factor = {};
  bool resets = false;
  Condition when = {};  // elsewhere the carry stays and the register holds zeros
};
// Scans an array over its elements, the threads along x or y, and its lanes. Elements follow each other over runs of
// `run` elements of all threads: first the run of thread 0, then that of thread 1, ..., then the next runs. Every
// thread of the block gets here. A linear recurrence has an array of factors, and `resets` as in Scan.
struct ScanThreads {
  int array, carry;  // -1 for no carry
  IndexPtr at;       // of the carry's array
  ir::OpKind op;
  bool reverse = false, lanes = false, threads = false, threads_y = false;
  int64_t run = 1;
  int factors = -1;
  bool resets = false;
};
// Shared memory written before is seen by all threads of the block afterwards.
struct Sync {};
// Makes a ring ready for use. Every thread of the block gets here, to the next statements on rings as well, equally
// often.
struct OpenRing {
  int ring;
};
// One thread begins a copy to the stage that is filled next: of `rows` runs of `row` elements each, one after the
// other, the first ones, those r for which index + r is below every limit. Anywhere: neither place need be aligned, but
// both are equally far into 16 bytes, all of which arrive where the copy has some of them.
struct BulkLoad {
  int ring;
  IndexPtr to;  // elements, in the stage
  int buffer;
  IndexPtr from;  // elements
  int64_t rows, row;
  Condition limits = {};
  bool anywhere = false;
};
// The same of a box of a parameter, all of whose elements arrive: zeros for those beyond the parameter's axes.
struct TileLoad {
  int ring;
  IndexPtr to;  // elements, in the stage
  int map;
  std::vector<IndexPtr> at;  // the first element, by axis of the map
};
// No more copies to this stage: the next ones fill the next stage.
struct CommitRing {
  int ring;
};
// Waits until the copies to the next stage that was committed have arrived; the ring's variable is its number.
struct AwaitRing {
  int ring;
};
// One thread begins a copy of runs as in BulkLoad, from a shared buffer to a parameter.
struct BulkStore {
  int buffer;
  IndexPtr to;  // elements
  int shared;
  IndexPtr from;  // elements
  int64_t rows, row;
  Condition limits = {};
};
// What the thread wrote to shared memory is seen by copies that begin after the threads meet.
struct FenceBulk {};
// The thread that begins copies waits until they have read shared memory.
struct DrainBulk {};
struct Stmt {
  std::variant<For, Vector, Guard, If, Load, ReadIndex, FromIndex, Search, Compute, Store, Declare, Get, Set,
               Accumulate, Combine, Scan, ScanThreads, Sync, OpenRing, BulkLoad, TileLoad, CommitRing, AwaitRing,
               BulkStore, FenceBulk, DrainBulk, TurnedLoad, TurnTile, Prefetch, StoreInterleaved>
      node;
};

// A parameter of the kernel; or, where shared_size is not 0, that many elements that the threads of a block share.
struct Buffer {
  std::string name;  // an identifier
  DType dtype;
  bool written;
  int64_t shared_size = 0;
  int64_t alignment = 128;  // bytes, of shared ones
  int64_t bytes = 0;        // of parameters
};
// A parameter as an array of which instructions copy boxes. Axes: the fastest first.
struct TensorMap {
  int buffer;
  std::vector<int64_t> extents, strides;  // in elements; strides[0] is 1
  std::vector<int64_t> box;               // elements along each axis
  int swizzle = 0;  // bytes of a row whose 16-byte chunks trade places in shared memory: 32, 64, 128; 0: they do not
  bool operator==(const TensorMap&) const = default;
};
// Copies of a shared buffer that asynchronous copies fill and the threads of a block read, in turn.
struct Ring {
  int buffer;    // of stages * stage_size elements
  int barriers;  // a shared buffer of 64-bit words, one for each stage
  int64_t stages, stage_size;
  int variable;  // the number of the stage that was waited for last
};
// `size` registers of all lanes, of each thread's own, holding compute_dtype. On CUDA they stay in registers where
// every index is known after unrolling.
struct Array {
  std::string name;  // an identifier
  DType dtype;
  int64_t size;
};

struct Kernel {
  std::string name;             // an identifier, the entry point
  std::vector<Buffer> buffers;  // parameters first, then shared ones
  std::vector<Array> arrays;
  std::vector<Ring> rings;
  std::vector<TensorMap> maps;
  std::vector<DType> registers;  // dtype of the value that the register holds
  int width = 1;                 // lanes; a power of two
  bool wide_index = false;       // loop variables and divisions need 64 bits; address arithmetic always has them
  int64_t grid = 1, grid_y = 1;  // CPU: tasks; CUDA: clusters
  int64_t cluster = 1;           // CUDA: blocks of a cluster, side by side along x
  int64_t at_once = 1;           // CUDA: blocks of a multiprocessor whose registers have room; 1: the compiler decides
  int64_t block = 1, block_y = 1;  // CUDA: threads
  Body body;
};

// A number above that of every variable.
int next_variable(const Kernel& kernel);

// Text for dumps and golden files.
std::string print(const Kernel& kernel);

}  // namespace jf::loops
