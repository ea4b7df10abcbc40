#include "lower/tile.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"
#include "base/lists.h"
#include "graph/index.h"
#include "lower/guards.h"

namespace jf::lower {
namespace {

using loops::IndexKind;
using loops::IndexPtr;

// What the instruction asks.
constexpr int64_t kMostAxes = 5, kMostBox = 256, kTileBytes = 16, kMostBytes = 1 << 18;
constexpr int64_t kMostExtent = std::numeric_limits<int32_t>::max(), kMostStride = (int64_t{1} << 40) - kTileBytes;
constexpr std::array kSwizzles = {0, 32, 64, 128};

// An index as the part that the copy moves along and the rest.
struct Parts {
  IndexPtr moving, rest;
};

// Where the byte with that number of the box is: chunks of 16 bytes of a span trade places by the number of 128 bytes.
int64_t swizzled(int64_t byte, int swizzle) {
  return swizzle == 0 ? byte : byte ^ ((byte / 128 % (swizzle / 16)) * 16);
}

class Finder {
 public:
  explicit Finder(const TileRequest& request) : request_(request) {}

  Tile find() {
    std::vector<IndexPtr> moving;
    Tile tile;
    tile.map.buffer = request_.buffer;
    int64_t stride = 1;
    for (size_t a = request_.shape.size(); a-- > 0; stride *= request_.shape[a]) {
      if (request_.shape[a] == 1) continue;
      Parts parts = take_apart(request_.axes[a], cat("axis ", a, " of what it copies"));
      tile.at.push_back(std::move(parts.rest));
      moving.push_back(std::move(parts.moving));
      tile.map.extents.push_back(request_.shape[a]);
      tile.map.strides.push_back(stride);
    }
    Parts shared = take_apart(request_.shared, "shared memory");
    tile.to = std::move(shared.rest);
    enumerate(moving, shared.moving);
    find_box(tile.map);
    tile.map.swizzle = find_swizzle(tile.map);
    check(tile);
    return tile;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw UserError(cat("[lower] the bulk axes of ", request_.value, " ", what));
  }
  bool is_bulk(const IndexPtr& index) const {
    return std::any_of(request_.bulk.begin(), request_.bulk.end(),
                       [&](const BulkAxis& axis) { return depends(index, axis.variable); });
  }
  bool is_only_bulk(const IndexPtr& index) const {
    if (index->kind == IndexKind::kConst) return true;
    if (index->kind == IndexKind::kVar) return is_bulk(index);
    return is_only_bulk(index->a) && is_only_bulk(index->b);
  }
  Parts take_apart(const IndexPtr& index, const std::string& where) const {
    if (!is_bulk(index)) return {loops::constant(0), index};
    if (is_only_bulk(index)) return {index, loops::constant(0)};
    if (index->kind == IndexKind::kAdd) {
      const Parts a = take_apart(index->a, where), b = take_apart(index->b, where);
      return {add(a.moving, b.moving), add(a.rest, b.rest)};
    }
    if (index->kind == IndexKind::kMul && !is_bulk(index->b)) {
      const Parts a = take_apart(index->a, where);
      return {mul(a.moving, index->b), mul(a.rest, index->b)};
    }
    refuse(cat("move through ", where, " in other steps in each copy; split the axis so that bulk axes are whole"));
  }

  // The index of every axis and the place in shared memory, for every element of the copy.
  void enumerate(const std::vector<IndexPtr>& moving, const IndexPtr& shared) {
    int64_t last = 0;
    for (const BulkAxis& axis : request_.bulk) {
      elements_ *= axis.extent;
      last = std::max(last, axis.variable);
    }
    if (elements_ * size_of(request_.dtype) > kMostBytes) {
      refuse(cat("copy ", elements_, " elements at once, more than shared memory holds; make the outer ones serial"));
    }
    std::vector<int64_t> variables(static_cast<size_t>(last) + 1, 0);
    indices_.resize(moving.size());
    for (int64_t element = 0; element < elements_; ++element) {
      int64_t rest = element;
      for (const BulkAxis& axis : request_.bulk) {
        variables[axis.variable] = rest % axis.extent;
        rest /= axis.extent;
      }
      for (size_t a = 0; a < moving.size(); ++a) indices_[a].push_back(evaluate(moving[a], variables));
      places_.push_back(evaluate(shared, variables));
    }
  }

  void find_box(loops::TensorMap& map) const {
    int64_t all = 1;
    for (const std::vector<int64_t>& index : indices_) {
      map.box.push_back(*std::max_element(index.begin(), index.end()) + 1);
      all *= map.box.back();
      if (all > elements_) break;
    }
    std::vector<bool> seen(static_cast<size_t>(elements_), false);
    for (int64_t element = 0; all == elements_ && element < elements_; ++element) seen[number(map, element)] = true;
    if (all != elements_ || contains(seen, false)) {
      refuse("copy elements that are no box of the array; make bulk what is neighbours along each of its axes");
    }
  }
  // Of an element in the box, the first axis counting fastest.
  int64_t number(const loops::TensorMap& map, int64_t element) const {
    int64_t result = 0;
    for (size_t a = map.box.size(); a-- > 0;) result = result * map.box[a] + indices_[a][element];
    return result;
  }

  int find_swizzle(const loops::TensorMap& map) const {
    const int64_t size = size_of(request_.dtype);
    for (int swizzle : kSwizzles) {
      if (swizzle != 0 && map.box[0] * size != swizzle) continue;
      bool same = true;
      for (int64_t element = 0; same && element < elements_; ++element) {
        same = places_[element] * size == swizzled(number(map, element) * size, swizzle);
      }
      if (same) return swizzle;
    }
    refuse(
        "lie in shared memory in another order than in the array, where the fastest axis must be the fastest one, "
        "without pad, or with 16-byte chunks of rows of 32, 64 or 128 bytes swizzled by the number of 128 bytes; "
        "see set_allocation and swizzle");
  }

  void check(const Tile& tile) const {
    const loops::TensorMap& map = tile.map;
    const int64_t size = size_of(request_.dtype);
    if (map.box.size() > kMostAxes) {
      refuse(cat("copy boxes of an array of ", map.box.size(), " axes; at most ", kMostAxes, ": load by threads"));
    }
    for (size_t a = 0; a < map.box.size(); ++a) {
      if (map.box[a] > kMostBox) {
        refuse(cat("copy ", map.box[a], " elements along an axis; at most ", kMostBox, ": split it, the outer serial"));
      }
      if (map.extents[a] > kMostExtent || map.strides[a] * size > kMostStride) {
        refuse(cat("copy from an array with ", map.extents[a], " elements along an axis, ", map.strides[a] * size,
                   " bytes apart; at most ", kMostExtent, " and ", kMostStride, ": load by threads"));
      }
      if (a > 0 && map.strides[a] * size % kTileBytes != 0) {
        refuse(cat("copy from rows ", map.strides[a] * size, " bytes apart; expected a multiple of ", kTileBytes,
                   ": load by threads"));
      }
    }
    if (map.box[0] * size % kTileBytes != 0) {
      refuse(cat("copy rows of ", map.box[0] * size, " bytes; expected a multiple of ", kTileBytes));
    }
    const int64_t alignment = map.swizzle == 0 ? 128 : 8 * map.swizzle;
    if (graph::multiple_of(tile.to) * size % alignment != 0) {
      refuse(cat("copy to multiples of ", graph::multiple_of(tile.to) * size, " bytes in shared memory; expected ",
                 alignment, ": make the tile larger, or inline the value in its loop"));
    }
  }

  const TileRequest& request_;
  int64_t elements_ = 1;
  std::vector<std::vector<int64_t>> indices_;  // by axis of the map, by element of the copy
  std::vector<int64_t> places_;                // by element
};

}  // namespace

Tile find_tile(const TileRequest& request) { return Finder(request).find(); }

}  // namespace jf::lower
