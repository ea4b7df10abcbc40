#include "runtime/tensor_map.h"

#include "base/error.h"
#include "runtime/driver.h"

namespace jf::runtime {
namespace {

// Numbers of enum CUtensorMapDataType: unsigned integers, whose zeros are zeros of every type.
int data_type(int element_bytes) {
  switch (element_bytes) {
    case 1: return 0;
    case 2: return 1;
    case 4: return 2;
    case 8: return 4;
  }
  JF_CHECK(false, "tensor map of elements of ", element_bytes, " bytes");
}

// Numbers of enum CUtensorMapSwizzle.
int swizzle_mode(int bytes) { return bytes == 0 ? 0 : bytes == 32 ? 1 : bytes == 64 ? 2 : 3; }

constexpr int kNoInterleave = 0, kPromoteL2To256 = 3, kFillZeros = 0;

}  // namespace

void encode(TensorMap& map, const TensorLayout& layout, void* address) {
  constexpr std::array<uint32_t, kMostTensorAxes> kSteps = {1, 1, 1, 1, 1};
  driver().tensor_map_encode_tiled(&map, data_type(layout.element_bytes), static_cast<unsigned>(layout.axes), address,
                                   layout.extents.data(), layout.stride_bytes.data() + 1, layout.box.data(),
                                   kSteps.data(), kNoInterleave, swizzle_mode(layout.swizzle), kPromoteL2To256,
                                   kFillZeros);
}

}  // namespace jf::runtime
