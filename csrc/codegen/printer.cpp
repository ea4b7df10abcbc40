#include "codegen/printer.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/integers.h"
#include "codegen/condition_text.h"
#include "codegen/dtype_arguments.h"
#include "codegen/index_text.h"
#include "codegen/names.h"
#include "codegen/packed.h"
#include "runtime/output_pages.h"

namespace jf::codegen {
namespace {

using namespace loops;

std::string type_name(DType dtype) { return cat("jf::", name(dtype)); }

struct Printer {
  const Kernel& kernel;
  const Dialect& dialect;
  const SharedMemory memory;
  std::string out = {};
  int depth = 1;
  bool in_vector = false;
  bool masked = false;  // in a vector whose last lanes may not exist; `on` says which do
  int divergent = 0;    // how many enclosing statements leave out some threads of a block
  std::vector<std::string> buffers = {}, arrays = {}, rings = {}, maps = {};
  std::set<int> declared = {}, packed = {};
  std::map<int, int> gets = {};             // of packed arrays, so far
  std::string unrolled = {};                // ", i1, i2": the variables of the enclosing unrolled loops
  std::set<int64_t> thread_variables = {};  // those whose value differs between the threads of a block
  std::vector<std::string> registers = {};  // empty until defined
  std::vector<int> loops_around = {};       // of each register's definition
  int loops_now = 0;
  int loads = 0, results = 0, folds = 0;
  Variables variables = {};
  std::optional<size_t> first_line = {};  // where variables that outlive loops are declared, if there is such a place

  template <class... Args>
  void line(const Args&... args) {
    out += std::string(2 * depth, ' ') + cat(args...) + "\n";
  }
  std::string_view index_type() const { return kernel.wide_index ? "long" : "int"; }
  std::string lanes(RegisterId id) const { return std::string(name(compute_dtype(kernel.registers.at(id)))); }
  std::string index(const IndexPtr& index) const { return index_text(index, variables); }
  std::string offset(const IndexPtr& index) const { return offset_text(index, variables); }
  std::string on() const { return masked ? ", on" : ""; }
  std::string condition(const Condition& below, bool alone = true) const {
    return condition_text(below, variables, alone);
  }
  bool varies(const IndexPtr& index) const {
    if (index->kind == IndexKind::kVar) return thread_variables.count(index->value) > 0;
    return index->kind != IndexKind::kConst && (varies(index->a) || varies(index->b));
  }
  bool varies(const Condition& condition) const {
    return std::any_of(condition.begin(), condition.end(), [&](const Below& b) {
      return varies(b.index) || (b.variable >= 0 && thread_variables.count(b.variable) > 0);
    });
  }
  void check_all_threads(const char* what) const {
    JF_CHECK(divergent == 0, "kernel ", kernel.name, " has a ", what, " that not every thread of a block gets to");
  }

  const std::string& use(RegisterId id) const {
    JF_CHECK(!registers.at(id).empty(), "kernel ", kernel.name, " reads register ", id, " before it is defined");
    return registers[id];
  }
  std::string define(RegisterId id, const char* prefix, int& count) {
    JF_CHECK(registers.at(id).empty(), "kernel ", kernel.name, " defines register ", id, " twice");
    registers[id] = cat(prefix, count++);
    loops_around[id] = loops_now;
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
    const std::string base = index(vector.base), before = vector.before ? index(vector.before) : "";
    const std::string i = bind(vector.variable, vector.before ? 1 : multiple_of(vector.base, variables));
    const bool differs = varies(vector.base);
    if (differs) thread_variables.insert(vector.variable);
    in_vector = true;
    masked = !vector.full;
    if (vector.full) {
      line("const ", index_type(), " ", i, " = ", base, before.empty() ? "" : cat(" - ", before), ";");
      body(vector.body);
    } else {
      // Variables that number array elements go by value: g++ keeps arrays in registers where their address stays home.
      line(before.empty() ? "jf::vector<" : "jf::vector_before<", kernel.width, ">(", base,
           before.empty() ? "" : cat(", ", before), ", ",
           vector.limit_variable < 0 ? cat(vector.limit) : variables.at(vector.limit_variable).name,
           vector.ahead ? cat(" - (", index(vector.ahead), ")") : "",
           before.empty() ? "" : ends_text(vector, kernel.width, variables), ", [&", unrolled, "](", index_type(), " ",
           i, ", auto on) JF_LAMBDA {");
      divergent += differs;
      block(vector.body, "});");
      divergent -= differs;
    }
    in_vector = masked = false;
  }
  void operator()(const Guard& guard) {
    const bool differs = varies(guard.below);
    line("if (", condition(guard.below), ") {");
    divergent += differs;
    block(guard.body);
    divergent -= differs;
  }

  void operator()(const Load& load) {
    const std::string type = lanes(load.result), &buffer = buffers.at(load.buffer);
    std::string at = offset(load.offset), each;
    if (!load.or_first.empty()) at = or_first_text(load.or_first, at, variables);
    int64_t multiple_of_steps = 0;
    for (const Step& step : load.steps) {
      const std::string text = cat(use(step.index), ", ", step.limit, "L, ", step.weight, "L)");
      if (step.each) {
        each = each.empty() ? cat("jf::steps(", text) : cat("jf::add(", each, ", jf::steps(", text, ")");
      } else {
        at += cat(" + jf::step(", text);
        multiple_of_steps = std::gcd(multiple_of_steps, step.weight);
      }
    }
    std::string definition = define(load.result, "x", loads), end = ");";
    std::string where = condition(load.when, load.within.empty());
    const Range* lanes = nullptr;
    for (const Range& range : load.within) {
      if (range.lanes) {
        lanes = &range;
        continue;
      }
      if (range.begin > 0) where += cat(where.empty() ? "" : " && ", range.begin, " <= ", index(range.index));
      if (range.end != kNoEnd) where += cat(where.empty() ? "" : " && ", index(range.index), " < ", range.end);
    }
    if (!where.empty()) {
      definition += cat(where, " ? ");
      end = cat(") : ", type, "{};");
    }
    if (load.rows) {
      line(definition, "jf::load_rows<", type, ">(", buffer, ", ", at, ", ",
           load.lane_stride == 1 ? "jf::One{}" : cat(load.lane_stride), ", ", load.rows->last, " - (",
           offset(load.rows->row), ")", on(), end);
    } else if (lanes != nullptr) {
      const int64_t n = load.lane_stride == 1 ? multiple(load.offset) : 1;
      const std::string last = lanes->end == kNoEnd ? "jf::kNoEnd" : cat(lanes->end);
      line(definition, "jf::load_within<", type, n > 1 ? cat(", ", n) : "", ">(", buffer, ", ", at, ", ",
           load.lane_stride == 1 ? "jf::One{}" : cat(load.lane_stride), ", ", index(lanes->index), ", ", lanes->begin,
           ", ", last, on(), end);
    } else if (load.whole) {
      line(definition, "jf::load<", type, ", ", kernel.width, ">(", buffer, ", ", at, ");");
    } else if (load.around > 0) {
      line(definition, "jf::load_around<", type, ">(", buffer, ", ", at, ", ", load.around, ");");
    } else if (!each.empty()) {
      line(definition, "jf::load_at<", type, ">(", buffer, ", ", at, ", ", load.lane_stride, ", ", each, on(), end);
    } else if (load.lane_stride == 0) {
      line(definition, "jf::load_splat<", type, ">(", buffer, ", ", at, end);
    } else if (load.lane_stride == 1) {
      const int64_t n = std::gcd(multiple(load.offset), multiple_of_steps);
      line(definition, "jf::load<", type, n > 1 ? cat(", ", n) : "", ">(", buffer, ", ", at, on(), end);
    } else {
      line(definition, "jf::gather<", type, ">(", buffer, ", ", at, ", ", load.lane_stride, on(), end);
    }
  }
  void operator()(const ReadIndex& read) {
    const std::string i = bind(read.variable, 1), where = condition(read.when);
    if (varies(read.offset) || varies(read.when)) thread_variables.insert(read.variable);
    line("const ", index_type(), " ", i, " = ", where, where.empty() ? "" : " ? ", "jf::read_index<", index_type(),
         ">(", buffers.at(read.buffer), ", ", offset(read.offset), ", ", read.high, ")", where.empty() ? "" : " : 0",
         ";");
  }
  void operator()(const FromIndex& from) {
    const std::string definition = define(from.result, "t", results);
    line(definition, "jf::from_index<", lanes(from.result), ">(", offset(from.base), ", ", from.lane_stride, ");");
  }
  void operator()(const Search& s) {
    const std::string &number = use(s.number), type = lanes(s.result);
    const std::string definition = define(s.result, "t", results), where = condition(s.when);
    std::string place;
    if (s.each && s.lane_stride == 0 && dialect.keeps_places && first_line) {
      const std::string name = cat("t", results++), declaration = cat("  int ", name, " = 0;\n");
      place = cat(name, ", ");
      out.insert(*first_line, declaration);
    }
    const std::string arguments =
        cat(s.left ? "<true, " : "<false, ", s.count, ">(", place, buffers.at(s.buffer), ", ", offset(s.offset), ", ",
            s.each && place.empty() ? cat(s.lane_stride, ", ") : "", number);
    line(definition, where.empty() ? "" : cat(where, " ? "), s.each ? "jf::search_lanes" : "jf::search", arguments,
         s.each ? on() : "", ")", where.empty() ? "" : cat(" : ", type, "{}"), ";");
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
      const bool same = compute.op == ir::OpKind::kDiv && compute_dtype(dtype) == DType::kF32 &&
                        dialect.divides_by_same && loops_around.at(compute.operands[1]) < loops_now;
      line(definition, "jf::", same ? "divide_by_same" : ir::info(compute.op).name, dtype_arguments(compute, dtype),
           "(", arguments, ");", comment);
    }
  }
  void operator()(const Store& store) {
    const std::string &buffer = buffers.at(store.buffer), at = offset(store.offset), &value = use(store.value);
    if (store.rows) {
      line("jf::store_rows(", buffer, ", ", at, ", ", store.rows->last, " - (", offset(store.rows->row), "), ", value,
           on(), ");");
    } else if (store.lane_stride == 0) {
      line("jf::store_first(", buffer, ", ", at, ", ", value, ");");
    } else if (store.lane_stride == 1) {
      const int64_t n = store.whole ? kernel.width : multiple(store.offset);
      const Buffer& to = kernel.buffers.at(store.buffer);
      const bool streams = dialect.past_caches && to.bytes >= runtime::kBeyondCaches && n == kernel.width && n > 1;
      if (streams) return line("jf::stream(past_caches, ", buffer, ", ", at, ", ", value, on(), ");");
      line(to.shared_size > 0 ? "jf::store_shared" : "jf::store", n > 1 ? cat("<", n, ">") : "", "(", buffer, ", ", at,
           ", ", value, on(), ");");
    } else {
      line("jf::scatter(", buffer, ", ", at, ", ", store.lane_stride, ", ", value, on(), ");");
    }
  }

  void operator()(const Prefetch& prefetch) {
    line("jf::prefetch<", kernel.width, ">(", buffers.at(prefetch.buffer), ", ", offset(prefetch.offset), ");");
  }

  void operator()(const TurnedLoad& load) {
    const int64_t size = kernel.arrays.at(load.array).size;
    std::string count = cat(size);
    for (const Below& b : load.limits) count = cat("jf::below(", count, ", ", index(b.index), ", ", b.bound, ")");
    line("jf::load_turned<", size, ">(", array(load.array), ", ", buffers.at(load.buffer), ", ", offset(load.offset),
         ", ", load.lane_stride, ", ", load.limits.empty() ? "jf::All{}" : cat("jf::First{", count, "}"), on(), ");");
  }

  // An array of one element is a plain variable.
  const std::string& array(int id) const {
    JF_CHECK(declared.count(id), "kernel ", kernel.name, " uses array ", id, " before it is declared");
    return arrays.at(id);
  }
  std::string element(int id, const IndexPtr& at) const {
    const std::string& name = array(id);
    return kernel.arrays[id].size == 1 ? name : cat(name, "[", index(at), "]");
  }
  std::string fold(ir::OpKind op) const { return cat("jf::fold::", ir::info(op).name); }

  void operator()(const Declare& declare) {
    const Array& of = kernel.arrays.at(declare.array);
    JF_CHECK(declared.insert(declare.array).second, "kernel ", kernel.name, " declares array ", of.name, " twice");
    const std::string& name = arrays[declare.array];
    const std::string type = packed.count(declare.array) > 0 ? cat("jf::Packed<", kernel.width, ">")
                                                             : std::string(jf::name(compute_dtype(of.dtype)));
    line(type, " ", name, of.size == 1 ? "" : cat("[", of.size, "]"), ";");
    if (declare.fill) line("jf::fill<", fold(*declare.fill), ">(", name, ");");
  }
  void operator()(const Get& get) {
    const std::string from = element(get.array, get.at);
    const bool packs = packed.count(get.array) > 0;
    line(define(get.result, "x", loads), packs ? cat("jf::unpack<", ++gets[get.array], ">(", from, ")") : from, ";");
  }
  void operator()(const Set& set) {
    const std::string to = element(set.array, set.at);
    if (packed.count(set.array) > 0) return line(to, " = jf::pack(", use(set.value), ");");
    const bool masks = set.existing && masked;
    line(to, " = ", masks ? cat("jf::first_lanes(on, ", use(set.value), ", ", to, ")") : use(set.value), ";");
  }
  void operator()(const Accumulate& a) {
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
  void operator()(const Scan& scan) {
    const std::string type = lanes(scan.result), &value = use(scan.value);
    const std::string definition = define(scan.result, "t", results);
    const std::string carry = scan.carry < 0 ? "" : element(scan.carry, scan.at) + ", ";
    const std::string call =
        scan.lanes ? cat("jf::scan_lanes<", fold(scan.op), ", ", order(scan.reverse), ">(", carry, value, on(), ")")
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
    line("jf::scan_threads<", fold(scan.op), ", jf::Block<", kernel.block, ", ", kernel.block_y, ">, ",
         scan.lanes ? "jf::kLanes | " : "", scan.threads ? "jf::kX" : "jf::kY", ", ", scan.run, ", ",
         order(scan.reverse), ">(", from, ", ", array(scan.array), ", ",
         scan.carry < 0 ? "jf::Nothing{}" : element(scan.carry, scan.at), ");");
  }
  void operator()(const Sync&) {
    JF_CHECK(!dialect.sync.empty(), "kernel ", kernel.name, " waits for threads that its language does not have");
    check_all_threads("sync");
    line(dialect.sync);
  }

  void check_bulk(const char* what) const {
    JF_CHECK(!dialect.bulk.empty(), "kernel ", kernel.name, " copies in bulk, which its language cannot");
    check_all_threads(what);
  }
  const Ring& ring(int number, const char* what) const {
    check_bulk(what);
    return kernel.rings.at(number);
  }
  template <class Copy>
  std::string elements(const Copy& copy) const {
    std::string rows = cat(copy.rows);
    for (const Below& b : copy.limits) rows = cat("jf::below(", rows, ", ", index(b.index), ", ", b.bound, ")");
    return copy.row == 1 ? rows : copy.limits.empty() ? cat(copy.rows * copy.row) : cat(rows, " * ", copy.row);
  }
  void operator()(const OpenRing& open) {
    const auto& [buffer, barriers, stages, size, variable] = ring(open.ring, "ring");
    const auto [entry, fresh] = variables.insert({variable, {cat(rings.at(open.ring), ".stage"), 1}});
    JF_CHECK(fresh, "kernel ", kernel.name, " opens ring ", open.ring, " twice");
    line("jf::Ring<", stages, ", ", size, "> ", rings[open.ring], "(", buffers.at(barriers), ");");
  }
  void operator()(const BulkLoad& load) {
    const std::string& to = buffers.at(ring(load.ring, "bulk copy").buffer);
    line(rings.at(load.ring), load.anywhere ? ".load_anywhere(" : ".load(", to, ", ", offset(load.to), ", ",
         buffers.at(load.buffer), ", ", offset(load.from), ", ", elements(load), ");");
  }
  void operator()(const TileLoad& load) {
    const std::string& to = buffers.at(ring(load.ring, "bulk copy").buffer);
    int64_t elements = 1;
    for (int64_t n : kernel.maps.at(load.map).box) elements *= n;
    std::string at;
    for (const IndexPtr& i : load.at) at += cat(", ", index(i));
    line(rings.at(load.ring), ".load_tile(", to, ", ", offset(load.to), ", ", maps.at(load.map), ", ", elements, at,
         ");");
  }
  void operator()(const BulkStore& store) {
    check_bulk("bulk copy");
    line("jf::bulk_store(", buffers.at(store.buffer), ", ", offset(store.to), ", ", buffers.at(store.shared), ", ",
         offset(store.from), ", ", elements(store), ");");
  }
  void operator()(const FenceBulk&) {
    check_bulk("fence");
    line("jf::fence_bulk();");
  }
  void operator()(const DrainBulk&) {
    check_bulk("wait");
    line("jf::drain_bulk();");
  }
  void operator()(const CommitRing& commit) {
    ring(commit.ring, "commit");
    line(rings.at(commit.ring), ".commit();");
  }
  void operator()(const AwaitRing& await) {
    ring(await.ring, "wait");
    line(rings.at(await.ring), ".await();");
  }
};

}  // namespace

std::string print_kernel(const Kernel& kernel, const Dialect& dialect, const std::vector<int>& order) {
  JF_CHECK(kernel.width > 0 && (kernel.width & (kernel.width - 1)) == 0, "kernel ", kernel.name, " has ", kernel.width,
           " lanes");
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
  std::vector<Parameter> parameters;
  for (size_t n = 0; n < (order.empty() ? names.size() : order.size()); ++n) {
    const size_t i = order.empty() ? n : order[n];
    const Buffer& buffer = kernel.buffers.at(i);
    if (buffer.shared_size == 0)
      parameters.push_back({names[i], cat(buffer.written ? "" : "const ", type_name(buffer.dtype), "*")});
  }
  for (const std::string& map : maps) parameters.push_back({map, std::string(dialect.map)});

  Printer printer{.kernel = kernel, .dialect = dialect, .memory = shared_memory(kernel)};
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
  if (dialect.packs) printer.packed = packed_arrays(kernel);
  printer.lane_types();
  printer.first_line = printer.out.size();
  if (const int64_t words = printer.memory.cluster_words; words > 0) {
    printer.line("jf::Cluster<", kernel.cluster, ", ", words, "> cluster(scratch + ", printer.memory.cluster, ");");
  }
  printer.body(kernel.body);
  return printer.out + "}\n";
}

BodyTexts print_bodies(const Kernel& kernel, const Bodies& given, const Dialect& dialect) {
  Printer printer{.kernel = kernel, .dialect = dialect, .memory = {}};
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
