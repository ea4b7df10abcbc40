#include "codegen/printer.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/integers.h"
#include "codegen/dtype_arguments.h"
#include "codegen/memory_statements.h"
#include "codegen/names.h"
#include "codegen/packed.h"
#include "loops/bodies.h"

namespace jf::codegen {
namespace {

using namespace loops;

std::string type_name(DType dtype) { return cat("jf::", name(dtype)); }

struct Printer : MemoryStatements {
  using MemoryStatements::MemoryStatements;
  using MemoryStatements::operator();

  void lane_types() {
    std::set<DType> types;
    for (DType dtype : kernel.registers) types.insert(compute_dtype(dtype));
    for (const Array& array : kernel.arrays) types.insert(compute_dtype(array.dtype));
    for (DType type : types) line("using ", name(type), " = jf::Lanes<", type_name(type), ", ", kernel.width, ">;");
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
      case Parallel::kUnroll: return unroll(loop);
      case Parallel::kTask: return parallel(loop, dialect.task, kernel.grid);
      case Parallel::kBlock: {
        const std::string number = cat(dialect.block, kernel.cluster == 1 ? "" : cat(" / ", kernel.cluster));
        return parallel(loop, dialect.block.empty() ? "" : number, kernel.grid);
      }
      case Parallel::kCluster: return parallel(loop, cat(dialect.block, " % ", kernel.cluster), kernel.cluster);
      case Parallel::kBlockY: return parallel(loop, dialect.block_y, kernel.grid_y);
      case Parallel::kThread: return parallel(loop, dialect.thread, kernel.block);
      case Parallel::kThreadY: return parallel(loop, dialect.thread_y, kernel.block_y);
    }
  }
  void unroll(const For& loop) {
    const std::string outer = unrolled;
    unrolled += cat(", ", bind(loop.variable, 1));
    variables.at(loop.variable).unrolled = true;
    variables.at(loop.variable).last = loop.extent - 1;
    line(dialect.unroll, loop.extent);
    loop_body(loop);
    unrolled = outer;
  }
  void serial(const For& loop) {
    bind(loop.variable, 1);
    variables.at(loop.variable).last = loop.extent - 1;
    loop_body(loop);
  }
  void loop_body(const For& loop) {
    const std::string& i = variables.at(loop.variable).name;
    if (loop.reverse) {
      line("for (", index_type(), " ", i, " = ", loop.extent - 1, "; ", i, " >= 0; --", i, ") {");
    } else {
      // A bound of the variable itself that is no more than the extent says all.
      const bool whole = std::any_of(loop.runs.begin(), loop.runs.end(), [&](const Below& b) {
        return b.index->kind == IndexKind::kVar && b.index->value == loop.variable && b.bound <= loop.extent;
      });
      const std::string runs = condition(loop.runs);
      line("for (", index_type(), " ", i, " = 0; ", whole ? "" : cat(i, " < ", loop.extent),
           whole || runs.empty() ? "" : " && ", runs, "; ++", i, ") {");
    }
    const bool differs = varies(loop.runs);
    divergent += differs;
    ++loops_now;
    block(loop.body);
    --loops_now;
    divergent -= differs;
  }
  void parallel(const For& loop, std::string_view number, int64_t count) {
    JF_CHECK(!number.empty(), "kernel ", kernel.name, " has a loop that its language cannot run in parallel");
    JF_CHECK(loop.extent <= count, "kernel ", kernel.name, " runs ", loop.extent, " iterations on ", count);
    const std::string i = bind(loop.variable, 1);
    variables.at(loop.variable).last = loop.extent - 1;
    // Blocks of a cluster meet as threads do.
    const bool threads = loop.parallel == Parallel::kThread || loop.parallel == Parallel::kThreadY ||
                         loop.parallel == Parallel::kCluster;
    if (threads) thread_variables.insert(loop.variable);
    if (loop.extent == count) {
      line("const ", index_type(), " ", i, " = ", index_type(), "(", number, ");");
      body(loop.body);
    } else {
      line("if (const ", index_type(), " ", i, " = ", index_type(), "(", number, "); ", i, " < ", loop.extent, ") {");
      divergent += threads;
      block(loop.body);
      divergent -= threads;
    }
  }

  void operator()(const Vector& vector) {
    JF_CHECK(!in_vector, "kernel ", kernel.name, " nests vectors");
    const std::string base = index(vector.base);
    before = vector.before ? index(vector.before) : "";
    const std::string i = bind(vector.variable, vector.before ? 1 : multiple_of(vector.base, variables));
    const bool moves = varies(vector.base) || (vector.before && varies(vector.before));
    if (moves) thread_variables.insert(vector.variable);
    const bool differs = moves || varies(vector.limits);
    in_vector = true;
    masked = !vector.limits.empty();
    if (!masked) {
      line("const ", index_type(), " ", i, " = ", base, before.empty() ? "" : cat(" - ", before), ";");
      body(vector.body);
    } else {
      // Variables that number array elements go by value: g++ keeps arrays in registers where their address stays home.
      line(before.empty() ? "jf::vector<" : "jf::vector_before<", kernel.width, ">(", base,
           before.empty() ? "" : cat(", ", before), ", ", limits_text(vector.limits, variables),
           before.empty() ? "" : ends_text(vector, kernel.width, variables), ", [&", unrolled, "](", index_type(), " ",
           i, ", auto on) JF_LAMBDA {");
      divergent += differs;
      block(vector.body, "});");
      divergent -= differs;
    }
    in_vector = masked = false;
    before.clear();
  }
  void operator()(const Guard& guard) {
    const bool differs = varies(guard.below);
    line("if (", condition(guard.below), ") {");
    divergent += differs;
    block(guard.body);
    divergent -= differs;
  }

  void operator()(const If& statement) {
    line("if (", statement.holds ? "" : "!", "jf::first(", use(statement.which), ")) {");
    divergent += !statement.together;
    block(statement.body);
    divergent -= !statement.together;
  }

  void operator()(const FromIndex& from) {
    const std::string definition = define(from.result);
    line(definition, "jf::from_index<", lanes(from.result), ">(", offset(from.base), ", ", from.lane_stride, ");");
  }
  void operator()(const Compute& compute) {
    const DType dtype = kernel.registers.at(compute.result);
    // Compilers do not always find out that all lanes are the same.
    const bool alike = dialect.has_scalars && !in_vector && kernel.width > 1;
    std::string arguments;
    for (RegisterId id : compute.operands) {
      arguments += cat(arguments.empty() ? "" : ", ", alike ? "jf::lane_zero(" : "", use(id), alike ? ")" : "");
    }
    if (compute.op == ir::OpKind::kE2m1 && !alike) e2m1_of[compute.result] = compute.operands[0];
    const std::string comment = compute.comment.empty() ? "" : cat("  // ", safe_comment(compute.comment));
    const std::string definition = define(compute.result);
    if (const auto* constant = std::get_if<ir::Constant>(&compute.attribute)) {
      line(definition, "jf::constant<", lanes(compute.result), ">(", literal(*constant, dtype), ");", comment);
    } else {
      const bool same = compute.op == ir::OpKind::kDiv && compute_dtype(dtype) == DType::kF32 &&
                        dialect.divides_by_same && loops_around.at(compute.operands[1]) < loops_now;
      const bool loose = size_of(dtype) == 2 || compute.loose;
      line(definition, alike ? cat("jf::all_lanes<", kernel.width, ">(") : "",
           "jf::", same ? cat("divide_by_same", loose ? "<jf::Loose>" : "") : cat(ir::info(compute.op).name),
           dtype_arguments(compute, dtype), "(", arguments, alike ? "));" : ");", comment);
    }
  }
  std::string fold(ir::OpKind op) const { return cat("jf::fold::", ir::info(op).name); }

  void operator()(const Declare& declare) {
    const Array& of = kernel.arrays.at(declare.array);
    JF_CHECK(declared.insert(declare.array).second, "kernel ", kernel.name, " declares array ", of.name, " twice");
    const std::string& name = arrays[declare.array];
    const std::string type = packed.count(declare.array) > 0 ? cat("jf::Packed<", kernel.width, ">")
                                                             : std::string(jf::name(compute_dtype(of.dtype)));
    line(type, " ", name, of.size == 1 ? "" : cat("[", of.size, "]"), ";");
    if (paired.arrays.count(declare.array) > 0) {
      line("jf::Packed<", kernel.width, "> ", pairs(declare.array), ";");
      return line("jf::fill<", fold(*declare.fill), ">(", pairs(declare.array), ");");
    }
    if (declare.fill) line("jf::fill<", fold(*declare.fill), ">(", name, ");");
  }
  void operator()(const Get& get) {
    const std::string from = element(get.array, get.at);
    const bool packs = packed.count(get.array) > 0;
    if (packs) pairs_of[get.result] = from;
    line(define(get.result), packs ? cat("jf::unpack<", ++gets[get.array], ">(", from, ")") : from, ";");
  }
  void operator()(const Set& set) {
    const std::string to = element(set.array, set.at);
    if (packed.count(set.array) > 0) return line(to, " = jf::pack(", use(set.value), ");");
    const bool masks = set.existing && masked;
    line(to, " = ", masks ? cat("jf::first_lanes(on, ", use(set.value), ", ", to, ")") : use(set.value), ";");
  }
  // What the threads of a paired fold have until they are joined.
  std::string pairs(int array) const { return arrays[array] + "_pairs"; }
  void operator()(const Accumulate& a) {
    if (paired.arrays.count(a.array) > 0) {
      const RegisterId loaded = paired.loaded.at(a.value);
      const auto as_pairs = pairs_of.find(loaded);
      std::string value = as_pairs == pairs_of.end() ? use(a.value) : as_pairs->second;
      if (paired.magnitudes.count(a.value) > 0) {
        value = cat("jf::magnitudes(", as_pairs == pairs_of.end() ? cat("jf::pack(", use(loaded), ")") : value, ")");
      }
      return line("jf::accumulate<", fold(a.op), ">(", pairs(a.array), ", ", value, on(), ");");
    }
    const std::string to = element(a.array, a.at);
    if (masked) {
      line("jf::accumulate<", fold(a.op), ">(", to, ", ", use(a.value), on(), ");");
    } else {
      line(to, " = jf::", ir::info(a.op).name, "(", to, ", ", use(a.value), ");");
    }
  }
  // That of the next fold or scan over threads.
  std::string scratch() {
    const SharedMemory::Scratch& own = memory.folds.at(folds++);
    const std::string from = own.bytes == 0 ? "nullptr" : own.offset == 0 ? "scratch" : cat("scratch + ", own.offset);
    return cat("jf::Scratch<", own.bytes, ">{", from, "}");
  }
  void operator()(const Combine& combine) {
    for (int id : combine.arrays) {
      if (paired.arrays.count(id) > 0) line(array(id), " = jf::unpack<0>(", pairs(id), ");");
    }
    if (!combine.threads && !combine.threads_y && !combine.cluster) {
      for (int id : combine.arrays) {
        if (combine.lanes) line("jf::fold_lanes<", fold(combine.op), ">(", array(id), ");");
      }
      return;
    }
    JF_CHECK(!dialect.sync.empty(), "kernel ", kernel.name, " folds over threads that its language does not have");
    check_all_threads("fold");
    std::string over;
    for (const auto& [set, word] : {std::pair(combine.lanes, "jf::kLanes"), std::pair(combine.threads, "jf::kX"),
                                    std::pair(combine.threads_y, "jf::kY")}) {
      if (set) over += cat(over.empty() ? "" : " | ", word);
    }
    const SharedMemory::Scratch& own = memory.folds.at(folds);
    if (own.again && own.bytes > 0) over += " | jf::kAgain";
    std::string names;
    for (int id : combine.arrays) names += cat(", ", array(id));
    const std::string block = cat("jf::Block<", kernel.block, ", ", kernel.block_y, ">, "), from = scratch();
    if (!over.empty()) line("jf::fold_threads<", fold(combine.op), ", ", block, over, ">(", from, names, ");");
    if (!combine.cluster) return;
    line("cluster.fold<", fold(combine.op), ", ", block, combine.lanes ? "true" : "false", ">(", names.substr(2), ");");
  }
  static const char* order(bool reverse) { return reverse ? "jf::kReverse" : "jf::kForward"; }
  static const char* forgets(bool resets) { return resets ? "true" : "false"; }
  void operator()(const Scan& scan) {
    const std::string type = lanes(scan.result), &value = use(scan.value);
    const std::string definition = define(scan.result);
    const std::string carry = scan.carry < 0 ? "" : element(scan.carry, scan.at) + ", ";
    const std::string call =
        scan.factor && scan.lanes
            ? cat("jf::recur_lanes<", forgets(scan.resets), ", ", order(scan.reverse), ">(",
                  carry.empty() ? "jf::Start{}, " : carry, use(*scan.factor), ", ", value, on(), ")")
        : scan.factor && carry.empty() ? type + "{}"
        : scan.factor ? cat("jf::recur<", forgets(scan.resets), ">(", carry, use(*scan.factor), ", ", value, ")")
        : scan.lanes  ? cat("jf::scan_lanes<", fold(scan.op), ", ", order(scan.reverse), ">(", carry, value, on(), ")")
                      : cat("jf::scan<", fold(scan.op), ">(", carry, value, ")");
    if (scan.when.empty()) {
      line(definition, call, ";");
    } else {
      line(definition, condition(scan.when), " ? ", call, " : ", type, "{};");
    }
  }
  void operator()(const ScanThreads& scan) {
    JF_CHECK(!dialect.scan_threads.empty(), "kernel ", kernel.name,
             " scans over threads that its language does not have");
    check_all_threads("scan");
    const std::string from = scratch();
    const bool linear = scan.factors >= 0;
    line(linear ? cat("jf::recur_threads<", forgets(scan.resets), ", ") : cat("jf::scan_threads<", fold(scan.op), ", "),
         "jf::Block<", kernel.block, ", ", kernel.block_y, ">, ", scan.lanes ? "jf::kLanes | " : "",
         scan.threads ? "jf::kX" : "jf::kY", ", ", scan.run, ", ", order(scan.reverse), ">(", from, ", ",
         array(scan.array), ", ", linear ? cat(array(scan.factors), ", ") : "",
         scan.carry < 0 ? "jf::Nothing{}" : element(scan.carry, scan.at), ");");
  }
  void operator()(const Sync&) {
    JF_CHECK(!dialect.sync.empty(), "kernel ", kernel.name, " waits for threads that its language does not have");
    check_all_threads("sync");
    line(dialect.sync);
  }
};

}  // namespace

std::string print_kernel(const Kernel& kernel, const Dialect& dialect, const std::vector<int>& order) {
  JF_CHECK(is_power_of_two(kernel.width), "kernel ", kernel.name, " has ", kernel.width, " lanes");
  std::vector<std::string> names;
  for (const Buffer& buffer : kernel.buffers) names.push_back(buffer.name);
  for (const Array& array : kernel.arrays) names.push_back(array.name);
  for (const Ring& ring : kernel.rings) names.push_back(cat(kernel.buffers.at(ring.buffer).name, "_ring"));
  for (const TensorMap& map : kernel.maps) names.push_back(cat(kernel.buffers.at(map.buffer).name, "_map"));
  names = safe_names(names);
  const auto first_array = names.begin() + kernel.buffers.size(), first_ring = first_array + kernel.arrays.size(),
             first_map = first_ring + kernel.rings.size();
  const std::vector<std::string> arrays(first_array, first_ring), rings(first_ring, first_map),
      maps(first_map, names.end());
  names.erase(first_array, names.end());
  std::set<size_t> compared;
  for_each(kernel.body, [&](const auto& node) {
    if constexpr (requires { node.buffers; }) {
      const std::set<size_t> apart(node.buffers.begin(), node.buffers.end());
      if (apart.size() > 1) compared.insert(apart.begin(), apart.end());
    }
  });
  std::vector<Parameter> parameters;
  for (size_t n = 0; n < (order.empty() ? names.size() : order.size()); ++n) {
    const size_t i = order.empty() ? n : order[n];
    const Buffer& buffer = kernel.buffers.at(i);
    if (buffer.shared_size > 0) continue;
    parameters.push_back(
        {names[i], cat(buffer.written ? "" : "const ", type_name(buffer.dtype), "*"), compared.count(i) > 0});
  }
  for (const std::string& map : maps) parameters.push_back({map, std::string(dialect.map)});

  Printer printer(kernel, dialect, shared_memory(kernel));
  printer.out = dialect.opening(kernel, kernel.name, parameters);
  if (const SharedMemory& memory = printer.memory; memory.bytes > 0) {
    JF_CHECK(dialect.shared, "kernel ", kernel.name, " shares memory between threads that its language does not have");
    printer.out += dialect.shared(kernel, memory, names);
  }
  printer.buffers = std::move(names);
  printer.arrays = arrays;
  printer.rings = rings;
  printer.maps = maps;
  printer.registers.resize(kernel.registers.size());
  printer.loops_around.resize(kernel.registers.size());
  if (dialect.packs) {
    printer.packed = packed_arrays(kernel);
    printer.paired = paired_folds(kernel, printer.packed);
  }
  printer.lane_types();
  printer.first_line = printer.out.size();
  if (const int64_t words = printer.memory.cluster_words; words > 0) {
    printer.line("jf::Cluster<", kernel.cluster, ", ", words, "> cluster(scratch + ", printer.memory.cluster, ");");
  }
  printer.body(kernel.body);
  return printer.out + "}\n";
}

BodyTexts print_bodies(const Kernel& kernel, const Bodies& given, const Dialect& dialect) {
  Printer printer(kernel, dialect, {});
  printer.divergent = 1;  // callers leave out threads whose element is none of the result
  printer.buffers = given.buffers;
  for (const Array& array : kernel.arrays) printer.arrays.push_back(array.name);
  printer.declared.insert(given.arrays.begin(), given.arrays.end());
  printer.registers.resize(kernel.registers.size());
  printer.loops_around.resize(kernel.registers.size());
  BodyTexts texts;
  printer.lane_types();
  texts.types = std::exchange(printer.out, "");
  texts.index_type = printer.index_type();
  for (int variable : given.variables) texts.variables.push_back(printer.bind(variable, 1));
  printer.depth = 2;
  printer.body(given.constants);
  const std::string constants = std::exchange(printer.out, "");
  for (size_t n = 0; n < given.bodies.size(); ++n) {
    const std::vector<std::string> before = printer.registers;
    printer.body(given.bodies[n]);
    texts.bodies.push_back({constants + std::exchange(printer.out, ""), {}});
    for (size_t id = 0; id < before.size(); ++id) {
      std::string& name = printer.registers[id];
      if (!before[id].empty() || name.empty()) continue;
      texts.bodies[n].computed.push_back({printer.lanes(static_cast<RegisterId>(id)), name});
      name = cat(given.known_as[n], name);
    }
  }
  return texts;
}

}  // namespace jf::codegen
