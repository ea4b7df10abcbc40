// jax_fuser._core: the same names as in C++, no algorithm here.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "base/error.h"
#include "base/target.h"
#include "ffi/handlers.h"
#include "host/counters.h"
#include "host/executable.h"
#include "host/exported.h"
#include "host/facts.h"
#include "host/gathered_rows.h"
#include "host/stages.h"
#include "host/tuning.h"
#include "ir/build.h"
#include "ir/text.h"
#include "python/builder_docs.h"
#include "python/schedule_bindings.h"
#include "runtime/background.h"
#include "runtime/disk_cache.h"
#include "runtime/driver.h"
#include "runtime/host_compiler.h"
#include "runtime/log.h"
#include "runtime/nvrtc.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jf::python {
namespace {

ir::OpKind op_named(const std::string& name, const char* function) {
  const ir::OpInfo* found = ir::find_op(name);
  JF_REQUIRE(found, "[", function, "] unknown op '", name, "'; jax_fuser.ir.ops('", function, "') lists them");
  return found->kind;
}

// (name, class, operands, result) of each op that a method of Builder takes by name.
std::vector<std::tuple<std::string, std::string, std::vector<std::string>, std::string>> named_ops() {
  static const std::map<ir::OpClass, std::string> classes = {
      {ir::OpClass::kPointwise, "pointwise"}, {ir::OpClass::kReduce, "reduce"}, {ir::OpClass::kScan, "scan"}};
  static const std::map<ir::OperandTypes, std::string> types = {{ir::OperandTypes::kAny, "any"},
                                                                {ir::OperandTypes::kNumber, "number"},
                                                                {ir::OperandTypes::kFloating, "floating"},
                                                                {ir::OperandTypes::kInteger, "integer"},
                                                                {ir::OperandTypes::kLogical, "logical"}};
  std::vector<std::tuple<std::string, std::string, std::vector<std::string>, std::string>> result;
  for (const ir::OpInfo& op : ir::ops()) {
    const auto found = classes.find(op.op_class);
    if (found == classes.end() || op.result == ir::ResultRule::kStated) continue;
    const std::string& type = types.at(op.operands);
    std::vector<std::string> operands(op.arity, type);
    if (op.result == ir::ResultRule::kSelect) operands[0] = "pred";
    const bool code = op.result == ir::ResultRule::kCode;
    if (code) operands[0] = name(DType::kF32);
    result.emplace_back(op.name, found->second, operands,
                        code                                 ? std::string(name(DType::kU32))
                        : op.result == ir::ResultRule::kPred ? "pred"
                                                             : type);
  }
  return result;
}

ir::GroupedMode grouped_mode(const std::string& name) {
  if (name == "rows") return ir::GroupedMode::kRows;
  if (name == "contraction") return ir::GroupedMode::kContraction;
  JF_REQUIRE(name == "batch", "[grouped_matmul] mode must be rows, contraction or batch, got '", name, "'");
  return ir::GroupedMode::kBatch;
}

ir::GroupedScales grouped_scales(const std::string& name) {
  if (name.empty()) return ir::GroupedScales::kNone;
  if (name == "rows") return ir::GroupedScales::kRows;
  JF_REQUIRE(name == "blocks", "[grouped_matmul] scaled must be rows or blocks, got '", name, "'");
  return ir::GroupedScales::kBlocks;
}

ir::Constant constant(DType dtype, nb::handle value) {
  double number = 0;
  if (is_float(dtype)) {
    JF_REQUIRE(nb::try_cast(value, number), "[constant] ", name(dtype), ": expected a number, got ",
               nb::repr(value).c_str());
    return {number};
  }
  const int bits = dtype == DType::kPred ? 1 : static_cast<int>(8 * size_of(dtype));
  const bool is_signed = name(dtype).front() == 's';
  int64_t integer = 0;
  uint64_t large = 0;
  bool known = nb::try_cast(value, integer);
  if (!known && dtype == DType::kU64 && nb::try_cast(value, large)) {
    return {static_cast<int64_t>(large)};
  }
  // Of an unsigned dtype a negative number is its two's complement.
  const int64_t low = bits == 64 ? INT64_MIN : dtype == DType::kPred ? 0 : -(int64_t{1} << (bits - 1));
  const int64_t high = bits == 64 ? INT64_MAX : (int64_t{1} << (is_signed ? bits - 1 : bits)) - 1;
  known = known && low <= integer && integer <= high;
  JF_REQUIRE(known, "[constant] ", name(dtype), ": expected an integer that it holds, got ", nb::repr(value).c_str());
  return {integer};
}

void bind_builder(nb::module_& m) {
  using ir::Builder;
  namespace docs = builder_docs;
  nb::class_<Builder>(m, "Builder", docs::kClass)
      .def(nb::init<std::string, size_t>(), "name"_a, "max_ops"_a = size_t{Builder::kMaxOps})
      .def_prop_ro("is_full", &Builder::is_full, docs::kIsFull)
      .def(
          "repeated",
          [](const Builder& b, const std::vector<ir::ValueId>& values, const std::vector<ir::ValueId>& wanted) {
            return b.repeated(values, wanted);
          },
          "values"_a, "wanted"_a, docs::kRepeated)
      .def("store", &Builder::store, "value"_a, docs::kStore)
      .def(
          "input",
          [](Builder& b, const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape) {
            return b.input(name, parse_dtype(dtype), shape);
          },
          "name"_a, "dtype"_a, "shape"_a, docs::kInput)
      .def(
          "constant",
          [](Builder& b, const std::string& dtype, nb::handle value) {
            const DType t = parse_dtype(dtype);
            return b.constant(t, constant(t, value));
          },
          "dtype"_a, "value"_a, docs::kConstant)
      .def(
          "iota",
          [](Builder& b, const std::string& dtype, const std::vector<int64_t>& shape, int64_t dim) {
            return b.iota(parse_dtype(dtype), shape, dim);
          },
          "dtype"_a, "shape"_a, "dim"_a, docs::kIota)
      .def(
          "pointwise",
          [](Builder& b, const std::string& op, const std::vector<ir::ValueId>& inputs, const std::string& label) {
            return b.pointwise(op_named(op, "pointwise"), inputs, label);
          },
          "op"_a, "inputs"_a, "label"_a = "", docs::kPointwise)
      .def(
          "convert",
          [](Builder& b, ir::ValueId value, const std::string& dtype, const std::string& label) {
            return b.convert(value, parse_dtype(dtype), label);
          },
          "value"_a, "dtype"_a, "label"_a = "", docs::kConvert)
      .def(
          "bitcast",
          [](Builder& b, ir::ValueId value, const std::string& dtype, const std::string& label) {
            return b.bitcast(value, parse_dtype(dtype), label);
          },
          "value"_a, "dtype"_a, "label"_a = "", docs::kBitcast)
      .def(
          "broadcast",
          [](Builder& b, ir::ValueId value, const std::vector<int64_t>& shape, const std::vector<int64_t>& dims) {
            return b.broadcast(value, shape, dims);
          },
          "value"_a, "shape"_a, "dims"_a, docs::kBroadcast)
      .def(
          "transpose",
          [](Builder& b, ir::ValueId value, const std::vector<int64_t>& permutation) {
            return b.transpose(value, permutation);
          },
          "value"_a, "permutation"_a, docs::kTranspose)
      .def(
          "concat",
          [](Builder& b, const std::vector<ir::ValueId>& values, int64_t axis) { return b.concat(values, axis); },
          "values"_a, "axis"_a, docs::kConcat)
      .def(
          "slice",
          [](Builder& b, ir::ValueId value, const std::vector<int64_t>& starts, const std::vector<int64_t>& strides,
             const std::vector<int64_t>& counts) { return b.slice(value, {starts, strides}, counts); },
          "value"_a, "starts"_a, "strides"_a, "counts"_a, docs::kSlice)
      .def(
          "reshape",
          [](Builder& b, ir::ValueId value, const std::vector<int64_t>& shape) { return b.reshape(value, shape); },
          "value"_a, "shape"_a, docs::kReshape)
      .def(
          "take",
          [](Builder& b, ir::ValueId value, const std::vector<ir::ValueId>& indices, const std::vector<int64_t>& axes,
             const std::vector<int64_t>& dims,
             const std::vector<int64_t>& shape) { return b.take(value, indices, axes, dims, shape); },
          "value"_a, "indices"_a, "axes"_a, "dims"_a, "shape"_a, docs::kTake)
      .def(
          "search",
          [](Builder& b, ir::ValueId table, ir::ValueId numbers, const std::string& side,
             const std::vector<int64_t>& dims, const std::string& label) {
            JF_REQUIRE(side == "left" || side == "right", "[search] side: expected left or right, got '", side, "'");
            return b.search(table, numbers, {side == "left", dims}, label);
          },
          "table"_a, "numbers"_a, "side"_a = "right", "dims"_a = std::vector<int64_t>{}, "label"_a = "", docs::kSearch)
      .def(
          "pad",
          [](Builder& b, ir::ValueId value, const std::vector<int64_t>& low, const std::vector<int64_t>& high,
             ir::ValueId padding) { return b.pad(value, low, high, padding); },
          "value"_a, "low"_a, "high"_a, "padding"_a, docs::kPad)
      .def(
          "squeeze",
          [](Builder& b, ir::ValueId value, const std::vector<int64_t>& dims) { return b.squeeze(value, dims); },
          "value"_a, "dims"_a, docs::kSqueeze)
      .def(
          "reduce",
          [](Builder& b, const std::string& op, ir::ValueId value, const std::vector<int64_t>& dims,
             const std::string& label,
             int64_t parts) { return b.reduce(op_named(op, "reduce"), value, dims, parts, label); },
          "op"_a, "value"_a, "dims"_a, "label"_a = "", "parts"_a = 0, docs::kReduce)
      .def(
          "scan",
          [](Builder& b, const std::string& op, ir::ValueId value, int64_t axis, bool reverse, const std::string& label,
             ir::ValueId factors) { return b.scan(op_named(op, "scan"), value, axis, reverse, label, factors); },
          "op"_a, "value"_a, "axis"_a, "reverse"_a = false, "label"_a = "", "factors"_a = -1, docs::kScan)
      .def(
          "grouped_matmul",
          [](Builder& b, ir::ValueId lhs, ir::ValueId rhs, ir::ValueId extents, std::optional<ir::ValueId> starts,
             const std::string& mode, bool transpose_rhs, const std::string& dtype, const std::string& label,
             const std::string& scaled, const std::vector<ir::ValueId>& scales, const std::string& weights,
             int64_t columns, bool leaves_padding) {
            std::vector<ir::ValueId> others = starts ? std::vector<ir::ValueId>{*starts} : std::vector<ir::ValueId>{};
            others.insert(others.end(), scales.begin(), scales.end());
            ir::Grouped attribute{grouped_mode(mode), transpose_rhs, grouped_scales(scaled)};
            if (!weights.empty()) attribute.weights = ir::parse_weights(weights);
            attribute.columns = columns;
            attribute.leaves_padding = leaves_padding;
            return b.grouped_matmul(lhs, rhs, extents, others, attribute, parse_dtype(dtype), label);
          },
          "lhs"_a, "rhs"_a, "extents"_a, "starts"_a.none(), "mode"_a, "transpose_rhs"_a, "dtype"_a, "label"_a = "",
          "scaled"_a = "", "scales"_a = std::vector<ir::ValueId>{}, "weights"_a = "", "columns"_a = 0,
          "leaves_padding"_a = false, docs::kGroupedMatmul)
      .def(
          "partition",
          [](Builder& b, ir::ValueId value, ir::ValueId starts, ir::ValueId extents, int64_t axis, int64_t most,
             std::optional<int64_t> components) {
            return components ? b.partition_of(value, starts, extents, {axis, most, {}, *components})
                              : b.partition(value, starts, extents, axis, most);
          },
          "value"_a, "starts"_a, "extents"_a, "axis"_a, "most"_a, "components"_a = nb::none(), docs::kPartition)
      .def("note_partition", &Builder::note_partition, "value"_a, "starts"_a, "extents"_a, "axis"_a, "most"_a,
           "nested"_a, docs::kNotePartition)
      .def(
          "stretch",
          [](Builder& b, ir::ValueId value, ir::ValueId extents, int64_t axis, int64_t most,
             const std::vector<int64_t>& by) { return b.stretch(value, extents, {axis, most, by}); },
          "value"_a, "extents"_a, "axis"_a, "most"_a, "by"_a, docs::kStretch)
      .def(
          "broadcast_like",
          [](Builder& b, ir::ValueId value, ir::ValueId like, const std::vector<int64_t>& dims) {
            return b.broadcast_like(value, like, dims);
          },
          "value"_a, "like"_a, "dims"_a, docs::kBroadcastLike)
      .def("combine", nb::overload_cast<ir::ValueId, ir::ValueId, int64_t, int64_t>(&Builder::combine), "value"_a,
           "starts"_a, "rows"_a, "components"_a = 1, docs::kCombine)
      .def(
          "combine",
          [](Builder& b, ir::ValueId value, const std::vector<ir::ValueId>& starts, const std::vector<int64_t>& rows) {
            return b.combine(value, starts, rows);
          },
          "value"_a, "starts"_a, "rows"_a, docs::kCombineSeveral)
      .def("select", &Builder::select, "value"_a, "component"_a, docs::kSelect)
      .def(
          "split",
          [](Builder& b, ir::ValueId value, int64_t axis, int64_t factor) {
            const Builder::Nested made = b.split(value, axis, factor);
            return std::tuple(made.value, made.starts, made.extents);
          },
          "value"_a, "axis"_a, "factor"_a, docs::kSplit)
      .def(
          "merge",
          [](Builder& b, ir::ValueId value, int64_t first, int64_t second) {
            const Builder::Nested made = b.merge(value, first, second);
            return std::tuple(made.value, made.starts, made.extents);
          },
          "value"_a, "first"_a, "second"_a, docs::kMerge)
      .def("output", &Builder::output, "value"_a, docs::kOutput)
      .def("set_name", &Builder::set_name, "value"_a, "name"_a, docs::kSetName)
      // jax_fuser.ir.Builder returns a Fusion.
      .def(
          "finish", [](Builder& b) { return ir::print(b.finish()); }, nb::sig("def finish(self) -> typing.Any"),
          docs::kFinish);
}

void bind_targets(nb::module_& m) {
  m.def("host_target", [] { return print(host_target()); });
  m.def(
      "cuda_target",
      [](int device) -> std::optional<std::string> {
        const std::optional<Target> target = runtime::cuda_target(device);
        if (!target) return std::nullopt;
        return print(*target);
      },
      "device"_a, "The target of a CUDA device, or None without a driver or device.");
  m.def(
      "cuda_target_for", [](int compute_capability) { return print(cuda_target_for(compute_capability)); },
      "compute_capability"_a, "A target for a CUDA device that is not here, for export and for compiling in CI.");
  m.def("memory_bandwidth", &runtime::memory_bandwidth, "device"_a,
        "Bytes per second of a CUDA device's memory at best; 0 where the driver does not say.");
  using Found = std::pair<std::optional<std::string>, std::string>;
  m.def(
      "host_compiler",
      [] {
        std::string reason;
        if (const auto found = runtime::find_host_compiler(&reason)) return Found(found->command[0], found->version);
        return Found(std::nullopt, reason);
      },
      "(path, version), or (None, why there is none).");
  m.def("host_compiler_ahead", &runtime::find_host_compiler_ahead,
        "Ask for the compiler's version in the background, once per process.");
  m.def("end_background", &runtime::end_background, nb::call_guard<nb::gil_scoped_release>(),
        "Wait for what is compiled in the background; nothing begins there afterwards.");
  m.def(
      "nvrtc",
      [] {
        std::string reason;
        if (const auto found = runtime::find_nvrtc(&reason)) {
          return Found(found->path, cat("NVRTC ", found->major, ".", found->minor));
        }
        return Found(std::nullopt, reason);
      },
      "(path, version), or (None, why there is none).");
  m.def("set_zig", &runtime::set_zig, "path"_a);
  m.def("add_nvrtc_dir", &runtime::add_nvrtc_dir, "path"_a);
}

nb::list facts(const std::string& program, const std::string& target) {
  auto flows = [](const std::vector<host::Flow>& all) {
    nb::list result;
    for (const host::Flow& flow : all) result.append(nb::make_tuple(flow.value, flow.dtype, flow.shape, flow.bytes));
    return result;
  };
  std::vector<host::LaunchFacts> kernels;
  {
    nb::gil_scoped_release unlocked;
    kernels = host::facts(program, target);
  }
  nb::list result;
  for (const auto& [kernel, launch, entry, results] : kernels) {
    nb::dict one;
    one["name"] = kernel.name;
    one["strategy"] = kernel.strategy;
    one["reason"] = kernel.reason;
    one["parameters"] = kernel.parameters;
    one["reads"] = flows(kernel.reads);
    one["writes"] = flows(kernel.writes);
    one["operations"] = kernel.operations;
    one["launch"] = launch;
    one["entry"] = entry;
    one["results"] = results;
    result.append(one);
  }
  return result;
}

void bind_programs(nb::module_& m) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  m.def("ops", &named_ops, "(name, method of Builder, dtypes of operands, dtype of the result) of each op.");
  m.def("identifier", [](const std::string& text) { return ir::identifier(text); }, "text"_a);
  m.def("validate", [](const std::string& program) { ir::parse(program); }, "program"_a);
  m.def("stages", &host::stages, "program"_a, "target"_a, release());
  m.def("sass", &host::sass, "program"_a, "target"_a, release());
  m.def(
      "alternatives",
      [](const std::string& program, const std::string& target) {
        std::vector<std::tuple<std::string, std::string, std::vector<std::string>>> result;
        for (host::Alternatives& a : host::alternatives(program, target)) {
          result.emplace_back(std::move(a.kernel), std::move(a.now), std::move(a.others));
        }
        return result;
      },
      "program"_a, "target"_a, release(),
      "For each kernel with parameters to choose: its name, those that it has, and others worth measuring.");
  m.def(
      "cache_folder",
      []() -> std::optional<std::string> {
        const runtime::DiskCache cache = runtime::DiskCache::open();
        return cache.enabled() ? std::optional(cache.folder()) : std::nullopt;
      },
      "The folder of the compile cache, or None where nothing is kept.");
  m.def("why_no_dump", &runtime::why_no_dump, "What is wrong with the value of JAX_FUSER_DUMP, or the empty text.");
  m.def("facts", &facts, "program"_a, "target"_a, "One dict for each kernel, in the order in which they run.");
  m.def(
      "workspace_bytes",
      [](const std::string& program, const std::string& target, bool portable, int64_t module, bool at_once,
         const std::string& shown) {
        return host::workspace_bytes(program, target, portable, {module, at_once}, shown);
      },
      "program"_a, "target"_a, "portable"_a = false, "module"_a = 0, "at_once"_a = false, "shown"_a = "", release(),
      "Bytes that a program needs between its kernels; portable: on any target. It is compiled in the background: at "
      "once, or with the first "
      "program of the same module that JAX compiles.");
  m.def("copies_rows", &host::copies_rows, "program"_a, "target"_a, release(),
        "Whether the rows of a grouped product are gathered by a kernel of their own.");
  m.def(
      "check_exported",
      [](const std::string& program, const std::string& written_for, const std::string& here) {
        host::build_exported(program, parse_target(written_for), parse_target(here));
      },
      "program"_a, "written_for"_a, "here"_a, release(),
      "Raise what running a program on another target than its own raises.");
  m.def(
      "compile_cuda",
      [](const std::string& program, const std::string& target) {
        std::vector<host::CompiledSource> compiled;
        {
          nb::gil_scoped_release unlocked;
          compiled = host::compile_cuda(program, target);
        }
        nb::list result;
        for (const host::CompiledSource& c : compiled) {
          result.append(nb::make_tuple(c.entry, c.source, nb::bytes(c.binary.data(), c.binary.size())));
        }
        return result;
      },
      "program"_a, "target"_a, "[(entry, source, cubin)] of every kernel, compiled without a driver.");
  m.def("counters", &host::counters);
}

nb::dict handlers(const std::string& platform) {
  JF_REQUIRE(platform == "cpu" || platform == "cuda", "[handlers] platform must be cpu or cuda, got '", platform, "'");
  const ffi::Handlers h = platform == "cpu" ? ffi::cpu_handlers() : ffi::cuda_handlers();
  nb::dict result;
  auto add = [&](const char* stage, ffi::Handler handler) {
    if (handler) result[stage] = nb::capsule(reinterpret_cast<void*>(handler));
  };
  add("instantiate", h.instantiate);
  add("initialize", h.initialize);
  add("execute", h.execute);
  return result;
}

}  // namespace
}  // namespace jf::python

NB_MODULE(_core, m) {
  m.doc() = "The compiler core of jax_fuser. Use the names of the jax_fuser package instead.";
  // Caches of JAX hold fusions until the process ends, which is no leak.
  nb::set_leak_warnings(false);
  nb::exception<jf::UserError>(m, "UserError", PyExc_ValueError);
  nb::exception<jf::InternalError>(m, "InternalError", PyExc_RuntimeError);
  m.attr("ABI") = jf::ffi::kAbi;
  jf::python::bind_builder(m);
  jf::python::bind_targets(m);
  jf::python::bind_programs(m);
  jf::python::bind_schedules(m);
  m.def("handlers", &jf::python::handlers, "platform"_a);
}
