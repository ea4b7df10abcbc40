#include "lower/own_shifts.h"

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "loops/bodies.h"

namespace jf::lower {
namespace {

using namespace loops;
using ir::OpKind;

// Loops and conditions of a thread's rows around one vector, in which an array's element is folded. A condition may
// hold for other statements before them.
struct Fold {
  std::vector<const Stmt*> around;
  const Vector* vector = nullptr;
  const Accumulate* result = nullptr;
  bool alone = true;
  std::map<RegisterId, const Stmt*> made = {};
};

// The vector of a statement, which may stand under a condition.
const Vector* vector_in(const Stmt& stmt) {
  const auto* guard = std::get_if<Guard>(&stmt.node);
  return std::get_if<Vector>(guard != nullptr && guard->body.size() == 1 ? &guard->body.front().node : &stmt.node);
}

std::optional<Fold> fold_of(const Stmt& stmt) {
  Fold fold;
  const Stmt* at = &stmt;
  while (!std::holds_alternative<Vector>(at->node)) {
    const auto* loop = std::get_if<For>(&at->node);
    const auto* guard = std::get_if<Guard>(&at->node);
    if (loop == nullptr && guard == nullptr) return std::nullopt;
    const Body& body = loop != nullptr ? loop->body : guard->body;
    if (body.empty()) return std::nullopt;
    if (loop != nullptr && (body.size() != 1 || loop->reverse || !loop->runs.empty())) return std::nullopt;
    fold.around.push_back(at);
    fold.alone = fold.alone && body.size() == 1;
    at = &body.back();
  }
  fold.vector = &std::get<Vector>(at->node);
  if (fold.around.empty() || !fold.vector->limits.empty() || fold.vector->before) return std::nullopt;
  for (const Stmt& inner : fold.vector->body) {
    if (const auto* get = std::get_if<Get>(&inner.node)) {
      fold.made[get->result] = &inner;
    } else if (const auto* compute = std::get_if<Compute>(&inner.node)) {
      fold.made[compute->result] = &inner;
    } else if (const auto* result = std::get_if<Accumulate>(&inner.node); result != nullptr && !fold.result) {
      fold.result = result;
    } else {
      return std::nullopt;
    }
  }
  return fold.result != nullptr ? std::optional(fold) : std::nullopt;
}

// Whether two folds go over the same elements, and what is the same in both.
class Alike {
 public:
  Alike(const Fold& a, const Fold& b) : a_(a), b_(b) {}

  bool loops() {
    if (a_.around.size() != b_.around.size()) return false;
    for (size_t i = 0; i < a_.around.size(); ++i) {
      const auto* loop = std::get_if<For>(&a_.around[i]->node);
      const auto* other = std::get_if<For>(&b_.around[i]->node);
      if ((loop == nullptr) != (other == nullptr)) return false;
      if (loop != nullptr) {
        if (loop->extent != other->extent || loop->parallel != other->parallel) return false;
        variables_[loop->variable] = other->variable;
      } else if (!same(std::get<Guard>(a_.around[i]->node).below, std::get<Guard>(b_.around[i]->node).below)) {
        return false;
      }
    }
    variables_[a_.vector->variable] = b_.vector->variable;
    return same(a_.vector->base, b_.vector->base);
  }
  bool same(RegisterId a, RegisterId b) const {
    const auto made_a = a_.made.find(a), made_b = b_.made.find(b);
    if (made_a == a_.made.end() || made_b == b_.made.end()) {
      return made_a == a_.made.end() && made_b == b_.made.end() && a == b;
    }
    const auto *get = std::get_if<Get>(&made_a->second->node), *other = std::get_if<Get>(&made_b->second->node);
    if ((get == nullptr) != (other == nullptr)) return false;
    if (get != nullptr) return get->array == other->array && same(get->at, other->at);
    const auto &x = std::get<Compute>(made_a->second->node), &y = std::get<Compute>(made_b->second->node);
    if (x.op != y.op || x.attribute != y.attribute || x.from != y.from || x.operands.size() != y.operands.size()) {
      return false;
    }
    for (size_t i = 0; i < x.operands.size(); ++i) {
      if (!same(x.operands[i], y.operands[i])) return false;
    }
    return true;
  }

 private:
  bool same(const IndexPtr& a, const IndexPtr& b) const {
    if (a->kind != b->kind) return false;
    if (a->kind == IndexKind::kConst) return a->value == b->value;
    if (a->kind == IndexKind::kVar) {
      const auto found = variables_.find(a->value);
      return (found == variables_.end() ? a->value : found->second) == b->value;
    }
    return same(a->a, b->a) && same(a->b, b->b);
  }
  bool same(const Condition& a, const Condition& b) const {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i].bound != b[i].bound || a[i].variable != b[i].variable || !same(a[i].index, b[i].index)) return false;
    }
    return true;
  }

  const Fold &a_, &b_;
  std::map<int64_t, int64_t> variables_;
};

class OwnShifts {
 public:
  explicit OwnShifts(Kernel& kernel) : kernel_(kernel), next_variable_(next_variable(kernel)) {
    find_zeros(kernel.body);
  }

  void run(Body& body) {
    for (size_t i = 0; i < body.size(); ++i) {
      visit_body(body[i], [&](Body& inner) { run(inner); });
      if (const std::optional<Place> place = place_of(body, i)) rewrite(body, *place);
    }
  }

 private:
  // In a body: where the largest of all is known, where the shift follows from it, the sum's declaration and loop,
  // where the sum of all is known.
  struct Place {
    size_t largest, shift, declared, sum, total;
    int largest_array, shift_array, sum_array;
    RegisterId zero;
    bool loose;  // the powers
  };

  void find_zeros(const Body& body) {
    for (const Stmt& stmt : body) {
      visit_body(stmt, [&](const Body& inner) { find_zeros(inner); });
      const auto* compute = std::get_if<Compute>(&stmt.node);
      if (compute == nullptr || compute->op != OpKind::kConstant) continue;
      if (compute->attribute == ir::Attribute{ir::zero_of(dtype(compute->result))}) zeros_.insert(compute->result);
    }
  }
  DType dtype(RegisterId id) const { return kernel_.registers[id]; }

  // The array of which threads of different rows, and nobody else, fold the only element.
  static int folded_by_rows(const Stmt& stmt, OpKind op, const Kernel& kernel) {
    const auto* combine = std::get_if<Combine>(&stmt.node);
    const bool fits = combine != nullptr && combine->op == op && combine->arrays.size() == 1 && combine->threads_y &&
                      !combine->lanes && !combine->threads && !combine->cluster &&
                      kernel.arrays[combine->arrays[0]].size == 1;
    return fits ? combine->arrays[0] : -1;
  }

  std::optional<Place> place_of(const Body& body, size_t largest) const {
    Place place{};
    place.largest = largest;
    place.largest_array = folded_by_rows(body[largest], OpKind::kMax, kernel_);
    if (place.largest_array < 0 || largest == 0) return std::nullopt;
    const std::optional<Fold> first = fold_of(body[largest - 1]);
    if (!first || first->result->array != place.largest_array || first->result->op != OpKind::kMax) return std::nullopt;
    place.total = largest + 1;
    while (place.total < body.size() && !std::holds_alternative<Combine>(body[place.total].node)) ++place.total;
    if (place.total == body.size() || place.total < largest + 3) return std::nullopt;
    place.sum_array = folded_by_rows(body[place.total], OpKind::kAdd, kernel_);
    place.sum = place.total - 1;
    const std::optional<Fold> second = fold_of(body[place.sum]);
    if (place.sum_array < 0 || !second || !second->alone || second->result->array != place.sum_array)
      return std::nullopt;
    const Compute* power = made_by(*second, second->result->value, OpKind::kExp);
    const Compute* difference = power == nullptr ? nullptr : made_by(*second, power->operands[0], OpKind::kSub);
    if (second->result->op != OpKind::kAdd || difference == nullptr) return std::nullopt;
    const auto shift = second->made.find(difference->operands[1]);
    const Get* get = shift == second->made.end() ? nullptr : std::get_if<Get>(&shift->second->node);
    if (get == nullptr || kernel_.arrays[get->array].size != 1) return std::nullopt;
    place.shift_array = get->array;
    place.loose = power->loose;
    const DType of = kernel_.arrays[place.sum_array].dtype;
    if (of != kernel_.arrays[place.shift_array].dtype || of != kernel_.arrays[place.largest_array].dtype) {
      return std::nullopt;
    }
    Alike alike(*first, *second);
    if (!alike.loops() || !alike.same(first->result->value, difference->operands[0])) return std::nullopt;
    for (place.declared = place.largest + 1; place.declared < place.sum; ++place.declared) {
      const auto* declare = std::get_if<Declare>(&body[place.declared].node);
      if (declare != nullptr && declare->array == place.sum_array) break;
    }
    const bool found = place.declared < place.sum && find_shift(body, place);
    return found ? std::optional(place) : std::nullopt;
  }
  static const Compute* made_by(const Fold& fold, RegisterId id, OpKind op) {
    const auto found = fold.made.find(id);
    const Compute* compute = found == fold.made.end() ? nullptr : std::get_if<Compute>(&found->second->node);
    return compute != nullptr && compute->op == op ? compute : nullptr;
  }

  // shift = is_finite(largest) ? largest : 0, so that it is finite where a thread has none.
  bool find_shift(const Body& body, Place& place) const {
    for (place.shift = place.largest + 1; place.shift < place.sum; ++place.shift) {
      const Vector* vector = vector_in(body[place.shift]);
      if (vector == nullptr || !vector->limits.empty() || vector->before) continue;
      std::map<RegisterId, const Stmt*> made;
      for (const Stmt& stmt : vector->body) {
        if (const auto* get = std::get_if<Get>(&stmt.node)) made[get->result] = &stmt;
        if (const auto* compute = std::get_if<Compute>(&stmt.node)) made[compute->result] = &stmt;
        const auto* set = std::get_if<Set>(&stmt.node);
        if (set != nullptr && set->array == place.shift_array) return is_shift(made, set->value, place);
      }
    }
    return false;
  }
  bool is_shift(const std::map<RegisterId, const Stmt*>& made, RegisterId id, Place& place) const {
    const auto of = [&](RegisterId from) { return made.contains(from) ? made.at(from) : nullptr; };
    const auto is_largest = [&](RegisterId from) {
      const Get* get = of(from) == nullptr ? nullptr : std::get_if<Get>(&of(from)->node);
      return get != nullptr && get->array == place.largest_array;
    };
    const auto computed = [&](RegisterId from, OpKind op) {
      const Compute* compute = of(from) == nullptr ? nullptr : std::get_if<Compute>(&of(from)->node);
      return compute != nullptr && compute->op == op ? compute : nullptr;
    };
    const Compute* select = computed(id, OpKind::kSelect);
    const Compute* finite = select == nullptr ? nullptr : computed(select->operands[0], OpKind::kIsFinite);
    if (finite == nullptr || !is_largest(finite->operands[0]) || !is_largest(select->operands[1])) return false;
    place.zero = select->operands[2];
    return zeros_.contains(place.zero) && !made.contains(place.zero);
  }

  RegisterId fresh(DType dtype) {
    kernel_.registers.push_back(dtype);
    return static_cast<RegisterId>(kernel_.registers.size()) - 1;
  }
  int array(int like, const char* what) {
    Array made = kernel_.arrays[like];
    made.name += what;
    kernel_.arrays.push_back(std::move(made));
    return static_cast<int>(kernel_.arrays.size()) - 1;
  }
  // The same lanes, under the same condition, with another body.
  Stmt vector_like(const Stmt& stmt, Body body) {
    Vector made = *vector_in(stmt);
    made.variable = next_variable_++;
    made.body = std::move(body);
    const auto* guard = std::get_if<Guard>(&stmt.node);
    if (guard == nullptr) return {std::move(made)};
    Body guarded;
    guarded.push_back({std::move(made)});
    return {Guard{guard->below, std::move(guarded)}};
  }
  static void read_instead(Body& body, int array, int by) {
    for (Stmt& stmt : body) {
      if (auto* get = std::get_if<Get>(&stmt.node); get != nullptr && get->array == array) get->array = by;
      visit_body(stmt, [&](Body& inner) { read_instead(inner, array, by); });
    }
  }
  static Compute computed(RegisterId result, OpKind op, std::vector<RegisterId> operands, DType from,
                          bool loose = false) {
    return {result, op, std::move(operands), {}, from, "", loose};
  }

  void rewrite(Body& body, const Place& place) {
    const DType of = kernel_.arrays[place.sum_array].dtype;
    const int own = array(place.largest_array, "_own"), shift = array(place.shift_array, "_own");
    const IndexPtr first = constant(0);
    const RegisterId top = fresh(of), finite = fresh(DType::kPred), finite_top = fresh(of);
    const Stmt& lanes = body[place.shift];  // which stays where it is until they are made
    Stmt begin = vector_like(lanes, {{Get{top, place.largest_array, first}},
                                     {Set{own, first, top}},
                                     {computed(finite, OpKind::kIsFinite, {top}, of)},
                                     {computed(finite_top, OpKind::kSelect, {finite, top, place.zero}, DType::kPred)},
                                     {Set{shift, first, finite_top}}});
    // exp(-inf) where a thread has none; its sum is zero then.
    const RegisterId mine = fresh(of), all = fresh(of), apart = fresh(of), scale = fresh(of), sum = fresh(of),
                     scaled = fresh(of);
    Stmt end = vector_like(lanes, {{Get{mine, own, first}},
                                   {Get{all, place.shift_array, first}},
                                   {computed(apart, OpKind::kSub, {mine, all}, of)},
                                   {computed(scale, OpKind::kExp, {apart}, of, place.loose)},
                                   {Get{sum, place.sum_array, first}},
                                   {computed(scaled, OpKind::kMul, {sum, scale}, of)},
                                   {Set{place.sum_array, first, scaled}}});
    Stmt summed = std::move(body[place.sum]);
    visit_body(summed, [&](Body& inner) { read_instead(inner, place.shift_array, shift); });
    body[place.sum] = std::move(end);
    Body before;
    before.push_back({Declare{own, std::nullopt}});
    before.push_back({Declare{shift, std::nullopt}});
    before.push_back(std::move(begin));
    before.push_back(std::move(body[place.declared]));
    before.push_back(std::move(summed));
    body.erase(body.begin() + static_cast<std::ptrdiff_t>(place.declared));
    body.insert(body.begin() + static_cast<std::ptrdiff_t>(place.largest), std::make_move_iterator(before.begin()),
                std::make_move_iterator(before.end()));
  }

  Kernel& kernel_;
  int next_variable_;
  std::set<RegisterId> zeros_;
};

}  // namespace

void own_shifts(Kernel& kernel) { OwnShifts(kernel).run(kernel.body); }

}  // namespace jf::lower
