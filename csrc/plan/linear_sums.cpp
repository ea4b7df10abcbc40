#include "plan/linear_sums.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "ir/append.h"
#include "ir/unused.h"
#include "ir/verify.h"
#include "plan/ragged_parts.h"

namespace jf::plan {
namespace {

using ir::Fusion;
using ir::Op;
using ir::OpKind;
using ir::Reduce;
using ir::Value;
using ir::ValueId;

// Each further sum costs an addition for every element.
constexpr size_t kMostTerms = 4, kMostSums = 3;
// How far values are seen through.
constexpr size_t kMostFactors = 4;
constexpr int kMostDepth = 16;

// What is done to a sum: mul or div by a value that is the same for all that is folded, or neg.
struct Step {
  OpKind kind;
  ValueId factor = -1;
};
// A product of values, and what is done to it.
struct Term {
  std::vector<ValueId> product;
  std::vector<Step> steps;
};

class SumRewriter {
 public:
  explicit SumRewriter(const Fusion& whole)
      : fusion_(whole),
        defined_by_(whole.values.size(), nullptr),
        folds_(whole.values.size(), 0),
        extreme_(whole.values.size(), false) {
    for (const Value& value : whole.values) names_.insert(value.name);
    fusion_.ops.clear();
    for (const Op& op : whole.ops) {
      defined_by_[op.output] = &op;
      extreme_[op.output] = is_extreme(op);
      const size_t first = fusion_.ops.size();
      if (sum_of(op) == nullptr || !take_apart(op)) {
        fusion_.ops.erase(fusion_.ops.begin() + static_cast<std::ptrdiff_t>(first), fusion_.ops.end());
        fusion_.ops.push_back(op);
      }
      folds_.resize(fusion_.values.size(), 0);
      for (size_t i = first; i < fusion_.ops.size(); ++i) folds_[fusion_.ops[i].output] = folds_of(fusion_.ops[i]);
    }
  }
  Fusion finish() && {
    Fusion result = ir::without_unused(std::move(fusion_));
    ir::verify(result);
    return result;
  }

 private:
  // A sum of floats that are added as they are.
  const Reduce* sum_of(const Op& op) const {
    const Reduce* reduce = std::get_if<Reduce>(&op.attribute);
    const DType dtype = fusion_.values[op.output].dtype;
    const bool sum = reduce != nullptr && op.kind == OpKind::kReduceSum && reduce->parts == 0;
    return sum && is_float(dtype) && compute_dtype(dtype) == dtype ? reduce : nullptr;
  }
  // Folds that come one after the other before the value is known.
  int folds_of(const Op& op) const {
    int most = 0;
    for (ValueId id : op.inputs) most = std::max(most, folds_[id]);
    return most + std::holds_alternative<Reduce>(op.attribute);
  }

  bool is_folded(size_t axis) const {
    return std::binary_search(dims_.begin(), dims_.end(), static_cast<int64_t>(axis));
  }
  // Whether a largest or smallest number is part of the value other than through another fold. What is scaled by that
  // is so lest it overflow.
  bool is_extreme(const Op& op) const {
    if (std::holds_alternative<Reduce>(op.attribute)) {
      return op.kind == OpKind::kReduceMax || op.kind == OpKind::kReduceMin;
    }
    return std::any_of(op.inputs.begin(), op.inputs.end(), [&](ValueId id) { return extreme_[id]; });
  }
  // The broadcast of a value that has one element for all that is folded.
  const Op* broadcast_along(ValueId id) const {
    const Op* op = defined_by_[id];
    if (op == nullptr || op->kind != OpKind::kBroadcast) return nullptr;
    const std::vector<int64_t>& to = std::get<ir::Dims>(op->attribute).dims;
    for (size_t axis = 0; axis < to.size(); ++axis) {
      if (is_folded(to[axis]) && fusion_.values[op->inputs[0]].axes[axis].extent > 1) return nullptr;
    }
    return op;
  }

  // The value without broadcasts and squeezes that leave it its elements.
  const Op* made_by(ValueId id) const {
    const Op* op = defined_by_[id];
    while (op != nullptr && (op->kind == OpKind::kBroadcast || op->kind == OpKind::kSqueeze) &&
           ir::elements(fusion_.values[op->inputs[0]]) == ir::elements(fusion_.values[op->output])) {
      op = defined_by_[op->inputs[0]];
    }
    return op;
  }
  // Whether the value is what differs from its own mean, the sum of which is 0 but for rounding.
  bool is_centred(ValueId id) const {
    const Op* difference = defined_by_[id];
    if (difference == nullptr || difference->kind != OpKind::kSub) return false;
    const Op* along = broadcast_along(difference->inputs[1]);
    const Op* mean = along == nullptr ? nullptr : made_by(along->inputs[0]);
    if (mean == nullptr || mean->kind != OpKind::kDiv) return false;
    const Op *sum = made_by(mean->inputs[0]), *count = defined_by_[mean->inputs[1]];
    if (count != nullptr && count->kind == OpKind::kBroadcast) count = defined_by_[count->inputs[0]];
    if (sum == nullptr || sum->kind != OpKind::kReduceSum || sum->inputs[0] != difference->inputs[0]) return false;
    if (count == nullptr || count->kind != OpKind::kConstant || std::get<Reduce>(sum->attribute).dims != dims_)
      return false;
    int64_t folded = 1;
    for (const int64_t dim : dims_) folded *= fusion_.values[id].axes[dim].extent;
    const auto* number = std::get_if<double>(&std::get<ir::Constant>(count->attribute).value);
    return number != nullptr && *number == static_cast<double>(folded);
  }

  // The value as a sum of at most kMostTerms terms, as far as it is seen through.
  std::vector<Term> terms(ValueId id, int depth = 0) {
    const auto known = terms_.find(id);
    if (known != terms_.end()) return known->second;
    std::vector<Term> result = {{{id}, {}}};
    const Op* op = defined_by_[id];
    if (op != nullptr && folds_[id] > 0 && depth < kMostDepth) {
      std::vector<Term> seen = see_through(*op, depth + 1);
      const auto short_enough = [](const Term& term) { return term.product.size() <= kMostFactors; };
      const bool fits = seen.size() <= kMostTerms && std::all_of(seen.begin(), seen.end(), short_enough);
      if (!seen.empty() && fits) result = std::move(seen);
    }
    terms_[id] = result;
    return result;
  }
  // Nothing where the value is a term by itself.
  std::vector<Term> see_through(const Op& op, int depth) {
    const auto along = [&](size_t operand) { return broadcast_along(op.inputs[operand]) != nullptr; };
    const auto then = [&](size_t operand, Step step) {
      if (step.factor >= 0 && extreme_[step.factor]) return std::vector<Term>{};
      std::vector<Term> result = terms(op.inputs[operand], depth);
      for (Term& term : result) term.steps.push_back(step);
      return result;
    };
    switch (op.kind) {
      case OpKind::kNeg: return then(0, {OpKind::kNeg});
      case OpKind::kDiv:
        if (along(1) && !along(0)) return then(0, {OpKind::kDiv, op.inputs[1]});
        return {};
      case OpKind::kMul: {
        if (along(0) && along(1)) return {};
        if (along(0)) return then(1, {OpKind::kMul, op.inputs[0]});
        if (along(1)) return then(0, {OpKind::kMul, op.inputs[1]});
        std::vector<Term> a = terms(op.inputs[0], depth);
        const std::vector<Term> b = terms(op.inputs[1], depth);
        // Two that are both scaled have a product that fits, which that of what they are made of may not.
        if (a.size() > 1 || b.size() > 1 || a[0].steps.empty() == b[0].steps.empty()) return {};
        a[0].product.insert(a[0].product.end(), b[0].product.begin(), b[0].product.end());
        a[0].steps.insert(a[0].steps.end(), b[0].steps.begin(), b[0].steps.end());
        return a;
      }
      case OpKind::kAdd:
      case OpKind::kSub: {
        // What differs from a number of the row, say from its mean, is added up so.
        if (along(0) || along(1)) return {};
        std::vector<Term> a = terms(op.inputs[0], depth);
        std::vector<Term> b = terms(op.inputs[1], depth);
        for (Term& term : b) {
          if (op.kind == OpKind::kSub) term.steps.push_back({OpKind::kNeg});
          a.push_back(std::move(term));
        }
        return a;
      }
      default: return {};
    }
  }

  // Makes the sum of several; false where that is no better.
  bool take_apart(const Op& op) {
    dims_ = std::get<Reduce>(op.attribute).dims;
    if (folds_[op.inputs[0]] == 0) return false;
    terms_.clear();
    std::vector<Term> all = terms(op.inputs[0]);
    const auto is_nothing = [&](const Term& term) { return term.product.size() == 1 && is_centred(term.product[0]); };
    if (!std::all_of(all.begin(), all.end(), is_nothing)) std::erase_if(all, is_nothing);
    std::set<std::vector<ValueId>> products;
    int most = 0;
    for (const Term& term : all) {
      products.insert(term.product);
      for (ValueId id : term.product) most = std::max(most, folds_[id]);
    }
    if (most >= folds_[op.inputs[0]] || products.size() > kMostSums) return false;

    label_ = op.label;
    std::map<std::vector<ValueId>, ValueId> sums;
    ValueId total = -1;
    for (const Term& term : all) {
      auto [sum, is_new] = sums.try_emplace(term.product, -1);
      if (is_new) {
        ValueId product = term.product[0];
        for (size_t i = 1; i < term.product.size(); ++i) {
          product = add(OpKind::kMul, {product, term.product[i]}, {}, op.output);
        }
        sum->second = add(OpKind::kReduceSum, {product}, op.attribute, op.output);
      }
      ValueId result = sum->second;
      for (const Step& step : term.steps) {
        std::vector<ValueId> operands = {result};
        if (step.factor >= 0) operands.push_back(for_sums(step.factor, op.output));
        result = add(step.kind, std::move(operands), {}, op.output);
      }
      total = total < 0 ? result : add(OpKind::kAdd, {total, result}, {}, op.output);
    }
    if (fusion_.values[total].axes != fusion_.values[op.output].axes) return false;
    fusion_.ops.back().output = op.output;
    return true;
  }

  // What the broadcast is of, with the axes of the sum.
  ValueId for_sums(ValueId factor, ValueId sum) {
    const Op& broadcast = *defined_by_[factor];
    ValueId value = broadcast.inputs[0];
    ir::Dims gone, to;
    const std::vector<int64_t>& dims = std::get<ir::Dims>(broadcast.attribute).dims;
    for (size_t axis = 0; axis < dims.size(); ++axis) {
      if (is_folded(dims[axis])) {
        gone.dims.push_back(static_cast<int64_t>(axis));
      } else {
        to.dims.push_back(dims[axis] - (std::lower_bound(dims_.begin(), dims_.end(), dims[axis]) - dims_.begin()));
      }
    }
    if (!gone.dims.empty()) value = add(OpKind::kSqueeze, {value}, gone, sum);
    if (ir::shape(fusion_.values[value]) == ir::shape(fusion_.values[sum])) return value;
    return add(OpKind::kBroadcast, {value}, to, sum);
  }
  ValueId add(OpKind kind, std::vector<ValueId> inputs, ir::Attribute attribute, ValueId like) {
    Value stated = fusion_.values[like];
    stated.name += "_of";
    while (!names_.insert(stated.name).second) stated.name += "_";
    return ir::append(fusion_, kind, std::move(inputs), std::move(attribute), stated, label_);
  }

  Fusion fusion_;
  std::vector<const Op*> defined_by_;  // by value of the whole
  std::vector<int> folds_;             // by value
  std::vector<bool> extreme_;          // by value of the whole
  std::set<std::string> names_;
  std::vector<int64_t> dims_;  // of the sum that is taken apart
  std::map<ValueId, std::vector<Term>> terms_;
  std::string label_;
};

}  // namespace

Fusion with_linear_sums(const Fusion& fusion) { return has_nested(fusion) ? fusion : SumRewriter(fusion).finish(); }

}  // namespace jf::plan
