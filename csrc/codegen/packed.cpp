#include "codegen/packed.h"

#include <map>
#include <utility>

namespace jf::codegen {
namespace {

using namespace loops;

struct Finder {
  const Kernel& kernel;
  std::set<RegisterId> loaded = {};       // from a buffer of bf16
  std::set<int> filled = {}, other = {};  // arrays that such registers are put in; those that stay as they are
  std::map<RegisterId, int> array_of = {};

  // What an op makes of two arrays in each of several places, the compiler makes once and keeps instead of both.
  void operator()(const Compute& compute) {
    std::set<int> read;
    for (RegisterId operand : compute.operands) {
      if (const auto own = array_of.find(operand); own != array_of.end()) read.insert(own->second);
    }
    if (read.size() > 1) other.merge(read);
    if (compute.op == ir::OpKind::kConvert && read.size() == 1) array_of[compute.result] = *read.begin();
  }
  void operator()(const Get& get) { array_of[get.result] = get.array; }

  void operator()(const Load& load) {
    if (kernel.buffers.at(load.buffer).dtype == DType::kBF16) loaded.insert(load.result);
  }
  void operator()(const Set& set) {
    (loaded.count(set.value) > 0 && !set.existing ? filled : other).insert(set.array);
    array_of[set.value] = set.array;
  }
  void operator()(const Declare& declare) {
    if (declare.fill) other.insert(declare.array);
  }
  void operator()(const Accumulate& accumulate) { other.insert(accumulate.array); }
  void operator()(const Combine& combine) { other.insert(combine.arrays.begin(), combine.arrays.end()); }
  void operator()(const Scan& scan) { other.insert(scan.carry); }
  void operator()(const ScanThreads& scan) { other.insert({scan.array, scan.carry, scan.factors}); }
  void operator()(const TurnedLoad& load) { other.insert(load.array); }
  void operator()(const For& loop) { body(loop.body); }
  void operator()(const Vector& vector) { body(vector.body); }
  void operator()(const Guard& guard) { body(guard.body); }
  void operator()(const If& statement) { body(statement.body); }
  template <class Statement>
  void operator()(const Statement&) {}

  void body(const Body& statements) {
    for (const Stmt& stmt : statements) std::visit(*this, stmt.node);
  }
};

struct FoldFinder {
  const Kernel& kernel;
  const std::set<int>& packed;
  std::map<RegisterId, RegisterId> loaded = {};  // as it is, as f32, or its magnitude
  std::set<RegisterId> magnitudes = {};
  std::set<int> open = {}, joined = {}, other = {};

  void operator()(const Load& load) {
    if (kernel.buffers.at(load.buffer).dtype == DType::kBF16) loaded[load.result] = load.result;
  }
  void operator()(const Compute& compute) {
    const bool widens = compute.op == ir::OpKind::kConvert && kernel.registers.at(compute.result) == DType::kF32;
    const bool is_abs = compute.op == ir::OpKind::kAbs;
    if (!widens && !is_abs) return;
    const auto from = loaded.find(compute.operands[0]);
    if (from == loaded.end()) return;
    loaded[compute.result] = from->second;
    if (is_abs || magnitudes.count(compute.operands[0]) > 0) magnitudes.insert(compute.result);
  }
  void operator()(const Declare& declare) {
    const Array& own = kernel.arrays.at(declare.array);
    const bool finds = declare.fill == ir::OpKind::kMax || declare.fill == ir::OpKind::kMin;
    if (finds && own.size == 1 && compute_dtype(own.dtype) == DType::kF32) open.insert(declare.array);
  }
  void operator()(const Accumulate& accumulate) {
    if (open.count(accumulate.array) == 0 || loaded.count(accumulate.value) == 0) other.insert(accumulate.array);
  }
  void operator()(const Combine& combine) {
    for (int array : combine.arrays) {
      if (open.erase(array) > 0) joined.insert(array);
    }
  }
  void operator()(const Get& get) {
    use(get.array);
    if (packed.count(get.array) > 0) loaded[get.result] = get.result;
  }
  void operator()(const Set& set) { use(set.array); }
  void operator()(const Scan& scan) { use(scan.carry); }
  void operator()(const ScanThreads& scan) { use(scan.array), use(scan.carry), use(scan.factors); }
  void operator()(const TurnedLoad& load) { use(load.array); }
  void operator()(const For& loop) { body(loop.body); }
  void operator()(const Vector& vector) { body(vector.body); }
  void operator()(const Guard& guard) { body(guard.body); }
  void operator()(const If& statement) { body(statement.body); }
  template <class Statement>
  void operator()(const Statement&) {}

  void use(int array) {
    if (joined.count(array) == 0) other.insert(array);
  }
  void body(const Body& statements) {
    for (const Stmt& stmt : statements) std::visit(*this, stmt.node);
  }
};

}  // namespace

PairedFolds paired_folds(const Kernel& kernel, const std::set<int>& packed) {
  if (kernel.width < 2) return {};
  FoldFinder finder{.kernel = kernel, .packed = packed};
  finder.body(kernel.body);
  for (int array : finder.other) finder.joined.erase(array);
  return {std::move(finder.joined), std::move(finder.loaded), std::move(finder.magnitudes)};
}

std::set<int> packed_arrays(const Kernel& kernel) {
  if (kernel.width < 2) return {};
  Finder finder{.kernel = kernel};
  finder.body(kernel.body);
  std::set<int> packed;
  for (int array : finder.filled) {
    const Array& own = kernel.arrays.at(array);
    if (own.dtype == DType::kBF16 && own.size > 1 && finder.other.count(array) == 0) packed.insert(array);
  }
  return packed;
}

}  // namespace jf::codegen
