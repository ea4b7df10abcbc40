// What a host program does on a stream. Nothing here allocates, waits or asks the device: XLA captures these calls in a
// graph.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "runtime/driver.h"

namespace jf::runtime {

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

// `arguments[i]` points to the kernel's i-th argument; the values are copied before the call returns.
void launch(CuKernel kernel, Dim3 grid, Dim3 block, int shared_bytes, CuStream stream, void** arguments);
void fill(void* memory, unsigned char value, size_t bytes, CuStream stream);
void copy(void* to, const void* from, size_t bytes, CuStream stream);

// The side streams of one program on one device, made at initialize. In a call each is forked from the main stream and
// joined to it again, in that order.
class SideStreams {
 public:
  SideStreams(int device, int count);
  ~SideStreams();
  SideStreams(const SideStreams&) = delete;
  SideStreams& operator=(const SideStreams&) = delete;

  // Held while a call enqueues its steps: two calls at once would mix their forks and joins.
  [[nodiscard]] std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

  CuStream stream(int side) const { return sides_.at(static_cast<size_t>(side)).stream; }
  // Work given to the side stream from now on waits for all that `main` has now.
  void fork(CuStream main, int side) const;
  // Work given to `main` from now on waits for all that the side stream has now.
  void join(int side, CuStream main) const;

 private:
  struct Side {
    CuStream stream = nullptr;
    CuEvent forked = nullptr;
    CuEvent joined = nullptr;
  };
  void destroy();

  std::vector<Side> sides_;
  std::mutex mutex_;
};

}  // namespace jf::runtime
