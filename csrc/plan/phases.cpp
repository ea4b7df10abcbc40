#include "plan/phases.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/lists.h"
#include "ir/verify.h"

namespace jf::plan {
namespace {

using ir::Fusion;
using ir::Op;
using ir::OpClass;
using ir::OpKind;
using ir::Reduce;
using ir::Value;
using ir::ValueId;

// Arithmetic that costs more than keeping its result.
constexpr int kDear = 8;

int cost_of(const Op& op) {
  const ir::OpInfo& info = ir::info(op.kind);
  if (info.op_class == OpClass::kScan || info.op_class == OpClass::kSearch) return kDear;
  if (info.op_class != OpClass::kPointwise) return 0;
  if (op.kind == OpKind::kDiv || op.kind == OpKind::kSqrt || op.kind == OpKind::kRsqrt) return kDear / 2;
  const bool simple = op.kind == OpKind::kIsFinite || op.kind == OpKind::kFloor || op.kind == OpKind::kCeil;
  return info.operands == ir::OperandTypes::kFloating && !simple ? kDear : 1;
}

// Stands for a phase where a value is used outside of the rows.
constexpr int kOutside = -1;

class Splitter {
 public:
  Splitter(const Fusion& segment, const Traffic& traffic, Keep keep, KeepMore more)
      : segment_(segment),
        traffic_(traffic),
        in_rows_(traffic.in_rows),
        keep_(keep),
        more_(more),
        phase_(segment.values.size(), 0),
        fold_in_(segment.values.size(), 0),
        cost_(segment.values.size(), 0),
        needed_(segment.values.size()),
        by_end_(segment.values.size(), false),
        kept_(segment.values.size(), false),
        folded_(segment.values.size(), false),
        is_input_(segment.values.size(), false) {
    for (ValueId id : segment.inputs) is_input_[id] = true;
    across_rows_ = contains(traffic.across, true);
    has_runs_ = contains(traffic.runs, true);
    find_phases();
    decide();
    if (fold_later()) decide();
    write();
    count();
  }

  Phases finish() && {
    ir::verify(result_.fusion);
    return std::move(result_);
  }

 private:
  // A reduction across the rows waits for nothing and nothing waits for it.
  bool folds_across(const Op& op) const {
    const Reduce* reduce = std::get_if<Reduce>(&op.attribute);
    return across_rows_ && reduce != nullptr && reduce->parts > 0;
  }

  // Whether a reduction folds each run of a row by itself, and what it gives is along the row.
  bool folds_runs(const Op& op) const {
    return has_runs_ && in_rows_[op.output] && std::holds_alternative<Reduce>(op.attribute);
  }

  // Whether the phases go along the row together, since no fold of whole rows is between them.
  bool together(const std::set<int>& phases) const {
    return has_runs_ && !phases.contains(kOutside) &&
           std::none_of(segment_.ops.begin(), segment_.ops.end(), [&](const Op& op) {
             const int in = fold_in_[op.output];
             return std::holds_alternative<Reduce>(op.attribute) && !folds_runs(op) && *phases.begin() <= in &&
                    in < *phases.rbegin();
           });
  }

  void find_phases() {
    for (const Op& op : segment_.ops) {
      int phase = 0;
      for (ValueId id : op.inputs) phase = std::max(phase, phase_[id]);
      if (std::holds_alternative<Reduce>(op.attribute)) result_.count = std::max(result_.count, ++phase);
      phase_[op.output] = phase;
      fold_in_[op.output] = phase - 1;
      if (in_rows_[op.output] && !folds_across(op)) result_.count = std::max(result_.count, phase + 1);
    }
  }

  // Folds beside others of their operand, where what they give is needed only after those. Whether any moved.
  bool fold_later() {
    std::vector<int> needed_by(segment_.values.size(), result_.count);
    bool any = false;
    for (auto op = segment_.ops.rbegin(); op != segment_.ops.rend(); ++op) {
      const ValueId id = op->output;
      if (std::holds_alternative<Reduce>(op->attribute)) {
        const int latest = needed_by[id] - 1;
        if (folds_across(*op) || latest <= fold_in_[id] || needed_[op->inputs[0]].count(latest) == 0) continue;
        fold_in_[id] = latest;
        any = true;
        continue;
      }
      if (in_rows_[id] && needed_[id].empty()) continue;
      const int by = in_rows_[id] ? *needed_[id].begin() : needed_by[id];
      for (ValueId input : op->inputs) needed_by[input] = std::min(needed_by[input], by);
    }
    return any;
  }

  // Whether keeping the result costs no register, since it takes the place of a kept operand.
  bool replaces_operand(const Op& op) const {
    if (!more_.converted || ir::info(op.kind).op_class != OpClass::kPointwise || needed_[op.output].empty())
      return false;
    const auto is_same_in_row = [&](ValueId id) {
      return std::any_of(segment_.ops.begin(), segment_.ops.end(), [&](const Op& made) {
        return made.output == id && made.kind == OpKind::kBroadcast && !in_rows_[made.inputs[0]];
      });
    };
    const int first = *needed_[op.output].begin();
    int rows = 0;
    for (ValueId id : op.inputs) {
      if (is_same_in_row(id)) continue;
      ++rows;
      if (cost_[id] == 0 || (!needed_[id].empty() && *needed_[id].rbegin() > first)) return false;
    }
    return rows == 1;
  }

  // The phases in which a value is needed are known once all that use it are decided.
  void settle(ValueId value) {
    if (by_end_[value] && needed_[value].empty()) needed_[value].insert(phase_[value]);
  }

  void decide() {
    std::fill(kept_.begin(), kept_.end(), false);
    for (std::set<int>& phases : needed_) phases.clear();
    for (ValueId id : segment_.outputs) by_end_[id] = true;
    // Where a value equals its maximum must not depend on how the compiler rounds it the second time.
    std::vector<bool> compared(segment_.values.size(), false);
    for (const Op& op : segment_.ops) {
      if (op.kind != OpKind::kEq && op.kind != OpKind::kNe) continue;
      for (ValueId id : op.inputs) compared[id] = true;
    }
    // Forwards: the cost of computing a value from memory.
    for (const Op& op : segment_.ops) {
      int cost = cost_of(op);
      for (ValueId id : op.inputs) cost += in_rows_[id] ? cost_[id] : 0;
      cost_[op.output] = std::min(cost, 1 << 20);
    }
    for (auto op = segment_.ops.rbegin(); op != segment_.ops.rend(); ++op) {
      const bool reduces = std::holds_alternative<Reduce>(op->attribute);
      settle(op->output);
      const std::set<int>& needed = needed_[op->output];
      if (folds_across(*op)) {
        by_end_[op->inputs[0]] = true;
        continue;
      }
      if (reduces || !in_rows_[op->output]) {
        // Outside of the rows only a reduction needs a value of the rows.
        for (size_t i = 0; i < op->inputs.size(); ++i) {
          if (!is_memory(*op, i)) needed_[op->inputs[i]].insert(reduces ? fold_in_[op->output] : kOutside);
        }
        kept_[op->output] = folded_[op->output] = folds_runs(*op);
        continue;
      }
      const bool rounded = compared[op->output] && ir::info(op->kind).op_class == OpClass::kPointwise;
      const bool again = keep_ == Keep::kRows && ir::reads_memory(op->kind);
      const bool converted = more_.converted && op->kind == OpKind::kConvert && is_input_[op->inputs[0]];
      const bool dear = cost_[op->output] >= kDear || rounded || again || converted || replaces_operand(*op);
      const bool of_run = needed.size() > 1 && cost_[op->output] > 0 && together(needed);
      kept_[op->output] = of_run || (needed.size() > 1 && keep_ != Keep::kNothing && dear);
      for (size_t i = 0; i < op->inputs.size(); ++i) {
        if (is_memory(*op, i)) continue;
        if (kept_[op->output]) {
          needed_[op->inputs[i]].insert(*needed.begin());
        } else {
          needed_[op->inputs[i]].insert(needed.begin(), needed.end());
        }
      }
    }
    for (ValueId id : segment_.inputs) {
      settle(id);
      const bool again = needed_[id].size() > 1 && (keep_ == Keep::kRows || together(needed_[id]));
      const bool wanted = more_.rows ? !needed_[id].empty() : again;
      kept_[id] = wanted && is_row_of(id);
    }
  }

  // Whether the op reads its operand in memory, at places of its own.
  bool is_memory(const Op& op, size_t operand) const {
    return operand == 0 && ir::reads_memory(op.kind) && is_input_[op.inputs[0]];
  }

  // Whether the input has every element of the iteration domain and every use in the rows has the same element.
  bool is_row_of(ValueId input) const {
    int64_t size = 0;
    std::vector<bool> turned(segment_.values.size(), false);  // values that have its axes in another order
    for (const Op& op : segment_.ops) {
      turned[op.output] = op.kind == OpKind::kTranspose ||
                          std::any_of(op.inputs.begin(), op.inputs.end(), [&](ValueId id) { return turned[id]; });
      for (size_t i = 0; i < op.inputs.size(); ++i) {
        if (op.inputs[i] != input || is_memory(op, i)) continue;
        if (turned[op.output]) return false;
        const Reduce* reduce = std::get_if<Reduce>(&op.attribute);
        const OpClass op_class = ir::info(op.kind).op_class;
        const bool same_axes = reduce != nullptr || op_class == OpClass::kPointwise || op_class == OpClass::kScan;
        if (!same_axes) return false;
        if (reduce == nullptr && !in_rows_[op.output]) return false;
      }
    }
    for (const Op& op : segment_.ops) {
      if (std::holds_alternative<Reduce>(op.attribute) || std::holds_alternative<ir::Scan>(op.attribute)) {
        size = std::max(size, ir::elements(segment_.values[op.inputs[0]]));
      }
    }
    return ir::elements(segment_.values[input]) == size;
  }

  // Whether the input moves along what is folded alone: it has the same elements for every row.
  bool is_column(ValueId input) const {
    bool used = false;
    for (const Access& access : traffic_.accesses) {
      for (const auto& [number, operand] : access.uses) {
        if (segment_.ops[number].inputs[operand] != input) continue;
        for (size_t loop = 0; loop < access.steps.size(); ++loop) {
          if ((access.steps[loop] != 0) != traffic_.folded[loop]) return false;
        }
        used = true;
      }
    }
    return used && segment_.values[input].axes.size() == 1 && !reads_elsewhere(input);
  }
  // Whether an op reads the input in memory, at places of its own, or outside of the rows.
  bool reads_elsewhere(ValueId input) const {
    for (const Op& op : segment_.ops) {
      for (size_t i = 0; i < op.inputs.size(); ++i) {
        if (op.inputs[i] == input && (is_memory(op, i) || !in_rows_[op.output])) return true;
      }
    }
    return false;
  }

  // Whether all that reads a column is its conversion, which is kept instead.
  bool is_converted(ValueId input) const {
    return more_.converted && std::all_of(segment_.ops.begin(), segment_.ops.end(), [&](const Op& op) {
             const bool reads = contains(op.inputs, input);
             return !reads || (op.kind == OpKind::kConvert && kept_[op.output]);
           });
  }

  ValueId add_value(Value value) {
    const std::string name = value.name;
    for (int copy = 2; !names_.insert(value.name).second; ++copy) value.name = cat(name, "_", copy);
    result_.fusion.values.push_back(std::move(value));
    return static_cast<ValueId>(result_.fusion.values.size()) - 1;
  }

  // The value as a phase uses it; values outside of the rows and kept ones are the same in all.
  ValueId in_phase(ValueId value, int phase) {
    const auto& made = made_[value];
    const auto own = made.find(phase);
    JF_CHECK(own != made.end() || made.size() == 1, segment_.values[value].name, " is not computed in phase ", phase);
    return own != made.end() ? own->second : made.begin()->second;
  }

  void write() {
    Fusion& fusion = result_.fusion;
    fusion.name = segment_.name;
    names_.insert(fusion.name);
    for (const Value& value : segment_.values) used_names_.insert(value.name);
    made_.resize(segment_.values.size());
    for (ValueId id : segment_.inputs) {
      const ValueId input = add_value(segment_.values[id]);
      fusion.inputs.push_back(input);
      made_[id][0] = input;
    }
    for (ValueId id : segment_.inputs) {
      const bool column = !kept_[id] && more_.columns && is_column(id) && !is_converted(id);
      if (!kept_[id] && !column) continue;
      Value kept = segment_.values[id];
      kept.name += "_kept";
      while (used_names_.count(kept.name) > 0) kept.name += "_";
      const ValueId input = made_[id][0];
      made_[id] = {{0, add_op({OpKind::kCopy, {input}, 0, {}, ""}, {input}, std::move(kept))}};
      (column ? result_.columns : result_.rows).push_back(made_[id][0]);
    }
    for (const Op& op : segment_.ops) {
      const bool in_rows = in_rows_[op.output] || op.kind == OpKind::kConstant;
      const bool copies = in_rows && !kept_[op.output] && !needed_[op.output].empty();
      std::set<int> phases = copies ? needed_[op.output] : std::set<int>{phase_[op.output]};
      for (int phase : phases) {
        const bool reduces = std::holds_alternative<Reduce>(op.attribute);
        int used_in = reduces ? fold_in_[op.output] : in_rows_[op.output] ? phase : kOutside;
        const bool kept = !reduces && !copies && in_rows_[op.output] && !needed_[op.output].empty();
        if (kept) used_in = *needed_[op.output].begin();
        if (folds_across(op)) used_in = *needed_[op.inputs[0]].begin();
        std::vector<ValueId> operands;
        for (size_t i = 0; i < op.inputs.size(); ++i) {
          const ValueId id = op.inputs[i];
          operands.push_back(is_memory(op, i) ? fusion.inputs[input_number(id)] : in_phase(id, used_in));
        }
        made_[op.output][phase] = add_op(op, std::move(operands), segment_.values[op.output]);
      }
    }
    for (const Op& op : segment_.ops) {
      const bool outside = !in_rows_[op.output] && op.kind != OpKind::kConstant;
      if (folds_runs(op)) result_.runs.push_back(made_[op.output].begin()->second);
      if (!outside && !is_kept_along(op.output)) continue;
      const bool column =
          more_.columns && op.kind == OpKind::kConvert && is_input_[op.inputs[0]] && is_column(op.inputs[0]);
      (column ? result_.columns : result_.outside).push_back(made_[op.output].begin()->second);
    }
    for (ValueId id : segment_.inputs) {
      if (is_kept_along(id)) result_.outside.push_back(made_[id][0]);
    }
    for (ValueId id : segment_.outputs) {
      const int phase = needed_[id].empty() ? phase_[id] : *needed_[id].begin();
      fusion.outputs.push_back(is_input_[id] ? fusion.inputs[input_number(id)] : in_phase(id, phase));
    }
  }
  size_t input_number(ValueId id) const {
    return static_cast<size_t>(std::find(segment_.inputs.begin(), segment_.inputs.end(), id) - segment_.inputs.begin());
  }
  // Whether a value is kept until whole rows are folded, not within a run.
  bool is_kept_along(ValueId value) const {
    std::set<int> phases = needed_[value];
    if (folded_[value]) phases.insert(fold_in_[value]);
    return kept_[value] && !together(phases);
  }
  ValueId add_op(const Op& op, std::vector<ValueId> operands, const Value& like) {
    const ValueId result = add_value(like);
    result_.fusion.ops.push_back({op.kind, std::move(operands), result, op.attribute, op.label});
    return result;
  }

  // What is alive between two phases, at the most.
  void count() {
    std::vector<int64_t> alive(static_cast<size_t>(result_.count) + 1, 0);
    for (size_t id = 0; id < segment_.values.size(); ++id) {
      if (!is_kept_along(static_cast<ValueId>(id)) || folded_[id]) continue;
      const int64_t bytes = std::max<int64_t>(4, size_of(compute_dtype(segment_.values[id].dtype)));
      result_.all_kept_bytes += bytes;
      for (int phase = *needed_[id].begin(); phase < *needed_[id].rbegin(); ++phase) alive[phase] += bytes;
    }
    result_.kept_bytes = *std::max_element(alive.begin(), alive.end());
    for (const Op& op : segment_.ops) {
      if (folds_across(op)) {
        result_.column_bytes += std::max<int64_t>(4, size_of(compute_dtype(segment_.values[op.output].dtype)));
      }
    }
  }

  const Fusion& segment_;
  const Traffic& traffic_;
  const std::vector<bool>& in_rows_;
  const Keep keep_;
  const KeepMore more_;
  std::vector<int> phase_;             // by value: the first phase after all that it needs
  std::vector<int> fold_in_;           // by result of a fold: the phase that folds
  std::vector<int> cost_;              // by value of the rows: of computing it from memory
  std::vector<std::set<int>> needed_;  // by value: the phases that use it
  std::vector<bool> by_end_;           // by value: any phase can store it or fold it across the rows
  std::vector<bool> kept_;
  std::vector<bool> folded_;  // by value: from a run, so that it has few elements
  std::vector<bool> is_input_;
  bool across_rows_ = false, has_runs_ = false;
  Phases result_;
  std::set<std::string> names_, used_names_;
  std::vector<std::map<int, ValueId>> made_;  // by value and phase
};

}  // namespace

std::string_view name(Keep keep) {
  switch (keep) {
    case Keep::kNothing: return "nothing";
    case Keep::kDear: return "dear";
    case Keep::kRows: return "rows";
  }
  JF_CHECK(false, "keep ", static_cast<int>(keep));
}

Phases split_phases(const Fusion& segment, const Traffic& traffic, Keep keep, KeepMore more) {
  return Splitter(segment, traffic, keep, more).finish();
}

}  // namespace jf::plan
