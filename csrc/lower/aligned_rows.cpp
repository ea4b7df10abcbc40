#include "lower/aligned_rows.h"

#include <algorithm>
#include <map>

#include "base/dtype.h"
#include "graph/index.h"
#include "loops/bodies.h"
#include "lower/guards.h"

namespace jf::lower {
namespace {

using namespace loops;

// Of one load instruction: all 16 bytes can be read where some of them can. Columns are moved in words.
constexpr int64_t kLoadBytes = 16, kWordBytes = 4;

class Aligner {
 public:
  explicit Aligner(Kernel& kernel) : kernel_(kernel) {}

  void run() {
    if (kernel_.width < 2) return;
    look(kernel_.body);
    if (!possible_ || !before_ || !varies_as_it_may()) return;
    for (Vector* vector : vectors_) change(*vector, mod(before_, constant(kernel_.width)));
  }

 private:
  void look(Body& body) {
    for (Stmt& stmt : body) {
      if (auto* loop = std::get_if<For>(&stmt.node)) {
        last_[loop->variable] = loop->extent - 1;
        parallel_[loop->variable] = loop->parallel;
        look(loop->body);
      } else if (auto* guard = std::get_if<Guard>(&stmt.node)) {
        look(guard->body);
      } else if (auto* vector = std::get_if<Vector>(&stmt.node)) {
        look(*vector);
      } else {
        const bool lines = std::holds_alternative<Scan>(stmt.node) || std::holds_alternative<ScanThreads>(stmt.node) ||
                           std::holds_alternative<TurnedLoad>(stmt.node);
        possible_ = possible_ && !lines;
      }
    }
  }
  void look(Vector& vector) {
    vectors_.push_back(&vector);
    // The loops must have a vector more than elements without a gap ask for.
    IndexPtr last = vector.base;
    for (const auto& [variable, value] : last_) last = replace(last, variable, constant(value));
    const bool one = vector.limits.size() == 1 && !ends_ahead(vector);
    possible_ = possible_ && one;
    if (!possible_) return;
    const int64_t limit = vector.limits.front().bound;
    const bool spare = last->kind == IndexKind::kConst && last->value >= limit - 1;
    const bool same_limit = vectors_.front()->limits.front().bound == limit;
    possible_ = spare && same_limit && graph::multiple_of(vector.base) % kernel_.width == 0;
    for (const Stmt& stmt : vector.body) possible_ = possible_ && can_move(stmt, vector.variable);
  }

  bool can_move(const Stmt& stmt, int lane) {
    if (const auto* loop = std::get_if<For>(&stmt.node)) {
      // What one of the threads along y does.
      const auto moves = [&](const Stmt& inner) { return can_move(inner, lane); };
      return loop->extent == 1 && std::all_of(loop->body.begin(), loop->body.end(), moves);
    }
    if (const auto* load = std::get_if<Load>(&stmt.node)) {
      if (!loops::is_plain(*load)) return false;
      // Copies that begin anywhere bring all of each 16 bytes.
      if (kernel_.buffers[load->buffer].shared_size > 0 && !is_ring(load->buffer)) return false;
      if (load->lane_stride == 0) return !depends(load->offset, lane);
      const int64_t bytes = kernel_.width * size_of(kernel_.buffers[load->buffer].dtype);
      if (load->lane_stride != 1 || bytes > kLoadBytes) return false;
      return is_column(load->offset, lane) ? bytes >= kWordBytes : is_row(load->offset, lane);
    }
    if (const auto* store = std::get_if<Store>(&stmt.node)) {
      return kernel_.buffers[store->buffer].shared_size == 0 && store->lane_stride == 1 && is_row(store->offset, lane);
    }
    if (const auto* set = std::get_if<Set>(&stmt.node)) return !set->existing && !depends(set->at, lane);
    if (const auto* get = std::get_if<Get>(&stmt.node)) return !depends(get->at, lane);
    if (const auto* sum = std::get_if<Accumulate>(&stmt.node)) return !depends(sum->at, lane);
    return std::holds_alternative<Compute>(stmt.node) || std::holds_alternative<FromIndex>(stmt.node);
  }
  static bool is_column(const IndexPtr& offset, int lane) {
    return offset->kind == IndexKind::kVar && offset->value == lane;
  }
  bool is_ring(int buffer) const {
    return std::any_of(kernel_.rings.begin(), kernel_.rings.end(), [&](const Ring& r) { return r.buffer == buffer; });
  }
  // Whether it goes along a row that begins as far into a vector as all the others do.
  bool is_row(const IndexPtr& offset, int lane) {
    if (step_of(offset, lane) != 1) return false;
    const IndexPtr before = remainder(replace(offset, lane, constant(0)), kernel_.width);
    if (!before || before->kind == IndexKind::kConst) return false;
    if (!before_) before_ = before;
    return graph::same(before, before_);
  }
  // What arrays hold belongs to one row, or to rows that begin alike.
  bool varies_as_it_may() const {
    if (kernel_.arrays.empty()) return true;
    return std::none_of(parallel_.begin(), parallel_.end(), [&](const auto& loop) {
      const bool in_turn = loop.second == Parallel::kSerial || loop.second == Parallel::kUnroll;
      return in_turn && depends(before_, loop.first);
    });
  }

  void change(Vector& vector, const IndexPtr& before) {
    vector.before = before;
    change(vector.body, vector);
  }
  static void change(Body& body, const Vector& vector) {
    for (Stmt& stmt : body) {
      if (auto* loop = std::get_if<For>(&stmt.node)) change(loop->body, vector);
      if (auto* store = std::get_if<Store>(&stmt.node)) store->whole = true;
      auto* load = std::get_if<Load>(&stmt.node);
      if (load == nullptr || load->lane_stride == 0) continue;
      const bool column = is_column(load->offset, vector.variable);
      load->whole = !column;
      load->around = column ? vector.limits.front().bound : 0;
    }
  }

  Kernel& kernel_;
  bool possible_ = true;
  IndexPtr before_;  // where rows begin, without whole vectors
  std::vector<Vector*> vectors_;
  std::map<int64_t, int64_t> last_;  // by variable
  std::map<int64_t, Parallel> parallel_;
};

void load_whole(const Kernel& kernel, Body& body, const Vector* in) {
  for (Stmt& stmt : body) {
    if (auto* loop = std::get_if<For>(&stmt.node)) load_whole(kernel, loop->body, nullptr);
    if (auto* guard = std::get_if<Guard>(&stmt.node)) load_whole(kernel, guard->body, in);
    if (auto* vector = std::get_if<Vector>(&stmt.node)) load_whole(kernel, vector->body, vector);
    auto* load = std::get_if<Load>(&stmt.node);
    if (load == nullptr || in == nullptr || !ends_ahead(*in) || load->lane_stride != 1) continue;
    const Buffer& buffer = kernel.buffers[load->buffer];
    const bool fits = buffer.shared_size == 0 && kernel.width * size_of(buffer.dtype) <= kLoadBytes;
    const IndexPtr offset = replace(load->offset, in->variable, in->base);
    load->whole = loops::is_plain(*load) && fits && graph::multiple_of(offset) % kernel.width == 0;
  }
}

}  // namespace

IndexPtr remainder(const IndexPtr& index, int64_t of) {
  switch (index->kind) {
    case IndexKind::kConst: return constant(index->value % of);
    case IndexKind::kVar: return index;
    case IndexKind::kAdd: {
      const IndexPtr a = remainder(index->a, of), b = remainder(index->b, of);
      return a && b ? add(a, b) : nullptr;
    }
    case IndexKind::kMul:
      if (index->b->kind != IndexKind::kConst) return nullptr;
      return mul(index->a, constant(index->b->value % of));
    case IndexKind::kMod:
      return index->b->kind == IndexKind::kConst && index->b->value % of == 0 ? remainder(index->a, of) : nullptr;
    default: return nullptr;
  }
}

void align_rows(Kernel& kernel) { Aligner(kernel).run(); }

void load_whole(Kernel& kernel) {
  if (kernel.width > 1) load_whole(kernel, kernel.body, nullptr);
}

}  // namespace jf::lower
