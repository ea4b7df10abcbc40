// The text form of a loop program, for dumps and golden files. Compilers never see it.
#include "base/error.h"
#include "base/integers.h"
#include "ir/text.h"
#include "loops/kernel.h"

namespace jf::loops {
namespace {

constexpr const char* kParallelNames[] = {"serial",  "unroll",  "task",   "block",
                                          "block_y", "cluster", "thread", "thread_y"};

// Every operation but the outermost stands in brackets: exact, and short enough for a dump.
std::string text(const IndexPtr& index, bool nested = false) {
  auto binary = [&](const char* sign) {
    const std::string inner = cat(text(index->a, true), sign, text(index->b, true));
    return nested ? cat("(", inner, ")") : inner;
  };
  switch (index->kind) {
    case IndexKind::kConst: return cat(index->value);
    case IndexKind::kVar: return cat("i", index->value);
    case IndexKind::kAdd: return binary(" + ");
    case IndexKind::kMul: return binary(" * ");
    case IndexKind::kDiv: return binary(" / ");
    case IndexKind::kMod: return binary(" % ");
    case IndexKind::kXor: return binary(" ^ ");
    case IndexKind::kMin: return cat("min(", text(index->a), ", ", text(index->b), ")");
  }
  JF_CHECK(false, "index kind ", static_cast<int>(index->kind));
}

struct Printer {
  const Kernel& kernel;
  std::string out;
  int depth = 1;

  template <class... Args>
  void line(const Args&... args) {
    out += std::string(2 * depth, ' ') + cat(args...) + "\n";
  }
  std::string reg(RegisterId id) const { return cat("r", id); }
  std::string typed(RegisterId id) const { return cat(reg(id), ": ", name(kernel.registers.at(id))); }
  std::string access(int buffer, const IndexPtr& offset, int64_t lane_stride) const {
    return cat(kernel.buffers.at(buffer).name, "[", text(offset), "]",
               lane_stride == 0 ? "" : cat(" lane * ", lane_stride));
  }

  std::string element(int array, const IndexPtr& at) const {
    return cat(kernel.arrays.at(array).name, "[", text(at), "]");
  }
  static std::string condition(const Condition& below) {
    std::string result;
    for (const Below& b : below) {
      result += cat(result.empty() ? "" : " and ", text(b.index), " < ",
                    b.variable < 0 ? cat(b.bound) : cat("i", b.variable));
    }
    return result;
  }

  static std::string limits(const Condition& limits) {
    std::string result;
    for (const Below& b : limits) {
      result += cat(result.empty() ? "" : " and ", b.variable < 0 ? "" : cat("i", b.variable, " up to "), b.bound,
                    is_zero(b.index) ? "" : cat(" less ", text(b.index)));
    }
    return result;
  }

  static std::string within(const std::vector<Range>& ranges) {
    std::string result;
    for (const Range& range : ranges) {
      result += cat(" within ", range.begin, " <= ", text(range.index), range.lanes ? " + lane" : "",
                    range.end == kNoEnd ? "" : cat(" < ", range.end));
    }
    return result;
  }

  std::string steps(const std::vector<Step>& steps) const {
    std::string result;
    for (const Step& step : steps) {
      result +=
          cat(" at ", step.weight, " * ", reg(step.index), step.each ? " of each lane" : "", " up to ", step.limit);
    }
    return result;
  }

  void operator()(const Body& body) {
    ++depth;
    for (const Stmt& stmt : body) std::visit(*this, stmt.node);
    --depth;
  }
  void operator()(const For& loop) {
    line("for i", loop.variable, " < ", loop.extent, " ", kParallelNames[static_cast<int>(loop.parallel)],
         loop.reverse ? " reverse" : "", loop.runs.empty() ? "" : cat(" while ", condition(loop.runs)));
    (*this)(loop.body);
  }
  void operator()(const Vector& vector) {
    line("vector i", vector.variable, " = ", text(vector.base),
         vector.before ? cat(" before ", text(vector.before)) : "",
         vector.limits.empty() ? " full" : cat(" below ", limits(vector.limits)));
    (*this)(vector.body);
  }
  void operator()(const Guard& guard) {
    line("if ", condition(guard.below));
    (*this)(guard.body);
  }
  void operator()(const If& statement) {
    line(statement.holds ? "if " : "if not ", reg(statement.which));
    (*this)(statement.body);
  }
  void operator()(const Load& load) {
    line(typed(load.result), " = load ", access(load.buffer, load.offset, load.lane_stride),
         load.or_first.empty() ? "" : cat(" where ", condition(load.or_first), " else first"),
         load.when.empty() ? "" : cat(" if ", condition(load.when)), within(load.within), steps(load.steps),
         load.whole        ? " whole"
         : load.around > 0 ? cat(" around ", load.around)
                           : "",
         rows(load.rows), cycle(load.cycle), load.phase < 0 ? "" : " interleaved");
  }
  void operator()(const ReadIndex& read) {
    line("i", read.variable, " = read ", access(read.buffer, read.offset, 0), " up to ", read.high,
         read.when.empty() ? "" : cat(" if ", condition(read.when)));
  }
  void operator()(const FromIndex& from) {
    line(typed(from.result), " = index ", text(from.base),
         from.lane_stride == 0 ? "" : cat(" lane * ", from.lane_stride));
  }
  void operator()(const Search& s) {
    line(typed(s.result), " = search ", access(s.buffer, s.offset, s.lane_stride), " of ", s.count, " for ",
         reg(s.number), s.each ? " of each lane" : "", s.left ? " left" : "", s.when.empty() ? "" : " if ",
         condition(s.when));
  }
  void operator()(const Compute& compute) {
    std::string operands;
    for (RegisterId id : compute.operands) operands += cat(" ", reg(id));
    if (const auto* constant = std::get_if<ir::Constant>(&compute.attribute))
      operands += cat(" ", ir::print_constant(*constant));
    line(typed(compute.result), " = ", ir::info(compute.op).name, operands,
         compute.comment.empty() ? "" : cat("  # ", compute.comment));
  }
  static std::string cycle(const std::optional<Cycle>& cycle) {
    if (!cycle) return "";
    return cat(" by ", cycle->place_step, " in turns of ", cycle->period, " by ", cycle->turn_step, " from ",
               text(cycle->start));
  }
  static std::string rows(const std::optional<Rows>& rows) {
    return rows ? cat(" along rows ", text(rows->row), " up to ", rows->last) : "";
  }
  void operator()(const Store& store) {
    line("store ", access(store.buffer, store.offset, store.lane_stride), " = ", reg(store.value), rows(store.rows));
  }
  void operator()(const StoreInterleaved& store) {
    std::string to, values;
    for (int buffer : store.buffers) to += cat(to.empty() ? "" : ", ", kernel.buffers.at(buffer).name);
    for (RegisterId id : store.values) values += cat(values.empty() ? "" : ", ", reg(id));
    line("store (", to, ")[", text(store.offset), "] lane * ", store.buffers.size(), " = (", values, ")");
  }
  void operator()(const TurnedLoad& load) {
    std::string limits;
    for (const Below& b : load.limits) limits += cat(" while ", text(b.index), " + element < ", b.bound);
    line(kernel.arrays.at(load.array).name, " = turned ", access(load.buffer, load.offset, load.lane_stride), limits,
         " ahead ", load.ahead);
  }
  void operator()(const Prefetch& prefetch) {
    line("prefetch ", access(prefetch.buffer, prefetch.offset, 1), steps(prefetch.steps));
  }
  void operator()(const Declare& declare) {
    line("declare ", kernel.arrays.at(declare.array).name,
         declare.fill ? cat(" for ", ir::info(*declare.fill).name) : "");
  }
  void operator()(const Get& get) { line(typed(get.result), " = ", element(get.array, get.at)); }
  void operator()(const Set& set) {
    line(element(set.array, set.at), " = ", reg(set.value), set.existing ? " where it exists" : "");
  }
  void operator()(const Accumulate& a) { line(element(a.array, a.at), " ", ir::info(a.op).name, "= ", reg(a.value)); }
  void operator()(const Combine& combine) {
    std::string names;
    for (int array : combine.arrays) names += cat(names.empty() ? "" : " ", kernel.arrays.at(array).name);
    line("combine ", names, " by ", ir::info(combine.op).name, " over", combine.lanes ? " lanes" : "",
         combine.threads ? " threads" : "", combine.threads_y ? " threads_y" : "", combine.cluster ? " cluster" : "");
  }
  std::string carry(int array, const IndexPtr& at) const { return array < 0 ? "" : cat(" from ", element(array, at)); }
  static const char* resets(bool resets) { return resets ? " resets" : ""; }
  void operator()(const Scan& s) {
    line(typed(s.result), " = scan ", reg(s.value), " by ", ir::info(s.op).name,
         s.factor ? cat(" times ", reg(*s.factor), resets(s.resets)) : "", carry(s.carry, s.at),
         s.lanes ? " over lanes" : "", s.reverse ? " reverse" : "", s.when.empty() ? "" : " if ", condition(s.when));
  }
  void operator()(const ScanThreads& s) {
    line("scan ", kernel.arrays.at(s.array).name, " by ", ir::info(s.op).name,
         s.factors < 0 ? "" : cat(" times ", kernel.arrays.at(s.factors).name, resets(s.resets)), carry(s.carry, s.at),
         " over", s.lanes ? " lanes" : "", s.threads ? " threads" : "", s.threads_y ? " threads_y" : "", " in runs of ",
         s.run, s.reverse ? " reverse" : "");
  }
  void operator()(const Sync&) { line("sync"); }
  const std::string& ring(int number) const { return kernel.buffers.at(kernel.rings.at(number).buffer).name; }
  void operator()(const OpenRing& open) { line("open ", ring(open.ring)); }
  void operator()(const BulkLoad& load) {
    line("fill ", ring(load.ring), "[", text(load.to), "] = bulk ", kernel.buffers.at(load.buffer).name, "[",
         text(load.from), "] * ", elements(load), load.anywhere ? " anywhere" : "");
  }
  void operator()(const TileLoad& load) {
    std::string at;
    for (const IndexPtr& index : load.at) at += cat(at.empty() ? "" : ", ", text(index));
    line("fill ", ring(load.ring), "[", text(load.to), "] = tile map", load.map, "(", at, ")");
  }
  void operator()(const TurnTile& turn) {
    line("turn ", kernel.buffers.at(turn.shared).name, "[", text(turn.to), " by ", turn.pitch,
         "] = ", kernel.buffers.at(turn.buffer).name, "[", text(turn.from), " by ", turn.step, "] * ", turn.before, "+",
         turn.tile, " x ", turn.tile, " while ", text(turn.row), " + run < ", turn.rows, " and ", text(turn.column),
         " + run < ", turn.columns);
  }
  template <class Copy>
  static std::string elements(const Copy& copy) {
    std::string result = cat(copy.rows * copy.row, copy.limits.empty() ? "" : cat(" by ", copy.row));
    for (const Below& b : copy.limits) result += cat(" while ", text(b.index), " + run < ", b.bound);
    return result;
  }
  void operator()(const BulkStore& store) {
    line("bulk ", kernel.buffers.at(store.buffer).name, "[", text(store.to),
         "] = ", kernel.buffers.at(store.shared).name, "[", text(store.from), "] * ", elements(store));
  }
  void operator()(const FenceBulk&) { line("fence bulk"); }
  void operator()(const DrainBulk&) { line("drain bulk"); }
  void operator()(const CommitRing& commit) { line("commit ", ring(commit.ring)); }
  void operator()(const AwaitRing& await) {
    line("i", kernel.rings.at(await.ring).variable, " = await ", ring(await.ring));
  }
};

}  // namespace

std::string print(const Kernel& kernel) {
  auto along_y = [](int64_t n) { return n == 1 ? std::string() : cat("x", n); };
  Printer printer{
      kernel,
      cat("kernel ", kernel.name, " width=", kernel.width, " grid=", kernel.grid, along_y(kernel.grid_y),
          kernel.cluster == 1 ? "" : cat(" cluster=", kernel.cluster), " block=", kernel.block, along_y(kernel.block_y),
          kernel.at_once == 1 ? "" : cat(" at_once=", kernel.at_once), kernel.wide_index ? " wide_index" : "", "\n")};
  for (const Buffer& buffer : kernel.buffers) {
    if (buffer.shared_size > 0) {
      printer.line("shared ", buffer.name, ": ", name(buffer.dtype), "[", buffer.shared_size, "]");
    } else {
      printer.line(buffer.written ? "out " : "in ", buffer.name, ": ", name(buffer.dtype));
    }
  }
  for (const Ring& ring : kernel.rings) {
    printer.line("ring ", kernel.buffers.at(ring.buffer).name, ": ", ring.stages, " stages of ", ring.stage_size);
  }
  auto list = [](const std::vector<int64_t>& numbers) {
    std::string text;
    for (int64_t n : numbers) text += cat(text.empty() ? "" : ",", n);
    return text;
  };
  for (size_t i = 0; i < kernel.maps.size(); ++i) {
    const TensorMap& map = kernel.maps[i];
    printer.line("map", i, ": ", kernel.buffers.at(map.buffer).name, " (", list(map.extents), ") strides (",
                 list(map.strides), ") box (", list(map.box), ") swizzle ", map.swizzle);
  }
  for (const Array& array : kernel.arrays) {
    printer.line("array ", array.name, ": ", name(array.dtype), "[", array.size, "]");
  }
  printer.depth = 0;
  printer(kernel.body);
  return printer.out;
}

}  // namespace jf::loops
