#include "runtime/background.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace jf::runtime {

struct Job::State {
  std::function<void()> work;
  std::mutex mutex;
  std::condition_variable done_now;
  bool begun = false;
  bool done = false;
  std::exception_ptr error;

  // False when somebody else has begun.
  bool run() {
    {
      std::lock_guard lock(mutex);
      if (std::exchange(begun, true)) return false;
    }
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
    work = nullptr;
    std::lock_guard lock(mutex);
    done = true;
    done_now.notify_all();
    return true;
  }
};

// The queue and its threads, which end when it is empty.
struct Background {
  std::mutex mutex;
  std::condition_variable idle;
  std::deque<std::shared_ptr<Job::State>> queue;
  size_t threads = 0;
  bool ended = false;

  static Background& only() {
    static auto& background = *new Background;  // outlives its threads
    return background;
  }

  void add(std::shared_ptr<Job::State> state) {
    std::lock_guard lock(mutex);
    if (ended) return;
    queue.push_back(std::move(state));
    if (threads >= std::max(1u, std::thread::hardware_concurrency())) return;
    try {
      std::thread([this] { serve(); }).detach();
      ++threads;
    } catch (const std::system_error&) {  // no thread to spare: whoever wants the result does the work
    }
  }

  void serve() {
    std::unique_lock lock(mutex);
    while (!queue.empty()) {
      const std::shared_ptr<Job::State> state = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      state->run();
      lock.lock();
    }
    if (--threads == 0) idle.notify_all();
  }

  void end() {
    std::unique_lock lock(mutex);
    ended = true;
    queue.clear();
    idle.wait(lock, [this] { return threads == 0; });
  }
};

namespace {

// A forked process has none of the threads.
const pid_t kProcess = getpid();

}  // namespace

Job Job::begin(std::function<void()> work) {
  Job job(std::make_shared<State>());
  job.state_->work = std::move(work);
  if (getpid() == kProcess) Background::only().add(job.state_);
  return job;
}

void Job::finish() const {
  JF_CHECK(state_ != nullptr, "no work was begun");
  if (!state_->run()) {
    std::unique_lock lock(state_->mutex);
    state_->done_now.wait(lock, [this] { return state_->done; });
  }
  if (state_->error) std::rethrow_exception(state_->error);
}

void end_background() {
  if (getpid() == kProcess) Background::only().end();
}

}  // namespace jf::runtime
