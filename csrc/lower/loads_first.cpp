#include "lower/loads_first.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace jf::lower {
namespace {

using namespace loops;

// Registers of 4 bytes that the loads of one loop may take.
constexpr int64_t kLoadRegisters = 128;

Body* body_of(Stmt& stmt) {
  if (auto* loop = std::get_if<For>(&stmt.node)) return &loop->body;
  if (auto* vector = std::get_if<Vector>(&stmt.node)) return &vector->body;
  if (auto* guard = std::get_if<Guard>(&stmt.node)) return &guard->body;
  return nullptr;
}

bool is_thread_loop(const Stmt& stmt) {
  const auto* loop = std::get_if<For>(&stmt.node);
  return loop != nullptr && (loop->parallel == loops::Parallel::kThread || loop->parallel == loops::Parallel::kThreadY);
}

// The statements that the loop's iterations run, below threads, conditions and lanes that hold nothing else; whether a
// condition is among these, and whether some lanes may lie behind an array.
struct Innermost {
  Body* body;
  bool guarded = false, ends = false;
};
Innermost innermost(For& loop) {
  Body* body = &loop.body;
  bool guarded = false, ends = false;
  while (body->size() == 1) {
    Stmt& only = body->front();
    const bool guard = std::holds_alternative<Guard>(only.node);
    const auto* vector = std::get_if<Vector>(&only.node);
    if (!guard && !is_thread_loop(only) && vector == nullptr) break;
    ends = ends || (vector != nullptr && ends_ahead(*vector));
    guarded = guarded || guard || ends || (vector != nullptr && vector->before);
    body = body_of(only);
  }
  return {body, guarded, ends};
}

class LoadsFirst {
 public:
  explicit LoadsFirst(Kernel& kernel) : kernel_(kernel), next_variable_(next_variable(kernel)) {}

  void run(Body& body) {
    for (size_t i = 0; i < body.size(); ++i) {
      auto* loop = std::get_if<For>(&body[i].node);
      if (loop != nullptr && loop->parallel == loops::Parallel::kUnroll && loop->extent > 1) {
        Body before = split(*loop);
        const size_t added = before.size();
        body.insert(body.begin() + static_cast<std::ptrdiff_t>(i), std::make_move_iterator(before.begin()),
                    std::make_move_iterator(before.end()));
        i += added;
      } else if (Body* inner = body_of(body[i])) {
        const bool rows = loop != nullptr && loop->parallel == loops::Parallel::kSerial && loop->extent > 1;
        rows_ += rows;
        run(*inner);
        rows_ -= rows;
      }
    }
  }

 private:
  bool is_early(const Stmt& stmt, bool ends) const {
    const auto* load = std::get_if<Load>(&stmt.node);
    if (load == nullptr || !load->steps.empty()) return false;
    if (ends && load->lane_stride != 0 && !load->whole) return false;
    // Those of columns wait for a cache at most; they go first where that is once for many rows.
    if (load->around > 0 && rows_ == 0) return false;
    // Of such lanes some are not read anywhere, maybe because the buffer has fewer elements.
    if (std::any_of(load->within.begin(), load->within.end(), [](const Range& range) { return range.lanes; })) {
      return false;
    }
    const Buffer& buffer = kernel_.buffers[load->buffer];
    return buffer.shared_size == 0 && !buffer.written;
  }

  // Takes the loads out of the loop; returns what stands before it, nothing where it stays as it is.
  Body split(For& loop) {
    auto [statements, guarded, ends] = innermost(loop);
    if (!guarded) return {};
    std::vector<RegisterId> loaded;
    bool works = false;
    int64_t words = 0;
    for (const Stmt& stmt : *statements) {
      if (std::holds_alternative<ReadIndex>(stmt.node)) return {};  // which loads may need
      works = works || std::holds_alternative<Compute>(stmt.node) || std::holds_alternative<Accumulate>(stmt.node);
      if (!is_early(stmt, ends)) continue;
      loaded.push_back(std::get<Load>(stmt.node).result);
      words += loop.extent * kernel_.width * std::max<int64_t>(1, size_of(kernel_.registers[loaded.back()]) / 4);
    }
    if (loaded.empty() || !works || words > kLoadRegisters) return {};

    Body early, late, before;
    std::vector<const Set*> kept(loaded.size());  // by load, where the loop keeps it anyway
    for (Stmt& stmt : *statements) {
      const auto* set = std::get_if<Set>(&stmt.node);
      const size_t n = set == nullptr ? loaded.size() : number(loaded, set->value);
      if (is_early(stmt, ends)) {
        early.push_back(std::move(stmt));
      } else if (n < loaded.size() && !set->existing && kept[n] == nullptr) {
        kept[n] = set;
      } else {
        late.push_back(std::move(stmt));
      }
    }
    Body gets, columns, others, columns_set, others_set;
    for (size_t n = 0; n < loaded.size(); ++n) {
      Load& load = std::get<Load>(early[n].node);
      Set set = kept[n] != nullptr ? *kept[n] : keep(load, loop, before);
      gets.push_back({Get{loaded[n], set.array, set.at}});
      load.result = set.value = static_cast<RegisterId>(kernel_.registers.size());
      kernel_.registers.push_back(kernel_.registers[loaded[n]]);
      const bool column = load.around > 0;
      (column ? columns : others).push_back(std::move(early[n]));
      (column ? columns_set : others_set).push_back({std::move(set)});
    }
    late.insert(late.begin(), std::make_move_iterator(gets.begin()), std::make_move_iterator(gets.end()));
    for (const auto& [given, sets] : {std::pair(&columns, &columns_set), std::pair(&others, &others_set)}) {
      if (given->empty()) continue;
      *statements = std::move(*given);
      std::move(sets->begin(), sets->end(), std::back_inserter(*statements));
      For loads = {next_variable_++, loop.extent, loop.parallel, {}, loop.reverse};
      std::map<int64_t, IndexPtr> names = {{loop.variable, variable(loads.variable)}};
      loads.body = unconditional(loop.body, names, {});
      before.push_back({std::move(loads)});
    }
    *statements = std::move(late);
    return before;
  }

  static size_t number(const std::vector<RegisterId>& loaded, RegisterId r) {
    return static_cast<size_t>(std::find(loaded.begin(), loaded.end(), r) - loaded.begin());
  }

  // An array for what the loop loads.
  Set keep(const Load& load, const For& loop, Body& before) {
    const int array = static_cast<int>(kernel_.arrays.size());
    kernel_.arrays.push_back(
        {kernel_.buffers[load.buffer].name + "_ahead", kernel_.registers[load.result], loop.extent});
    before.push_back({Declare{array, std::nullopt}});
    return {array, variable(loop.variable), load.result};
  }

  // The loops and lanes around loads, with variables of their own and no conditions but those of the loads.
  Body unconditional(const Body& body, std::map<int64_t, IndexPtr> names, Condition when) {
    const auto fresh = [&](int& variable_of_loop) {
      const int old = std::exchange(variable_of_loop, next_variable_++);
      names[old] = variable(variable_of_loop);
    };
    const auto rename = [&](IndexPtr& index) {
      for (const auto& [old, name] : names) index = replace(index, old, name);
    };
    Body result;
    for (Stmt stmt : body) {
      if (auto* guard = std::get_if<Guard>(&stmt.node)) {
        for (Below& below : guard->below) {
          rename(below.index);
          when.push_back(below);
        }
        Body inner = unconditional(guard->body, names, when);
        std::move(inner.begin(), inner.end(), std::back_inserter(result));
        continue;
      }
      if (auto* loop = std::get_if<For>(&stmt.node)) {
        fresh(loop->variable);
      } else if (auto* vector = std::get_if<Vector>(&stmt.node)) {
        rename(vector->base);
        fresh(vector->variable);
        bases_[vector->variable] = vector->base;
        if (vector->before) {
          rename(vector->before);
          // Whether any lane runs; width - 1 less `before` is the same as ^.
          const int64_t most = kernel_.width - 1;
          when.push_back(
              {add(vector->base, bit_xor(vector->before, constant(most))), vector->limits.front().bound + most});
          vector->limits.clear();
        } else if (ends_ahead(*vector)) {
          for (Below& limit : vector->limits) {
            rename(limit.index);
            when.push_back({add(vector->base, limit.index), limit.bound});
          }
          vector->limits.clear();
        }
      } else if (auto* load = std::get_if<Load>(&stmt.node)) {
        rename(load->offset);
        for (Below& below : load->when) rename(below.index);
        for (Range& range : load->within) rename(range.index);
        // The same place in every iteration is there whether or not this one exists, and is read once.
        IndexPtr place = load->offset;
        for (const auto& [lane, base] : bases_) place = replace(place, lane, base);
        for (const Below& below : when) {
          if (load->around == 0 && share_variable(below.index, place)) load->or_first.push_back(below);
        }
      } else {
        rename(std::get<Set>(stmt.node).at);
      }
      if (Body* inner = body_of(stmt)) *inner = unconditional(*inner, names, when);
      result.push_back(std::move(stmt));
    }
    return result;
  }

  Kernel& kernel_;
  int next_variable_;
  std::map<int64_t, IndexPtr> bases_;  // of the variables of vectors
  int rows_ = 0;                       // how many loops one row after the other are around
};

}  // namespace

void loads_first(Kernel& kernel) { LoadsFirst(kernel).run(kernel.body); }

}  // namespace jf::lower
