#include "codegen/anonymous.h"

#include <algorithm>
#include <type_traits>

#include "base/error.h"
#include "codegen/generate.h"
#include "loops/bodies.h"
#include "runtime/hash.h"

namespace jf::codegen {
namespace {

using namespace loops;

// Half of a hash's digits say who is who in a profile; the compile cache has the whole.
constexpr size_t kDigits = 12;

void drop_comments(Body& body) {
  for (Stmt& stmt : body) {
    std::visit(
        [](auto& node) {
          if constexpr (requires { node.body; }) drop_comments(node.body);
          if constexpr (requires { node.comment; }) node.comment.clear();
        },
        stmt.node);
  }
}

// Numbers in the order in which they are noted; those that never are come last.
class Order {
 public:
  explicit Order(size_t count) : rank_(count, -1) {}
  void note(int id) {
    if (rank_.at(id) < 0) rank_[id] = next_++;
  }
  std::vector<int> finish() {
    for (int& rank : rank_) rank = rank < 0 ? next_++ : rank;
    return rank_;
  }

 private:
  std::vector<int> rank_;
  int next_ = 0;
};

}  // namespace

Anonymous generate_anonymous(Kernel kernel, const Target& target) {
  Order buffers(kernel.buffers.size()), arrays(kernel.arrays.size());
  bool folds = false;
  for_each(kernel.body, [&](const auto& node) {
    if constexpr (requires { node.buffer; }) buffers.note(node.buffer);
    if constexpr (requires { node.array; }) arrays.note(node.array);
    if constexpr (requires { node.buffers; }) {
      for (int buffer : node.buffers) buffers.note(buffer);
    }
    folds |= std::is_same_v<std::decay_t<decltype(node)>, Accumulate>;
  });
  drop_comments(kernel.body);
  const std::vector<int> buffer_rank = buffers.finish(), array_rank = arrays.finish();
  for (size_t i = 0; i < buffer_rank.size(); ++i) kernel.buffers[i].name = cat("b", buffer_rank[i]);
  for (size_t i = 0; i < array_rank.size(); ++i) kernel.arrays[i].name = cat("a", array_rank[i]);

  Anonymous result;
  for (size_t i = 0; i < kernel.buffers.size(); ++i) {
    if (kernel.buffers[i].shared_size == 0) result.parameters.push_back(static_cast<int>(i));
  }
  std::sort(result.parameters.begin(), result.parameters.end(),
            [&](int a, int b) { return buffer_rank[a] < buffer_rank[b]; });
  const std::string kind = folds ? "reduction" : "pointwise";
  kernel.name = kind;
  const runtime::Source unnamed = generate({kernel}, target, result.parameters);
  kernel.name = cat(kind, "_", runtime::sha256(unnamed.text).substr(0, kDigits));
  result.source = generate({kernel}, target, result.parameters);
  return result;
}

}  // namespace jf::codegen
