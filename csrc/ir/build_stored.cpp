// Values of which many parts are read, such as those between two steps of a stencil: each slice computes them again
// for itself, unless that takes longer than storing them once.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>

#include "base/lists.h"
#include "ir/build.h"

namespace jf::ir {
namespace {

// Ops beyond those that compute an element once, from which on it is stored and read: as many, for each of its bytes,
// as an H200 computes in the time of both.
constexpr double kOpsOfByte = 29;
// Sizes read, in those of the value: a rotary embedding reads each half of a row twice and stores nothing.
constexpr double kFewSizes = 2.5;
// Of a value that is computed from so many places in memory, every other element and more are read, as in the steps of
// an associative scan: these are of several kernels, of which each would read all those places.
constexpr double kMoreThanOne = 1.25;
constexpr size_t kManyPlaces = 8;
// Smaller values cost less than a kernel of their own.
constexpr int64_t kStoredElements = int64_t{1} << 18;

bool is_pointwise(const Op& op) { return info(op.kind).op_class == OpClass::kPointwise; }

// Whether its result is computed where it is read.
bool is_computed(const Op& op) {
  return is_pointwise(op) || op.kind == OpKind::kBroadcast || op.kind == OpKind::kConcat || op.kind == OpKind::kPlace;
}

struct ReadPart {
  ValueId value;
  bool has_steps;
};
// By value: slices and paddings that are computed from those of its operands.
using PartsOf = std::map<ValueId, std::vector<ReadPart>>;

class Repeated {
 public:
  Repeated(const Fusion& fusion, const std::vector<int64_t>& defined_by, const PartsOf& parts,
           std::span<const ValueId> wanted)
      : fusion_(fusion),
        defined_by_(defined_by),
        parts_(parts),
        readers_(fusion.values.size(), 0),
        is_read_(fusion.values.size(), false) {
    for (ValueId id : wanted) ++readers_[id];
    for (auto op = fusion.ops.rbegin(); op != fusion.ops.rend(); ++op) {
      if (readers_[op->output] == 0) continue;
      for (ValueId id : op->inputs) ++readers_[id];
    }
  }

  std::vector<ValueId> stored() {
    choose();
    std::fill(is_read_.begin(), is_read_.end(), false);
    join();
    // Beside what is stored before them, some are little.
    std::vector<ValueId> result;
    for (const auto& [whole, much] : chosen_) {
      is_read_[whole] = !is_little(whole, much);
      if (is_read_[whole]) result.push_back(whole);
    }
    return result;
  }

 private:
  // Ops, and places that they read, from which on storing pays.
  struct Much {
    size_t ops = std::numeric_limits<size_t>::max(), places = ops;
  };

  // The last ones first: where they are stored, fewer parts of what they are computed from are read.
  void choose() {
    for (auto it = parts_.rbegin(); it != parts_.rend(); ++it) {
      const auto& [whole, parts] = *it;
      const Value& type = fusion_.values[whole];
      double sizes = readers_[whole] > 0;
      bool in_steps = false;
      for (const ReadPart& part : parts) {
        if (readers_[part.value] == 0) continue;
        sizes += std::min(1.0, static_cast<double>(elements(fusion_.values[part.value])) / elements(type));
        in_steps = in_steps || part.has_steps;
      }
      Much much;
      if (sizes > kFewSizes) {
        much.ops = static_cast<size_t>(kOpsOfByte * size_of(type.dtype) / (sizes - 1)) + 1;
      } else if (in_steps && sizes > kMoreThanOne) {
        much.places = kManyPlaces;
      } else {
        continue;
      }
      if (is_little(whole, much)) continue;
      for (const ReadPart& part : parts) {
        if (readers_[part.value] == 0) continue;
        drop_operands(part.value);
        is_read_[part.value] = true;
      }
      chosen_.emplace(whole, much);
    }
  }

  // Where several are little beside one that they are computed from, that one is stored instead.
  void join() {
    for (auto from = parts_.rbegin(); from != parts_.rend(); ++from) {
      const ValueId source = from->first;
      if (chosen_.count(source) > 0) continue;
      is_read_[source] = true;
      std::vector<ValueId> little;
      for (auto it = chosen_.upper_bound(source); it != chosen_.end(); ++it) {
        if (is_little(it->first, it->second)) little.push_back(it->first);
      }
      is_read_[source] = little.size() > 1;
      if (little.size() < 2) continue;
      for (ValueId whole : little) chosen_.erase(whole);
      chosen_.emplace(source, Much{0, 0});
    }
  }

  void drop_operands(ValueId value) {
    std::vector<ValueId> todo = {value};
    while (!todo.empty()) {
      const ValueId id = todo.back();
      todo.pop_back();
      const Op* op = definition(id);
      if (op == nullptr || is_read_[id]) continue;
      for (ValueId operand : op->inputs) {
        if (--readers_[operand] == 0) todo.push_back(operand);
      }
    }
  }

  // Whether few ops compute a value from few places in memory. Conditions on indices are left out: few threads have any
  // to ask.
  bool is_little(ValueId value, Much much) const {
    std::vector<ValueId> todo = {value};
    size_t places = 0;
    for (size_t i = 0; i < todo.size() && todo.size() < much.ops && places < much.places; ++i) {
      const Op* op = definition(todo[i]);
      if (i > 0 && (op == nullptr || is_read_[todo[i]] || !is_computed(*op))) {
        ++places;
        continue;
      }
      for (ValueId id : op->inputs) {
        const Value& operand = fusion_.values[id];
        if (operand.dtype != DType::kPred && !operand.axes.empty() && !contains(todo, id)) todo.push_back(id);
      }
    }
    return todo.size() < much.ops && places < much.places;
  }

  const Op* definition(ValueId id) const { return defined_by_[id] < 0 ? nullptr : &fusion_.ops[defined_by_[id]]; }

  const Fusion& fusion_;
  const std::vector<int64_t>& defined_by_;
  const PartsOf& parts_;
  std::vector<int> readers_;
  std::vector<bool> is_read_;       // from memory
  std::map<ValueId, Much> chosen_;  // with what is much for them
};

}  // namespace

void Builder::note_origin(ValueId part, ValueId whole, const Slice& where) {
  if (part <= whole) return;  // as some value before
  const auto found = origin_.find(whole);
  Origin origin = found == origin_.end() ? Origin{whole} : found->second;
  const std::vector<int64_t> counts = shape(fusion_.values[part]);
  for (size_t i = 0; i < counts.size(); ++i) {
    origin.has_steps = origin.has_steps || (counts[i] > 1 && std::abs(where.strides[i]) > 1);
  }
  origin_.emplace(part, origin);
}

void Builder::store(ValueId id) {
  value(id, "store");
  stored_.insert(id);
}

std::vector<ValueId> Builder::repeated(std::span<const ValueId> values, std::span<const ValueId> wanted) const {
  if (origin_.empty()) return {};
  const std::set<ValueId> asked(values.begin(), values.end());
  const auto is_part = [&](ValueId id) { return origin_.count(id) > 0; };
  PartsOf parts;
  for (const auto& [part, origin] : origin_) {
    const ValueId whole = origin.whole;
    const Op *from = definition(whole), *op = definition(part);
    if (from == nullptr || op == nullptr || !is_pointwise(*from) || !is_pointwise(*op)) continue;
    // What is padded is read elsewhere, too.
    if (from->kind == OpKind::kSelect && std::any_of(from->inputs.begin(), from->inputs.end(), is_part)) continue;
    const Value& type = fusion_.values[whole];
    if (ragged_axis(type) >= 0 || elements(type) < kStoredElements || asked.count(whole) == 0) continue;
    parts[whole].push_back({part, origin.has_steps});
  }
  if (parts.empty()) return {};
  return Repeated(fusion_, defined_by_, parts, wanted).stored();
}

}  // namespace jf::ir
