// Fusion, Schedule, Scheduler and IndexGraph for Python: values and parallel types by name, no algorithm here.
#include "python/schedule_bindings.h"

#include <nanobind/operators.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>

#include "base/error.h"
#include "base/lists.h"
#include "base/target.h"
#include "graph/enumerate.h"
#include "graph/groups.h"
#include "graph/index.h"
#include "host/by_strategy.h"
#include "host/report.h"
#include "ir/results.h"
#include "ir/text.h"
#include "plan/one_kernel.h"
#include "python/schedule_docs.h"
#include "schedule/axes.h"
#include "schedule/edit.h"
#include "schedule/schedule.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jf::python {
namespace {

// The last constructor of a class: what other arguments get, instead of nanobind's list of signatures.
template <class T>
auto refuses(const char* words) {
  return [words](T*, const nb::args& args, const nb::kwargs&) {
    std::string got = args.size() == 0 ? "nothing" : "";
    for (nb::handle arg : args)
      got += (got.empty() ? "" : " and ") + nb::cast<std::string>(arg.type().attr("__name__"));
    throw nb::type_error(cat(words, ", got ", got).c_str());
  };
}

namespace docs = schedule_docs;
using graph::AxisId;
using graph::Mapping;
using ir::Fusion;
using ir::ValueId;
using schedule::Domain;
using schedule::Memory;
using schedule::Parallel;

using FusionPtr = std::shared_ptr<const Fusion>;
using NamedAxis = std::pair<std::string, int>;  // value, node

ValueId value_named(const Fusion& fusion, const std::string& name, const char* function) {
  std::string known;
  for (size_t id = 0; id < fusion.values.size(); ++id) {
    if (fusion.values[id].name == name) return static_cast<ValueId>(id);
    known += cat(known.empty() ? "" : ", ", fusion.values[id].name);
  }
  throw UserError(cat("[", function, "] ", fusion.name, " has no value '", name, "'; it has ", known));
}

std::vector<std::string> names(const Fusion& fusion, const std::vector<ValueId>& ids) {
  std::vector<std::string> result;
  for (ValueId id : ids) result.push_back(fusion.values[id].name);
  return result;
}

Parallel parallel_named(const std::string& name, const std::string& value, const char* function) {
  std::string known;
  for (int i = 0; i < schedule::kParallelTypes; ++i) {
    const Parallel parallel = static_cast<Parallel>(i);
    if (schedule::name(parallel) == name) return parallel;
    known += cat(known.empty() ? "" : ", ", schedule::name(parallel));
  }
  throw UserError(cat("[", function, "] ", value, ": unknown parallel type '", name, "'; expected one of ", known));
}

Memory memory_named(const std::string& name, const std::string& value) {
  for (Memory memory : {Memory::kRegister, Memory::kShared}) {
    if (schedule::name(memory) == name) return memory;
  }
  throw UserError(cat("[set_memory] ", value, ": unknown memory '", name, "'; expected register or shared"));
}

Mapping mapping_named(const std::string& name, const char* function) {
  static const std::map<std::string, Mapping> mappings = {{"exact", Mapping::kExact},
                                                          {"almost_exact", Mapping::kAlmostExact},
                                                          {"permissive", Mapping::kPermissive},
                                                          {"loop", Mapping::kLoop}};
  const auto found = mappings.find(name);
  JF_REQUIRE(found != mappings.end(), "[", function, "] unknown mapping '", name,
             "'; expected exact, almost_exact, permissive or loop");
  return found->second;
}

struct Schedule {
  FusionPtr fusion;
  schedule::Schedule schedule;

  const Domain& domain(const std::string& value, const char* function) const {
    return schedule.domains[value_named(*fusion, value, function)];
  }
  std::string text() const { return schedule::print(*fusion, schedule); }
  bool operator==(const Schedule& other) const { return *fusion == *other.fusion && schedule == other.schedule; }
};

using Loops = std::vector<std::pair<int64_t, std::string>>;
Loops loops_of(const Domain& domain) {
  Loops loops;
  for (const auto& [extent, parallel] : domain.loop) loops.emplace_back(extent, schedule::name(parallel));
  return loops;
}

struct Scheduler {
  FusionPtr fusion;
  std::unique_ptr<schedule::Scheduler> scheduler;

  explicit Scheduler(const Fusion& of)
      : fusion(std::make_shared<const Fusion>(plan::as_one_kernel(of, "Scheduler"))),
        scheduler(new schedule::Scheduler(*fusion)) {}
  explicit Scheduler(const Schedule& start)
      : fusion(start.fusion), scheduler(new schedule::Scheduler(*fusion, start.schedule)) {}

  ValueId id(const std::string& value, const char* function) const { return value_named(*fusion, value, function); }
  std::vector<ValueId> ids(const std::vector<std::string>& values, const char* function) const {
    std::vector<ValueId> result;
    for (const std::string& value : values) result.push_back(id(value, function));
    return result;
  }
  Schedule schedule() const { return {fusion, scheduler->schedule()}; }
  // Goes on with an edited fusion; schedules taken before keep theirs. Returns the new value.
  std::string edit(schedule::Edited edited) {
    auto changed = std::make_shared<const Fusion>(std::move(edited.fusion));
    scheduler = std::make_unique<schedule::Scheduler>(*changed, std::move(edited.schedule));
    fusion = std::move(changed);
    return fusion->values[edited.made].name;
  }
};

struct IndexGraph {
  FusionPtr fusion;
  std::vector<schedule::AxisTree> trees;
  std::vector<size_t> roots;  // by value
  graph::IndexGraph graph;

  explicit IndexGraph(const Schedule& of) : fusion(of.fusion), graph(*of.fusion, of.schedule) {
    for (size_t id = 0; id < fusion->values.size(); ++id) {
      trees.push_back(schedule::replay(of.schedule.domains[id], fusion->values[id].name));
      roots.push_back(of.schedule.domains[id].logical.size());
    }
  }
  std::string text() const {
    size_t axes = 0;
    for (const schedule::AxisTree& tree : trees) axes += tree.extents.size();
    return cat("<index graph of ", fusion->name, ": ", trees.size(), " values, ", axes, " axes>");
  }
  AxisId axis(const NamedAxis& named, const char* function) const {
    const ValueId id = value_named(*fusion, named.first, function);
    const int count = static_cast<int>(trees[id].extents.size());
    JF_REQUIRE(named.second >= 0 && named.second < count, "[", function, "] ", named.first, " has ", count,
               " axes; expected one in [0, ", count, "), got ", named.second);
    return {id, named.second};
  }
  NamedAxis loop(const std::string& value, int position) const {
    const ValueId id = value_named(*fusion, value, "loop");
    const int rank = static_cast<int>(trees[id].loop.size());
    JF_REQUIRE(position >= -rank && position < rank, "[loop] ", value, " has ", rank,
               " loop axes; expected an axis in [", -rank, ", ", rank, "), got ", position);
    return {value, trees[id].loop[position < 0 ? position + rank : position]};
  }
  std::vector<std::vector<NamedAxis>> groups(const std::string& kind) const {
    const Mapping mapping = mapping_named(kind, "groups");
    std::map<int, std::vector<NamedAxis>> found;
    for (size_t id = 0; id < trees.size(); ++id) {
      for (size_t node = 0; node < trees[id].extents.size(); ++node) {
        const AxisId axis{static_cast<ValueId>(id), static_cast<int>(node)};
        found[graph.group(mapping, axis)].emplace_back(fusion->values[id].name, axis.node);
      }
    }
    std::vector<std::vector<NamedAxis>> result;
    for (auto& [number, axes] : found) result.push_back(std::move(axes));
    return result;
  }
};

void bind_fusion(nb::module_& m) {
  nb::class_<Fusion>(m, "Fusion", docs::kFusion)
      .def(
          "__init__", [](Fusion* self, const std::string& text) { new (self) Fusion(ir::parse(text)); }, "text"_a)
      .def("__init__", refuses<Fusion>("Fusion: expected the text of one, as print(fusion) writes it"))
      .def("__str__", [](const Fusion& f) { return ir::print(f); })
      .def("__repr__", [](const Fusion& f) { return ir::print(f); })
      .def("__hash__", [](const Fusion& f) { return std::hash<std::string>()(ir::print(f)); })
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"))
      .def_ro("name", &Fusion::name, docs::kName)
      .def_prop_ro(
          "values",
          [](const Fusion& f) {
            std::vector<std::string> result;
            for (const ir::Value& value : f.values) result.push_back(value.name);
            return result;
          },
          docs::kValues)
      .def_prop_ro(
          "inputs", [](const Fusion& f) { return names(f, f.inputs); }, docs::kInputs)
      .def_prop_ro(
          "outputs", [](const Fusion& f) { return names(f, f.outputs); }, docs::kOutputs)
      .def(
          "is_reduction",
          [](const Fusion& f, const std::string& value) {
            const ValueId id = value_named(f, value, "is_reduction");
            return std::any_of(f.ops.begin(), f.ops.end(), [&](const ir::Op& op) {
              return op.output == id && std::holds_alternative<ir::Reduce>(op.attribute);
            });
          },
          "value"_a, docs::kIsReduction)
      .def(
          "dtype",
          [](const Fusion& f, const std::string& value) {
            return std::string(name(f.values[value_named(f, value, "dtype")].dtype));
          },
          "value"_a, docs::kDtype)
      .def(
          "shape",
          [](const Fusion& f, const std::string& value) { return ir::shape(f.values[value_named(f, value, "shape")]); },
          "value"_a, docs::kShape);
}

void bind_schedule(nb::module_& m) {
  nb::class_<Schedule>(m, "Schedule", docs::kSchedule)
      .def(
          "__init__",
          [](Schedule* self, FusionPtr fusion, const std::optional<std::string>& text) {
            schedule::Schedule parsed = text ? schedule::parse(*fusion, *text) : schedule::unscheduled(*fusion);
            new (self) Schedule{std::move(fusion), std::move(parsed)};
          },
          "fusion"_a, "text"_a = nb::none(), docs::kParse)
      .def("__init__", refuses<Schedule>("Schedule: expected a Fusion and the text of a schedule, or none"))
      .def("__str__", &Schedule::text)
      .def("__repr__", &Schedule::text)
      .def("__hash__", [](const Schedule& s) { return std::hash<std::string>()(s.text()); })
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"))
      .def_ro("fusion", &Schedule::fusion, docs::kOf)
      .def(
          "loops", [](const Schedule& s, const std::string& value) { return loops_of(s.domain(value, "loops")); },
          "value"_a, docs::kLoops)
      .def(
          "inline_position",
          [](const Schedule& s, const std::string& value) { return s.domain(value, "inline_position").inline_at; },
          "value"_a, docs::kInlinePosition)
      .def(
          "memory",
          [](const Schedule& s, const std::string& value) {
            return std::string(schedule::name(s.domain(value, "memory").memory));
          },
          "value"_a, docs::kMemory)
      .def(
          "positions",
          [](const Schedule& s, const std::string& value, const std::optional<std::vector<int64_t>>& weights) {
            const Domain& domain = s.domain(value, "positions");
            return graph::positions(domain, weights ? *weights : strides(domain.logical), value);
          },
          "value"_a, "weights"_a = nb::none(), docs::kPositions);
}

nb::class_<Scheduler> bind_scheduler(nb::module_& m) {
  using S = Scheduler;
  using Name = const std::string&;
  return nb::class_<S>(m, "Scheduler", docs::kScheduler)
      .def(
          "__init__",
          [](S* self, const Fusion& fusion) { host::reported(ir::print(fusion), [&] { new (self) S(fusion); }); },
          "fusion"_a)
      .def(nb::init<const Schedule&>(), "start"_a)
      .def("__init__", refuses<S>("Scheduler: expected a Fusion or a Schedule to go on from"))
      .def("__str__", [](const S& s) { return s.schedule().text(); })
      .def("__repr__", [](const S& s) { return s.schedule().text(); })
      .def_prop_ro("schedule", &S::schedule, docs::kNow)
      .def_ro("fusion", &S::fusion, docs::kFusionNow)
      .def(
          "loops", [](const S& s, Name value) { return loops_of(s.schedule().domain(value, "loops")); }, "value"_a,
          docs::kLoops)
      .def(
          "split",
          [](S& s, Name value, int axis, int64_t factor, bool inner) {
            s.scheduler->split(s.id(value, "split"), axis, factor, inner);
          },
          "value"_a, "axis"_a, "factor"_a, "inner"_a = true, docs::kSplit)
      .def(
          "merge", [](S& s, Name value, int axis) { s.scheduler->merge(s.id(value, "merge"), axis); }, "value"_a,
          "axis"_a, docs::kMerge)
      .def(
          "pad",
          [](S& s, Name value, int axis, int64_t multiple) { s.scheduler->pad(s.id(value, "pad"), axis, multiple); },
          "value"_a, "axis"_a, "to_multiple_of"_a, docs::kPad)
      .def(
          "reorder",
          [](S& s, Name value, const std::vector<int>& order) { s.scheduler->reorder(s.id(value, "reorder"), order); },
          "value"_a, "order"_a, docs::kReorder)
      .def(
          "swizzle", [](S& s, Name value, int x, int y) { s.scheduler->swizzle(s.id(value, "swizzle"), x, y); },
          "value"_a, "x"_a, "y"_a, docs::kSwizzle)
      .def(
          "parallelize",
          [](S& s, Name value, int axis, Name parallel) {
            const ValueId id = s.id(value, "parallelize");
            s.scheduler->parallelize(id, axis, parallel_named(parallel, value, "parallelize"));
          },
          "value"_a, "axis"_a, "parallel"_a, docs::kParallelize)
      .def(
          "transform_like",
          [](S& s, Name value, const std::vector<std::string>& selected) {
            s.scheduler->transform_like(s.id(value, "transform_like"), s.ids(selected, "transform_like"),
                                        /*partly=*/true);
          },
          "reference"_a, "selected"_a = std::vector<std::string>{}, docs::kTransformLike)
      .def(
          "parallelize_like",
          [](S& s, Name value, const std::vector<std::string>& selected, std::optional<int> position,
             const std::vector<std::string>& types) {
            std::vector<Parallel> parallel;
            for (Name type : types) parallel.push_back(parallel_named(type, value, "parallelize_like"));
            const ValueId id = s.id(value, "parallelize_like");
            s.scheduler->parallelize_like(id, s.ids(selected, "parallelize_like"), position, parallel,
                                          /*partly=*/true);
          },
          "reference"_a, "selected"_a = std::vector<std::string>{}, "position"_a = nb::none(),
          "types"_a = std::vector<std::string>{}, docs::kParallelizeLike)
      .def(
          "inline_at",
          [](S& s, Name value, int position, bool best_effort) {
            s.scheduler->inline_at(s.id(value, "inline_at"), position, best_effort);
          },
          "value"_a, "position"_a, "best_effort"_a = false, docs::kInlineAt)
      .def(
          "inline_most",
          [](S& s, const std::vector<std::string>& selected) {
            s.scheduler->inline_most(s.ids(selected, "inline_most"));
          },
          "selected"_a = std::vector<std::string>{}, docs::kInlineMost)
      .def(
          "set_memory",
          [](S& s, Name value, Name memory) {
            s.scheduler->set_memory(s.id(value, "set_memory"), memory_named(memory, value));
          },
          "value"_a, "memory"_a, docs::kSetMemory)
      .def(
          "set_memory_type",
          [](S& s, Name value, Name memory) {
            s.scheduler->set_memory(s.id(value, "set_memory_type"), memory_named(memory, value));
          },
          "value"_a, "memory"_a, docs::kSetMemoryType)
      .def(
          "set_allocation",
          [](S& s, Name value, int first_axis, int64_t pad) {
            s.scheduler->set_allocation(s.id(value, "set_allocation"), first_axis, pad);
          },
          "value"_a, "first_axis"_a, "pad"_a = 0, docs::kSetAllocation)
      .def(
          "circular_buffer",
          [](S& s, Name value, int stages, std::optional<int> prefetch) {
            s.scheduler->circular_buffer(s.id(value, "circular_buffer"), stages, prefetch.value_or(stages - 1));
          },
          "value"_a, "stages"_a, "prefetch"_a = nb::none(), docs::kCircularBuffer);
}

void bind_edits(nb::class_<Scheduler>& c) {
  using S = Scheduler;
  using Name = const std::string&;
  using Edit = schedule::Edited (*)(const Fusion&, const schedule::Schedule&, ValueId);
  auto cache = [&c](const char* call, Edit edit, const char* value, const char* doc) {
    c.def(
        call,
        [call, edit](S& s, Name name) { return s.edit(edit(*s.fusion, s.scheduler->schedule(), s.id(name, call))); },
        nb::arg(value), doc);
  };
  cache("cache_after", &schedule::cache_after, "value", docs::kCacheAfter);
  cache("cache_before", &schedule::cache_before, "value", docs::kCacheBefore);
  cache("cache_fork", &schedule::cache_fork, "output", docs::kCacheFork);
  c.def(
      "rfactor",
      [](S& s, Name value, const std::vector<int>& axes) {
        return s.edit(schedule::rfactor(*s.fusion, s.scheduler->schedule(), s.id(value, "rfactor"), axes));
      },
      "value"_a, "axes"_a, docs::kRfactor);
}

std::vector<Schedule> propose(const Fusion& fusion, const std::string& target) {
  std::vector<Schedule> schedules;
  const std::string text = ir::print(fusion);
  for (auto& [made, schedule] : host::reported(text, [&] { return host::propose(fusion, parse_target(target)); })) {
    schedules.push_back({std::make_shared<const Fusion>(std::move(made)), std::move(schedule)});
  }
  return schedules;
}

Schedule schedule_by(const Fusion& fusion, const std::string& strategy, const std::string& target,
                     const Parameters& parameters) {
  plan::StrategyKernel kernel = host::schedule_by(fusion, strategy, parse_target(target), parameters);
  return {std::make_shared<const Fusion>(std::move(kernel.fusion)), std::move(kernel.schedule)};
}

using Result = std::tuple<std::vector<std::string>, std::vector<int64_t>, int64_t>;
std::vector<Result> results(const Fusion& fusion) {
  std::vector<Result> found;
  for (const ir::Result& result : ir::results(fusion)) {
    found.emplace_back(names(fusion, result.outputs), result.shape, result.missing);
  }
  return found;
}

void bind_strategies(nb::module_& m) {
  m.def("propose", &propose, "fusion"_a, "target"_a);
  m.def(
      "as_one_kernel",
      [](const Fusion& fusion, const std::string& call) {
        return host::reported(ir::print(fusion), [&] { return plan::as_one_kernel(fusion, call); });
      },
      "fusion"_a, "call"_a);
  m.def("results", &results, "fusion"_a,
        "(outputs, shape, how many elements they leave out) of each array that the outputs are.");
  m.def("strategies", &plan::strategies);
  m.def(
      "why_not",
      [](const Fusion& fusion, const std::string& strategy, const std::string& target) {
        return host::why_not(fusion, strategy, parse_target(target));
      },
      "fusion"_a, "strategy"_a, "target"_a);
  m.def(
      "parameters_of",
      [](const Fusion& fusion, const std::string& strategy, const std::string& target) {
        return host::reported(ir::print(fusion),
                              [&] { return plan::parameters_of(fusion, strategy, parse_target(target)); });
      },
      "fusion"_a, "strategy"_a, "target"_a);
  m.def("schedule_by", &schedule_by, "fusion"_a, "strategy"_a, "target"_a, "parameters"_a);
}

void bind_index_graph(nb::module_& m) {
  using G = IndexGraph;
  nb::class_<G>(m, "IndexGraph", docs::kIndexGraph)
      .def(nb::init<const Schedule&>(), "schedule"_a)
      .def("__repr__", &G::text)
      .def("__init__", refuses<G>("IndexGraph: expected a Schedule; jax_fuser.ir.Schedule(fusion) has no edits"))
      .def(
          "root",
          [](const G& g, const std::string& value, int i) {
            const size_t rank = g.roots[value_named(*g.fusion, value, "root")];
            JF_REQUIRE(i >= 0 && i < static_cast<int>(rank), "[root] ", value, " has ", rank,
                       " root axes; expected one in [0, ", rank, "), got ", i);
            return NamedAxis{value, i};
          },
          "value"_a, "axis"_a, docs::kRoot)
      .def("loop", &G::loop, "value"_a, "position"_a, docs::kLoop)
      .def(
          "axes",
          [](const G& g, const std::string& value) { return g.trees[value_named(*g.fusion, value, "axes")].extents; },
          "value"_a, docs::kAxes)
      .def(
          "are_mapped",
          [](const G& g, const std::string& kind, const NamedAxis& a, const NamedAxis& b) {
            const Mapping mapping = mapping_named(kind, "are_mapped");
            return g.graph.mapped(mapping, g.axis(a, "are_mapped"), g.axis(b, "are_mapped"));
          },
          "kind"_a, "a"_a, "b"_a, docs::kAreMapped)
      .def("groups", &G::groups, "kind"_a, docs::kGroups);
}

}  // namespace

void bind_schedules(nb::module_& m) {
  bind_fusion(m);
  bind_schedule(m);
  nb::class_<Scheduler> scheduler = bind_scheduler(m);
  bind_edits(scheduler);
  bind_index_graph(m);
  bind_strategies(m);
}

}  // namespace jf::python
