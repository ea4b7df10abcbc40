#include "grouped/cuda/hopper_four_bit.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/error.h"
#include "base/integers.h"
#include "base/target.h"
#include "grouped/cuda/hopper_kernel.h"

namespace jf::grouped {

using namespace hopper;

namespace {

constexpr int kSide = 64;      // of a piece
constexpr int kColumns = 128;  // of a tile of the product

bool two_scale_words(Weights weights) { return weights == Weights::kNvfp4 || weights == Weights::kInt4By32; }

int64_t piece_bytes(Weights weights) { return kSide * kSide / 2 + (two_scale_words(weights) ? 2 : 1) * 128; }

// As in HopperFourBit and HopperStore.
int64_t parts(const FourBitConfig& c) { return c.rows <= 128 ? 2 : 1; }
int64_t store_rows(const Problem& p, const FourBitConfig& c) {
  const int64_t most = c.blocks > 1 && c.rows >= 64 ? 16 : 64;
  return std::min<int64_t>(c.rows, most / (size_of(p.out) / 2));
}
// Rows of the copies that a tile chooses from, in order.
std::vector<int> boxes(const FourBitConfig& c) {
  if (c.rows > 128) return {kWarpgroupRows};
  std::vector<int> rows;
  for (int fewer = c.rows < 32 ? 8 : c.rows == 96 ? 32 : 16; fewer < c.rows; fewer *= 2) rows.push_back(fewer);
  rows.push_back(c.rows);
  return rows;
}

int64_t shared_bytes(const Problem& p, const FourBitConfig& c) {
  const int64_t stage = round_up(parts(c) * (c.rows * kRowBytes + 2 * piece_bytes(c.weights)), kSharedAlign);
  const int64_t buffers = c.rows > store_rows(p, c) ? 2 : 1;
  const int64_t results = 2 * buffers * (size_of(p.out) / 2) * store_rows(p, c) * kRowBytes;
  constexpr int64_t kUnits = 2 * (16 + 2 * 8);
  constexpr int64_t kGiven = 2 * 8;
  return round_up(c.stages * stage + results + kUnits + c.stages * 16 + kGiven, kSharedAlign);
}

// Every group and every stretch of padding may end in a part tile.
int64_t most_units(const Problem& p, const FourBitConfig& c, const RowEpilogue* epilogue) {
  const int64_t ends = p.has_starts ? 2 * p.groups + 1 : p.groups + 1;
  const int64_t columns = kColumns / (epilogue ? epilogue->sums : 1);
  return (divide_up(p.m, c.rows) + ends - 1) * divide_up(result_columns(p, epilogue), columns);
}
int64_t most_blocks(const FourBitConfig& c, const Target& target) { return int64_t{target.multiprocessors} * c.blocks; }

std::string_view format(Weights weights) {
  switch (weights) {
    case Weights::kMxfp4: return "mxfp4";
    case Weights::kNvfp4: return "nvfp4";
    case Weights::kInt4By32:
    case Weights::kInt4By64: return "int4";
    case Weights::kNumbers: break;
  }
  JF_CHECK(false, "no format of four bits");
}

std::string_view device_format(Weights weights) {
  switch (weights) {
    case Weights::kMxfp4: return "Mxfp4";
    case Weights::kNvfp4: return "Nvfp4";
    case Weights::kInt4By32: return "Int4<32>";
    case Weights::kInt4By64: return "Int4<64>";
    case Weights::kNumbers: break;
  }
  JF_CHECK(false, "no format of four bits");
}

std::string text(const Problem& p, const FourBitConfig& c, std::string_view entry, int64_t shared,
                 const RowEpilogue* epilogue) {
  const std::string_view out = device_type(p.out);
  std::string s = "#include \"grouped/cuda/hopper_four_bit.cuh\"\n\n";
  if (epilogue) s += cat(epilogue->text, "\n");
  s += cat("// ", print(c), "\n");
  s += cat("using Tile = jf::grouped::FourBitTile<", c.rows, ", ", c.stages, ", ", c.blocks, ">;\n");
  s += cat("using Kernel = jf::grouped::HopperFourBit<jf::grouped::", device_format(c.weights), ", ", out, ", Tile, ",
           p.has_starts ? "true" : "false", ", ", p.transpose_rhs ? "false" : "true", epilogue ? ", Epilogue" : "",
           ">;\n");
  s += cat("static_assert(Kernel::kSharedBytes == ", shared, ", \"the launch gives the kernel its shared memory\");\n");
  const std::vector<int> rows = boxes(c);
  for (size_t i = 0; i < rows.size(); ++i) {
    s += cat("static_assert(Kernel::box_rows(", i, ") == ", rows[i], ", \"the launch makes the kernel's maps\");\n");
  }
  s += "\n";
  s += cat("extern \"C\" __global__ __launch_bounds__(", kThreads, ", ", c.blocks, ") void ", entry, "(\n");
  s += cat("    const jf::bf16*, const unsigned char* pieces, const int* extents, ",
           p.has_starts ? "const int* starts, " : "", "const float* factors, ", out, "* out,\n");
  s += "    unsigned* next, ";
  std::string members;
  for (size_t i = 0; epilogue && i < epilogue->members.size(); ++i) {
    s += cat(epilogue->members[i], " __restrict__ e", i, ", ");
    members += cat(i > 0 ? ", e" : "e", i);
  }
  std::string lhs_maps;
  for (size_t i = 0; i < rows.size(); ++i) {
    s += cat(i > 0 ? "    " : "", "const __grid_constant__ jf::TensorMap lhs", i, ",\n");
    lhs_maps += cat(i > 0 ? ", &lhs" : "&lhs", i);
  }
  s += "    const __grid_constant__ jf::TensorMap out_map, long long m, long long k, long long n, long long groups,\n";
  s += "    long long) {\n";
  s += cat("  extern __shared__ __align__(", kSharedAlign, ") unsigned char memory[];\n");
  s += cat("  const jf::grouped::Ragged ragged = {extents, ", p.has_starts ? "starts" : "nullptr",
           ", static_cast<int>(groups), static_cast<int>(m)};\n");
  s += cat("  const jf::TensorMap* const lhs[] = {", lhs_maps, "};\n");
  s += "  Kernel::run(memory, lhs, pieces, factors, out_map, ragged, out, next, static_cast<int>(k),\n";
  s += "              static_cast<int>(n), ";
  s += epilogue ? cat(p.n, ", Epilogue{", members, "}") : "static_cast<int>(n)";
  s += ");\n}\n";
  return s;
}

}  // namespace

std::string print(const FourBitConfig& c) {
  return cat("wgmma, ", format(c.weights), " weights in registers, tile=", c.rows, "x", kColumns, " stages=", c.stages,
             " blocks=", c.blocks);
}

std::string why_not_four_bit(const Problem& problem, const Target& target, const RowEpilogue* epilogue) {
  Problem p = problem;
  if (epilogue) p.out = epilogue->out;
  if (!has_wgmma(target)) {
    return cat("the kernel is for GPUs of compute capability 9.0, got ", print(target));
  }
  if (p.mode != Mode::kRows || p.weights == Weights::kNumbers) return "it takes rows times packed weights of four bits";
  const bool known_out = p.out == DType::kBF16 || p.out == DType::kF16 || p.out == DType::kF32;
  if (p.lhs != DType::kBF16 || !known_out) return cat(name(p.lhs), " -> ", name(p.out), ", it takes bf16 rows");
  if (p.k % 8 != 0 || p.n % 8 != 0) return cat("k=", p.k, " or n=", p.n, " is no multiple of 8");
  if (p.m == 0 || p.k == 0 || p.n == 0 || p.groups == 0) return "an operand is empty";
  for (const int64_t size : {p.m, p.k, p.n, p.groups}) {
    if (size > kMostIndex) return cat("a size of ", size, ", it takes ", kMostIndex);
  }
  if (epilogue == nullptr) return "";
  if (epilogue->several()) return "it has several results, which the kernel of weights of four bits does not store";
  if (epilogue->n % 8 != 0) return cat(epilogue->n, " columns are no multiple of 8");
  if (epilogue->sums == 1) return "";
  if (!p.transpose_rhs) return "weights whose columns are summed over are not read in two places";
  for (const int64_t first : epilogue->first) {
    if (first % kSide != 0) return cat("it begins at column ", first, " of packed weights, in the middle of a piece");
  }
  return "";
}

namespace {

// What a tile of so many rows costs beside one of 32 (H200), and where products sum over the weights' columns. Few rows
// leave the time to copying and decoding weights, which two blocks of a multiprocessor hide from each other.
struct Height {
  int rows, blocks;
  double cost, back;
};
constexpr Height kHeights[] = {{16, 2, 0.86, 0.86}, {32, 2, 1, 1},        {64, 2, 1.17, 1.14},
                               {96, 2, 1.27, 1.4},  {128, 1, 1.65, 1.45}, {256, 1, 2.2, 2.2}};

// Tiles of an average group that has rows, where the sizes of groups are spread exponentially.
double tiles(int rows, double average) { return 1 / (1 - std::exp(-rows / average)); }

const Height* height_of(const Parameters& given) {
  const auto* rows =
      given.size() == 1 && given.contains("tile_m") ? std::get_if<int64_t>(&given.at("tile_m")) : nullptr;
  const auto* found = std::find_if(std::begin(kHeights), std::end(kHeights),
                                   [&](const Height& h) { return rows != nullptr && h.rows == *rows; });
  JF_REQUIRE(found != std::end(kHeights),
             "[grouped_matmul] expected tile_m of 16, 32, 64, 96, 128 or 256 with weights of four bits, got ",
             jf::print(given));
  return found;
}

const Height* height_of(const Problem& p) {
  const double average = static_cast<double>(p.m) / static_cast<double>(p.groups);
  const auto cost = [&](const Height& h) { return tiles(h.rows, average) * (p.transpose_rhs ? h.cost : h.back); };
  return std::min_element(std::begin(kHeights), std::end(kHeights),
                          [&](const Height& a, const Height& b) { return cost(a) < cost(b); });
}

}  // namespace

Parameters fields_of(const FourBitConfig& c) { return {{"tile_m", int64_t{c.rows}}}; }

std::vector<Parameters> four_bit_fields() {
  std::vector<Parameters> result;
  for (const Height& h : kHeights) result.push_back({{"tile_m", int64_t{h.rows}}});
  return result;
}

FourBitConfig choose_four_bit(const Problem& p, const Target& target, const RowEpilogue* epilogue,
                              const Parameters& given) {
  const std::string why = why_not_four_bit(p, target, epilogue);
  JF_REQUIRE(why.empty(), "[grouped_matmul] ", why, "; unpack the weights");
  FourBitConfig c;
  c.weights = p.weights;
  const Height* height = given.empty() ? height_of(p) : height_of(given);
  c.rows = height->rows;
  c.blocks = height->blocks;
  constexpr int kMostStages = 8;
  const auto fits = [&] {
    return c.blocks * (shared_bytes(p, c) + kReservedBytes) <= target.max_shared_bytes + kReservedBytes;
  };
  for (c.stages = kMostStages; c.stages > 2 && !fits();) --c.stages;
  return c;
}

bool shares_units(const Problem& p, const FourBitConfig& c, const Target& target, const RowEpilogue* epilogue) {
  // Tiles of few rows take as long as their weights, all the same (H200: 2 to 3 % faster without the counter's reset).
  return c.blocks > 1 || most_units(p, c, epilogue) <= most_blocks(c, target);
}

CudaKernel four_bit_kernel(const Problem& p, const FourBitConfig& c, const Target& target,
                           const RowEpilogue* epilogue) {
  const std::string why = why_not_four_bit(p, target, epilogue);
  JF_REQUIRE(why.empty(), "[grouped_matmul] ", why, "; unpack the weights");
  const int64_t shared = shared_bytes(p, c);
  JF_REQUIRE(shared <= target.max_shared_bytes, "[grouped_matmul] ", print(c), " needs ", shared,
             " bytes of shared memory, the GPU has ", target.max_shared_bytes, "; use fewer stages");
  CudaKernel kernel;
  kernel.entry = epilogue ? "jf_grouped_four_bit_fused" : "jf_grouped_four_bit";
  kernel.block = kThreads;
  kernel.shared_bytes = static_cast<int>(shared);
  for (const int rows : boxes(c)) kernel.maps.push_back({0, matrices(0, p.m, p.k, p.lhs, rows)});
  kernel.maps.push_back({out_argument(p), matrices(0, p.m, result_columns(p, epilogue), p.out, store_rows(p, c))});
  kernel.grid = std::min(most_units(p, c, epilogue), most_blocks(c, target));
  kernel.shares = shares_units(p, c, target, epilogue);
  kernel.counts = !kernel.shares;
  kernel.instantiation = text(p, c, kernel.entry, shared, epilogue);
  return kernel;
}

}  // namespace jf::grouped
