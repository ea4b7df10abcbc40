#include "plan/two_stages.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"
#include "base/integers.h"
#include "base/target.h"
#include "ir/append.h"
#include "ir/verify.h"
#include "plan/even_rows.h"
#include "plan/strips.h"

namespace jf::plan {
namespace {

using ir::Constant;
using ir::Fusion;
using ir::Op;
using ir::OpKind;
using ir::Reduce;
using ir::Value;
using ir::ValueId;

// Pieces of work that keep the largest device busy, and how many of them are already enough.
constexpr int64_t kWanted = 512, kEnoughRows = 64, kEnoughColumns = 128;
// On the CPU runs are tasks: some for every core, with so many rows that storing the runs costs little, and if possible
// equally many in all, so that no pass asks which of its rows there are. In 132 runs with such questions layer norm's
// derivative of 4096 x 4096 bf16 took 1.6 times as long as in 64.
constexpr int64_t kRowsOfTask = 64, kFewestTasks = 16, kMostTasks = 128, kRowsSideBySide = 4;
// Elements of a row, and rows, below which a run is not worth a piece of work.
constexpr int64_t kShortestRow = 8 << 10, kFewestRows = 64;
// Rows that are longer than what blocks of a cluster keep are in parts where multiprocessors would be idle.
constexpr int64_t kLongestKeptRow = 256 << 10;
// Columns that a block folds side by side.
constexpr int64_t kColumns = 128;
// Rows of which all threads of a block have their loads on their way: parts are made of whole rounds. 4095 rows of 1537
// bf16 took 6.7 us in 40 parts and 6.2 in 32, 16384 of 768 8.9 in 86 and 8.6 in 64.
constexpr int64_t kRowsOfRound = 128;
// Fewer runs than this gain less than the second stage costs.
constexpr int64_t kFewestParts = 4;
// Runs where one kernel folds the rows, too, are its blocks, which should all run at once: so many for each of 132
// multiprocessors as have room beside each other, if not so few rows are left that storing the runs counts. Of 65536
// rows of 2880 f32 in 512 blocks, with room for 396, rms norm backward went at 0.85 of a copy's speed, in 396 at 0.93;
// 8192 rows of 4096 bf16, layer norm backward, at 0.51 in 128 blocks and 0.76 in 396.
constexpr int64_t kFewestRowsOfPart = 4, kFewRowsOfPart = 20;
// Of rows that no vectors divide, whose kernel has more to do for each: 4095 rows of 1537 bf16 in 128, 256 and 528
// parts took 23, 21 and 23 us (layer norm backward), 19, 17 and 17 (rms).
constexpr int64_t kFewOddRowsOfPart = 15;
// With few rows at least so many, or a multiprocessor's memory idles: 2048 bf16 rows of 4096, derivatives of rms and
// layer norm, took 16.5 and 18.3 us in 256 runs, and 19.3 and 21.2 in 128; of 2048 10.2 and 12.2, and 14.1 and 15.8.
constexpr int64_t kFewBlocks = 2;
// Where a multiprocessor has one block at a time, counts that divide most numbers of rows.
constexpr int64_t kRowsOfPart = 64, kEnoughParts = 128, kMostParts = 512;
constexpr int64_t kSharedBytes = 227 << 10, kStages = 3, kStagesMoved = 2, kSpareBytes = 1 << 10;
constexpr int64_t kLanes = 4, kLongRow = 8 << 10;
// With 32 elements in each of some 128 registers, so many threads have room, in blocks of a row or of rows of a warp.
constexpr int64_t kThreads = 512, kElements = 32, kWarps = 4, kRowOfFewWarps = 1024;
constexpr int64_t kWideBytes = 4, kMostBlocks = 6, kMostWideBlocks = 4, kWideBlocksOfWarps = 3;
// The same of a scan in parts, which reads its operand twice, and pairs of parts that are worth one kernel.
constexpr int64_t kShortestScan = 16 << 10, kFewestScannedRows = 512, kMostPairs = 1 << 20;
constexpr int64_t kVector = 8;  // elements
// Columns that are read again: what a block keeps of them, as f32, and how many strips of a sector are enough for that.
constexpr int64_t kKeptStripBytes = 64 << 10, kStripBytes = 32, kEnoughStrips = 32;
// Columns below which their parts are not worth a widest access.
constexpr int64_t kFewestColumns = 128;

bool folds(const Reduce& reduce, size_t axis) {
  return std::binary_search(reduce.dims.begin(), reduce.dims.end(), static_cast<int64_t>(axis));
}

// The first stage keeps leading folded axes whole until their product nears `parts`, and folds the next one in parts.
std::pair<Reduce, Reduce> stages(const std::vector<int64_t>& shape, const Reduce& whole, int64_t parts) {
  size_t at = 0;
  while (at + 1 < whole.dims.size() && shape[whole.dims[at]] <= parts) parts /= shape[whole.dims[at++]];
  const auto from = whole.dims.begin() + static_cast<std::ptrdiff_t>(at);
  Reduce first{{from, whole.dims.end()}, std::clamp<int64_t>(parts, 1, shape[*from])};
  Reduce second{{whole.dims.begin(), from + 1}};
  if (first.parts == 1 && at > 0) {
    first.parts = 0;
    second.dims.pop_back();
  }
  return {std::move(first), std::move(second)};
}

class StageRewriter {
 public:
  StageRewriter(const Fusion& whole, const Target& target)
      : whole_(whole), target_(target), renamed_(whole.values.size(), -1) {
    find_parts();
    result_.name = whole.name;
    names_.insert(whole.name);
    for (const Value& value : whole.values) names_.insert(value.name);
    for (ValueId id : whole.inputs) {
      renamed_[id] = add(whole.values[id]);
      result_.inputs.push_back(renamed_[id]);
    }
    for (size_t i = 0; i < whole.ops.size(); ++i) renamed_[whole.ops[i].output] = rewrite(i);
    for (ValueId id : whole.outputs) result_.outputs.push_back(renamed_[id]);
  }
  Fusion finish() && {
    ir::verify(result_);
    return std::move(result_);
  }

 private:
  // What reductions fold: the operand's shape and dims.
  using Folded = std::pair<std::vector<int64_t>, std::vector<int64_t>>;

  // Of an element of the inputs of the shape.
  struct Bytes {
    int64_t narrowest = kWideBytes, widest = 1;
  };
  // Reductions of equal shape and axes get equal parts, so that one kernel can make them.
  void find_parts() {
    for (const Op& op : whole_.ops) {
      const Reduce* reduce = std::get_if<Reduce>(&op.attribute);
      if (reduce == nullptr) continue;
      const Folded folded{ir::shape(whole_.values[op.inputs[0]]), reduce->dims};
      parts_[folded] = 0;
    }
    for (auto& [folded, parts] : parts_) {
      const auto& [shape, dims] = folded;
      const bool beside_rows =
          std::any_of(parts_.begin(), parts_.end(), [&, of = &shape, folds = &dims](const auto& entry) {
            return entry.first.first == *of && longer(*of, entry.first.second) == longer(*of, others(*of, *folds));
          });
      const Bytes bytes = bytes_of(shape);
      parts = wanted_parts(shape, {dims}, beside_rows, bytes);
      const int64_t vector = kMaxVectorBytes / bytes.narrowest;
      // Blocks that run at once work on neighbouring rows: layer norm backward, bf16, takes 194 us instead of 206 for
      // 16384 rows of 8192, 54 instead of 57 for 8192 of 4096.
      if (parts > 0 && beside_rows && !side_by_side(shape, dims, parts, bytes)) in_turn_.insert(folded);
      const bool tasks =
          target_.platform == Platform::kCpu && beside_rows;  // of equally many rows, wherever those begin
      if (parts == 0 || tasks || !begin_apart(shape, dims, vector)) continue;
      in_turn_.insert(folded);
      parts =
          beside_rows ? parts / vector * vector : std::min(round_up(parts, vector), shape[dims[0]] / vector * vector);
    }
  }
  // Whether blocks have neighbouring rows.
  bool side_by_side(const std::vector<int64_t>& shape, const std::vector<int64_t>& dims, int64_t parts,
                    const Bytes& bytes) const {
    int64_t columns = 1;
    for (const int64_t axis : others(shape, dims)) columns *= shape[axis];
    const RowsOfWarps warps = rows_of_warps(shape[dims[0]], columns, bytes.narrowest);
    return has_clusters(target_) && dims.size() == 1 && warps.runs == parts && !warps.in_turn;
  }
  // Whether rows that are folded across begin anywhere in vectors; those a multiple of the vector apart begin alike.
  static bool begin_apart(const std::vector<int64_t>& shape, const std::vector<int64_t>& dims, int64_t vector) {
    int64_t columns = 1;
    for (size_t a = dims[0] + 1; a < shape.size(); ++a) columns *= shape[a];
    return dims.size() == 1 && columns % vector != 0 && columns >= kFewestColumns && shape[dims[0]] >= vector;
  }
  // Those of the axes that have more than one element.
  static std::vector<int64_t> longer(const std::vector<int64_t>& shape, std::vector<int64_t> axes) {
    std::erase_if(axes, [&](int64_t axis) { return shape[axis] <= 1; });
    return axes;
  }
  static std::vector<int64_t> dims_of(const Op& op) { return std::get<Reduce>(op.attribute).dims; }
  static std::vector<int64_t> others(const std::vector<int64_t>& shape, const std::vector<int64_t>& dims) {
    std::vector<int64_t> result;
    for (size_t a = 0; a < shape.size(); ++a) {
      if (!std::binary_search(dims.begin(), dims.end(), static_cast<int64_t>(a))) {
        result.push_back(static_cast<int64_t>(a));
      }
    }
    return result;
  }

  Bytes bytes_of(const std::vector<int64_t>& shape) const {
    Bytes bytes;
    for (ValueId id : whole_.inputs) {
      if (ir::shape(whole_.values[id]) != shape) continue;
      bytes.narrowest = std::min(bytes.narrowest, size_of(whole_.values[id].dtype));
      bytes.widest = std::max(bytes.widest, size_of(whole_.values[id].dtype));
    }
    return bytes;
  }
  // Whether all that there is is one fold of one array of the shape.
  bool only_sum_of(const std::vector<int64_t>& shape) const {
    return arrays_of(shape) == 1 && parts_.size() == 1 && whole_.outputs.size() == 1;
  }
  int64_t arrays_of(const std::vector<int64_t>& shape) const {
    return std::count_if(whole_.inputs.begin(), whole_.inputs.end(),
                         [&](ValueId id) { return ir::shape(whole_.values[id]) == shape; });
  }
  // As few parts as take no longer than `room` of them, which run at once.
  static int64_t even_parts(int64_t rows, int64_t room) {
    return divide_up(rows, std::max(kFewestRowsOfPart, divide_up(rows, room)));
  }
  int64_t parts_beside(int64_t row, int64_t rows, int64_t bytes, int64_t blocks_of_row) const {
    // Each has its columns' sums to store.
    if (blocks_of_row > 1) return clusters_at_once(blocks_of_row, kUsualMultiprocessors);
    const int64_t by_rows = rows / kFewRowsOfPart / kUsualMultiprocessors;
    const int64_t even = threads_of_even_row(row, bytes);
    if (even > 0 && has_clusters(target_)) {
      if (const RowsOfWarps warps = rows_of_warps(rows, row, bytes); warps.runs > 0) return warps.runs;
      return even_parts(rows,
                        std::min(blocks_of_even_rows(even), std::max(kFewBlocks, by_rows)) * kUsualMultiprocessors);
    }
    if (even > 0) {
      if (const int64_t blocks = std::min(blocks_of_even_rows(even), by_rows); blocks > 0) {
        return blocks * kUsualMultiprocessors;
      }
    }
    const bool wide = bytes >= kWideBytes;
    const int64_t warps = round_up(divide_up(row, kElements), kWarp) / kWarp;
    const int64_t threads = kWarp * (row <= kRowOfFewWarps ? kWarps : warps > 2 ? round_up(warps, kWarps) : warps);
    const int64_t stages = row % kLanes == 0 ? kStages : kStagesMoved;
    const int64_t by_memory = (kSharedBytes - kSpareBytes) / (2 * stages * bytes * row);
    const int64_t most = !wide ? kMostBlocks : row <= kRowOfFewWarps ? kWideBlocksOfWarps : kMostWideBlocks;
    const int64_t few = row % kLanes == 0 ? kFewRowsOfPart : kFewOddRowsOfPart;
    const int64_t blocks = std::min({most, by_memory, kThreads / threads, rows / few / kUsualMultiprocessors});
    if (blocks > 1) return blocks * kUsualMultiprocessors;
    return row > kLongRow ? kUsualMultiprocessors : std::clamp(rows / kRowsOfPart, kEnoughParts, kMostParts);
  }

  static int64_t in_rounds(int64_t rows, int64_t parts) {
    const int64_t of_part = divide_up(rows, parts);
    if (of_part % kFewestRows == 0) return parts;
    const bool half = 4 * of_part <= 3 * kRowsOfRound;
    return divide_up(rows, half ? kFewestRows : round_up(of_part, kRowsOfRound));
  }

  static int64_t parts_of_tasks(int64_t rows) {
    const int64_t tasks = std::clamp(rows / kRowsOfTask, kFewestTasks, kMostTasks);
    const int64_t fewest = round_up(divide_up(rows, tasks), kRowsSideBySide);
    int64_t of_task = fewest;
    while (of_task < 2 * fewest && rows % of_task != 0) of_task += kRowsSideBySide;
    return divide_up(rows, rows % of_task == 0 ? of_task : fewest);
  }

  // Whether what is folded is read again with the result, and one kernel can keep it for that.
  bool keeps_columns(const std::vector<int64_t>& shape, const Reduce& reduce, int64_t kept, int64_t folded,
                     int64_t columns, int64_t bytes) const {
    const int64_t strip = std::min(columns, kStripBytes / bytes), arrays = arrays_of(shape);
    const bool fits = arrays > 0 && folded * strip * size_of(DType::kF32) * arrays <= kKeptStripBytes;
    return fits && kept / strip >= kEnoughStrips && reads_again(shape, reduce);
  }
  bool reads_again(const std::vector<int64_t>& shape, const Reduce& reduce) const {
    std::vector<bool> follows(whole_.values.size(), false);
    for (const Op& op : whole_.ops) {
      const auto* own = std::get_if<Reduce>(&op.attribute);
      const bool first = own != nullptr && own->dims == reduce.dims && ir::shape(whole_.values[op.inputs[0]]) == shape;
      const bool later = std::any_of(op.inputs.begin(), op.inputs.end(), [&](ValueId id) { return follows[id]; });
      if (later && ir::shape(whole_.values[op.output]) == shape) return true;
      follows[op.output] = first || later;
    }
    return false;
  }

  // How many runs the first stage should have; 0 for one stage.
  int64_t wanted_parts(const std::vector<int64_t>& shape, const Reduce& reduce, bool beside_rows, Bytes bytes) const {
    int64_t kept = 1, folded = 1, columns = 1;
    size_t last = shape.size();
    while (last > 0 && shape[last - 1] == 1) --last;
    for (size_t a = 0; a < shape.size(); ++a) (folds(reduce, a) ? folded : kept) *= shape[a];
    for (size_t a = last; a-- > 0 && !folds(reduce, a);) columns *= shape[a];
    int64_t parts = 0;
    if (last > 0 && folds(reduce, last - 1)) {
      const bool few = kept < kEnoughRows || (target_.platform == Platform::kCuda && kept < kUsualMultiprocessors &&
                                              folded > kLongestKeptRow);
      if (few) parts = std::min(divide_up(kWanted, std::max<int64_t>(kept, 1)), folded / kShortestRow);
      const bool one_axis = last > 0 && shape[last - 1] == folded && folded % kVector == 0;
      if (one_axis && target_.platform == Platform::kCuda) parts = parts_of_vectors(folded, parts);
    } else {
      const int64_t pieces =
          std::max<int64_t>(1, divide_up(columns, kColumns) * (kept / std::max<int64_t>(columns, 1)));
      if (pieces < kEnoughColumns) parts = std::min(divide_up(kWanted, pieces), folded / kFewestRows);
      const bool tasks = target_.platform == Platform::kCpu;
      if (!tasks && !beside_rows && keeps_columns(shape, reduce, kept, folded, columns, bytes.narrowest)) return 0;
      if (columns == kept && !tasks && only_sum_of(shape)) {
        if (strips_beat_parts(folded, columns, bytes.widest, target_)) return 0;
        if (parts > 0) parts = in_rounds(folded, parts);
      }
      const int64_t blocks = beside_rows ? blocks_of_row(columns, bytes.widest, !tasks) : 0;
      if (blocks > 0 && folded >= kFewestRowsOfPart * kEnoughParts) {
        parts = tasks ? parts_of_tasks(folded) : parts_beside(columns, folded, bytes.narrowest, blocks);
      }
    }
    return parts < kFewestParts ? 0 : parts;
  }

  ValueId add(Value value) {
    result_.values.push_back(std::move(value));
    return static_cast<ValueId>(result_.values.size()) - 1;
  }
  ValueId add(OpKind kind, std::vector<ValueId> inputs, ir::Attribute attribute, const Value& stated,
              const std::string& label) {
    return ir::append(result_, kind, std::move(inputs), std::move(attribute), stated, label);
  }
  // A value that the whole fusion lacks.
  Value fresh(const Value& of, const char* what, DType dtype, std::vector<ir::Axis> axes = {}) {
    std::string name = cat(of.name, "_", what);
    while (!names_.insert(name).second) name += "_";
    return {name, dtype, std::move(axes)};
  }

  ValueId rewrite(size_t number) {
    const Op& op = whole_.ops[number];
    const Value& value = whole_.values[op.output];
    std::vector<ValueId> inputs;
    for (ValueId id : op.inputs) inputs.push_back(renamed_[id]);
    const Reduce* reduce = std::get_if<Reduce>(&op.attribute);
    const auto* scan = std::get_if<ir::Scan>(&op.attribute);
    if (scan != nullptr && value.axes[scan->axis].extent <= 1) {
      if (ir::is_recurrence(op.kind)) return filled(value, ir::zero_of(value.dtype), op.label);
      return add(OpKind::kCopy, {inputs[0]}, {}, value, op.label);
    }
    if (const int64_t parts = scan == nullptr ? 0 : wanted_parts(op, ir::shape(value)); parts > 0) {
      return inputs.size() > 1 ? recur_in_stages(op, inputs[0], inputs[1], parts)
                               : scan_in_stages(op, inputs[0], parts);
    }
    if (reduce == nullptr) return add(op.kind, std::move(inputs), op.attribute, value, op.label);

    const std::vector<int64_t> shape = ir::shape(whole_.values[op.inputs[0]]);
    int64_t folded = 1;
    for (int64_t dim : reduce->dims) folded *= shape[dim];
    if (folded == 0) return filled(value, ir::identity_of(op.kind, value.dtype), op.label);
    // Rows of nested values are in parts already, and none of their axes is known to have one element.
    if (ir::ragged_axis(whole_.values[op.inputs[0]]) >= 0) {
      return add(op.kind, std::move(inputs), op.attribute, value, op.label);
    }
    // Axes of extent 1 go first, so that the reductions of one space fold the same axes of it.
    ir::Dims single;
    Reduce rest{{}, reduce->parts, reduce->in_turn};
    for (size_t i = 0; i < reduce->dims.size(); ++i) {
      const int64_t dim = reduce->dims[i];
      if (shape[dim] > 1) {
        rest.dims.push_back(dim - static_cast<int64_t>(single.dims.size()));
      } else if (i > 0 || reduce->parts == 0) {
        single.dims.push_back(dim);
      } else {
        rest.parts = 0;
        rest.in_turn = false;
      }
    }
    if (rest.dims.empty() && single.dims.empty()) return add(OpKind::kCopy, std::move(inputs), {}, value, op.label);
    if (rest.dims.empty()) return add(OpKind::kSqueeze, std::move(inputs), single, value, op.label);
    ValueId operand = inputs[0];
    if (!single.dims.empty()) {
      operand = add(OpKind::kSqueeze, {operand}, single, fresh(value, "squeezed", value.dtype), "");
    }
    const int64_t parts = rest.parts > 0 ? 0 : parts_[{shape, reduce->dims}];
    if (parts == 0) return add(op.kind, {operand}, rest, value, op.label);
    return two_stages(op, operand, rest, parts);
  }

  ValueId filled(const Value& value, const Constant& number, const std::string& label) {
    const bool scalar = value.axes.empty();
    const ValueId constant =
        add(OpKind::kConstant, {}, number, scalar ? value : fresh(value, "nothing", value.dtype), label);
    return scalar ? constant : add(OpKind::kBroadcast, {constant}, ir::Dims{}, value, "");
  }

  // Sums and products of low precision stay in compute_dtype between the stages.
  ValueId two_stages(const Op& op, ValueId operand, const Reduce& whole, int64_t parts) {
    const Value& value = whole_.values[op.output];
    const bool rounds = op.kind == OpKind::kReduceSum || op.kind == OpKind::kReduceProd;
    const DType dtype = rounds ? compute_dtype(value.dtype) : value.dtype;
    if (dtype != value.dtype) {
      operand = add(OpKind::kConvert, {operand}, {}, fresh(value, "wide", dtype), op.label);
    }
    const std::vector<int64_t> shape = ir::shape(result_.values[operand]);
    auto [first, second] = stages(shape, whole, parts);
    const std::vector<int64_t> given = ir::shape(whole_.values[op.inputs[0]]);
    first.in_turn = target_.platform == Platform::kCuda && first.parts > 0 && in_turn_.count({given, dims_of(op)}) > 0;
    const ValueId partial = add(op.kind, {operand}, first, fresh(value, "parts", dtype), op.label);
    if (dtype == value.dtype) return add(op.kind, {partial}, second, value, op.label);
    const ValueId all = add(op.kind, {partial}, second, fresh(value, "all", dtype), op.label);
    return add(OpKind::kConvert, {all}, {}, value, op.label);
  }

  // How many runs of a scan go by themselves; 0 for a scan as a whole. Reading the operand twice must pay.
  static int64_t wanted_parts(const Op& op, const std::vector<int64_t>& shape) {
    const ir::Scan& scan = std::get<ir::Scan>(op.attribute);
    if (scan.parts > 0 || op.kind == OpKind::kScanLogSumExp) return 0;
    int64_t columns = 1, others = 1;
    for (size_t a = 0; a < shape.size(); ++a) {
      if (static_cast<int64_t>(a) == scan.axis) continue;
      others *= shape[a];
      if (static_cast<int64_t>(a) > scan.axis) columns *= shape[a];
    }
    const int64_t extent = shape[scan.axis];
    if (others == 0) return 0;
    const int64_t pieces = columns == 1 ? others : divide_up(columns, kColumns) * (others / columns);
    if (pieces >= kEnoughRows) return 0;
    int64_t parts = std::min(divide_up(kWanted, pieces), extent / (columns == 1 ? kShortestScan : kFewestScannedRows));
    while (parts * parts * others > kMostPairs) parts /= 2;
    if (parts < kFewestParts) return 0;
    return parts_of_vectors(extent, parts);
  }
  // So many runs or more that vectors divide.
  static int64_t parts_of_vectors(int64_t extent, int64_t parts) {
    for (int64_t p = parts; p < 2 * parts; ++p) {
      const int64_t run = divide_up(extent, p);
      if (run % kVector == 0 && (p - 1) * run < extent) return p;
    }
    return parts;
  }

  // The fold of each run; what stands before each run, of all pairs of runs; the scan of each run, begun with that.
  ValueId scan_in_stages(const Op& op, ValueId operand, int64_t parts) {
    const Value& value = whole_.values[op.output];
    const ir::Scan whole = std::get<ir::Scan>(op.attribute);
    const OpKind fold = reduction_of(op.kind), join = ir::fold_of(op.kind);
    const bool rounds = op.kind == OpKind::kScanSum || op.kind == OpKind::kScanProd;
    const DType dtype = rounds ? compute_dtype(value.dtype) : value.dtype;
    auto stated = [&](const char* what, std::vector<ir::Axis> axes = {}) {
      return fresh(value, what, dtype, std::move(axes));
    };
    if (dtype != value.dtype) operand = add(OpKind::kConvert, {operand}, {}, stated("wide"), op.label);
    const ValueId runs = add(fold, {operand}, Reduce{{whole.axis}, parts}, stated("runs"), op.label);

    std::vector<ir::Axis> pairs;
    ir::Dims dims;
    for (const ir::Axis& axis : result_.values[runs].axes) {
      const auto at = static_cast<int64_t>(dims.dims.size());
      if (at == whole.axis) pairs.push_back({parts});
      dims.dims.push_back(at < whole.axis ? at : at + 1);
      pairs.push_back({axis.extent});
    }
    const Value index = fresh(value, "run", DType::kS32, pairs), other = fresh(value, "other_run", DType::kS32, pairs);
    const ValueId own = add(OpKind::kIota, {}, ir::Dims{{whole.axis}}, index, "");
    const ValueId before = add(OpKind::kIota, {}, ir::Dims{{whole.axis + 1}}, other, "");
    const OpKind compare = whole.reverse ? OpKind::kGt : OpKind::kLt;
    const ValueId counts = add(compare, {before, own}, {}, fresh(value, "is_before", DType::kPred), "");
    const ValueId all = add(OpKind::kBroadcast, {runs}, dims, stated("pairs", pairs), "");
    const ValueId nothing = add(OpKind::kConstant, {}, ir::identity_of(fold, dtype), stated("nothing"), "");
    const ValueId none = add(OpKind::kBroadcast, {nothing}, ir::Dims{}, stated("none", pairs), "");
    const ValueId chosen = add(OpKind::kSelect, {counts, all, none}, {}, stated("chosen"), "");
    const ValueId starts = add(fold, {chosen}, Reduce{{whole.axis + 1}}, stated("starts"), op.label);

    ir::Scan own_runs = whole;
    own_runs.parts = parts;
    const ValueId scanned = add(op.kind, {operand}, own_runs, stated("scanned"), op.label);
    const ValueId first = add(OpKind::kSpread, {starts}, ir::Dims{{whole.axis}}, stated("start", value.axes), "");
    if (dtype == value.dtype) return add(join, {first, scanned}, {}, value, op.label);
    const ValueId joined = add(join, {first, scanned}, {}, stated("joined"), op.label);
    return add(OpKind::kConvert, {joined}, {}, value, op.label);
  }
  // What each run of a linear recurrence makes of what stands before it; what stands before each run; the runs, begun
  // with that.
  ValueId recur_in_stages(const Op& op, ValueId operand, ValueId factors, int64_t parts) {
    const Value& value = whole_.values[op.output];
    ir::Scan runs = std::get<ir::Scan>(op.attribute);
    const int64_t axis = runs.axis, extent = value.axes[axis].extent, run = divide_up(extent, parts);
    const DType dtype = compute_dtype(value.dtype);
    auto stated = [&](const char* what, std::vector<ir::Axis> axes = {}) {
      return fresh(value, what, dtype, std::move(axes));
    };
    auto by_element = [&](OpKind kind, std::vector<ValueId> inputs, const char* what) {
      return add(kind, std::move(inputs), {}, stated(what), op.label);
    };
    auto folded = [&](OpKind kind, ValueId of, const char* what) {
      return add(kind, {of}, Reduce{{axis}, parts}, stated(what), op.label);
    };
    if (dtype != value.dtype) {
      operand = by_element(OpKind::kConvert, {operand}, "wide");
      factors = by_element(OpKind::kConvert, {factors}, "wide_factors");
    }
    const std::vector<int64_t> shape = ir::shape(value);
    const ValueId place =
        add(OpKind::kIota, {}, ir::Dims{{axis}}, fresh(value, "place", DType::kS32, counted(shape)), "");
    auto everywhere = [&](int64_t number) {
      return filled(fresh(value, "number", DType::kS32, counted(shape)), {number}, "");
    };
    auto is = [&](ValueId index, int64_t number, const char* what) {
      return add(OpKind::kEq, {index, everywhere(number)}, {}, fresh(value, what, DType::kPred), "");
    };
    const ValueId of_run =
        add(OpKind::kRem, {place, everywhere(run)}, {}, fresh(value, "place_in_run", DType::kS32), "");
    const ValueId low = is(of_run, 0, "is_low");
    const ValueId high = add(OpKind::kOr, {is(of_run, run - 1, "is_high"), is(place, extent - 1, "is_highest")}, {},
                             fresh(value, "is_end", DType::kPred), "");
    const ValueId first = runs.reverse ? high : low, last = runs.reverse ? low : high;

    ir::Scan own_runs = runs;
    own_runs.parts = parts;
    const ValueId zero = zeros_like(result_.values[operand]);
    const ValueId apart = add(op.kind, {operand, factors}, own_runs, stated("apart"), op.label);
    const ValueId forgetting = forgets(op, factors);
    auto after = [&](ValueId before, const char* what) {
      const ValueId grown = by_element(OpKind::kMul, {factors, before}, "grown");
      const ValueId sum = by_element(OpKind::kAdd, {grown, operand}, forgetting < 0 ? what : "sum");
      return forgetting < 0 ? sum : by_element(OpKind::kSelect, {forgetting, operand, sum}, what);
    };
    const ValueId behind = after(apart, "behind");
    const ValueId made = folded(OpKind::kReduceSum, by_element(OpKind::kSelect, {last, behind, zero}, "ends"), "made");
    const ValueId times = factors_of_runs(op, runs, factors, forgetting, made, parts);
    const ValueId starts = add(op.kind, {made, times}, runs, stated("starts"), op.label);

    const ValueId start = add(OpKind::kSpread, {starts}, ir::Dims{{axis}}, stated("start", value.axes), "");
    const ValueId begun = after(start, "begun");
    const ValueId values = by_element(OpKind::kSelect, {first, begun, operand}, "begun_runs");
    const ValueId scanned = add(op.kind, {values, factors}, own_runs, stated("scanned"), op.label);
    if (dtype == value.dtype) return add(OpKind::kSelect, {first, start, scanned}, {}, value, op.label);
    const ValueId joined = by_element(OpKind::kSelect, {first, start, scanned}, "joined");
    return add(OpKind::kConvert, {joined}, {}, value, op.label);
  }
  ValueId zeros_like(const Value& like) {
    return filled(fresh(like, "zeros", like.dtype, counted(ir::shape(like))), ir::zero_of(like.dtype), "");
  }
  ValueId is_something(ValueId id, const std::string& label) {
    const Value like = result_.values[id];
    return add(OpKind::kNe, {id, zeros_like(like)}, {}, fresh(like, "is_something", DType::kPred), label);
  }
  // Whether a step forgets what stands before; none where no step does.
  ValueId forgets(const Op& op, ValueId factors) {
    if (op.kind != OpKind::kScanResets) return -1;
    const Value of = result_.values[factors];
    return add(OpKind::kNe, {factors, factors}, {}, fresh(of, "forgets", DType::kPred), op.label);
  }
  // What each run multiplies by: the product of its factors, NaN where it forgets. 0 where another factor is, or where
  // there is nothing before, however large the others are.
  ValueId factors_of_runs(const Op& op, const ir::Scan& runs, ValueId factors, ValueId forgetting, ValueId made,
                          int64_t parts) {
    const Reduce fold{{runs.axis}, parts};
    auto folded = [&](OpKind kind, ValueId of, const char* what) {
      return add(kind, {of}, fold, fresh(result_.values[of], what, result_.values[of].dtype), op.label);
    };
    const ValueId product = folded(OpKind::kReduceProd, factors, "product");
    const ValueId keeps = folded(OpKind::kReduceAnd, is_something(factors, op.label), "keeps");
    const Value like = result_.values[product];
    auto number = [&](ValueId id) {
      return add(OpKind::kConvert, {id}, {}, fresh(like, "number", like.dtype), op.label);
    };
    auto both = [&](ValueId a, ValueId b) {
      return add(OpKind::kAnd, {a, b}, {}, fresh(like, "counts", DType::kPred), op.label);
    };
    const ValueId count = add(OpKind::kScanLinear, {number(is_something(made, op.label)), number(keeps)}, runs,
                              fresh(like, "made_before", like.dtype), op.label);
    const ValueId counts = both(both(keeps, is_something(count, op.label)), is_something(product, op.label));
    const ValueId times =
        add(OpKind::kSelect, {counts, product, zeros_like(like)}, {}, fresh(like, "times", like.dtype), op.label);
    if (forgetting < 0) return times;
    const ValueId any = folded(OpKind::kReduceOr, forgetting, "forgets_any");
    const ir::Constant nan{std::numeric_limits<double>::quiet_NaN()};
    const ValueId nans = filled(fresh(like, "nan", like.dtype, counted(ir::shape(like))), nan, "");
    return add(OpKind::kSelect, {any, nans, times}, {}, fresh(like, "factor", like.dtype), op.label);
  }
  static std::vector<ir::Axis> counted(const std::vector<int64_t>& shape) {
    std::vector<ir::Axis> axes;
    for (const int64_t extent : shape) axes.push_back({extent});
    return axes;
  }
  static OpKind reduction_of(OpKind scan) {
    switch (scan) {
      case OpKind::kScanSum: return OpKind::kReduceSum;
      case OpKind::kScanProd: return OpKind::kReduceProd;
      case OpKind::kScanMax: return OpKind::kReduceMax;
      case OpKind::kScanMin: return OpKind::kReduceMin;
      default: JF_CHECK(false, "no reduction for ", ir::info(scan).name);
    }
  }

  const Fusion& whole_;
  const Target& target_;
  Fusion result_;
  std::vector<ValueId> renamed_;
  std::set<std::string> names_;
  std::map<Folded, int64_t> parts_;
  std::set<Folded> in_turn_;  // whose parts have rows that begin alike
};

}  // namespace

bool has_parts(const Fusion& fusion) {
  return std::any_of(fusion.ops.begin(), fusion.ops.end(), [](const Op& op) {
    const auto* reduce = std::get_if<ir::Reduce>(&op.attribute);
    return reduce != nullptr && reduce->parts > 0;
  });
}

Fusion in_two_stages(const Fusion& fusion, const Target& target) {
  const bool any = std::any_of(fusion.ops.begin(), fusion.ops.end(), [](const Op& op) {
    return std::holds_alternative<Reduce>(op.attribute) || std::holds_alternative<ir::Scan>(op.attribute);
  });
  return any ? StageRewriter(fusion, target).finish() : fusion;
}

}  // namespace jf::plan
