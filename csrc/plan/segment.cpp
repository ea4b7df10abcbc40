#include "plan/segment.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"

namespace jf::plan {
namespace {

using ir::Fusion;
using ir::Op;
using ir::OpClass;
using ir::OpKind;
using ir::ValueId;

// Kernels with more results than this gain nothing more from sharing a launch.
constexpr size_t kMaxOutputs = 32;
// Far below what a launch can pass, 512 pointers, since values of other segments are not counted.
constexpr size_t kMaxInputs = 256;

// Axes of extent 1 do not change what iterates.
std::vector<int64_t> iteration_shape(const ir::Value& value) {
  std::vector<int64_t> shape;
  for (const ir::Axis& axis : value.axes) {
    if (axis.extent != 1) shape.push_back(axis.extent);
  }
  return shape;
}

std::string text(const std::vector<int64_t>& shape) {
  std::string out;
  for (int64_t extent : shape) out += cat(out.empty() ? "" : ",", extent);
  return cat("[", out, "]");
}

// Where a segment stands in time. Sorting by it is a valid order: a value of a level reads lower levels or, in its own
// level, shorter iteration shapes, because between two values of one level only broadcasts change the shape. Grouped
// products come after the pointwise segments of their level. `part` counts down where one shape needs several kernels.
struct Key {
  int level;
  bool grouped;
  size_t rank;
  std::vector<int64_t> shape;
  int part;
  auto operator<=>(const Key&) const = default;
};

class Drafter {
 public:
  explicit Drafter(const Fusion& fusion)
      : fusion_(fusion),
        is_input_(fusion.values.size(), false),
        level_(fusion.values.size(), 0),
        wanted_(fusion.values.size()),
        users_(fusion.values.size()) {
    for (ValueId id : fusion.inputs) is_input_[id] = true;
    find_levels();
    for (ValueId id : fusion.outputs) wanted_[id] = {true, kNever, "its outputs have the iteration domain "};
    for (size_t i = fusion.ops.size(); i-- > 0;) place(i);
    copy_inputs();
  }

  std::vector<Draft> drafts() && {
    std::vector<Draft> result;
    for (auto& [key, building] : drafts_) {
      Draft& draft = building.draft;
      std::sort(draft.ops.begin(), draft.ops.end());
      std::sort(draft.outputs.begin(), draft.outputs.end());
      result.push_back(std::move(draft));
    }
    return result;
  }

 private:
  static constexpr int kNever = std::numeric_limits<int>::max();
  struct Want {
    bool in_memory = false;
    int deadline = kNever;  // the last level whose pointwise segments may store it
    const char* why = "";
  };

  struct Building {
    Draft draft;
    std::set<ValueId> inputs;  // of the whole fusion, that it reads

    bool full() const { return draft.outputs.size() >= kMaxOutputs || inputs.size() >= kMaxInputs; }
    void store(ValueId value, std::string why) {
      if (draft.outputs.empty()) draft.reason = std::move(why);
      draft.outputs.push_back(value);
    }
  };

  // A value is one level above the grouped products and the transposes of computed values that it comes from.
  void find_levels() {
    for (const Op& op : fusion_.ops) {
      int level = 0;
      for (ValueId id : op.inputs) level = std::max(level, level_[id]);
      const bool transposes = op.kind == OpKind::kTranspose && !is_input_[op.inputs[0]];
      level_[op.output] = level + (transposes || op.kind == OpKind::kGroupedMatmul);
    }
  }

  // Computing it again costs no more than loading it.
  static bool is_cheap(const Op& op) {
    const OpClass op_class = ir::info(op.kind).op_class;
    return op_class == OpClass::kConstant || op_class == OpClass::kIota || op_class == OpClass::kView ||
           op.kind == OpKind::kConvert;
  }
  // Made from nothing, so that loading it is never better.
  static bool is_generated(const Op& op) { return op.inputs.empty() || op.kind == OpKind::kBroadcast; }

  Key key(int level, ValueId value) {
    std::vector<int64_t> shape = iteration_shape(fusion_.values[value]);
    Key key{level, false, shape.size(), shape, 0};
    int& part = parts_[key];
    key.part = -part;
    const auto found = drafts_.find(key);
    if (found != drafts_.end() && found->second.full()) key.part = -++part;
    return key;
  }

  void place(size_t number) {
    const Op& op = fusion_.ops[number];
    const ValueId value = op.output;
    std::vector<Key>& users = users_[value];
    std::sort(users.begin(), users.end());
    users.erase(std::unique(users.begin(), users.end()), users.end());
    Want want = wanted_[value];
    if (users.empty() && !want.in_memory) return;  // reaches no output

    if (op.kind == OpKind::kGroupedMatmul) return place_grouped(number);
    if (!want.in_memory && !is_cheap(op)) {
      if (users.size() > 1) want = {true, kNever, "several segments read its values, of iteration domain "};
      if (users.size() == 1 && drafts_[users[0]].full()) {
        want = {true, kNever, "the next kernel has as many inputs as it can take; iteration domain "};
      }
    }
    std::vector<Key> homes = want.in_memory && !is_generated(op) ? std::vector<Key>{} : users;
    if (want.in_memory) {
      const Key home = home_of(value, users, want.deadline);
      drafts_[home].store(value, want.why + text(home.shape));
      if (std::find(homes.begin(), homes.end(), home) == homes.end()) homes.push_back(home);
    }
    for (const Key& home : homes) {
      Building& building = drafts_[home];
      building.draft.ops.push_back(number);
      for (ValueId id : op.inputs) {
        users_[id].push_back(home);
        if (is_input_[id]) building.inputs.insert(id);
      }
    }
  }

  // The first segment that needs the value anyway, where it has the value's iteration domain and runs in time.
  Key home_of(ValueId value, const std::vector<Key>& users, int deadline) {
    if (!users.empty() && users.front().level <= deadline &&
        users.front().shape == iteration_shape(fusion_.values[value]) && !drafts_[users.front()].full()) {
      return users.front();
    }
    return key(level_[value], value);
  }

  void place_grouped(size_t number) {
    const Op& op = fusion_.ops[number];
    const int level = level_[op.output] - 1;
    const Key home{level, true, 0, {}, static_cast<int>(number)};
    drafts_[home].draft = {true, "a grouped product reads its operands from memory", {number}, {op.output}};
    for (ValueId id : op.inputs) {
      Want& want = wanted_[id];
      if (!want.in_memory || want.deadline > level) {
        want = {true, std::min(want.deadline, level),
                "a grouped product reads its values from memory, of iteration domain "};
      }
    }
  }

  // Outputs that are inputs are copied by a segment of their shape.
  void copy_inputs() {
    for (ValueId id : fusion_.outputs) {
      if (!is_input_[id]) continue;
      const Key home = key(0, id);
      drafts_[home].store(id, wanted_[id].why + text(home.shape));
    }
  }

  const Fusion& fusion_;
  std::vector<bool> is_input_;
  std::vector<int> level_;
  std::vector<Want> wanted_;
  std::vector<std::vector<Key>> users_;  // by value: the segments that use it in registers or load it
  std::map<Key, int> parts_;
  std::map<Key, Building> drafts_;
};

}  // namespace

std::vector<Draft> draft_segments(const Fusion& fusion) { return Drafter(fusion).drafts(); }

}  // namespace jf::plan
