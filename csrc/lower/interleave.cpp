#include "lower/interleave.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "graph/index.h"
#include "loops/bodies.h"

namespace jf::lower {
namespace {

using loops::Body;
using loops::IndexKind;
using loops::IndexPtr;
using loops::Kernel;
using loops::Load;
using loops::Store;

constexpr int64_t kMostPhases = 4;

// An offset as what varies and a number.
std::pair<IndexPtr, int64_t> apart(const IndexPtr& offset) {
  if (offset->kind == IndexKind::kConst) return {loops::constant(0), offset->value};
  if (offset->kind != IndexKind::kAdd) return {offset, 0};
  const auto a = apart(offset->a), b = apart(offset->b);
  return {add(a.first, b.first), a.second + b.second};
}

struct Place {
  size_t statement;
  IndexPtr varies;
  int64_t number;
  int64_t stride;
};

// Accesses that differ by a number, in ascending order of it.
using Group = std::vector<Place>;

template <class Fits>
void put(std::vector<Group>& groups, Place place, const Fits& fits) {
  for (Group& group : groups) {
    const Place& first = group.front();
    if (first.stride != place.stride || !graph::same(first.varies, place.varies) || !fits(first.statement)) continue;
    const auto behind = std::upper_bound(group.begin(), group.end(), place,
                                         [](const Place& a, const Place& b) { return a.number < b.number; });
    group.insert(behind, std::move(place));
    return;
  }
  groups.push_back({std::move(place)});
}

void interleave_loads(Body& body) {
  std::vector<Group> groups;
  for (size_t i = 0; i < body.size(); ++i) {
    const auto* load = std::get_if<Load>(&body[i].node);
    if (load == nullptr || !can_interleave(load->lane_stride) || !is_plain(*load)) continue;
    const auto [varies, number] = apart(load->offset);
    put(groups, {i, varies, number, load->lane_stride},
        [&](size_t other) { return std::get<Load>(body[other].node).buffer == load->buffer; });
  }
  for (const Group& group : groups) {
    for (auto first = group.begin(); first != group.end();) {
      const int64_t end = first->number + first->stride;
      const auto behind = std::find_if(first, group.end(), [&](const Place& place) { return place.number >= end; });
      // With the first element and the last one, nothing that the vectors hold lies outside of the array.
      if (std::prev(behind)->number == end - 1) {
        for (auto place = first; place != behind; ++place) {
          std::get<Load>(body[place->statement].node).phase = place->number - first->number;
        }
        first = behind;
      } else {
        ++first;
      }
    }
  }
}

void interleave_stores(const Kernel& kernel, Body& body) {
  std::vector<Group> groups;
  for (size_t i = 0; i < body.size(); ++i) {
    const auto* store = std::get_if<Store>(&body[i].node);
    if (store == nullptr || !can_interleave(store->lane_stride) || store->rows) continue;
    const auto [varies, number] = apart(store->offset);
    put(groups, {i, varies, number, store->lane_stride}, [&](size_t other) {
      return kernel.buffers[std::get<Store>(body[other].node).buffer].dtype == kernel.buffers[store->buffer].dtype;
    });
  }
  std::set<size_t> gone;
  for (const Group& group : groups) {
    bool together = static_cast<int64_t>(group.size()) == group.front().stride;
    for (size_t k = 0; k < group.size(); ++k) {
      together = together && group[k].number == group[0].number + static_cast<int64_t>(k);
    }
    if (!together) continue;
    loops::StoreInterleaved all{{}, std::get<Store>(body[group[0].statement].node).offset, {}};
    size_t last = 0;
    for (const Place& place : group) {
      const Store& store = std::get<Store>(body[place.statement].node);
      all.buffers.push_back(store.buffer);
      all.values.push_back(store.value);
      last = std::max(last, place.statement);
      gone.insert(place.statement);
    }
    // The values are all there at the last one.
    gone.erase(last);
    body[last] = {std::move(all)};
  }
  for (auto i = gone.rbegin(); i != gone.rend(); ++i) body.erase(body.begin() + static_cast<std::ptrdiff_t>(*i));
}

void interleave_in(const Kernel& kernel, Body& body, bool in_lanes) {
  for (loops::Stmt& stmt : body) {
    const bool lanes = in_lanes || std::holds_alternative<loops::Vector>(stmt.node);
    loops::visit_body(stmt, [&](Body& inner) { interleave_in(kernel, inner, lanes); });
  }
  if (!in_lanes) return;
  interleave_loads(body);
  interleave_stores(kernel, body);
}

}  // namespace

bool can_interleave(int64_t phases) { return phases > 1 && phases <= kMostPhases; }

void interleave(Kernel& kernel) { interleave_in(kernel, kernel.body, false); }

}  // namespace jf::lower
