// Where each value of a program is in memory: in a buffer of the call, or in the workspace.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "host/program.h"
#include "ir/fusion.h"

namespace jf::host {

class Placement {
 public:
  explicit Placement(const ir::Fusion& fusion);

  BufferRef read(ir::ValueId id);
  BufferRef write(ir::ValueId id);
  // Whether it is an operand of a concat.
  bool is_part(ir::ValueId id) const { return part_of_.count(id) > 0; }
  BufferRef scratch(int64_t bytes) { return {BufferKind::kWorkspace, take(bytes)}; }
  // Where so many bytes of the workspace are.
  int64_t take(int64_t bytes);
  // Of what lies in the workspace at `place` this target's kernels use no more than so many bytes.
  void uses(const BufferRef& place, int64_t bytes);

  // Moves the workspace of the finished steps together: what none of them uses takes no bytes.
  void finish(Program& program) const;

 private:
  struct Area {
    int64_t begin, bytes;  // on every target
    int64_t used;          // on this one
  };

  const ir::Fusion& fusion_;
  std::map<ir::ValueId, BufferRef> inputs_, outputs_;
  std::map<ir::ValueId, ir::ValueId> part_of_;  // by operand of a concat: its result, where it is stored
  std::vector<Area> areas_;                     // of the workspace, one behind the other
};

}  // namespace jf::host
