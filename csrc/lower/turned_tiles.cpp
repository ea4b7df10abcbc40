#include "lower/turned_tiles.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/dtype.h"
#include "base/integers.h"
#include "base/target.h"
#include "graph/index.h"
#include "loops/bodies.h"
#include "lower/aligned_rows.h"

namespace jf::lower {
namespace {

using namespace loops;

// An index over a tile: start + row * r + column * c.
struct Plane {
  IndexPtr start;
  int64_t row, column;
};

// Loops over all elements of a tile: those that are unrolled, if any, and in them the threads.
struct Nest {
  const For* unrolled = nullptr;
  const For* threads = nullptr;
  Condition below;
  const Body* body = nullptr;
};
std::optional<Nest> nest_of(const Stmt& stmt) {
  Nest nest;
  const auto* loop = std::get_if<For>(&stmt.node);
  if (loop != nullptr && loop->parallel == loops::Parallel::kUnroll && loop->body.size() == 1) {
    nest.unrolled = loop;
    loop = std::get_if<For>(&loop->body.front().node);
  }
  if (loop == nullptr || loop->parallel != loops::Parallel::kThread) return std::nullopt;
  nest.threads = loop;
  nest.body = &loop->body;
  while (nest.body->size() == 1) {
    const auto* guard = std::get_if<Guard>(&nest.body->front().node);
    if (guard == nullptr) break;
    nest.below.insert(nest.below.end(), guard->below.begin(), guard->below.end());
    nest.body = &guard->body;
  }
  return nest;
}

class TileTurner {
 public:
  TileTurner(Kernel& kernel, int64_t block) : kernel_(kernel), block_(block), variables_(next_variable(kernel), 0) {}

  // Takes the statements of all tiles; whether they are turned now.
  bool turn(Body& body) {
    const auto sync = std::find_if(body.begin(), body.end(),
                                   [](const Stmt& stmt) { return std::holds_alternative<Sync>(stmt.node); });
    if (sync == body.begin() || body.end() - sync != 2) return false;
    const std::optional<Nest> out = nest_of(body.back());
    if (!out || !find_width(*out->body) || !find_tile(*out) || !find_out(*out)) return false;
    Body turned;
    for (auto stmt = body.begin(); stmt != sync; ++stmt) {
      if (!turn_tile(*stmt, turned)) return false;
    }
    turned.push_back({Sync{}});
    std::optional<Stmt> columns = turned_columns(*out);
    if (!columns) return false;
    turned.push_back(std::move(*columns));
    for (const auto& [shared, size] : sizes_) kernel_.buffers[shared].shared_size = size;
    body = std::move(turned);
    kernel_.width = static_cast<int>(width_);
    return true;
  }

 private:
  struct Place {
    IndexPtr index;  // of the first element
    int64_t bound;
  };

  // Elements of a vector: as many as fill it with the narrowest of them.
  bool find_width(const Body& body) {
    int64_t narrowest = kMaxVectorBytes;
    const auto fits = [&](int buffer) {
      const int64_t size = size_of(kernel_.buffers[buffer].dtype);
      narrowest = std::min(narrowest, size);
      return size == 2 || size == 4;
    };
    const bool known = std::all_of(body.begin(), body.end(), [&](const Stmt& stmt) {
      if (const auto* load = std::get_if<Load>(&stmt.node)) return is_plain(*load) && fits(load->buffer);
      if (const auto* store = std::get_if<Store>(&stmt.node)) return !store->rows && fits(store->buffer);
      return std::holds_alternative<Compute>(stmt.node);
    });
    width_ = kMaxVectorBytes / narrowest;
    return known;
  }
  // The tile's side: columns of the result are rows of threads.
  bool find_tile(const Nest& nest) {
    const int64_t all = nest.threads->extent * (nest.unrolled ? nest.unrolled->extent : 1);
    while (tile_ * tile_ < all) ++tile_;
    return tile_ * tile_ == all && nest.threads->extent % tile_ == 0 && tile_ % width_ == 0 &&
           nest.threads->extent == kernel_.block;
  }

  int64_t at(const IndexPtr& index, const Nest& nest, int64_t unrolled, int64_t thread) {
    std::fill(variables_.begin(), variables_.end(), 0);
    if (nest.unrolled) variables_[nest.unrolled->variable] = unrolled;
    variables_[nest.threads->variable] = thread;
    return evaluate(index, variables_);
  }
  // Of an index whose neighbours are neighbouring threads; `across` is the other axis of the tile.
  struct Steps {
    IndexPtr start;
    int64_t along, across;
  };
  std::optional<Steps> steps_of(const IndexPtr& index, const Nest& nest) {
    const int64_t rows = nest.threads->extent / tile_, first = at(index, nest, 0, 0);
    Steps steps{replace(index, nest.threads->variable, constant(0)), at(index, nest, 0, 1) - first, 0};
    if (nest.unrolled) steps.start = replace(steps.start, nest.unrolled->variable, constant(0));
    steps.across = rows > 1 ? at(index, nest, 0, tile_) - first : at(index, nest, 1, 0) - first;
    for (int64_t u = 0; u * rows < tile_; ++u) {
      for (int64_t t = 0; t < nest.threads->extent; t += t % tile_ == 0 ? tile_ - 1 : 1) {
        const int64_t expected = first + steps.along * (t % tile_) + steps.across * (u * rows + t / tile_);
        if (at(index, nest, u, t) != expected) return std::nullopt;
      }
    }
    return steps;
  }
  // Of the result, whose rows are along the threads.
  std::optional<Plane> plane_of(const IndexPtr& index, const Nest& nest) {
    const std::optional<Steps> steps = steps_of(index, nest);
    if (!steps) return std::nullopt;
    return Plane{steps->start, steps->along, steps->across};
  }

  // Where the result's rows and columns begin and end, and how far into a vector.
  bool find_out(const Nest& nest) {
    for (const Below& below : nest.below) {
      const std::optional<Plane> plane = plane_of(below.index, nest);
      if (!plane || below.variable >= 0) return false;
      if (plane->row == 1 && plane->column == 0) {
        row_ = Place{plane->start, below.bound};
      } else if (plane->row == 0 && plane->column == 1) {
        column_ = Place{plane->start, below.bound};
      } else {
        return false;
      }
    }
    if (!row_ || !column_) return false;
    // The last tile's vectors end before the tile does.
    std::fill(variables_.begin(), variables_.end(), 0);
    variables_[block_] = kernel_.grid - 1;
    if (evaluate(row_->index, variables_) + tile_ - (width_ - 1) < row_->bound) return false;
    for (const Stmt& stmt : *nest.body) {
      const auto* store = std::get_if<Store>(&stmt.node);
      if (store == nullptr) continue;
      const std::optional<Plane> plane = plane_of(store->offset, nest);
      if (!plane || plane->row != 1) return false;
      if (begin_ == nullptr) {
        begin_ = remainder(plane->start, width_);
        step_ = plane->column % width_;
        if (begin_ == nullptr) return false;
      }
      if (!in_order(*plane)) return false;
    }
    return begin_ != nullptr;
  }
  // Whether columns begin as far into a vector as those of the result.
  bool in_order(const Plane& plane) const {
    const IndexPtr begin = remainder(plane.start, width_);
    return plane.row == 1 && begin && graph::same(begin, begin_) && plane.column % width_ == step_;
  }

  // Whether the statement brings tiles to shared memory; they are turned then.
  bool turn_tile(const Stmt& stmt, Body& turned) {
    const std::optional<Nest> nest = nest_of(stmt);
    if (!nest || nest->threads->extent != kernel_.block) return false;
    for (const Below& below : nest->below) {
      const std::optional<Steps> steps = steps_of(below.index, *nest);
      const bool known = steps && below.variable < 0 && steps->along + steps->across == 1;
      const Place& place = known && steps->along == 1 ? *column_ : *row_;
      if (!known || below.bound != place.bound || !equal(steps->start, place.index)) return false;
    }
    return std::all_of(nest->body->begin(), nest->body->end(), [&](const Stmt& inner) {
      const auto* store = std::get_if<Store>(&inner.node);
      return std::holds_alternative<Load>(inner.node) || (store && turn_copy(*store, *nest, turned));
    });
  }
  bool turn_copy(const Store& store, const Nest& nest, Body& turned) {
    const auto is_copied = [&](const Stmt& stmt) {
      const auto* load = std::get_if<Load>(&stmt.node);
      return load != nullptr && load->result == store.value;
    };
    const auto copied = std::find_if(nest.body->begin(), nest.body->end(), is_copied);
    const int64_t size = size_of(kernel_.buffers[store.buffer].dtype), vector = kMaxVectorBytes / size;
    if (copied == nest.body->end() || kernel_.buffers[store.buffer].shared_size == 0) return false;
    const Load& load = std::get<Load>(copied->node);
    const std::optional<Steps> from = steps_of(load.offset, nest);
    if (!is_plain(load) || !from || from->along != 1) return false;
    int64_t pitch = tile_ + width_;
    while (pitch % width_ != step_) ++pitch;
    const int64_t spare = std::max(vector, width_);  // columns before those of the tile
    const IndexPtr first = add(mod(begin_, constant(width_)), constant(spare * pitch + width_));
    places_.push_back({store.buffer, first, pitch});
    sizes_.push_back({store.buffer, (spare + tile_ + vector) * pitch + 2 * width_});
    turned.push_back({TurnTile{store.buffer, first, pitch, tile_, width_, load.buffer, from->start, from->across,
                               row_->index, column_->index, row_->bound, column_->bound}});
    return true;
  }

  // [columns side by side, thread, lanes of a column]
  std::optional<Stmt> turned_columns(const Nest& nest) {
    const int64_t vectors = tile_ / width_, at_once = kernel_.block / vectors;
    if (at_once == 0) return std::nullopt;
    const int turn = new_variable(), thread = new_variable(), lane = new_variable();
    const IndexPtr number = variable(thread),
                   column = add(mul(variable(turn), constant(at_once)), div(number, constant(vectors)));
    const auto place = [&](const Plane& plane) {
      const IndexPtr first = add(plane.start, mul(column, constant(plane.column)));
      // The lane's row is one of the result's.
      return plane.row == 0 ? first : minus(add(first, variable(lane)), row_->index);
    };
    Vector vector{lane,
                  add(row_->index, mul(mod(number, constant(vectors)), constant(width_))),
                  {{constant(0), row_->bound}},
                  {}};
    vector.before = mod(add(begin_, mul(column, constant(step_))), constant(width_));
    for (Stmt stmt : *nest.body) {
      if (auto* load = std::get_if<Load>(&stmt.node)) {
        const auto tile =
            std::find_if(places_.begin(), places_.end(), [&](const auto& tile) { return tile.shared == load->buffer; });
        std::optional<Plane> plane = plane_of(load->offset, nest);
        if (tile != places_.end()) plane = Plane{tile->first, 1, tile->pitch};
        if (!plane) return std::nullopt;
        // An array that is the same for all columns begins anywhere in them.
        const bool shared = plane->row == 1 && plane->column == 0 && equal(plane->start, row_->index);
        load->whole = tile != places_.end() || in_order(*plane);
        if (shared && !load->whole) load->around = row_->bound;
        if (plane->row != 0 && !load->whole && load->around == 0) return std::nullopt;
        load->offset = shared ? variable(lane) : place(*plane);
        load->lane_stride = plane->row;
      } else if (auto* store = std::get_if<Store>(&stmt.node)) {
        store->offset = place(*plane_of(store->offset, nest));
        store->lane_stride = 1;
        store->whole = true;
      }
      vector.body.push_back(std::move(stmt));
    }
    Condition there = {{add(column_->index, column), column_->bound}};
    const int64_t turns = divide_up(tile_, at_once);
    if (turns * at_once > tile_) there.push_back({column, tile_});
    if (at_once * vectors < kernel_.block) there.push_back({number, at_once * vectors});
    Body inner;
    inner.push_back({Guard{std::move(there), {{std::move(vector)}}}});
    Body threads;
    threads.push_back({For{thread, kernel_.block, loops::Parallel::kThread, std::move(inner)}});
    return Stmt{For{turn, turns, loops::Parallel::kUnroll, std::move(threads)}};
  }
  // Of indices that go with the block.
  bool equal(const IndexPtr& a, const IndexPtr& b) {
    if (graph::same(a, b)) return true;
    std::fill(variables_.begin(), variables_.end(), 0);
    for (int64_t& block = variables_[block_]; block < kernel_.grid; ++block) {
      if (evaluate(a, variables_) != evaluate(b, variables_)) return false;
    }
    return true;
  }
  int new_variable() { return next_++; }

  struct TilePlace {
    int shared;
    IndexPtr first;
    int64_t pitch;
  };
  Kernel& kernel_;
  const int64_t block_;  // the variable of the blocks
  std::vector<int64_t> variables_;
  int next_ = static_cast<int>(variables_.size());
  int64_t width_ = 1, tile_ = 1;
  std::optional<Place> row_, column_;
  IndexPtr begin_;    // of the tile's first column in the result, as far as vectors go
  int64_t step_ = 0;  // likewise from column to column
  std::vector<TilePlace> places_;
  std::vector<std::pair<int, int64_t>> sizes_;
};

}  // namespace

void turn_tiles(Kernel& kernel) {
  if (kernel.width != 1 || kernel.block_y != 1) return;
  for (Stmt& stmt : kernel.body) {
    auto* blocks = std::get_if<For>(&stmt.node);
    if (blocks == nullptr || blocks->parallel != loops::Parallel::kBlock) continue;
    TileTurner(kernel, blocks->variable).turn(blocks->body);
    return;
  }
}

}  // namespace jf::lower
