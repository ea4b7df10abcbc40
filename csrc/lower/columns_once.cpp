#include "lower/columns_once.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "loops/bodies.h"

namespace jf::lower {
namespace {

using namespace loops;

// Registers of 4 bytes that columns may take for all rows.
constexpr int64_t kRegisters = 32;

// A loop that does nothing but load elements of a row for all rows: the threads' vectors of each iteration.
struct Columns {
  const For* loop;
  const Vector* vector;
  int buffer, array;
  int64_t thread;  // the threads' variable
};

// Where a vector begins is linear: two loops are the same where they begin alike.
using Key = std::tuple<int, int64_t, int64_t, int64_t, int64_t>;
Key key_of(const Columns& columns) {
  const auto at = [&](int64_t iteration, int64_t thread) {
    const IndexPtr index = replace(columns.vector->base, columns.loop->variable, constant(iteration));
    return evaluate(replace(index, columns.thread, constant(thread)), {});
  };
  return {columns.buffer, columns.loop->extent, at(0, 0), at(1, 0), at(0, 1)};
}

class Once {
 public:
  explicit Once(Kernel& kernel) : kernel_(kernel) {}

  void run(Body& body) {
    for (size_t i = 0; i < body.size(); ++i) {
      visit_body(body[i], [&](Body& inner) { run(inner); });
      auto* rows = std::get_if<For>(&body[i].node);
      if (rows == nullptr || rows->parallel != loops::Parallel::kSerial || rows->extent == 1) continue;
      Body before = take(*rows);
      const size_t added = before.size();
      body.insert(body.begin() + static_cast<std::ptrdiff_t>(i), std::make_move_iterator(before.begin()),
                  std::make_move_iterator(before.end()));
      i += added;
    }
  }

 private:
  // Takes columns out of the loop over rows, and conditions and rows side by side in it; returns what stands before it.
  Body take(For& rows) {
    rows_ = {rows.variable};
    std::map<Key, int> arrays;  // of the columns that are taken
    std::map<int, int> instead;
    std::set<int> taken;
    Body loops, result;
    int64_t words = 0;
    const auto from = [&](auto& self, Body& body) -> void {
      for (Stmt& stmt : body) {
        if (auto* guard = std::get_if<Guard>(&stmt.node)) self(self, guard->body);
        auto* loop = std::get_if<For>(&stmt.node);
        if (loop == nullptr || loop->parallel != loops::Parallel::kThreadY) continue;
        rows_.insert(loop->variable);
        self(self, loop->body);
      }
      std::erase_if(body, [&](Stmt& stmt) {
        const std::optional<Columns> columns = columns_of(stmt);
        if (!columns) return false;
        const auto [entry, fresh] = arrays.emplace(key_of(*columns), columns->array);
        if (!fresh) {
          instead[columns->array] = entry->second;
          return true;
        }
        const int64_t bytes = kernel_.width * size_of(kernel_.arrays[columns->array].dtype);
        words += columns->loop->extent * ((bytes + 3) / 4);
        if (words > kRegisters) {
          words = kRegisters + 1;
          arrays.erase(entry);
          return false;
        }
        taken.insert(columns->array);
        loops.push_back(std::move(stmt));
        return true;
      });
    };
    from(from, rows.body);
    for (const int array : taken) result.push_back({Declare{array, std::nullopt}});
    std::move(loops.begin(), loops.end(), std::back_inserter(result));
    const auto clean = [&](auto& self, Body& body) -> void {
      std::erase_if(body, [&](const Stmt& stmt) {
        const auto* declare = std::get_if<Declare>(&stmt.node);
        return declare != nullptr && (taken.count(declare->array) > 0 || instead.count(declare->array) > 0);
      });
      for (Stmt& stmt : body) {
        auto* get = std::get_if<Get>(&stmt.node);
        if (get != nullptr && instead.count(get->array) > 0) get->array = instead[get->array];
        visit_body(stmt, [&](Body& inner) { self(self, inner); });
      }
    };
    clean(clean, rows.body);
    return result;
  }

  std::optional<Columns> columns_of(const Stmt& stmt) const {
    const auto* loop = std::get_if<For>(&stmt.node);
    if (loop == nullptr || loop->parallel != loops::Parallel::kUnroll || loop->body.size() != 1) return std::nullopt;
    const auto* threads = std::get_if<For>(&loop->body.front().node);
    if (threads == nullptr || threads->parallel != loops::Parallel::kThread || threads->body.size() != 1)
      return std::nullopt;
    const auto* vector = std::get_if<Vector>(&threads->body.front().node);
    if (vector == nullptr || !vector->limits.empty() || !vector->before || vector->body.size() != 2)
      return std::nullopt;
    const auto* load = std::get_if<Load>(&vector->body[0].node);
    const auto* set = std::get_if<Set>(&vector->body[1].node);
    if (load == nullptr || set == nullptr || load->around == 0 || set->value != load->result) return std::nullopt;
    const auto varies = [&](int64_t variable) { return depends(vector->before, variable); };
    if (std::any_of(rows_.begin(), rows_.end(), varies)) return std::nullopt;
    const IndexPtr base = replace(replace(vector->base, loop->variable, constant(0)), threads->variable, constant(0));
    if (base->kind != IndexKind::kConst) return std::nullopt;
    return Columns{loop, vector, load->buffer, set->array, threads->variable};
  }

  Kernel& kernel_;
  std::set<int64_t> rows_;  // variables of the loops over rows
};

}  // namespace

void columns_once(Kernel& kernel) { Once(kernel).run(kernel.body); }

}  // namespace jf::lower
