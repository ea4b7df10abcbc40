#include "host/placement.h"

#include <algorithm>

#include "base/error.h"
#include "base/integers.h"

namespace jf::host {
namespace {

// Keeps every value between segments aligned like a buffer of XLA's own.
constexpr int64_t kAlignment = 256;

template <class Visit>
void for_workspace(Program& program, Visit visit) {
  for (Step& step : program.steps) {
    std::visit(
        [&](auto& made) {
          for (BufferRef& ref : made.buffers) {
            if (ref.kind == BufferKind::kWorkspace) visit(ref.index);
          }
        },
        step);
  }
}

}  // namespace

Placement::Placement(const ir::Fusion& fusion) : fusion_(fusion) {
  for (size_t i = 0; i < fusion.inputs.size(); ++i) {
    inputs_[fusion.inputs[i]] = {BufferKind::kInput, static_cast<int64_t>(i)};
  }
  for (const ir::Op& op : fusion.ops) {
    if (op.kind != ir::OpKind::kConcat) continue;
    for (ir::ValueId id : op.inputs) part_of_[id] = op.output;
  }
  for (size_t i = 0; i < fusion.outputs.size(); ++i) {
    outputs_[fusion.outputs[i]] = {BufferKind::kOutput, static_cast<int64_t>(i)};
  }
}

BufferRef Placement::read(ir::ValueId id) {
  auto found = inputs_.find(id);
  return found != inputs_.end() ? found->second : write(id);
}

BufferRef Placement::write(ir::ValueId id) {
  if (const auto whole = part_of_.find(id); whole != part_of_.end()) id = whole->second;
  if (auto found = outputs_.find(id); found != outputs_.end()) return found->second;
  const ir::Value& value = fusion_.values[id];
  return outputs_.emplace(id, scratch(bytes_of(value.dtype, ir::elements(value)))).first->second;
}

int64_t Placement::take(int64_t bytes) {
  const int64_t begin = areas_.empty() ? 0 : areas_.back().begin + areas_.back().bytes;
  bytes = round_up(bytes, kAlignment);
  areas_.push_back({begin, bytes, bytes});
  return begin;
}

void Placement::uses(const BufferRef& place, int64_t bytes) {
  if (place.kind != BufferKind::kWorkspace) return;
  const auto area =
      std::find_if(areas_.begin(), areas_.end(), [&](const Area& a) { return a.begin == place.index && a.bytes > 0; });
  JF_CHECK(area != areas_.end() && bytes <= area->bytes, "no ", bytes, " bytes at ", place.index);
  area->used = round_up(bytes, kAlignment);
}

void Placement::finish(Program& program) const {
  const auto at = [&](int64_t index) {  // the area that has the byte; the last of those that begin there
    const auto behind =
        std::upper_bound(areas_.begin(), areas_.end(), index, [](int64_t i, const Area& a) { return i < a.begin; });
    return static_cast<size_t>(behind - areas_.begin()) - 1;
  };
  std::vector<bool> is_used(areas_.size());
  for_workspace(program, [&](int64_t index) { is_used[at(index)] = true; });
  std::vector<int64_t> moved;
  int64_t bytes = 0;
  for (size_t i = 0; i < areas_.size(); ++i) {
    moved.push_back(bytes);
    if (is_used[i]) bytes += areas_[i].used;
  }
  for_workspace(program, [&](int64_t& index) {
    const size_t area = at(index);
    index += moved[area] - areas_[area].begin;
  });
  program.workspace_bytes = bytes;
  program.portable_workspace_bytes = areas_.empty() ? 0 : areas_.back().begin + areas_.back().bytes;
}

}  // namespace jf::host
