#include "lower/pairs.h"

#include <map>
#include <numeric>
#include <type_traits>

#include "loops/bodies.h"

namespace jf::lower {
namespace {

// A number that divides the index: `known` has one for some variables.
int64_t divisor(const loops::IndexPtr& index, const std::map<int64_t, int64_t>& known) {
  const auto of = [&](const loops::IndexPtr& part) { return divisor(part, known); };
  switch (index->kind) {
    case loops::IndexKind::kConst: return index->value;
    case loops::IndexKind::kAdd: return std::gcd(of(index->a), of(index->b));
    case loops::IndexKind::kMul: return of(index->a) * of(index->b);
    case loops::IndexKind::kVar: {
      const auto found = known.find(index->value);
      return found == known.end() ? 1 : found->second;
    }
    default: return 1;
  }
}

}  // namespace

bool stores_pairs(const loops::Kernel& kernel) {
  const auto is_u4 = [&](int buffer) { return kernel.buffers.at(buffer).dtype == DType::kU4; };
  std::map<int64_t, int64_t> known;
  bool all = true;
  loops::for_each(kernel.body, [&](const auto& node) {
    using Node = std::decay_t<decltype(node)>;
    if constexpr (std::is_same_v<Node, loops::Vector>) {
      if (!node.before) known[node.variable] = divisor(node.base, known);
    } else if constexpr (std::is_same_v<Node, loops::Store>) {
      const bool even = kernel.width % 2 == 0 && divisor(node.offset, known) % 2 == 0;
      all = all && (!is_u4(node.buffer) || (even && node.lane_stride == 1 && !node.rows));
    } else if constexpr (std::is_same_v<Node, loops::BulkStore>) {
      all = all && !is_u4(node.buffer);
    }
  });
  return all;
}

}  // namespace jf::lower
