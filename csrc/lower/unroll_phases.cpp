#include "lower/unroll_phases.h"

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "loops/bodies.h"
#include "lower/guards.h"
#include "lower/interleave.h"

namespace jf::lower {
namespace {

using loops::Body;
using loops::For;
using loops::IndexPtr;
using loops::Kernel;
using loops::Load;
using loops::RegisterId;
using loops::Stmt;
using loops::Store;
using loops::Vector;

// Statements of a vector beyond which its code would be long.
constexpr size_t kMostStatements = 192;

// Statements whose every index and operand is seen here.
struct CanUnroll {
  bool operator()(const Load& load) const {
    return load.steps.empty() && load.or_first.empty() && !load.rows && !load.cycle;
  }
  bool operator()(const Store& store) const { return !store.rows; }
  bool operator()(const loops::Compute&) const { return true; }
  bool operator()(const loops::FromIndex&) const { return true; }
  template <class Other>
  bool operator()(const Other&) const {
    return false;
  }
};

// One iteration of the loop: what differs from the others has registers of its own.
class Iteration {
 public:
  Iteration(Kernel& kernel, int variable, int64_t number)
      : kernel_(kernel), variable_(variable), number_(loops::constant(number)) {}

  // Whether the statement differs from that of other iterations.
  bool operator()(Load& load) {
    bool differs = set(load.offset);
    for (loops::Below& below : load.when) differs = set(below.index) || differs;
    for (loops::Range& range : load.within) differs = set(range.index) || differs;
    return differs && define(load.result);
  }
  bool operator()(loops::FromIndex& from) { return set(from.base) && define(from.result); }
  bool operator()(loops::Compute& compute) {
    bool differs = false;
    for (RegisterId& id : compute.operands) differs = use(id) || differs;
    return differs && define(compute.result);
  }
  bool operator()(Store& store) {
    set(store.offset);
    use(store.value);
    return true;
  }
  template <class Other>
  bool operator()(Other&) {
    return true;
  }

 private:
  bool set(IndexPtr& index) const {
    if (!depends(index, variable_)) return false;
    index = replace(index, variable_, number_);
    return true;
  }
  bool use(RegisterId& id) const {
    const auto own = own_.find(id);
    if (own == own_.end()) return false;
    id = own->second;
    return true;
  }
  bool define(RegisterId& id) {
    const RegisterId own = static_cast<RegisterId>(kernel_.registers.size());
    const DType dtype = kernel_.registers[id];
    kernel_.registers.push_back(dtype);
    own_[id] = own;
    id = own;
    return true;
  }

  Kernel& kernel_;
  int variable_;
  IndexPtr number_;
  std::map<RegisterId, RegisterId> own_;
};

// The vector that the loop consists of, if its iterations store what is side by side.
Vector* vector_of_phases(For& loop) {
  if (loop.parallel != loops::Parallel::kSerial || loop.reverse || !loop.runs.empty()) return nullptr;
  if (!can_interleave(loop.extent) || loop.body.size() != 1) return nullptr;
  auto* vector = std::get_if<Vector>(&loop.body.front().node);
  if (vector == nullptr || depends(vector->base, loop.variable) || vector->before) return nullptr;
  const auto limits = [&](const loops::Below& below) { return depends(below, loop.variable); };
  if (std::any_of(vector->limits.begin(), vector->limits.end(), limits)) return nullptr;
  bool stores = false;
  for (const Stmt& stmt : vector->body) {
    if (!std::visit(CanUnroll{}, stmt.node)) return nullptr;
    const auto* store = std::get_if<Store>(&stmt.node);
    if (store == nullptr) continue;
    if (store->lane_stride != loop.extent || step_of(store->offset, loop.variable) != 1) return nullptr;
    stores = true;
  }
  return stores ? vector : nullptr;
}

void unroll(Kernel& kernel, Body& body) {
  for (Stmt& stmt : body) {
    loops::visit_body(stmt, [&](Body& inner) { unroll(kernel, inner); });
    auto* loop = std::get_if<For>(&stmt.node);
    Vector* vector = loop == nullptr ? nullptr : vector_of_phases(*loop);
    if (vector == nullptr || vector->body.size() * loop->extent > kMostStatements) continue;
    Body all;
    for (int64_t number = 0; number < loop->extent; ++number) {
      Iteration iteration(kernel, loop->variable, number);
      for (Stmt own : vector->body) {
        const bool differs = std::visit(iteration, own.node);
        if (differs || number == 0) all.push_back(std::move(own));
      }
    }
    vector->body = std::move(all);
    Stmt unrolled = std::move(loop->body.front());
    stmt = std::move(unrolled);
  }
}

}  // namespace

void unroll_phases(Kernel& kernel) { unroll(kernel, kernel.body); }

}  // namespace jf::lower
