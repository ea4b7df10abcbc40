#include "codegen/printer.h"

#include <numeric>
#include <optional>
#include <set>

#include "base/error.h"
#include "codegen/index_text.h"
#include "codegen/names.h"

namespace jf::codegen {
namespace {

using namespace loops;

std::string type_name(DType dtype) { return cat("jf::", name(dtype)); }

// The dtypes that an op's function cannot see in its operands, since 16-bit floats are f32 there.
std::string dtype_arguments(const Compute& compute, DType result) {
  if (compute.op == ir::OpKind::kConvert || compute.op == ir::OpKind::kNextAfter)
    return cat("<", type_name(result), ">");
  if (compute.op == ir::OpKind::kBitcast) return cat("<", type_name(result), ", ", type_name(compute.from), ">");
  return "";
}

struct Printer {
  const Kernel& kernel;
  const Dialect& dialect;
  std::string out = {};
  int depth = 1;
  bool in_vector = false;
  bool masked = false;  // in a vector whose last lanes may not exist; `on` says which do
  std::vector<std::string> buffers = {};
  std::vector<std::string> registers = {};  // empty until defined
  int loads = 0, results = 0;
  Variables variables = {};

  template <class... Args>
  void line(const Args&... args) {
    out += std::string(2 * depth, ' ') + cat(args...) + "\n";
  }
  std::string_view index_type() const { return kernel.wide_index ? "long" : "int"; }
  std::string lanes(RegisterId id) const { return std::string(name(compute_dtype(kernel.registers.at(id)))); }
  std::string index(const IndexPtr& index) const { return index_text(index, variables); }
  std::string offset(const IndexPtr& index) const { return offset_text(index, variables); }
  std::string on() const { return masked ? ", on" : ""; }

  const std::string& use(RegisterId id) const {
    JF_CHECK(!registers.at(id).empty(), "kernel ", kernel.name, " reads register ", id, " before it is defined");
    return registers[id];
  }
  std::string define(RegisterId id, const char* prefix, int& count) {
    JF_CHECK(registers.at(id).empty(), "kernel ", kernel.name, " defines register ", id, " twice");
    registers[id] = cat(prefix, count++);
    return cat("const ", lanes(id), " ", registers[id], " = ");
  }
  std::string bind(int id, int64_t multiple) {
    const auto [entry, fresh] = variables.insert({id, {cat("i", variables.size()), multiple}});
    JF_CHECK(fresh, "kernel ", kernel.name, " binds variable ", id, " twice");
    return entry->second.name;
  }
  // The largest power of two that divides both the offset and the width.
  int64_t multiple(const IndexPtr& index) const {
    return std::gcd<int64_t>(multiple_of(index, variables), kernel.width);
  }

  void body(const Body& statements) {
    for (const Stmt& stmt : statements) std::visit(*this, stmt.node);
  }
  void block(const Body& statements, const char* closing = "}") {
    ++depth;
    body(statements);
    --depth;
    line(closing);
  }

  void operator()(const For& loop) {
    switch (loop.parallel) {
      case Parallel::kSerial: return serial(loop);
      case Parallel::kUnroll: line(dialect.unroll, loop.extent); return serial(loop);
      case Parallel::kTask: return parallel(loop, dialect.task, kernel.grid);
      case Parallel::kBlock: return parallel(loop, dialect.block, kernel.grid);
      case Parallel::kThread: return parallel(loop, dialect.thread, kernel.block);
    }
  }
  void serial(const For& loop) {
    const std::string i = bind(loop.variable, 1);
    line("for (", index_type(), " ", i, " = 0; ", i, " < ", loop.extent, "; ++", i, ") {");
    block(loop.body);
  }
  void parallel(const For& loop, std::string_view number, int64_t count) {
    JF_CHECK(!number.empty(), "kernel ", kernel.name, " has a loop that its language cannot run in parallel");
    JF_CHECK(loop.extent <= count, "kernel ", kernel.name, " runs ", loop.extent, " iterations on ", count);
    const std::string i = bind(loop.variable, 1);
    if (loop.extent == count) {
      line("const ", index_type(), " ", i, " = ", index_type(), "(", number, ");");
      body(loop.body);
    } else {
      line("if (const ", index_type(), " ", i, " = ", index_type(), "(", number, "); ", i, " < ", loop.extent, ") {");
      block(loop.body);
    }
  }

  void operator()(const Vector& vector) {
    JF_CHECK(!in_vector, "kernel ", kernel.name, " nests vectors");
    const std::string base = index(vector.base);
    const std::string i = bind(vector.variable, multiple_of(vector.base, variables));
    in_vector = true;
    masked = !vector.full;
    if (vector.full) {
      line("const ", index_type(), " ", i, " = ", base, ";");
      body(vector.body);
    } else {
      line("jf::vector<", kernel.width, ">(", base, ", ", vector.limit, ", [&](", index_type(), " ", i,
           ", auto on) JF_LAMBDA {");
      block(vector.body, "});");
    }
    in_vector = masked = false;
  }
  void operator()(const Guard& guard) {
    std::string condition;
    for (const auto& [at, bound] : guard.below) {
      condition += cat(condition.empty() ? "" : " && ", index(at), " < ", bound);
    }
    line("if (", condition, ") {");
    block(guard.body);
  }

  void operator()(const Load& load) {
    const std::string type = lanes(load.result), &buffer = buffers.at(load.buffer), at = offset(load.offset);
    const std::string definition = define(load.result, "x", loads);
    if (load.lane_stride == 0) {
      line(definition, "jf::load_splat<", type, ">(", buffer, ", ", at, ");");
    } else if (load.lane_stride == 1) {
      const int64_t n = multiple(load.offset);
      line(definition, "jf::load<", type, n > 1 ? cat(", ", n) : "", ">(", buffer, ", ", at, on(), ");");
    } else {
      line(definition, "jf::gather<", type, ">(", buffer, ", ", at, ", ", load.lane_stride, on(), ");");
    }
  }
  void operator()(const FromIndex& from) {
    const std::string definition = define(from.result, "t", results);
    line(definition, "jf::from_index<", lanes(from.result), ">(", offset(from.base), ", ", from.lane_stride, ");");
  }
  void operator()(const Compute& compute) {
    std::string arguments;
    for (RegisterId id : compute.operands) arguments += cat(arguments.empty() ? "" : ", ", use(id));
    const DType dtype = kernel.registers.at(compute.result);
    const std::string comment = compute.comment.empty() ? "" : cat("  // ", safe_comment(compute.comment));
    const std::string definition = define(compute.result, "t", results);
    if (const auto* constant = std::get_if<ir::Constant>(&compute.attribute)) {
      line(definition, "jf::constant<", lanes(compute.result), ">(", literal(*constant, dtype), ");", comment);
    } else {
      line(definition, "jf::", ir::info(compute.op).name, dtype_arguments(compute, dtype), "(", arguments, ");",
           comment);
    }
  }
  void operator()(const Store& store) {
    const std::string &buffer = buffers.at(store.buffer), at = offset(store.offset), &value = use(store.value);
    if (store.lane_stride == 0) {
      line("jf::store_first(", buffer, ", ", at, ", ", value, ");");
    } else if (store.lane_stride == 1) {
      const int64_t n = multiple(store.offset);
      line("jf::store", n > 1 ? cat("<", n, ">") : "", "(", buffer, ", ", at, ", ", value, on(), ");");
    } else {
      line("jf::scatter(", buffer, ", ", at, ", ", store.lane_stride, ", ", value, on(), ");");
    }
  }
};

}  // namespace

std::string print_kernel(const Kernel& kernel, const Dialect& dialect) {
  JF_CHECK(kernel.width > 0 && (kernel.width & (kernel.width - 1)) == 0, "kernel ", kernel.name, " has ", kernel.width,
           " lanes");
  std::vector<std::string> names;
  for (const Buffer& buffer : kernel.buffers) names.push_back(buffer.name);
  names = safe_names(names);
  std::vector<Parameter> parameters;
  for (size_t i = 0; i < names.size(); ++i) {
    const Buffer& buffer = kernel.buffers[i];
    parameters.push_back({names[i], cat(buffer.written ? "" : "const ", type_name(buffer.dtype), "*")});
  }

  Printer printer{.kernel = kernel, .dialect = dialect};
  printer.out = dialect.opening(kernel, kernel.name, parameters);
  printer.buffers = std::move(names);
  printer.registers.resize(kernel.registers.size());
  std::set<DType> types;
  for (DType dtype : kernel.registers) types.insert(compute_dtype(dtype));
  for (DType type : types)
    printer.line("using ", name(type), " = jf::Lanes<", type_name(type), ", ", kernel.width, ">;");
  printer.body(kernel.body);
  return printer.out + "}\n";
}

}  // namespace jf::codegen
