#include "lower/early_reads.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace jf::lower {
namespace {

using namespace loops;

// Of one body; each of them takes a register until it is used.
constexpr int64_t kMostReads = 4;

class EarlyReads {
 public:
  explicit EarlyReads(Kernel& kernel) : kernel_(kernel) {}

  void run(Body& body) {
    for (Stmt& stmt : body) {
      if (auto* loop = std::get_if<For>(&stmt.node)) run(loop->body);
      if (auto* guard = std::get_if<Guard>(&stmt.node)) run(guard->body);
    }
    const auto meets = [](const Stmt& stmt) { return std::holds_alternative<Combine>(stmt.node); };
    const auto fold = std::find_if(body.begin(), body.end(), meets);
    if (fold == body.end()) return;
    // Ahead of the loop before the fold, or of all loops.
    const auto begin = std::find_if(body.begin(), fold, [](const Stmt& stmt) {
      return std::holds_alternative<For>(stmt.node) || std::holds_alternative<AwaitRing>(stmt.node);
    });
    const auto first = begin - body.begin(), met = fold - body.begin();
    late_.clear();
    for (auto i = first; i < met; ++i) note_late(body[i]);
    // What the reads need, backwards from the last of them.
    std::set<RegisterId> needed;
    std::vector<bool> moves(body.size(), false);
    int64_t reads = 0;
    for (auto i = met; i < std::ssize(body); ++i) {
      const Stmt& stmt = body[i];
      const std::vector<RegisterId>* operands = nullptr;
      if (const auto* compute = std::get_if<Compute>(&stmt.node)) operands = &compute->operands;
      const auto* load = std::get_if<Load>(&stmt.node);
      const bool own = load != nullptr && is_early(*load) && reads < kMostReads;
      const bool computed = operands != nullptr && std::none_of(operands->begin(), operands->end(),
                                                                [&](RegisterId r) { return late_.count(r) > 0; });
      if (own || computed) {
        moves[i] = true;
        reads += own;
      } else {
        note_late(stmt);
      }
    }
    for (auto i = std::ssize(body) - 1; i >= met; --i) {
      if (!moves[i]) continue;
      const auto* compute = std::get_if<Compute>(&body[i].node);
      if (compute != nullptr && needed.count(compute->result) == 0) {
        moves[i] = false;
      } else if (compute != nullptr) {
        needed.insert(compute->operands.begin(), compute->operands.end());
      } else {
        for (const Step& step : std::get<Load>(body[i].node).steps) needed.insert(step.index);
      }
    }
    // Threads issue in order: what waits for such a read itself stands behind the row's own loads.
    Body early, between, rest;
    for (auto i = met; i < std::ssize(body); ++i) {
      const auto* load = std::get_if<Load>(&body[i].node);
      const bool waits = load == nullptr || !load->steps.empty();
      (!moves[i] ? rest : waits ? between : early).push_back(std::move(body[i]));
    }
    body.erase(body.begin() + met, body.end());
    for (Body* part : {&between, &rest}) {
      body.insert(body.end(), std::make_move_iterator(part->begin()), std::make_move_iterator(part->end()));
    }
    body.insert(body.begin() + first, std::make_move_iterator(early.begin()), std::make_move_iterator(early.end()));
  }

 private:
  bool is_early(const Load& load) const {
    const Buffer& buffer = kernel_.buffers[load.buffer];
    return buffer.shared_size == 0 && !buffer.written && !reads_index_ &&
           std::none_of(load.steps.begin(), load.steps.end(),
                        [&](const Step& step) { return late_.count(step.index) > 0; });
  }
  void note_late(const Stmt& stmt) {
    std::visit(
        [&](const auto& node) {
          if constexpr (requires { node.result; }) late_.insert(node.result);
        },
        stmt.node);
    // Variables that are read from memory may stand in any index after that.
    reads_index_ = reads_index_ || std::holds_alternative<ReadIndex>(stmt.node);
  }

  Kernel& kernel_;
  std::set<RegisterId> late_;  // not known before the first fold
  bool reads_index_ = false;
};

}  // namespace

void read_early(Kernel& kernel) { EarlyReads(kernel).run(kernel.body); }

}  // namespace jf::lower
