// How a cluster's scheduling warp tells the others which unit they compute next: a ring of two places in every block.
#pragma once

#include "grouped/cuda/hopper_schedule.cuh"
#include "grouped/cuda/ptx_hopper.cuh"
#include "grouped/cuda/ring.cuh"

namespace jf::grouped {

// kReaders: threads of a block that arrive for each unit, one for a warp.
template <int kCluster, int kReaders>
class UnitQueue {
 public:
  static constexpr int kPlaces = 2;
  using Place = RingPlace<kPlaces>;
  struct Shared {
    int4 units[kPlaces];
    // Phases of a place: its unit is there; its readers in the whole cluster are done.
    unsigned long long full[kPlaces], empty[kPlaces];
  };

  __device__ __forceinline__ explicit UnitQueue(Shared& shared) : shared_(shared) {}

  // One thread of the block, before mbarrier_init_fence.
  __device__ __forceinline__ void init() {
    for (int i = 0; i < kPlaces; ++i) {
      ptx::mbarrier_init(full(i), 1);
      ptx::mbarrier_init(empty(i), kCluster * kReaders);
    }
  }

  // One warp of the cluster, of its first block. A unit's columns are kColumns in each block; kEnds: how many times the
  // end is told, once for each reader that takes turns with others. `next`: how many units were taken by clusters that
  // have done their first; null: each takes as many as the others, unasked. 2^log2_alike clusters in a row take the
  // same units; more than one have no queue.
  template <class Schedule, int kColumns, int kEnds>
  __device__ __forceinline__ void fill(Schedule schedule, unsigned* next, unsigned log2_alike = 0) {
    const unsigned clusters = gridDim.x / kCluster >> log2_alike;
    Place place;
    unsigned wanted = blockIdx.x / kCluster >> log2_alike;
    for (int ends = 0; ends < kEnds;) {
      RowUnit unit;
      const bool found = schedule.find(wanted, unit);
      ptx::mbarrier_wait(empty(place.index), place.parity ^ 1);
      if (found) put(place.index, unit, kColumns);
      place.advance();
      if (__any_sync(~0u, found && unit.group == RowUnit::kEnd)) {
        ++ends;
      } else {
        if (log2_alike == 0 && next != nullptr) {
          if (lane_id() == 0) wanted = atomicAdd(next, 1);
          wanted = __shfl_sync(~0u, wanted, 0);
        }
        wanted += clusters;
      }
    }
  }

  // By one thread, or by a warp. The lane that reads is the one that arrives: shared memory serves a thread in order,
  // so the next unit from another block cannot overtake the read, and a fence of the cluster, which is slow, is not
  // needed.
  template <bool kWarp>
  __device__ __forceinline__ RowUnit read(const Place& place) {
    if (kCluster > 1) {
      ptx::mbarrier_wait_cluster(full(place.index), place.parity);
    } else {
      ptx::mbarrier_wait(full(place.index), place.parity);
    }
    const auto word = [&](unsigned i) {
      unsigned value = 0;
      if (!kWarp || lane_id() == 0) value = ptx::ld_shared(unit(place.index) + i * 4);
      return static_cast<int>(kWarp ? __shfl_sync(~0u, value, 0) : value);
    };
    const RowUnit read = {word(0), word(1), word(2), word(3)};
    if (!kWarp || lane_id() == 0) {
      if (kCluster > 1) {
        ptx::mbarrier_arrive_cluster(ptx::in_cluster(empty(place.index), 0));
      } else {
        ptx::mbarrier_arrive(empty(place.index));
      }
    }
    return read;
  }

 private:
  // From the pointer each time: an address that the compiler keeps costs a register beside the sums.
  __device__ __forceinline__ unsigned unit(unsigned place) const { return ptx::shared_address(&shared_.units[place]); }
  __device__ __forceinline__ unsigned full(unsigned place) const { return ptx::shared_address(&shared_.full[place]); }
  __device__ __forceinline__ unsigned empty(unsigned place) const { return ptx::shared_address(&shared_.empty[place]); }

  __device__ __forceinline__ void put(unsigned place, const RowUnit& from, int columns) {
    for (int rank = 0; rank < kCluster; ++rank) {
      if constexpr (kCluster > 1) {
        const bool stacked = from.pitch > 0;
        const int row = from.row + rank * from.pitch, count = stacked && rank > 0 ? from.below : from.count;
        const int column = from.column + (stacked ? 0 : rank * columns);
        ptx::st_cluster(ptx::in_cluster(unit(place), rank), int4{from.group, row, count, column});
        ptx::mbarrier_publish_cluster(ptx::in_cluster(full(place), rank));
      } else {
        ptx::st_shared(unit(place), {static_cast<unsigned>(from.group), static_cast<unsigned>(from.row),
                                     static_cast<unsigned>(from.count), static_cast<unsigned>(from.column)});
        ptx::mbarrier_arrive(full(place));
      }
    }
  }

  Shared& shared_;
};

}  // namespace jf::grouped
