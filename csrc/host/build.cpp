#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "base/error.h"
#include "base/integers.h"
#include "base/lists.h"
#include "grouped/cuda/grouped_cuda.h"
#include "host/epilogue.h"
#include "host/gathered_rows.h"
#include "host/group_softmax.h"
#include "host/placement.h"
#include "host/program.h"
#include "host/written.h"
#include "host/zeros.h"
#include "ir/build.h"
#include "ir/results.h"
#include "ir/text.h"
#include "lower/lower.h"
#include "lower/pairs.h"
#include "plan/grouped.h"
#include "plan/halves.h"
#include "plan/parameters.h"
#include "plan/plan.h"
#include "plan/pointwise.h"
#include "plan/ragged.h"
#include "plan/ragged_again.h"
#include "plan/ragged_gaps.h"
#include "plan/ragged_several.h"
#include "plan/reduction.h"
#include "plan/transpose_cuda.h"
#include "schedule/schedule.h"

namespace jf::host {
namespace {

// A schedule of the planner's own that is refused: the planner's mistake, not the caller's, where nothing mends it.
class Refused : public InternalError {
  using InternalError::InternalError;
};

// Of fewer elements a plan that cannot be lowered is our mistake; of more, grids of a GPU end (2^31 blocks).
constexpr int64_t kHugeElements = int64_t{1} << 36;

class Kernels {
 public:
  Kernels(const Target& target, const Tuning& tuning, Program& program)
      : target_(target), tuning_(tuning), program_(program) {}

  loops::Kernel pointwise(const ir::Fusion& segment) {
    return guarded(segment, [&] {
      const Parameters& given = tuning_.of(segment.name);
      if (const auto proposed = plan::propose_transpose(segment, target_)) {
        const plan::CudaTranspose parameters = plan::edited(*proposed, given, target_);
        const plan::TransposeKernel kernel = plan::transpose_kernel(segment, parameters);
        return lowered_by("transpose", kernel.fusion, parameters, true, kernel.schedule);
      }
      const plan::PointwiseParameters parameters = plan::edited(plan::propose(segment, target_), given, target_);
      return lowered_by("pointwise", segment, parameters, false, plan::pointwise_schedule(segment, parameters));
    });
  }
  loops::Kernel reduction(const ir::Fusion& segment) {
    return guarded(segment, [&] {
      const plan::ReductionParameters parameters =
          plan::edited(plan::propose_reduction(segment, target_), tuning_.of(segment.name), segment, target_);
      const plan::ReductionKernel kernel = plan::reduction_kernel(segment, parameters);
      loops::Kernel result = lowered_by("reduction", kernel.fusion, parameters, true, kernel.schedule);
      if (const auto* cuda = std::get_if<plan::CudaReduction>(&parameters)) result.at_once = cuda->at_once;
      return result;
    });
  }
  loops::Kernel nested(const ir::Fusion& segment) {
    return guarded(segment, [&] {
      if (plan::has_several_ragged(segment)) {
        const bool again = plan::folds_again(segment);
        return several(again ? plan::with_rows_again(segment) : segment, again);
      }
      const Parameters& given = tuning_.of(segment.name);
      const plan::NestedParameters parameters = plan::edited(plan::propose_nested(segment, target_), given, target_);
      const bool again = plan::folds_again(segment);
      const ir::Fusion fusion = !again            ? segment
                                : parameters.keep ? plan::with_rows_widened_again(segment)
                                                  : plan::with_rows_again(segment);
      const auto own_loops = [&] {
        return lowered_by("nested", fusion, parameters, again,
                          plan::nested_schedule(fusion, parameters, target_.platform));
      };
      if (!given.empty()) return own_loops();  // that are asked for, or refused
      // Values that are turned, and folded on the way: whatever loops all of them have in common.
      return or_else(own_loops, [&] {
        return several(plan::with_turned_rows_again(again ? plan::with_rows_again(segment) : segment), true);
      });
    });
  }

 private:
  // What `first` makes, or `second` where it is refused.
  template <class First, class Second>
  loops::Kernel or_else(First first, Second second) {
    const size_t schedules = program_.scheduled.size(), text = program_.schedule.size();
    try {
      return first();
    } catch (const UserError&) {
      program_.scheduled.erase(program_.scheduled.begin() + static_cast<std::ptrdiff_t>(schedules),
                               program_.scheduled.end());
      program_.schedule.resize(text);
      scheduled_.clear();
      return second();
    }
  }
  loops::Kernel several(const ir::Fusion& fusion, bool changed) {
    program_.facts.back().fields.clear();
    const auto made = [&](const ir::Fusion& of, bool differs) {
      return lowered("nested", of, "loops in common", differs, plan::several_ragged_schedule(of, target_.platform));
    };
    if (!plan::folds_pairs_again(fusion)) return made(fusion, changed);
    // What a thread cannot keep for the next fold is computed again.
    return or_else([&] { return made(fusion, changed); }, [&] { return made(plan::with_pairs_again(fusion), true); });
  }
  template <class P>
  loops::Kernel lowered_by(std::string_view strategy, const ir::Fusion& fusion, const P& parameters, bool changed,
                           const schedule::Schedule& schedule) {
    program_.facts.back().fields = plan::fields_of(parameters);
    return lowered(strategy, fusion, plan::print(parameters), changed, schedule);
  }
  // `changed`: the fusion is no longer that of the segment.
  loops::Kernel lowered(std::string_view strategy, const ir::Fusion& fusion, const std::string& parameters,
                        bool changed, const schedule::Schedule& schedule) {
    program_.facts.back().strategy = strategy;
    program_.facts.back().parameters = parameters;
    scheduled_ =
        cat(fusion.name, ": ", parameters, "\n", changed ? ir::print(fusion) : "", schedule::print(fusion, schedule));
    program_.schedule += scheduled_;
    program_.scheduled.push_back({fusion, schedule});
    return lower::lower(fusion, schedule, target_);
  }
  // Take the latest schedule back.
  void forget() {
    if (scheduled_.empty()) return;
    program_.schedule.resize(program_.schedule.size() - scheduled_.size());
    program_.scheduled.pop_back();
    scheduled_.clear();
  }
  template <class Function>
  loops::Kernel guarded(const ir::Fusion& segment, Function function) {
    scheduled_.clear();
    try {
      return function();
    } catch (const UserError& error) {
      if (!tuning_.of(segment.name).empty()) throw;
      // Such values can be computed from each other in ways that share no loops.
      JF_REQUIRE(!plan::has_several_ragged(segment), "[nested] ", segment.name,
                 " has values with several ragged axes that no loops go together for; combine one of them on the way ",
                 "and partition it again, or schedule it by hand (", error.what(), ")");
      for (const ir::Value& value : segment.values) {
        JF_REQUIRE(ir::elements(value) < kHugeElements, "[plan] ", value.name, " of ", segment.name, " is ",
                   ir::print_type(value), ", for which there is no kernel; split it (", error.what(), ")");
      }
      const std::string text = cat(error.what(), "\n", ir::print(segment), scheduled_);
      forget();
      throw Refused(__FILE__, __LINE__, "the plan's own schedule can be lowered", text);
    }
  }

  const Target& target_;
  const Tuning& tuning_;
  Program& program_;       // which gets all schedules, for people
  std::string scheduled_;  // of the latest
};

// The steps of a program as steps of another one, which has its inputs and outputs at `buffers`.
void embed(Program part, const std::vector<BufferRef>& buffers, int64_t workspace, Program& program) {
  const auto moved = [&](const BufferRef& ref) -> BufferRef {
    if (ref.kind == BufferKind::kWorkspace) return {ref.kind, ref.index + workspace};
    return buffers[ref.kind == BufferKind::kInput ? ref.index : part.input_bytes.size() + ref.index];
  };
  for (Step& step : part.steps) {
    std::visit(
        [&](auto& made) { std::transform(made.buffers.begin(), made.buffers.end(), made.buffers.begin(), moved); },
        step);
    program.steps.push_back(std::move(step));
  }
  program.schedule += part.schedule;
  std::move(part.scheduled.begin(), part.scheduled.end(), std::back_inserter(program.scheduled));
  std::move(part.facts.begin(), part.facts.end(), std::back_inserter(program.facts));
}

Program build(const ir::Fusion& whole, const Target& target, const Tuning& tuning, bool fills);

// Steps before a kernel that store zeros where it stores nothing.
void fill(const plan::Segment& segment, const std::vector<BufferRef>& buffers, const Target& target,
          Placement& placement, Program& program) {
  const ir::Fusion& fusion = segment.fusion;
  const auto at = [&](const std::vector<ir::ValueId>& list, ir::ValueId id) {
    return std::find(list.begin(), list.end(), id) - list.begin();
  };
  for (const ir::Op& op : fusion.ops) {
    if (op.kind != ir::OpKind::kCombine || ir::elements(fusion.values[op.output]) == 0) continue;
    const BufferRef out = buffers[fusion.inputs.size() + at(fusion.outputs, op.output)];
    const auto& combine = std::get<ir::Combine>(op.attribute);
    if (!combine.also.empty() || !plan::is_worth_gaps(fusion.values[op.output], combine.rows)) {
      add_zeros(fusion, op.output, out, target, program);
      continue;
    }
    const ir::Value& nested = fusion.values[op.inputs[0]];
    const ir::ValueId extents = nested.axes[ir::ragged_axis(nested)].extents;
    Program zeros = build(plan::zeros_in_gaps(fusion, op), target, {}, false);
    const int64_t workspace = placement.take(zeros.portable_workspace_bytes);
    embed(std::move(zeros), {buffers[at(fusion.inputs, op.inputs[1])], buffers[at(fusion.inputs, extents)], out},
          workspace, program);
  }
}

// A segment as programs one after the other, which leave values for each other in the workspace.
void apart(const ir::Fusion& segment, const std::vector<plan::Segment>& parts, const std::vector<BufferRef>& buffers,
           const Target& target, Placement& placement, Program& program) {
  std::map<ir::ValueId, BufferRef> places;
  for (size_t i = 0; i < segment.inputs.size(); ++i) places[segment.inputs[i]] = buffers[i];
  for (size_t i = 0; i < segment.outputs.size(); ++i) places[segment.outputs[i]] = buffers[segment.inputs.size() + i];
  for (const plan::Segment& part : parts) {
    std::vector<BufferRef> own;
    for (const ir::ValueId id : part.inputs) own.push_back(places.at(id));
    for (const ir::ValueId id : part.outputs) {
      const ir::Value& value = segment.values[id];
      if (places.count(id) == 0) places[id] = placement.scratch(bytes_of(value.dtype, ir::elements(value)));
      own.push_back(places.at(id));
    }
    Program made = build(part.fusion, target, {}, true);
    for (KernelFacts& facts : made.facts) facts.reason += "; no loops go together for all of what it is a half of";
    const int64_t workspace = placement.take(made.portable_workspace_bytes);
    embed(std::move(made), own, workspace, program);
  }
}

// The sums over the first axis of [parts, rows].
ir::Fusion sum_of_parts(const std::string& name, int64_t parts, int64_t rows) {
  return ir::parse(cat("fusion ", name, "_sums(x0: f32[", parts, ",", rows, "]) -> (t1) {\n  t1: f32[", rows,
                       "] = reduce_sum(x0) {dims=[0]}\n}\n"));
}

// The program of a plan: the steps and the facts of its segments, in their order.
class Assembly {
 public:
  Assembly(const plan::Plan& plan, const Target& target, const Tuning& tuning, bool fills)
      : plan_(plan),
        fusion_(plan.fusion),
        target_(target),
        tuning_(tuning),
        fills_(fills),
        epilogues_(find_epilogues(plan, target)),
        gathers_(find_gathers(plan, epilogues_, target)),
        placement_(plan.fusion),
        kernels_(target, tuning, program_) {}

  Program run() {
    const auto bytes = [&](ir::ValueId id) {
      return bytes_of(fusion_.values[id].dtype, ir::elements(fusion_.values[id]));
    };
    program_.name = fusion_.name;
    for (ir::ValueId id : fusion_.inputs) program_.input_bytes.push_back(bytes(id));
    for (ir::ValueId id : fusion_.outputs) program_.output_bytes.push_back(bytes(id));
    program_.outputs = names(fusion_, fusion_.outputs);
    program_.segments = plan::print(plan_);
    for (size_t number = 0; number < plan_.segments.size(); ++number) add(number);
    placement_.finish(program_);
    return std::move(program_);
  }

 private:
  const GatheredRows* gathered_by(size_t product) const {
    const auto found = gathers_.by_product.find(product);
    return found == gathers_.by_product.end() ? nullptr : &found->second;
  }
  // A segment, or what numbers the rows that a product gathers instead of it.
  const plan::Segment& segment_of(size_t number) const {
    const auto product = gathers_.product_of.find(number);
    return product == gathers_.product_of.end() ? plan_.segments[number] : *gathered_by(product->second)->computed;
  }
  KernelFacts facts_of(const plan::Segment& segment) const {
    KernelFacts facts = kernel_facts(segment.fusion, fusion_, segment.inputs, segment.outputs);
    facts.reason = segment.reason;
    return facts;
  }
  KernelFacts facts_of_product(size_t number) const {
    const KernelFacts facts = facts_of(plan_.segments[number]);
    const auto* gather = gathered_by(number);
    return gather == nullptr ? facts : gathering(facts, *gather, fusion_);
  }
  grouped::Problem problem_of(size_t number) const {
    grouped::Problem problem = plan::grouped_problem(plan_.segments[number].fusion);
    const auto* gather = gathered_by(number);
    if (gather != nullptr) problem.lhs_rows = fusion_.values[gather->from].axes[0].extent;
    return problem;
  }

  std::vector<BufferRef> buffers_of(size_t number) {
    const plan::Segment& segment = segment_of(number);
    std::vector<BufferRef> buffers;
    for (ir::ValueId id : segment.inputs) buffers.push_back(placement_.read(id));
    if (const auto* gather = gathered_by(number)) {
      buffers.push_back(placement_.read(gather->number));
      buffers[0] = placement_.read(gather->from);
    }
    for (ir::ValueId id : segment.outputs) buffers.push_back(placement_.write(id));
    if (gathers_.product_of.count(number) > 0) {
      placement_.uses(buffers.back(), fusion_.values[segment.outputs[0]].axes[0].extent * size_of(DType::kS32));
    }
    return buffers;
  }

  // Whether a product gathers the segment's rows by numbers that are there.
  bool is_gathered(size_t number) const {
    const auto product = gathers_.product_of.find(number);
    return product != gathers_.product_of.end() && !gathered_by(product->second)->computed;
  }

  void add(size_t number) {
    if (is_gathered(number)) return;
    const std::vector<BufferRef>& buffers = buffers_[number] = buffers_of(number);
    const auto epilogue = std::find_if(epilogues_.all.begin(), epilogues_.all.end(), [&](const Epilogue& e) {
      return e.product == number || contains(e.tails, number);
    });
    const bool joins = epilogue != epilogues_.all.end();
    if (epilogues_.unread.count(number) > 0 || (joins && epilogue->tails.back() != number)) return;
    if (joins) {
      add_joined(*epilogue);
    } else {
      add_alone(number, buffers);
    }
  }

  // A product with what follows it.
  void add_joined(const Epilogue& epilogue) {
    const plan::Segment& product = plan_.segments[epilogue.product];
    const std::string& name = product.fusion.name;
    const ir::ValueId of_product = product.outputs.front();
    const grouped::Problem problem = problem_of(epilogue.product);
    std::vector<KernelFacts> tails;
    for (const size_t tail : epilogue.tails) tails.push_back(facts_of(plan_.segments[tail]));
    std::set<std::string> reads;
    for (const ir::ValueId id : epilogue.reads) reads.insert(fusion_.values[id].name);
    reads.erase(fusion_.values[of_product].name);
    program_.facts.push_back(joined(facts_of_product(epilogue.product), tails, reads, epilogue.functor.keeps));
    program_.facts.back().strategy = "grouped";
    for (const size_t left_out : epilogues_.unread) {
      if (!is_read_by(left_out, epilogue.tails)) continue;
      program_.facts.back().reason += cat("; segment ", left_out, " does not run: the product's tiles know its values");
    }
    std::vector<BufferRef> results, all = buffers_.at(epilogue.product);
    for (const ir::ValueId id : epilogue.results) results.push_back(placement_.write(id));
    all.back() = results.front();
    if (epilogue.tile) {
      for (const ir::ValueId id : epilogue.reads) all.push_back(placement_.read(id));
      all[all.size() - epilogue.reads.size() + epilogue.tile->product] = results.front();
      all.push_back(results.front());
      program_.steps.push_back(GroupedStep{name, problem, std::move(all), {}, epilogue.tile});
      return;
    }
    grouped::Problem stored = problem;
    stored.out = epilogue.functor.out;
    const Parameters& given = tuning_.of(name);
    program_.facts.back().parameters = grouped::describe(stored, target_, &epilogue.functor, given);
    if (const int64_t bytes = grouped::cuda_scratch_bytes(problem)) all.push_back(placement_.scratch(bytes));
    for (const ir::ValueId id : epilogue.reads) all.push_back(placement_.read(id));
    all.insert(all.end(), results.begin() + 1, results.end());
    if (epilogue.sum) {
      all.push_back(placement_.write(of_product));
      placement_.uses(all.back(), grouped::partial_sums(problem.n) * problem.m * size_of(DType::kF32));
    }
    program_.steps.push_back(GroupedStep{name, problem, std::move(all), epilogue.functor, {}, given});
    if (epilogue.sum) add_sum(of_product, *epilogue.sum, problem);
  }
  bool is_read_by(size_t number, const std::vector<size_t>& others) const {
    const std::vector<ir::ValueId>& outputs = plan_.segments[number].outputs;
    return std::any_of(others.begin(), others.end(), [&](size_t other) {
      const std::vector<ir::ValueId>& inputs = plan_.segments[other].inputs;
      return std::find_first_of(inputs.begin(), inputs.end(), outputs.begin(), outputs.end()) != inputs.end();
    });
  }
  void add_sum(ir::ValueId of_product, ir::ValueId sum, const grouped::Problem& problem) {
    const ir::Fusion folding = sum_of_parts(fusion_.name, grouped::partial_sums(problem.n), problem.m);
    program_.facts.push_back(kernel_facts(folding));
    program_.facts.back().reason = "adds up what the warps of a product have left of each row, in order";
    program_.steps.push_back(
        KernelStep{kernels_.reduction(folding), {placement_.write(of_product), placement_.write(sum)}});
  }

  void add_alone(size_t number, std::vector<BufferRef> buffers) {
    const plan::Segment& segment = segment_of(number);
    if (fills_ && segment.strategy == plan::Strategy::kNested) fill(segment, buffers, target_, placement_, program_);
    const bool product = segment.strategy == plan::Strategy::kGrouped;
    program_.facts.push_back(product ? facts_of_product(number) : facts_of(segment));
    KernelFacts& facts = program_.facts.back();
    if (gathers_.product_of.count(number) > 0) facts = numbering(facts);
    const auto copied = gathers_.copied.find(number);
    if (copied != gathers_.copied.end() && !copied->second.why.empty()) {
      facts.reason += cat("; its rows are copied first: ", copied->second.why);
    }
    if (const auto why = epilogues_.why_not.find(number); why != epilogues_.why_not.end()) {
      facts.reason += cat("; ", why->second);
    }
    if (copied != gathers_.copied.end() && copied->second.move) return add_copy(segment, copied->second);
    switch (segment.strategy) {
      case plan::Strategy::kEmpty: facts.strategy = "empty"; break;
      case plan::Strategy::kGrouped: add_product(number, std::move(buffers)); break;
      case plan::Strategy::kPointwise:
      case plan::Strategy::kReduction: add_folds(segment, std::move(buffers)); break;
      case plan::Strategy::kNested:
        program_.steps.push_back(KernelStep{kernels_.nested(segment.fusion), std::move(buffers)});
        break;
    }
  }
  void add_copy(const plan::Segment& segment, const CopiedRows& rows) {
    std::vector<BufferRef> buffers;
    for (const ir::ValueId id : rows.reads) buffers.push_back(placement_.read(id));
    buffers.push_back(placement_.write(segment.outputs.front()));
    std::string& parameters = program_.facts.back().parameters;
    program_.steps.push_back(written_step(segment.fusion, *rows.move, target_, std::move(buffers), parameters));
  }
  void add_product(size_t number, std::vector<BufferRef> buffers) {
    const std::string& name = plan_.segments[number].fusion.name;
    const grouped::Problem problem = problem_of(number);
    grouped::require_kernel(problem, target_);
    program_.facts.back().strategy = "grouped";
    if (target_.platform == Platform::kCuda) {
      program_.facts.back().parameters = grouped::describe(problem, target_, nullptr, tuning_.of(name));
      if (const int64_t bytes = grouped::cuda_scratch_bytes(problem)) buffers.push_back(placement_.scratch(bytes));
    }
    program_.steps.push_back(GroupedStep{name, problem, std::move(buffers), {}, {}, tuning_.of(name)});
  }
  // A pointwise segment or a reduction, in two where no loops go together for all of it.
  void add_folds(const plan::Segment& segment, const std::vector<BufferRef>& buffers) {
    const bool folds = segment.strategy == plan::Strategy::kReduction;
    try {
      loops::Kernel kernel = folds ? kernels_.reduction(segment.fusion) : kernels_.pointwise(segment.fusion);
      program_.steps.push_back(KernelStep{std::move(kernel), buffers});
    } catch (const Refused&) {
      const bool joined_elsewhere = std::any_of(segment.outputs.begin(), segment.outputs.end(),
                                                [&](ir::ValueId id) { return placement_.is_part(id); });
      const auto halves = plan::in_halves(segment.fusion);
      if (!halves || joined_elsewhere) throw;
      program_.facts.pop_back();
      apart(segment.fusion, {halves->first, halves->second}, buffers, target_, placement_, program_);
    }
  }

  const plan::Plan& plan_;
  const ir::Fusion& fusion_;
  const Target& target_;
  const Tuning& tuning_;
  const bool fills_;
  const Epilogues epilogues_;
  const GatheringProducts gathers_;
  Program program_;
  Placement placement_;
  Kernels kernels_;
  std::map<size_t, std::vector<BufferRef>> buffers_;  // by segment
};

Program build_for(const ir::Fusion& whole, const Target& target, const Tuning& tuning, bool fills, bool& differs) {
  const plan::Plan plan = plan::plan(whole, target);
  differs = plan.differs;
  return Assembly(plan, target, tuning, fills).run();
}

// None where it has kernels of another kind of GPU only: packed weights are for some.
int64_t portable_bytes(const ir::Fusion& whole, const Target& target, bool fills) {
  bool differs = false;
  try {
    return build_for(whole, target, {}, fills, differs).portable_workspace_bytes;
  } catch (const UserError&) {
    return 0;
  }
}

bool contains_u4(const ir::Fusion& fusion) {
  return std::any_of(fusion.outputs.begin(), fusion.outputs.end(),
                     [&](ir::ValueId id) { return fusion.values[id].dtype == DType::kU4; });
}

// Whether there is a program, of which each thread that has a code of four bits has the other one of its byte.
bool stores_pairs(const Program& program) {
  return !program.steps.empty() && std::all_of(program.steps.begin(), program.steps.end(), [](const Step& step) {
    const auto* own = std::get_if<KernelStep>(&step);
    return own == nullptr || lower::stores_pairs(own->kernel);
  });
}

Program build(const ir::Fusion& whole, const Target& target, const Tuning& tuning, bool fills) {
  bool differs = false;
  const auto softmax = target.platform == Platform::kCuda ? find_group_softmax(whole, tuning) : std::nullopt;
  if (softmax) {
    const std::string why = grouped::why_not_softmax(softmax->problem, softmax->config, target);
    Program program =
        why.empty() ? softmax_program(whole, *softmax, target) : build_for(whole, target, tuning, fills, differs);
    if (!why.empty()) program.facts.back().reason += cat("; it reads the rows again: ", why);
    // Enough for either, with the other kinds of GPU.
    for (const int capability : {kFirstCapability, kFirstWithClusters}) {
      const Target other = cuda_target_for(capability);
      program.portable_workspace_bytes =
          std::max(program.portable_workspace_bytes, portable_bytes(whole, other, fills));
    }
    program.portable_workspace_bytes =
        std::max(program.portable_workspace_bytes,
                 round_up(grouped::softmax_scratch_bytes(softmax->problem, softmax->config), 256));
    return program;
  }
  Program program = build_for(whole, target, tuning, fills, differs);
  if (differs) {
    const Target other = other_cuda_target(target);
    program.portable_workspace_bytes = std::max(program.portable_workspace_bytes, portable_bytes(whole, other, fills));
  }
  return program;
}

}  // namespace

Program build(const ir::Fusion& fusion, const Target& target, const Tuning& tuning) {
  ir::Fusion whole = ir::with_parts_joined(fusion);
  Program program;
  const bool pairs = contains_u4(whole);
  // CPUs compute both of a pair side by side.
  if (!pairs || target.platform == Platform::kCuda) program = build(whole, target, tuning, true);
  if (pairs && !stores_pairs(program)) {
    whole = ir::Builder::with_bytes_of_pairs(whole);
    program = build(whole, target, tuning, true);
  }
  for (const auto& [kernel, parameters] : tuning.kernels) {
    const bool known = std::any_of(program.facts.begin(), program.facts.end(),
                                   [&](const KernelFacts& facts) { return facts.name == kernel; });
    JF_REQUIRE(known, "[tuned] ", whole.name, " has no kernel ", kernel, "; measure it again");
  }
  return program;
}

}  // namespace jf::host
