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
#include "python/schedule_bindings.h"
#include "runtime/background.h"
#include "runtime/disk_cache.h"
#include "runtime/driver.h"
#include "runtime/host_compiler.h"
#include "runtime/nvrtc.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jf::python {
namespace {

ir::OpKind op_named(const std::string& name, const char* function) {
  const ir::OpInfo* found = ir::find_op(name);
  JF_REQUIRE(found, "[", function, "] unknown op '", name, "'; csrc/ir/ops.def lists them");
  return found->kind;
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
  nb::class_<Builder>(m, "Builder", "Builds a fusion op by op; values are numbers.")
      .def(nb::init<std::string, size_t>(), "name"_a, "max_ops"_a = size_t{Builder::kMaxOps})
      .def_prop_ro("is_full", &Builder::is_full)
      .def(
          "repeated",
          [](const Builder& b, const std::vector<ir::ValueId>& values, const std::vector<ir::ValueId>& wanted) {
            return b.repeated(values, wanted);
          },
          "Those of the values to store: too many of their slices compute them again for what is wanted.")
      .def("store", &Builder::store, "Later slices of the value read it from memory.")
      .def(
          "input",
          [](Builder& b, const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape) {
            return b.input(name, parse_dtype(dtype), shape);
          },
          "name"_a, "dtype"_a, "shape"_a)
      .def(
          "constant",
          [](Builder& b, const std::string& dtype, nb::handle value) {
            const DType t = parse_dtype(dtype);
            return b.constant(t, constant(t, value));
          },
          "dtype"_a, "value"_a)
      .def(
          "iota",
          [](Builder& b, const std::string& dtype, const std::vector<int64_t>& shape, int64_t dim) {
            return b.iota(parse_dtype(dtype), shape, dim);
          },
          "dtype"_a, "shape"_a, "dim"_a)
      .def(
          "pointwise",
          [](Builder& b, const std::string& op, const std::vector<ir::ValueId>& inputs, const std::string& label) {
            return b.pointwise(op_named(op, "pointwise"), inputs, label);
          },
          "op"_a, "inputs"_a, "label"_a = "")
      .def(
          "convert",
          [](Builder& b, ir::ValueId value, const std::string& dtype, const std::string& label) {
            return b.convert(value, parse_dtype(dtype), label);
          },
          "value"_a, "dtype"_a, "label"_a = "")
      .def(
          "bitcast",
          [](Builder& b, ir::ValueId value, const std::string& dtype, const std::string& label) {
            return b.bitcast(value, parse_dtype(dtype), label);
          },
          "value"_a, "dtype"_a, "label"_a = "")
      .def(
          "broadcast",
          [](Builder& b, ir::ValueId value, const std::vector<int64_t>& shape, const std::vector<int64_t>& dims) {
            return b.broadcast(value, shape, dims);
          },
          "value"_a, "shape"_a, "dims"_a)
      .def(
          "transpose",
          [](Builder& b, ir::ValueId value, const std::vector<int64_t>& permutation) {
            return b.transpose(value, permutation);
          },
          "value"_a, "permutation"_a)
      .def(
          "concat",
          [](Builder& b, const std::vector<ir::ValueId>& values, int64_t axis) { return b.concat(values, axis); },
          "values"_a, "axis"_a)
      .def(
          "slice",
          [](Builder& b, ir::ValueId value, const std::vector<int64_t>& starts, const std::vector<int64_t>& strides,
             const std::vector<int64_t>& counts) { return b.slice(value, {starts, strides}, counts); },
          "value"_a, "starts"_a, "strides"_a, "counts"_a)
      .def(
          "reshape",
          [](Builder& b, ir::ValueId value, const std::vector<int64_t>& shape) { return b.reshape(value, shape); },
          "value"_a, "shape"_a)
      .def(
          "take",
          [](Builder& b, ir::ValueId value, const std::vector<ir::ValueId>& indices, const std::vector<int64_t>& axes,
             const std::vector<int64_t>& dims,
             const std::vector<int64_t>& shape) { return b.take(value, indices, axes, dims, shape); },
          "value"_a, "indices"_a, "axes"_a, "dims"_a, "shape"_a)
      .def(
          "search",
          [](Builder& b, ir::ValueId table, ir::ValueId numbers, const std::string& side,
             const std::vector<int64_t>& dims, const std::string& label) {
            JF_REQUIRE(side == "left" || side == "right", "[search] side: expected left or right, got '", side, "'");
            return b.search(table, numbers, {side == "left", dims}, label);
          },
          "table"_a, "numbers"_a, "side"_a = "right", "dims"_a = std::vector<int64_t>{}, "label"_a = "",
          "How many elements of a table, sorted along its last axis, are <= each number, or < it with side='left'. "
          "Axis i of the table before the last goes along axis dims[i] of the numbers.")
      .def(
          "pad",
          [](Builder& b, ir::ValueId value, const std::vector<int64_t>& low, const std::vector<int64_t>& high,
             ir::ValueId padding) { return b.pad(value, low, high, padding); },
          "value"_a, "low"_a, "high"_a, "padding"_a)
      .def(
          "squeeze",
          [](Builder& b, ir::ValueId value, const std::vector<int64_t>& dims) { return b.squeeze(value, dims); },
          "value"_a, "dims"_a)
      .def(
          "reduce",
          [](Builder& b, const std::string& op, ir::ValueId value, const std::vector<int64_t>& dims,
             const std::string& label,
             int64_t parts) { return b.reduce(op_named(op, "reduce"), value, dims, parts, label); },
          "op"_a, "value"_a, "dims"_a, "label"_a = "", "parts"_a = 0,
          "Fold axes away. With parts > 0 the first one is folded in that many runs, which an axis in its place "
          "counts.")
      .def(
          "scan",
          [](Builder& b, const std::string& op, ir::ValueId value, int64_t axis, bool reverse, const std::string& label,
             ir::ValueId factors) { return b.scan(op_named(op, "scan"), value, axis, reverse, label, factors); },
          "op"_a, "value"_a, "axis"_a, "reverse"_a = false, "label"_a = "", "factors"_a = -1,
          "Carry a value along an axis. scan_linear takes factors, too: each element is what stands before it, 0 "
          "before the first one, and behind an element stand its value and its factor times that; with "
          "scan_linear_resets its value alone where the factor is NaN.")
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
          "leaves_padding"_a = false,
          "Multiply rows by groups. 8-bit floats are scaled by \"rows\" or \"blocks\": `scales` are those of lhs and "
          "rhs. Packed `weights` of four bits give a result of `columns`. With `leaves_padding` rows of no group "
          "may hold anything, and are zeros otherwise.")
      .def("partition", &Builder::partition, "value"_a, "starts"_a, "extents"_a, "axis"_a, "most"_a,
           "The rows of each component as a component and a ragged axis of at most `most` of them.")
      .def("note_partition", &Builder::note_partition, "value"_a, "starts"_a, "extents"_a, "axis"_a, "most"_a,
           "nested"_a, "Say that `nested` is this partition of a value.")
      .def(
          "stretch",
          [](Builder& b, ir::ValueId value, ir::ValueId extents, int64_t axis, int64_t most,
             const std::vector<int64_t>& by) { return b.stretch(value, extents, {axis, most, by}); },
          "value"_a, "extents"_a, "axis"_a, "most"_a, "by"_a,
          "The same for each element of a ragged axis in the place of one of extent 1.")
      .def(
          "broadcast_like",
          [](Builder& b, ir::ValueId value, ir::ValueId like, const std::vector<int64_t>& dims) {
            return b.broadcast_like(value, like, dims);
          },
          "value"_a, "like"_a, "dims"_a, "A dense value with the axes of a nested one.")
      .def("combine", nb::overload_cast<ir::ValueId, ir::ValueId, int64_t, int64_t>(&Builder::combine), "value"_a,
           "starts"_a, "rows"_a, "components"_a = 1,
           "The rows of all components of a nested value in one axis, zeros between them.")
      .def(
          "combine",
          [](Builder& b, ir::ValueId value, const std::vector<ir::ValueId>& starts, const std::vector<int64_t>& rows) {
            return b.combine(value, starts, rows);
          },
          "value"_a, "starts"_a, "rows"_a, "The same of a value with several ragged axes.")
      .def(
          "partition",
          [](Builder& b, ir::ValueId value, ir::ValueId starts, ir::ValueId extents, int64_t axis, int64_t most,
             int64_t components) { return b.partition_of(value, starts, extents, {axis, most, {}, components}); },
          "value"_a, "starts"_a, "extents"_a, "axis"_a, "most"_a, "components"_a,
          "The same where the last `components` axes of the extents are the component.")
      .def("select", &Builder::select, "value"_a, "component"_a,
           "The rows of one component of a nested value, zeros behind the last one.")
      .def(
          "split",
          [](Builder& b, ir::ValueId value, int64_t axis, int64_t factor) {
            const Builder::Nested made = b.split(value, axis, factor);
            return std::tuple(made.value, made.starts, made.extents);
          },
          "value"_a, "axis"_a, "factor"_a,
          "(value, starts, extents) with runs of `factor` rows as an axis of their own, the last ones filled with "
          "zeros.")
      .def(
          "merge",
          [](Builder& b, ir::ValueId value, int64_t first, int64_t second) {
            const Builder::Nested made = b.merge(value, first, second);
            return std::tuple(made.value, made.starts, made.extents);
          },
          "value"_a, "first"_a, "second"_a,
          "(value, starts, extents) with a ragged axis and its component, the dense axis behind it, or the outer axis "
          "of its extents as one.")
      .def("output", &Builder::output, "value"_a)
      .def("set_name", &Builder::set_name, "value"_a, "name"_a)
      .def(
          "finish", [](Builder& b) { return ir::print(b.finish()); }, "The fusion's text; the builder is empty after.");
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
