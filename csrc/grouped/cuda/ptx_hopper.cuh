// PTX of sm_90a that the warp-specialised kernels add to codegen/ptx.cuh: clusters, tensor copies, warpgroup products.
//
// A warpgroup is four warps, the first a multiple of four; functions that take one say so. A cluster address is that of
// shared memory in any block of the cluster.
#pragma once

#include "codegen/ptx.cuh"

namespace jf {

// An array and its boxes, as the driver describes them: a __grid_constant__ argument.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

namespace ptx {

// ---- blocks of a cluster ----

// One, where the launch says nothing of clusters.
__device__ __forceinline__ unsigned cluster_blocks() {
  unsigned blocks;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
  return blocks;
}
// All threads of the cluster meet; what they wrote before is seen after.
__device__ __forceinline__ void cluster_meet() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ void st_cluster(unsigned address, const int4& words) {
  asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words.x), "r"(words.y),
               "r"(words.z), "r"(words.w)
               : "memory");
}
__device__ __forceinline__ float4 ld_cluster(unsigned address) {
  float4 words;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(words.x), "=f"(words.y), "=f"(words.z), "=f"(words.w)
               : "r"(address)
               : "memory");
  return words;
}
__device__ __forceinline__ int4 ld_shared4(unsigned address) {
  int4 words;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(address)
               : "memory");
  return words;
}

// ---- barriers ----

// kThreads threads of the block (whole warps) meet at the barrier of that number, 1 to 15.
template <int kThreads>
__device__ __forceinline__ void meet(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}
// An arrival that makes the phase await so many bytes more.
__device__ __forceinline__ void mbarrier_arrive_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// At a barrier of any block of the cluster. Only publish shows other blocks what this thread wrote before, and is slow.
__device__ __forceinline__ void mbarrier_arrive_cluster(unsigned address) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
}
__device__ __forceinline__ void mbarrier_publish_cluster(unsigned address) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
}
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, unsigned parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}
// Sees what other blocks wrote before they arrived.
__device__ __forceinline__ void mbarrier_wait_cluster(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Arrives, as one of the awaited, when all copies of cp_async that this thread has begun are done.
__device__ __forceinline__ void cp_async_arrive(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- tensor copies ----

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// One thread: as tile_load, into the blocks of the cluster that `blocks` has a bit for: the same place and barrier in
// each.
__device__ __forceinline__ void tile_load_multicast(unsigned shared, const void* map, unsigned barrier,
                                                    unsigned short blocks, int i0, int i1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
      "{%4, %5}], [%2], %3;" ::"r"(shared),
      "l"(map), "r"(barrier), "h"(blocks), "r"(i0), "r"(i1)
      : "memory");
}
// One thread: begins to copy the box at `shared` to the place that begins at the element with these indices, the
// fastest first.
__device__ __forceinline__ void tile_store(const void* map, unsigned shared, int i0, int i1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
               "r"(shared), "r"(i0), "r"(i1)
               : "memory");
}
__device__ __forceinline__ void tile_store(const void* map, unsigned shared, int i0, int i1, int i2) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
               "r"(shared), "r"(i0), "r"(i1), "r"(i2)
               : "memory");
}

// ---- words between blocks ----
// Each is read as one store left it; nothing else is ordered by them.

__device__ __forceinline__ void store_word(unsigned long* to, unsigned long word) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
// Two neighbours, at a multiple of 16 bytes.
__device__ __forceinline__ void load_words(const unsigned long* from, unsigned long& first, unsigned long& second) {
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(from) : "memory");
}

// ---- shared memory ----

// Warp: the counterpart of ldmatrix_x4_trans.
__device__ __forceinline__ void stmatrix_x4_trans(unsigned address, const unsigned (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
// Warp: the counterpart of ldmatrix_x4.
__device__ __forceinline__ void stmatrix_x4(unsigned address, const unsigned (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
__device__ __forceinline__ void st_shared(unsigned address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
__device__ __forceinline__ void st_shared(unsigned address, const float4& words) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(words.x), "f"(words.y), "f"(words.z),
               "f"(words.w)
               : "memory");
}
__device__ __forceinline__ uint2 ld_shared2(unsigned address) {
  uint2 words;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(words.x), "=r"(words.y) : "r"(address) : "memory");
  return words;
}
__device__ __forceinline__ void st_shared(unsigned address, uint2 words) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(words.x), "r"(words.y) : "memory");
}

// ---- registers of a warpgroup ----

template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- products of a warpgroup ----
// Warpgroup: d[64, n] += a[64, 16] * b[16, n], operands in shared memory, swizzled by 128 bytes as tensor copies with
// that swizzle write them, from addresses that are multiples of 1024. Warp w of the group holds rows 16 w to 16 w + 15,
// every eight columns as mma_m16n8k16 does.
//
// K-major operand: rows of 128 bytes, 64 contraction indices each; the next 16 indices are 32 bytes further.
// Otherwise: a row for each contraction index, 64 rows of a (or columns of b) wide; the next 16 indices are 16 rows
// further, the next 64 columns of b at `leading` bytes.

// How an instruction is told where an operand lies: in units of 16 bytes, so that adding to it moves it by so many.
__device__ __forceinline__ unsigned wgmma_operand(unsigned shared, unsigned leading = 16) {
  return leading / 16 << 16 | shared / 16;
}
// The half of the description that all operands share: eight rows are 1024 bytes apart, swizzled by 128.
__device__ __forceinline__ unsigned long long wgmma_description(unsigned operand) {
  return (1ull << 30 | 1024 / 16) << 32 | operand;
}

// Before the first product, and after ordinary accesses to the sums.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most kPending groups of products are under way.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// The compiler moves no access to the sums across this.
template <int kSize>
__device__ __forceinline__ void keep(float (&sums)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// The sums of eight columns more, as operands and as the text that names them.
#define JF_SUMS(d, i)                                                                                         \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define JF_SUMS_8(d) JF_SUMS(d, 0)
#define JF_SUMS_16(d) JF_SUMS_8(d), JF_SUMS(d, 8)
#define JF_SUMS_24(d) JF_SUMS_16(d), JF_SUMS(d, 16)
#define JF_SUMS_32(d) JF_SUMS_24(d), JF_SUMS(d, 24)
#define JF_SUMS_40(d) JF_SUMS_32(d), JF_SUMS(d, 32)
#define JF_SUMS_48(d) JF_SUMS_40(d), JF_SUMS(d, 40)
#define JF_SUMS_56(d) JF_SUMS_48(d), JF_SUMS(d, 48)
#define JF_SUMS_64(d) JF_SUMS_56(d), JF_SUMS(d, 56)
#define JF_SUMS_72(d) JF_SUMS_64(d), JF_SUMS(d, 64)
#define JF_SUMS_80(d) JF_SUMS_72(d), JF_SUMS(d, 72)
#define JF_SUMS_88(d) JF_SUMS_80(d), JF_SUMS(d, 80)
#define JF_SUMS_96(d) JF_SUMS_88(d), JF_SUMS(d, 88)
#define JF_SUMS_104(d) JF_SUMS_96(d), JF_SUMS(d, 96)
#define JF_SUMS_112(d) JF_SUMS_104(d), JF_SUMS(d, 104)
#define JF_SUMS_120(d) JF_SUMS_112(d), JF_SUMS(d, 112)
#define JF_SUMS_128(d) JF_SUMS_120(d), JF_SUMS(d, 120)

#define JF_SUMS_HALF(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define JF_SUMS_4(d) JF_SUMS_HALF(d, 0)
#define JF_SUMS_68(d) JF_SUMS_64(d), JF_SUMS_HALF(d, 64)
#define JF_SUMS_76(d) JF_SUMS_72(d), JF_SUMS_HALF(d, 72)
#define JF_SUMS_84(d) JF_SUMS_80(d), JF_SUMS_HALF(d, 80)
#define JF_SUMS_92(d) JF_SUMS_88(d), JF_SUMS_HALF(d, 88)

#define JF_NAMES_4 "%0, %1, %2, %3"
#define JF_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define JF_NAMES_16 JF_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define JF_NAMES_24 JF_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define JF_NAMES_32 JF_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define JF_NAMES_40 JF_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define JF_NAMES_48 JF_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define JF_NAMES_56 JF_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define JF_NAMES_64 JF_NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define JF_NAMES_72 JF_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define JF_NAMES_80 JF_NAMES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define JF_NAMES_88 JF_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define JF_NAMES_96 JF_NAMES_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define JF_NAMES_104 JF_NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define JF_NAMES_112 JF_NAMES_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define JF_NAMES_120 JF_NAMES_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define JF_NAMES_128 JF_NAMES_120 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define JF_NAMES_68 JF_NAMES_64 ", %64, %65, %66, %67"
#define JF_NAMES_76 JF_NAMES_72 ", %72, %73, %74, %75"
#define JF_NAMES_84 JF_NAMES_80 ", %80, %81, %82, %83"
#define JF_NAMES_92 JF_NAMES_88 ", %88, %89, %90, %91"

// Sums of one thread: half as many as columns. The five numbers name the operands behind them.
template <int kColumns>
struct Wgmma;

#define JF_WGMMA_TYPE(TYPE, COLUMNS, SUMS, A, B, ADD, TRANS_A, TRANS_B)                                              \
  asm volatile(                                                                                                      \
      "{.reg .pred add; setp.ne.b32 add, %" #ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." TYPE   \
      "." TYPE " {" JF_NAMES_##SUMS "}, %" #A ", %" #B ", add, 1, 1, %" #TRANS_A ", %" #TRANS_B ";}"                 \
      : JF_SUMS_##SUMS(sums)                                                                                         \
      : "l"(wgmma_description(a)), "l"(wgmma_description(b)), "r"(add), "n"(kKMajorA ? 0 : 1), "n"(kKMajorB ? 0 : 1) \
      : "memory")

#define JF_WGMMA(COLUMNS, SUMS, A, B, ADD, TRANS_A, TRANS_B)                                            \
  template <>                                                                                           \
  struct Wgmma<COLUMNS> {                                                                               \
    template <bool kBf16, bool kKMajorA, bool kKMajorB, int kSize>                                      \
    static __device__ __forceinline__ void run(float (&sums)[kSize], unsigned a, unsigned b, int add) { \
      static_assert(kSize >= SUMS, "the sums of a thread are half as many as columns");                 \
      if constexpr (kBf16) {                                                                            \
        JF_WGMMA_TYPE("bf16", COLUMNS, SUMS, A, B, ADD, TRANS_A, TRANS_B);                              \
      } else {                                                                                          \
        JF_WGMMA_TYPE("f16", COLUMNS, SUMS, A, B, ADD, TRANS_A, TRANS_B);                               \
      }                                                                                                 \
    }                                                                                                   \
  };

JF_WGMMA(16, 8, 8, 9, 10, 11, 12)
JF_WGMMA(32, 16, 16, 17, 18, 19, 20)
JF_WGMMA(48, 24, 24, 25, 26, 27, 28)
JF_WGMMA(64, 32, 32, 33, 34, 35, 36)
JF_WGMMA(80, 40, 40, 41, 42, 43, 44)
JF_WGMMA(96, 48, 48, 49, 50, 51, 52)
JF_WGMMA(112, 56, 56, 57, 58, 59, 60)
JF_WGMMA(128, 64, 64, 65, 66, 67, 68)
JF_WGMMA(136, 68, 68, 69, 70, 71, 72)
JF_WGMMA(144, 72, 72, 73, 74, 75, 76)
JF_WGMMA(152, 76, 76, 77, 78, 79, 80)
JF_WGMMA(160, 80, 80, 81, 82, 83, 84)
JF_WGMMA(168, 84, 84, 85, 86, 87, 88)
JF_WGMMA(176, 88, 88, 89, 90, 91, 92)
JF_WGMMA(184, 92, 92, 93, 94, 95, 96)
JF_WGMMA(192, 96, 96, 97, 98, 99, 100)
JF_WGMMA(208, 104, 104, 105, 106, 107, 108)
JF_WGMMA(224, 112, 112, 113, 114, 115, 116)
JF_WGMMA(240, 120, 120, 121, 122, 123, 124)
JF_WGMMA(256, 128, 128, 129, 130, 131, 132)

}  // namespace ptx
}  // namespace jf
