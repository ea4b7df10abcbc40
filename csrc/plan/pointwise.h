// The pointwise strategy: every output has the same iteration domain; each element is computed in registers from its
// inputs.
//
// propose() decides with numbers, pointwise_schedule() writes the schedule that they describe. Any parameters give the
// same result; a test or a person may force others.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "base/target.h"
#include "ir/fusion.h"
#include "schedule/schedule.h"

namespace jf::plan {

// Both describe loops over the axes of the reference, the segment's first output.
struct CpuPointwise {
  std::vector<int> collapse;  // how many neighbouring axes make each loop
  int lane_loop = 0;          // the loop that runs in lanes
  int64_t lanes = 1;          // values of a register, a power of two
  int tile_loop = -1;         // a loop along which an input is contiguous that is not along lane_loop; -1 for none
  int64_t tile = 1;           // its iterations that share cache lines
  bool along_rows = false;    // whether tiles follow each other along tile_loop
  int64_t vectors = 1;        // tiles beside each other along lane_loop
  int64_t tasks = 1;          // calls that other threads may take
  bool operator==(const CpuPointwise&) const = default;
};
struct CudaPointwise {
  std::vector<int> collapse;
  int64_t lanes = 1;      // elements of a vector access, along the last loop
  bool two_axes = false;  // threads only along the last loop, so that a block reads what repeats along the others once
  int64_t threads = 1;    // of a block
  int64_t unroll = 1;     // vectors of a thread
  bool operator==(const CudaPointwise&) const = default;
};
using PointwiseParameters = std::variant<CpuPointwise, CudaPointwise>;

PointwiseParameters propose(const ir::Fusion& segment, const Target& target);
// "cpu collapse=[2,1] lane_loop=1 lanes=16 tasks=4"
std::string print(const PointwiseParameters& parameters);

schedule::Schedule pointwise_schedule(const ir::Fusion& segment, const PointwiseParameters& parameters);

}  // namespace jf::plan
