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
#include <string>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "ir/fusion.h"

namespace jf::loops {

// Non-negative integer arithmetic over loop variables.
struct Index;
using IndexPtr = std::shared_ptr<const Index>;
enum class IndexKind : uint8_t { kConst, kVar, kAdd, kMul, kDiv, kMod };
struct Index {
  IndexKind kind;
  int64_t value = 0;  // kConst: the number; kVar: the variable
  IndexPtr a, b;      // the others
};
IndexPtr constant(int64_t value);
IndexPtr variable(int64_t id);
// These fold constants, x+0, x*1, x*0, x/1, x%1; `range` folds are the caller's.
IndexPtr add(IndexPtr a, IndexPtr b);
IndexPtr mul(IndexPtr a, IndexPtr b);
IndexPtr div(IndexPtr a, IndexPtr b);
IndexPtr mod(IndexPtr a, IndexPtr b);

// Where a loop's iterations go. kTask: one call of a CPU kernel; kBlock, kThread: CUDA's blockIdx.x and threadIdx.x.
enum class Parallel : uint8_t { kSerial, kUnroll, kTask, kBlock, kThread };

struct Stmt;
using Body = std::vector<Stmt>;
using RegisterId = int;

struct For {
  int variable;
  int64_t extent;
  Parallel parallel;
  Body body;
};
// The body runs for variable = base .. base + width - 1, those below `limit`. When `full`, all of them always are.
struct Vector {
  int variable;
  IndexPtr base;
  int64_t limit;
  bool full;
  Body body;
};
// The body runs where every index is below its bound.
struct Guard {
  std::vector<std::pair<IndexPtr, int64_t>> below;
  Body body;
};
struct Load {
  RegisterId result;
  int buffer;
  IndexPtr offset;  // elements, of lane 0
  int64_t lane_stride;
};
// The lane's own value of an index, as `dtype`: base + lane * lane_stride (iota).
struct FromIndex {
  RegisterId result;
  IndexPtr base;
  int64_t lane_stride;
};
struct Compute {
  RegisterId result;
  ir::OpKind op;  // pointwise or constant
  std::vector<RegisterId> operands;
  ir::Attribute attribute;
  DType from;  // dtype of the first operand's value (a convert or bitcast needs both)
  std::string comment;
};
struct Store {
  int buffer;
  IndexPtr offset;
  int64_t lane_stride;
  RegisterId value;
};
struct Stmt {
  std::variant<For, Vector, Guard, Load, FromIndex, Compute, Store> node;
};

struct Buffer {
  std::string name;  // an identifier
  DType dtype;
  bool written;
};

struct Kernel {
  std::string name;  // an identifier, the entry point
  std::vector<Buffer> buffers;
  std::vector<DType> registers;  // dtype of the value that the register holds
  int width = 1;                 // lanes; a power of two
  bool wide_index = false;       // loop variables and divisions need 64 bits; address arithmetic always has them
  int64_t grid = 1;              // CPU: tasks; CUDA: blocks
  int block = 1;                 // CUDA: threads
  Body body;
};

// Text for dumps and golden files.
std::string print(const Kernel& kernel);

}  // namespace jf::loops
