// A parallel loop on somebody else's threads, in which the caller takes part.
#pragma once

#include <cstdint>
#include <functional>

namespace jf::runtime {

// A thread pool seen from below: XLA's in a custom call, none in a unit test.
struct Pool {
  int threads = 1;  // the caller's included
  std::function<void(std::function<void()>)> schedule;
};

// Runs fn(task, worker) once for each task in [0, tasks), in any order and on several threads, and returns when all are
// done. `worker` is in [0, pool.threads) and no two running calls of one loop share it, so it may index scratch memory.
// The caller drains the tasks itself and never waits for a helper that has not started: loops inside pool threads, and
// loops inside loops, cannot deadlock. With one task or one thread the pool is not touched. The first exception that a
// task throws ends the loop early and is rethrown here.
void parallel_for(const Pool& pool, int64_t tasks, const std::function<void(int64_t task, int worker)>& fn);

}  // namespace jf::runtime
