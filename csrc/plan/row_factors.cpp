#include "plan/row_factors.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "ir/unused.h"
#include "ir/verify.h"

namespace jf::plan {
namespace {

using ir::Fusion;
using ir::Op;
using ir::OpKind;
using ir::Reduce;
using ir::Value;
using ir::ValueId;

// Each of them is one more fold, of which every one costs registers.
constexpr size_t kMostTerms = 4;
constexpr int kMostDepth = 8;  // of the ops that are looked through

// factors[0] * factors[1] * .. * base, or less that.
struct Term {
  ValueId base;
  std::vector<ValueId> factors = {};  // broadcasts along what is folded
  bool negative = false;
};
using Terms = std::vector<Term>;

class Rewriter {
 public:
  explicit Rewriter(const Fusion& fusion)
      : result_(fusion), defined_by_(fusion.values.size(), -1), level_(fusion.values.size(), 0) {
    for (const Value& value : fusion.values) names_.insert(value.name);
    names_.insert(fusion.name);
    const std::vector<Op> ops = std::exchange(result_.ops, {});
    for (const Op& op : ops) {
      if (!rewrite(op)) push(op);
    }
  }
  // Nothing where all sums are best as they are.
  std::optional<Fusion> finish() && {
    if (!changed_) return std::nullopt;
    Fusion fusion = ir::without_unused(std::move(result_));
    ir::verify(fusion);
    return fusion;
  }

 private:
  void push(const Op& op) {
    int level = 0;
    for (ValueId id : op.inputs) level = std::max(level, level_[id]);
    const bool folds = std::holds_alternative<Reduce>(op.attribute) || std::holds_alternative<ir::Scan>(op.attribute);
    level_[op.output] = level + folds;
    defined_by_[op.output] = static_cast<int64_t>(result_.ops.size());
    result_.ops.push_back(op);
  }

  bool rewrite(const Op& op) {
    const Reduce* reduce = std::get_if<Reduce>(&op.attribute);
    if (op.kind != OpKind::kReduceSum || reduce->parts > 0) return false;
    const ValueId whole = op.inputs[0];
    const DType dtype = result_.values[whole].dtype;
    if ((dtype != DType::kF32 && dtype != DType::kF64) || ir::ragged_axis(result_.values[whole]) >= 0) return false;
    const Terms terms = terms_of(whole, *reduce);
    const bool earlier = std::all_of(terms.begin(), terms.end(), [&](const Term& term) {
      return !term.factors.empty() && level_[term.base] < level_[whole];
    });
    if (!earlier) return false;

    std::map<ValueId, ValueId> sums;  // by base
    ValueId sum = -1;
    for (const Term& term : terms) {
      auto [known, is_new] = sums.emplace(term.base, -1);
      if (is_new) known->second = add(OpKind::kReduceSum, {term.base}, *reduce, op.output, op.label);
      ValueId product = known->second;
      for (ValueId factor : term.factors) {
        product = add(OpKind::kMul, {product, of_results(factor, *reduce, op.output)}, {}, op.output, op.label);
      }
      if (term.negative) product = add(OpKind::kNeg, {product}, {}, op.output, op.label);
      sum = sum < 0 ? product : add(OpKind::kAdd, {sum, product}, {}, op.output, op.label);
    }
    // What was added is dropped again where no op reads it.
    if (result_.values[sum].axes != result_.values[op.output].axes) return false;
    // The last op makes the result itself.
    Op last = std::move(result_.ops.back());
    result_.ops.pop_back();
    last.output = op.output;
    push(last);
    changed_ = true;
    return true;
  }

  const Op* definition(ValueId id) const { return defined_by_[id] < 0 ? nullptr : &result_.ops[defined_by_[id]]; }

  Terms terms_of(ValueId value, const Reduce& reduce, int depth = 0) const {
    const Op* op = definition(value);
    const Terms whole = {{value}};
    if (op == nullptr || depth == kMostDepth) return whole;
    switch (op->kind) {
      case OpKind::kNeg: {
        Terms terms = terms_of(op->inputs[0], reduce, depth + 1);
        for (Term& term : terms) term.negative = !term.negative;
        return terms;
      }
      case OpKind::kMul:
        for (const size_t i : {size_t{0}, size_t{1}}) {
          if (!is_factor(op->inputs[i], reduce)) continue;
          Terms terms = terms_of(op->inputs[1 - i], reduce, depth + 1);
          for (Term& term : terms) term.factors.push_back(op->inputs[i]);
          return terms;
        }
        return whole;
      case OpKind::kAdd:
      case OpKind::kSub: {
        Terms terms = terms_of(op->inputs[0], reduce, depth + 1), others = terms_of(op->inputs[1], reduce, depth + 1);
        for (Term& term : others) {
          term.negative = term.negative != (op->kind == OpKind::kSub);
          terms.push_back(std::move(term));
        }
        // Products are rounded already, so that their sums lose no more than the sum of them does.
        const bool products =
            std::all_of(terms.begin(), terms.end(), [](const Term& term) { return !term.factors.empty(); });
        return products && terms.size() <= kMostTerms ? terms : whole;
      }
      default: return whole;
    }
  }

  static bool folds(const Reduce& reduce, int64_t axis) {
    return std::binary_search(reduce.dims.begin(), reduce.dims.end(), axis);
  }

  // Whether the value is the same along what is folded, and has an element for everything else.
  bool is_factor(ValueId value, const Reduce& reduce) const {
    const Op* op = definition(value);
    if (op == nullptr || op->kind != OpKind::kBroadcast || ir::ragged_axis(result_.values[value]) >= 0) return false;
    const std::vector<int64_t>& dims = std::get<ir::Dims>(op->attribute).dims;
    const Value& of = result_.values[op->inputs[0]];
    size_t kept = 0;
    for (size_t a = 0; a < dims.size(); ++a) {
      const int64_t extent = result_.values[value].axes[dims[a]].extent;
      if (folds(reduce, dims[a]) ? of.axes[a].extent != 1 || extent == 1 : of.axes[a].extent != extent) return false;
      kept += !folds(reduce, dims[a]);
    }
    return kept + reduce.dims.size() == result_.values[value].axes.size();
  }

  // A factor with the axes of the results.
  ValueId of_results(ValueId factor, const Reduce& reduce, ValueId like) {
    const Op& op = *definition(factor);
    const std::vector<int64_t>& dims = std::get<ir::Dims>(op.attribute).dims;
    const ValueId of = op.inputs[0];
    ir::Dims single;
    for (size_t a = 0; a < dims.size(); ++a) {
      if (folds(reduce, dims[a])) single.dims.push_back(static_cast<int64_t>(a));
    }
    return single.dims.empty() ? of : add(OpKind::kSqueeze, {of}, single, like, "");
  }

  ValueId add(OpKind kind, std::vector<ValueId> inputs, ir::Attribute attribute, ValueId like,
              const std::string& label) {
    Value stated = result_.values[like];
    Value value = ir::infer(result_, kind, inputs, attribute, stated);
    value.name = cat(stated.name, "_term");
    while (!names_.insert(value.name).second) value.name += "_";
    const auto id = static_cast<ValueId>(result_.values.size());
    result_.values.push_back(std::move(value));
    defined_by_.push_back(-1);
    level_.push_back(0);
    push({kind, std::move(inputs), id, std::move(attribute), label});
    return id;
  }

  Fusion result_;
  std::vector<int64_t> defined_by_;  // by value: its op, -1 for inputs
  std::vector<int> level_;           // by value: folds one after the other that it waits for
  std::set<std::string> names_;
  bool changed_ = false;
};

}  // namespace

Fusion without_row_factors(const Fusion& fusion) {
  const bool sums = std::count_if(fusion.ops.begin(), fusion.ops.end(),
                                  [](const Op& op) { return op.kind == OpKind::kReduceSum; }) > 1;
  std::optional<Fusion> changed = sums ? Rewriter(fusion).finish() : std::nullopt;
  return changed ? *std::move(changed) : fusion;
}

}  // namespace jf::plan
