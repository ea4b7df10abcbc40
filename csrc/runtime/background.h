// Work that may begin before its result is wanted, on threads beside the caller's.
#pragma once

#include <functional>
#include <memory>

namespace jf::runtime {

// One piece of work. Whoever comes first runs it: a thread of the background, or the one that wants it finished; so
// work may begin and finish other work without waiting for a free thread.
class Job {
 public:
  Job() = default;  // none

  // Hands `work` to the background, which has a thread for each processor.
  static Job begin(std::function<void()> work);

  // Returns when the work is done; throws what it threw.
  void finish() const;

 private:
  struct State;
  friend struct Background;
  explicit Job(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

// Forgets what has not begun and waits for the rest: called before the process ends, while all libraries are loaded.
void end_background();

}  // namespace jf::runtime
