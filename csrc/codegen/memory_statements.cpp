#include "codegen/memory_statements.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/integers.h"
#include "base/target.h"
#include "runtime/output_pages.h"

namespace jf::codegen {

using namespace loops;

namespace {

// Bytes of an array of which the second-level cache keeps little for the next kernel.
constexpr int64_t kBeyondLastCache = int64_t{64} << 20;
bool is_long(const Buffer& buffer) { return buffer.shared_size == 0 && buffer.bytes >= kBeyondLastCache; }

}  // namespace

// Not where tiles go through shared memory: what they read lies in pieces. 16384 x 4096 bf16 turned took 68 us so and
// 67 without.
bool MemoryStatements::lasts(const Buffer& from) const {
  const auto any = [&](auto is) { return std::any_of(kernel.buffers.begin(), kernel.buffers.end(), is); };
  return dialect.hints && !from.written && is_long(from) &&
         any([](const Buffer& buffer) { return buffer.written && is_long(buffer); }) &&
         !any([](const Buffer& buffer) { return buffer.shared_size > 0; });
}

// What another address is made of, and what lies at such a one, where whole warps come by.
bool MemoryStatements::goes_ahead(const Load& load) const {
  const Buffer& from = kernel.buffers.at(load.buffer);
  const bool given = from.shared_size == 0 && !from.written;
  const DType dtype = kernel.registers.at(load.result);
  const bool index = !load.steps.empty() || dtype == DType::kS32 || dtype == DType::kS64;
  const bool warps = divergent == 0 && kernel.block * kernel.block_y % kWarp == 0;
  return dialect.hints && given && index && warps && loops_now == 0;
}

std::string MemoryStatements::arguments_of(const Step& step) const {
  return cat(use(step.index), ", ", step.limit, "L, ", step.weight, "L)");
}

void MemoryStatements::operator()(const Load& load) {
  const std::string type = lanes(load.result), &buffer = buffers.at(load.buffer);
  std::string at = offset(load.offset), each;
  if (!load.or_first.empty()) at = or_first_text(load.or_first, at, variables);
  int64_t multiple_of_steps = 0;
  for (const Step& step : load.steps) {
    const std::string text = arguments_of(step);
    if (step.each) {
      each = each.empty() ? cat("jf::steps(", text) : cat("jf::add(", each, ", jf::steps(", text, ")");
    } else {
      at += cat(" + jf::step(", text);
      multiple_of_steps = std::gcd(multiple_of_steps, step.weight);
    }
  }
  std::string definition = define(load.result), end = ");";
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
  const Buffer& from = kernel.buffers.at(load.buffer);
  const std::string_view vector_load = lasts(from) ? "jf::load_lasting<" : "jf::load<";
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
  } else if (load.cycle) {
    const auto& [start, period, place_step, turn_step] = *load.cycle;
    line(definition, "jf::load_cycle<", type, ", ", period, ", ", place_step, ", ", turn_step, ">(", buffer, ", ", at,
         ", ", index(start), on(), end);
  } else if (load.whole) {
    line(definition, vector_load, type, ", ", kernel.width, ">(", buffer, ", ", at, ");");
  } else if (load.phase >= 0) {
    line(definition, "jf::load_interleaved<", type, ", ", load.lane_stride, ", ", load.phase, ">(", buffer, ", ", at,
         on(), end);
  } else if (load.around > 0) {
    line(definition, "jf::load_around<", type, ">(", buffer, ", ", at, ", ", before, ", ", load.around, on(), ");");
  } else if (!each.empty()) {
    line(definition, "jf::load_at<", type, ">(", buffer, ", ", at, ", ", load.lane_stride, ", ", each, on(), end);
  } else if (load.lane_stride == 0) {
    const bool ahead = where.empty() && goes_ahead(load);
    line(definition, ahead ? "jf::load_ahead<" : "jf::load_splat<", type, ">(", buffer, ", ", at, end);
  } else if (load.lane_stride == 1) {
    const int64_t n = std::gcd(multiple(load.offset), multiple_of_steps);
    line(definition, n > 1 ? vector_load : "jf::load<", type, n > 1 ? cat(", ", n) : "", ">(", buffer, ", ", at, on(),
         end);
  } else if (load.lane_stride == -1 && load.steps.empty()) {
    // From its last lane on, which has to be aligned.
    const int64_t n = multiple(loops::moved(load.offset, 1 - kernel.width));
    line(definition, "jf::load_reversed<", type, n > 1 ? cat(", ", n) : "", ">(", buffer, ", ", at, on(), end);
  } else {
    line(definition, "jf::gather<", type, ">(", buffer, ", ", at, ", ", load.lane_stride, on(), end);
  }
}

void MemoryStatements::operator()(const ReadIndex& read) {
  const std::string i = bind(read.variable, 1), where = condition(read.when);
  if (varies(read.offset) || varies(read.when)) thread_variables.insert(read.variable);
  line("const ", index_type(), " ", i, " = ", where, where.empty() ? "" : " ? ", "jf::read_index<", index_type(), ">(",
       buffers.at(read.buffer), ", ", offset(read.offset), ", ", read.high, ")", where.empty() ? "" : " : 0", ";");
}

void MemoryStatements::operator()(const Search& s) {
  const std::string &number = use(s.number), type = lanes(s.result);
  const std::string definition = define(s.result), where = condition(s.when);
  std::string place;
  if ((!s.each || s.lane_stride == 0) && dialect.keeps_places && first_line) {
    const std::string name = cat("v", locals++), declaration = cat("  int ", name, " = 0;\n");
    place = cat(name, ", ");
    out.insert(*first_line, declaration);
  }
  const std::string arguments =
      cat(s.left ? "<true, " : "<false, ", s.count, ">(", place, buffers.at(s.buffer), ", ", offset(s.offset), ", ",
          s.each && place.empty() ? cat(s.lane_stride, ", ") : "", number);
  line(definition, where.empty() ? "" : cat(where, " ? "), s.each ? "jf::search_lanes" : "jf::search", arguments,
       s.each ? on() : "", ")", where.empty() ? "" : cat(" : ", type, "{}"), ";");
}

void MemoryStatements::operator()(const Store& store) {
  const std::string &buffer = buffers.at(store.buffer), at = offset(store.offset);
  std::string value = use(store.value);
  if (const auto codes = e2m1_of.find(store.value);
      codes != e2m1_of.end() && kernel.buffers.at(store.buffer).dtype == DType::kU4) {
    value = cat("jf::NearestE2m1<", kernel.width, ">{", use(codes->second), "}");
  }
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

void MemoryStatements::operator()(const StoreInterleaved& store) {
  std::string to, values;
  for (int buffer : store.buffers) to += cat(to.empty() ? "" : ", ", buffers.at(buffer));
  for (RegisterId id : store.values) values += cat(values.empty() ? "" : ", ", use(id));
  line("jf::store_interleaved({", to, "}, ", offset(store.offset), ", {", values, "}", on(), ");");
}

void MemoryStatements::operator()(const Prefetch& prefetch) {
  std::string at = offset(prefetch.offset);
  for (const Step& step : prefetch.steps) {
    at += cat(" + jf::step(", arguments_of(step));
  }
  line("jf::prefetch<", kernel.width, ">(", buffers.at(prefetch.buffer), ", ", at, ");");
}

void MemoryStatements::operator()(const TurnedLoad& load) {
  const int64_t size = kernel.arrays.at(load.array).size;
  std::string count = cat(size);
  for (const Below& b : load.limits) count = cat("jf::below(", count, ", ", index(b.index), ", ", b.bound, ")");
  line("jf::load_turned<", size, ">(", array(load.array), ", ", buffers.at(load.buffer), ", ", offset(load.offset),
       ", ", load.lane_stride, ", ", load.ahead, ", ",
       load.limits.empty() ? "jf::All{}" : cat("jf::First{", count, "}"), on(), ");");
}

void MemoryStatements::operator()(const TurnTile& turn) {
  JF_CHECK(!dialect.turn.empty(), "kernel ", kernel.name, " turns tiles, which its language cannot");
  check_all_threads("turn");
  line("jf::turn_tile<", turn.tile, ", ", turn.before, ", ", turn.pitch, ", ", kernel.block, ", ", turn.step, ">(",
       buffers.at(turn.shared), " + ", offset(turn.to), ", ", buffers.at(turn.buffer), ", ", offset(turn.from), ", ",
       index(turn.row), ", ", turn.rows, ", ", index(turn.column), ", ", turn.columns, ");");
}

void MemoryStatements::check_bulk(const char* what) const {
  JF_CHECK(!dialect.bulk.empty(), "kernel ", kernel.name, " copies in bulk, which its language cannot");
  check_all_threads(what);
}

const Ring& MemoryStatements::ring(int number, const char* what) const {
  check_bulk(what);
  return kernel.rings.at(number);
}

template <class Copy>
std::string MemoryStatements::elements(const Copy& copy) const {
  std::string rows = cat(copy.rows);
  for (const Below& b : copy.limits) rows = cat("jf::below(", rows, ", ", index(b.index), ", ", b.bound, ")");
  return copy.row == 1 ? rows : copy.limits.empty() ? cat(copy.rows * copy.row) : cat(rows, " * ", copy.row);
}

void MemoryStatements::operator()(const OpenRing& open) {
  const auto& [buffer, barriers, stages, size, variable] = ring(open.ring, "ring");
  const auto [entry, fresh] = variables.insert({variable, {cat(rings.at(open.ring), ".stage"), 1}});
  JF_CHECK(fresh, "kernel ", kernel.name, " opens ring ", open.ring, " twice");
  line("jf::Ring<", stages, ", ", size, "> ", rings[open.ring], "(", buffers.at(barriers), ");");
}

void MemoryStatements::operator()(const BulkLoad& load) {
  const std::string& to = buffers.at(ring(load.ring, "bulk copy").buffer);
  line(rings.at(load.ring), load.anywhere ? ".load_anywhere(" : ".load(", to, ", ", offset(load.to), ", ",
       buffers.at(load.buffer), ", ", offset(load.from), ", ", elements(load), ");");
}

void MemoryStatements::operator()(const TileLoad& load) {
  const std::string& to = buffers.at(ring(load.ring, "bulk copy").buffer);
  int64_t elements = 1;
  for (int64_t n : kernel.maps.at(load.map).box) elements *= n;
  std::string at;
  for (const IndexPtr& i : load.at) at += cat(", ", index(i));
  line(rings.at(load.ring), ".load_tile(", to, ", ", offset(load.to), ", ", maps.at(load.map), ", ", elements, at,
       ");");
}

void MemoryStatements::operator()(const BulkStore& store) {
  check_bulk("bulk copy");
  line("jf::bulk_store(", buffers.at(store.buffer), ", ", offset(store.to), ", ", buffers.at(store.shared), ", ",
       offset(store.from), ", ", elements(store), ");");
}

void MemoryStatements::operator()(const FenceBulk&) {
  check_bulk("fence");
  line("jf::fence_bulk();");
}

void MemoryStatements::operator()(const DrainBulk&) {
  check_bulk("wait");
  line("jf::drain_bulk();");
}

void MemoryStatements::operator()(const CommitRing& commit) {
  ring(commit.ring, "commit");
  line(rings.at(commit.ring), ".commit();");
}

void MemoryStatements::operator()(const AwaitRing& await) {
  ring(await.ring, "wait");
  line(rings.at(await.ring), ".await();");
}

}  // namespace jf::codegen
