#include "grouped/cuda/grouped_cuda.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "base/integers.h"
#include "grouped/cuda/hopper.h"
#include "grouped/cuda/hopper_four_bit.h"

namespace jf::grouped {
namespace {

constexpr int kChunkBytes = 16;   // widest access of one thread
constexpr int kStageAlign = 128;  // of the shared-memory struct in tensor_core.cuh
constexpr int kTallTile = 128, kWideTile = 128;

bool lhs_k_major(const Problem& p) { return p.mode != Mode::kContraction; }
bool rhs_k_major(const Problem& p) { return p.mode != Mode::kContraction && p.transpose_rhs; }

// The rows and columns of one output matrix.
int64_t out_rows(const Problem& p) {
  switch (p.mode) {
    case Mode::kRows: return p.m;
    case Mode::kContraction: return p.k;
    case Mode::kBatch: return p.rows;
  }
  JF_CHECK(false, "mode ", static_cast<int>(p.mode));
}

// How many output matrices there are, beside the ragged rows of kRows.
int64_t matrices(const Problem& p) {
  switch (p.mode) {
    case Mode::kRows: return 1;
    case Mode::kContraction: return p.groups;
    case Mode::kBatch: return p.m;
  }
  JF_CHECK(false, "mode ", static_cast<int>(p.mode));
}

// What multiply-adds are summed in. Integers wrap, so the unsigned type of the result's width (or of 32 bits) is exact.
std::string_view accumulator(const Problem& p) {
  const DType dtypes[] = {p.lhs, p.rhs, p.out};
  const auto any = [&](auto has) { return std::any_of(std::begin(dtypes), std::end(dtypes), has); };
  const bool wide = any([](DType d) { return size_of(d) == 8; });
  if (any(is_float)) return wide ? "double" : "float";
  return wide ? "unsigned long long" : "unsigned";
}

// Bytes of the widest access that every row is aligned to, if rows are `elements` apart. Multiply-adds take single
// elements.
int access_bytes(const CudaConfig& c, DType dtype, int64_t elements) {
  int64_t access = c.tensor_cores ? kChunkBytes : size_of(dtype);
  while (access > size_of(dtype) && elements * size_of(dtype) % access != 0) access /= 2;
  return static_cast<int>(access);
}

// The row pitch of rhs.
int64_t rhs_pitch(const Problem& p) { return rhs_k_major(p) ? p.k : p.n; }

int64_t scratch_bytes(int warps) { return 2 * warps * 4 + 12; }

int64_t shared_bytes(const Problem& p, const CudaConfig& c) {
  const int warps = c.warps_m * c.warps_n;
  if (!c.tensor_cores) {
    const int64_t size = accumulator(p) == "double" || accumulator(p) == "unsigned long long" ? 8 : 4;
    return round_up(c.tile_k * (c.tile_m + c.tile_n + 2) * size + scratch_bytes(warps), size);
  }
  const int64_t stages = c.stages * (c.tile_m + c.tile_n) * c.tile_k * size_of(p.lhs);
  const int64_t row = c.tile_n / c.warps_n * size_of(p.out) + (size_of(p.out) == 2 ? 16 : 32);
  return round_up(std::max(stages, round_up(warps * 16 * row, kStageAlign)) + scratch_bytes(warps), kStageAlign);
}

// The static_asserts of the kernel headers, asked before a compiler is.
bool fits(const Problem& p, const CudaConfig& c) {
  if (!c.tensor_cores) return c == fma_config();
  const int64_t size = size_of(p.lhs), threads = kWarp * c.warps_m * c.warps_n;
  if (!is_power_of_two(c.tile_m) || !is_power_of_two(c.tile_n) || !is_power_of_two(c.tile_k)) return false;
  if (!is_power_of_two(c.warps_m) || !is_power_of_two(c.warps_n) || c.stages < 2 || threads > 1024) return false;
  if (c.tile_m / c.warps_m < 16 || c.tile_n / c.warps_n < 16 || c.tile_k * size < 64) return false;
  const auto slice_fits = [&](int64_t extent, bool k_major) {
    const int64_t rows = k_major ? extent : c.tile_k, chunks = (k_major ? c.tile_k : extent) * size / kChunkBytes;
    return chunks >= (k_major ? 4 : 8) && threads % chunks == 0 && rows % (threads / chunks) == 0;
  };
  return slice_fits(c.tile_m, lhs_k_major(p)) && slice_fits(c.tile_n, rhs_k_major(p));
}

std::string_view header(Mode mode) {
  switch (mode) {
    case Mode::kRows: return "rows";
    case Mode::kContraction: return "contraction";
    case Mode::kBatch: return "batch";
  }
  JF_CHECK(false, "mode ", static_cast<int>(mode));
}

std::string_view device_class(Mode mode) {
  switch (mode) {
    case Mode::kRows: return "Rows";
    case Mode::kContraction: return "Contraction";
    case Mode::kBatch: return "Batch";
  }
  JF_CHECK(false, "mode ", static_cast<int>(mode));
}

int64_t grid(const Problem& p, const CudaConfig& c) {
  const int64_t tile_rows = divide_up(out_rows(p), c.tile_m), tile_columns = divide_up(p.n, c.tile_n);
  switch (p.mode) {
    case Mode::kRows: {
      if (p.m == 0) return 0;
      // Every group and every stretch of padding (one behind the groups, or one beside each start) may end in a part
      // tile.
      const int64_t parts = p.has_starts ? 2 * p.groups + 1 : p.groups + 1;
      return (tile_rows + parts - 1) * tile_columns;
    }
    case Mode::kContraction:
    case Mode::kBatch: return matrices(p) * tile_rows * tile_columns;
  }
  JF_CHECK(false, "mode ", static_cast<int>(p.mode));
}

std::string text(const Problem& p, const CudaConfig& c, std::string_view entry, int block, int64_t shared) {
  const std::string_view lhs = device_type(p.lhs), rhs = device_type(p.rhs), out = device_type(p.out);
  const std::string_view starts = p.has_starts ? "const int* starts, " : "";
  const auto flag = [](bool value) { return value ? "true" : "false"; };

  std::string s = cat("#include \"grouped/cuda/", c.tensor_cores ? "tensor_core" : "fma", ".cuh\"\n");
  s += cat("#include \"grouped/cuda/", header(p.mode), ".cuh\"\n\n");
  s += cat("// ", print(c), "\n");
  s += cat("using Tile = jf::grouped::Tile<", c.tile_m, ", ", c.tile_n, ", ", c.tile_k, ", ", c.stages, ", ", c.warps_m,
           ", ", c.warps_n, ">;\n");
  s += cat("using Layout = jf::grouped::Layout<", flag(lhs_k_major(p)), ", ", flag(rhs_k_major(p)), ", ",
           access_bytes(c, p.lhs, p.k), ", ", access_bytes(c, p.rhs, rhs_pitch(p)), ", ", access_bytes(c, p.out, p.n),
           ">;\n");
  if (c.tensor_cores) {
    s += cat("using Engine = jf::grouped::TensorCore<", lhs, ", ", out, ", Tile, Layout>;\n");
  } else {
    s += cat("using Engine = jf::grouped::Fma<", lhs, ", ", rhs, ", ", out, ", ", accumulator(p), ", Tile, Layout>;\n");
  }
  s += cat("using Kernel = jf::grouped::", device_class(p.mode), "<Engine, ", flag(p.has_starts), ">;\n");
  s += cat("static_assert(Kernel::kSharedBytes == ", shared,
           ", \"the launch gives the kernel its shared memory\");\n\n");
  s += cat("extern \"C\" __global__ __launch_bounds__(", block, ") void ", entry, "(\n");
  s += cat("    const ", lhs, "* lhs, const ", rhs, "* rhs, const int* extents, ", starts, out, "* out,\n");
  s += "    long long m, long long k, long long n, long long groups, long long rows) {\n";
  s += "  extern __shared__ uint4 memory[];\n";
  s += cat("  const jf::grouped::Ragged ragged = {extents, ", p.has_starts ? "starts" : "nullptr",
           ", static_cast<int>(groups), static_cast<int>(m)};\n");
  s += cat("  Kernel::run(memory, lhs, rhs, ragged, out, k, n", p.mode == Mode::kBatch ? ", rows" : "", ");\n}\n");
  return s;
}

// Whether several kernels take the problem. `epilogue` may be null.
bool has_choice(const Problem& p, const Target& target, const RowEpilogue* epilogue) {
  if (p.weights != Weights::kNumbers) return false;
  return epilogue ? why_not_hopper(p, *epilogue, target).empty() : why_not_hopper(p, target).empty();
}

Problem stored(Problem p, const RowEpilogue* epilogue) {
  if (epilogue) p.out = epilogue->out;
  return p;
}

}  // namespace

std::string_view device_type(DType dtype) {
  switch (dtype) {
    case DType::kS8: return "signed char";
    case DType::kS16: return "short";
    case DType::kS32: return "int";
    case DType::kS64: return "long long";
    case DType::kU8: return "unsigned char";
    case DType::kU16: return "unsigned short";
    case DType::kU32: return "unsigned";
    case DType::kU64: return "unsigned long long";
    case DType::kF16: return "jf::f16";
    case DType::kBF16: return "jf::bf16";
    case DType::kF32: return "float";
    case DType::kF64: return "double";
    case DType::kPred:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kU4: break;
  }
  throw UserError(cat("[grouped_matmul] element type ", name(dtype), " has no product; convert it to s8 or f32 first"));
}

std::string print(const CudaConfig& c) {
  return cat("tensor_cores=", c.tensor_cores ? 1 : 0, " tile=", c.tile_m, "x", c.tile_n, "x", c.tile_k,
             " stages=", c.stages, " warps=", c.warps_m, "x", c.warps_n);
}

bool has_tensor_cores(const Problem& p) {
  const auto narrow_float = [](DType d) { return d == DType::kF16 || d == DType::kBF16 || d == DType::kF32; };
  return p.lhs == p.rhs && narrow_float(p.lhs) && narrow_float(p.out);
}

CudaConfig fma_config() {
  return {.tensor_cores = false, .tile_m = 64, .tile_n = 64, .tile_k = 16, .stages = 1, .warps_m = 2, .warps_n = 4};
}

CudaConfig choose(const Problem& p, const Target& target) {
  if (!has_tensor_cores(p)) return fma_config();
  const bool f32 = p.lhs == DType::kF32;
  CudaConfig c;
  c.tensor_cores = true;

  // Tile height: of an average group, since each group ends in a part tile.
  const int64_t height = p.mode == Mode::kRows ? divide_up(p.m, std::max<int64_t>(p.groups, 1)) : out_rows(p);
  const int64_t tiles = matrices(p) * divide_up(out_rows(p), kTallTile) * divide_up(p.n, kWideTile);
  if (height <= 32 && lhs_k_major(p)) {
    c.tile_m = 32;  // 16 gains nothing: rhs is streamed once either way
  } else if (height <= 64 || tiles < target.multiprocessors) {
    c.tile_m = 64;  // 128 would compute mostly zeros, or leave multiprocessors idle
  } else {
    c.tile_m = kTallTile;  // 64 reads rhs from L2 twice as often; 256 leaves a larger part tile in each group
  }
  // Many full tiles per group: 256 columns halve the reads of lhs, which pays for one block per multiprocessor whose
  // start and end nothing hides (H200, bf16: 10% to 20% faster than two blocks of 128x128).
  constexpr int64_t kManyRows = 768;
  if (!f32 && lhs_k_major(p) && c.tile_m == kTallTile && height >= kManyRows && p.n >= 2 * kWideTile) {
    const CudaConfig wide = {.tensor_cores = true,
                             .tile_m = kTallTile,
                             .tile_n = 2 * kWideTile,
                             .tile_k = 64,
                             .stages = 4,
                             .warps_m = 2,
                             .warps_n = 4};
    if (shared_bytes(p, wide) <= target.max_shared_bytes) return wide;
  }
  c.tile_n = p.n <= 64 ? 64 : kWideTile;
  // f32 keeps two parts of each fragment in registers, so its warps take half the tile.
  c.warps_m = c.tile_m == 32 ? 1 : 2;
  c.warps_n = c.tile_n > 64 && (c.tile_m == 32 || f32) ? 4 : 2;
  // Slices of 128 bytes pass half as many barriers as those of 64; where both operands are transposed on their way to
  // the registers, four stages of short slices are faster (H200, bf16 drhs: 3% to 21%). Fewer than three stages hide no
  // latency beyond the slice at hand, and one block alone leaves the tensor cores idle while it starts and ends.
  const auto two_blocks_fit = [&] {
    return 2 * (shared_bytes(p, c) + kReservedBytes) <= target.max_shared_bytes + kReservedBytes;
  };
  const bool short_slices = p.mode == Mode::kContraction;
  for (const int slice_bytes : {short_slices ? 64 : 128, 64}) {
    c.tile_k = slice_bytes / static_cast<int>(size_of(p.lhs));
    for (c.stages = 4; c.stages >= 3; --c.stages) {
      if (two_blocks_fit()) return c;
    }
  }
  c.stages = 2;
  return c;
}

CudaKernel cuda_kernel(const Problem& p, const CudaConfig& c, const Target& target) {
  constexpr int64_t kMaxIndex = std::numeric_limits<int32_t>::max();
  JF_REQUIRE(target.platform == Platform::kCuda && target.compute_capability >= kFirstCapability,
             "[grouped_matmul] expected a GPU of compute capability 8.0 or later, got ", print(target));
  for (const auto& [dimension, size] : {std::pair("m", p.m), std::pair("k", p.k), std::pair("n", p.n),
                                        std::pair("groups", p.groups), std::pair("rows", p.rows)}) {
    JF_REQUIRE(size >= 0 && size <= kMaxIndex, "[grouped_matmul] expected ", dimension, " in [0, ", kMaxIndex,
               "], got ", size, "; split the arrays");
  }
  JF_REQUIRE(!c.tensor_cores || has_tensor_cores(p),
             "[grouped_matmul] expected f16, bf16 or f32 for tensor cores, got ", name(p.lhs), " * ", name(p.rhs),
             " -> ", name(p.out), "; use fma_config()");
  JF_REQUIRE(is_float(p.out) || !(is_float(p.lhs) || is_float(p.rhs)), "[grouped_matmul] expected a float result of ",
             name(p.lhs), " * ", name(p.rhs), ", got ", name(p.out));
  JF_REQUIRE(fits(p, c), "[grouped_matmul] no kernel has the configuration ", print(c), "; use choose()");
  const int64_t shared = shared_bytes(p, c);
  JF_REQUIRE(shared <= target.max_shared_bytes, "[grouped_matmul] ", print(c), " needs ", shared,
             " bytes of shared memory, the GPU has ", target.max_shared_bytes, "; use fewer stages");

  CudaKernel kernel;
  kernel.entry = cat("jf_grouped_", header(p.mode));
  kernel.block = static_cast<int>(kWarp * c.warps_m * c.warps_n);
  kernel.shared_bytes = static_cast<int>(shared);
  kernel.grid = grid(p, c);
  JF_REQUIRE(kernel.grid <= kMaxIndex, "[grouped_matmul] expected at most ", kMaxIndex, " output tiles, got ",
             kernel.grid, "; split the arrays");
  kernel.instantiation = text(p, c, kernel.entry, kernel.block, shared);
  return kernel;
}

int64_t cuda_scratch_bytes(const Problem& p) {
  return p.mode == Mode::kRows && is_float(p.lhs) && size_of(p.lhs) <= 2 ? sizeof(uint32_t) : 0;
}

CudaKernel cuda_kernel(const Problem& p, const Target& target, const Parameters& given) {
  if (has_choice(p, target, nullptr)) return hopper_kernel(p, edited(choose_hopper(p, target), given), target);
  if (p.weights != Weights::kNumbers) return four_bit_kernel(p, choose_four_bit(p, target, nullptr, given), target);
  JF_REQUIRE(given.empty(), "[grouped_matmul] this kernel has nothing to choose, got ", jf::print(given));
  return cuda_kernel(p, choose(p, target), target);
}

std::string why_no_epilogue(const Problem& p, const RowEpilogue* epilogue, const Target& target) {
  if (p.weights != Weights::kNumbers) return why_not_four_bit(p, target, epilogue);
  return epilogue ? why_not_hopper(p, *epilogue, target) : why_not_hopper(p, target);
}

CudaKernel cuda_kernel(const Problem& p, const RowEpilogue& epilogue, const Target& target, const Parameters& given) {
  if (p.weights == Weights::kNumbers) return hopper_kernel(p, epilogue, target, given);
  const Problem made = stored(p, &epilogue);
  return four_bit_kernel(made, choose_four_bit(made, target, &epilogue, given), target, &epilogue);
}

Parameters fields_of(const Problem& p, const Target& target, const RowEpilogue* epilogue, const Parameters& given) {
  if (p.weights != Weights::kNumbers) {
    if (!why_not_four_bit(p, target, epilogue).empty()) return {};
    return fields_of(choose_four_bit(stored(p, epilogue), target, epilogue, given));
  }
  if (!has_choice(p, target, epilogue)) return {};
  return fields_of(edited(choose_hopper(stored(p, epilogue), target, epilogue), given));
}

std::vector<Parameters> alternatives(const Problem& p, const Target& target, const RowEpilogue* epilogue) {
  if (p.weights != Weights::kNumbers) return four_bit_fields();
  std::vector<Parameters> result;
  if (!has_choice(p, target, epilogue)) return result;
  for (const HopperConfig& c : hopper_configs(stored(p, epilogue), target, epilogue)) result.push_back(fields_of(c));
  return result;
}

void require_kernel(const Problem& p, const Target& target) {
  if (p.weights != Weights::kNumbers) {
    const std::string why = why_not_four_bit(p, target);
    JF_REQUIRE(why.empty(), "[scaled_grouped_matmul] no kernel takes packed weights here: ", why, "; unpack them");
  }
  if (p.scales == Scales::kNone) return;
  const std::string why = why_not_hopper(p, target);
  JF_REQUIRE(why.empty(), "[scaled_grouped_matmul] no kernel takes ", name(p.lhs), " * ", name(p.rhs), " here: ", why,
             "; dequantize the operands and use grouped_matmul");
}

std::string describe(const Problem& p, const Target& target, const RowEpilogue* epilogue, const Parameters& given) {
  const auto units = [&](bool shares) {
    return p.mode != Mode::kRows ? "" : shares ? " units=shared" : " units=queued";
  };
  if (p.weights != Weights::kNumbers) {
    const FourBitConfig c = choose_four_bit(p, target, epilogue, given);
    return cat(print(c), units(shares_units(p, c, target, epilogue)));
  }
  const std::string why = why_not_hopper(p, target);
  if (why.empty()) {
    const HopperConfig c = edited(choose_hopper(p, target, epilogue), given);
    return cat("wgmma, ", print(c), units(shares_units(p, c, target, epilogue)),
               p.lhs_rows > 0 ? ", rows by number" : "");
  }
  const CudaConfig c = choose(p, target);
  return cat(c.tensor_cores ? "mma.sync" : "multiply-adds", ", ", print(c), "; no wgmma: ", why);
}

}  // namespace jf::grouped
