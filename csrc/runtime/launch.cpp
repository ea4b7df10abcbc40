#include "runtime/launch.h"

namespace jf::runtime {
namespace {

constexpr unsigned kStreamNonBlocking = 1;   // CU_STREAM_NON_BLOCKING: no tie to the legacy default stream
constexpr unsigned kEventDisableTiming = 2;  // CU_EVENT_DISABLE_TIMING

CuAddress address(const void* pointer) { return reinterpret_cast<CuAddress>(pointer); }

}  // namespace

void launch(CuKernel kernel, Dim3 grid, Dim3 block, int shared_bytes, CuStream stream, void** arguments) {
  driver().launch_kernel(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, static_cast<unsigned>(shared_bytes),
                         stream, arguments, nullptr);
}

void fill(void* memory, unsigned char value, size_t bytes, CuStream stream) {
  if (bytes > 0) driver().memset(address(memory), value, bytes, stream);
}

void copy(void* to, const void* from, size_t bytes, CuStream stream) {
  if (bytes > 0) driver().memcpy(address(to), address(from), bytes, stream);
}

SideStreams::SideStreams(int device, int count) : sides_(static_cast<size_t>(count)) {
  ContextScope scope(device);
  try {
    for (Side& side : sides_) {
      driver().stream_create(&side.stream, kStreamNonBlocking);
      driver().event_create(&side.forked, kEventDisableTiming);
      driver().event_create(&side.joined, kEventDisableTiming);
    }
  } catch (...) {
    destroy();
    throw;
  }
}

SideStreams::~SideStreams() { destroy(); }

void SideStreams::destroy() {
  if (!driver_alive()) return;
  for (const Side& side : sides_) {
    if (side.forked) driver().event_destroy.unchecked(side.forked);
    if (side.joined) driver().event_destroy.unchecked(side.joined);
    if (side.stream) driver().stream_destroy.unchecked(side.stream);
  }
}

void SideStreams::fork(CuStream main, int side) const {
  const Side& to = sides_.at(static_cast<size_t>(side));
  driver().event_record(to.forked, main);
  driver().stream_wait(to.stream, to.forked, 0);
}

void SideStreams::join(int side, CuStream main) const {
  const Side& from = sides_.at(static_cast<size_t>(side));
  driver().event_record(from.joined, from.stream);
  driver().stream_wait(main, from.joined, 0);
}

}  // namespace jf::runtime
