#include "runtime/parallel_for.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>

namespace jf::runtime {
namespace {

// Linux likes to put a woken thread on the CPU of the thread that woke it, which stays there for milliseconds while
// others idle. Moves the calling thread elsewhere; where it may run afterwards is as before.
void leave_cpu(int cpu) {
  cpu_set_t allowed;
  if (cpu < 0 || sched_getcpu() != cpu || sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  cpu_set_t others = allowed;
  CPU_CLR(cpu, &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof(others), &others) != 0) return;
  sched_setaffinity(0, sizeof(allowed), &allowed);
}

// Shared with helpers, which may start long after the caller has returned: they then find no task left and touch
// nothing else, so `fn` need not outlive the loop.
struct Loop {
  Loop(int64_t tasks, const std::function<void(int64_t, int)>& fn) : tasks(tasks), fn(&fn) {}

  const int64_t tasks;
  const std::function<void(int64_t, int)>* const fn;
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> done{0};
  std::atomic<bool> failed{false};
  std::atomic<bool> helped{false};
  std::atomic<int> caller_cpu{sched_getcpu()};
  std::mutex mutex;
  std::condition_variable all_done;
  std::exception_ptr error;

  void work(int worker) {
    for (int64_t task = next.fetch_add(1); task < tasks; task = next.fetch_add(1)) {
      if (worker > 0) leave_cpu(caller_cpu.load(std::memory_order_relaxed));
      if (!failed.load(std::memory_order_relaxed)) run(task, worker);
      if (worker == 0) caller_cpu.store(sched_getcpu(), std::memory_order_relaxed);
      // A helper that has not begun after a whole task may be waiting for the caller's CPU.
      if (worker == 0 && !helped.load(std::memory_order_relaxed)) sched_yield();
      if (done.fetch_add(1) + 1 == tasks) {
        std::lock_guard lock(mutex);
        all_done.notify_all();
      }
    }
  }

  void run(int64_t task, int worker) {
    try {
      (*fn)(task, worker);
    } catch (...) {
      std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      failed.store(true, std::memory_order_relaxed);
    }
  }
};

}  // namespace

void parallel_for(const Pool& pool, int64_t tasks, const std::function<void(int64_t task, int worker)>& fn) {
  if (tasks <= 1 || pool.threads <= 1) {
    for (int64_t task = 0; task < tasks; ++task) fn(task, 0);
    return;
  }
  auto loop = std::make_shared<Loop>(tasks, fn);
  const int helpers = static_cast<int>(std::min<int64_t>(pool.threads - 1, tasks - 1));
  try {
    for (int worker = 1; worker <= helpers; ++worker) {
      pool.schedule([loop, worker] {
        loop->helped.store(true, std::memory_order_relaxed);
        loop->work(worker);
      });
    }
  } catch (...) {
    // Out of memory: the helpers so far still call `fn`, so the loop ends as usual, with fewer of them.
  }
  loop->work(0);
  std::unique_lock lock(loop->mutex);
  loop->all_done.wait(lock, [&] { return loop->done.load() == tasks; });
  // Moved out, so that a late helper never destroys the exception that the caller handles.
  if (std::exception_ptr error = std::move(loop->error)) std::rethrow_exception(error);
}

}  // namespace jf::runtime
