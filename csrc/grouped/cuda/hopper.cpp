#include "grouped/cuda/hopper.h"

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <variant>

#include "base/error.h"
#include "base/integers.h"
#include "base/target.h"
#include "grouped/cuda/hopper_kernel.h"
#include "grouped/cuda/hopper_split.h"

namespace jf::grouped {

using namespace hopper;

namespace {

constexpr int kRowAlignment = 16;      // bytes, of every row that a tensor map describes
constexpr int kGatheredRows = 128;     // of a tile of HopperRows at most, whose rows numbers name
constexpr int kBlocksRows = 128;       // of a tile of HopperBlocks
constexpr int kBlocksColumns = 192;    // at most, of such a tile
constexpr int kContractionRows = 128;  // of a tile of HopperContraction
constexpr int kMostGroups = 1024;      // whose order HopperContraction keeps in shared memory

// That an epilogue of several results has in shared memory at once, as HopperSeveral counts them.
int64_t pieces(const RowEpilogue& e) {
  const auto tiles = static_cast<int64_t>(e.tiles.size()), read = tiles + e.sums;
  const auto results = static_cast<int64_t>(e.results.size()) - (e.keeps ? e.sums : 0);
  return read + std::max<int64_t>(results - (e.keeps ? tiles : read), 0);
}

// `epilogue` may be null, here and below.
int64_t shared_bytes(const Problem& p, const HopperConfig& c, const RowEpilogue* epilogue) {
  const int64_t stages = int64_t{c.stages} * (c.tile_m + c.tile_n) * kRowBytes;
  const int64_t barriers = 2 * c.stages * 8;
  const int64_t joined = splits_k(p, c) ? 3 * 8 : 0;
  constexpr int64_t kTurns = 2 * 8;
  constexpr int64_t kResults = 4 * kWarpgroupRows * kRowBytes;
  if (p.mode == Mode::kContraction) {
    const int64_t order = order_groups(p) * (4 + 4 + 2) + kThreads / kWarp * 4;
    constexpr int64_t kZeros = kWarpgroupRows * kRowBytes, kFilled = 4;
    return round_up(stages + kResults + kZeros + barriers + kTurns + order + kFilled, kSharedAlign);
  }
  constexpr int64_t kUnits = 2 * (16 + 2 * 8);
  if (p.scales == Scales::kBlocks) return round_up(stages + kResults / 2 + kUnits + barriers, kSharedAlign);
  constexpr int64_t kPieces = 2 * 2 * 8;
  int64_t results = kResults;
  if (epilogue && epilogue->several()) {
    results = 2 * 2 * kPieceRows * kRowBytes * pieces(*epilogue);
  }
  return round_up(stages + results + kUnits + kPieces + kTurns + barriers + joined, kSharedAlign);
}

// As many stages as fit, up to `most`.
void fill_stages(const Problem& p, const Target& target, int most, HopperConfig& c,
                 const RowEpilogue* epilogue = nullptr) {
  for (c.stages = most; c.stages > 2 && shared_bytes(p, c, epilogue) > target.max_shared_bytes;) --c.stages;
}

// Rows of the tiles that a group of average size is cut into, all of one height, in HopperRows' kStep.
struct Cut {
  int64_t tiles, rows;
};
Cut cut(const Problem& p, int64_t rows, int64_t tile_m) {
  const int64_t step = size_of(p.lhs) == 2 && size_of(p.out) == 2 ? 8 : 16;
  const int64_t tiles = divide_up(rows, tile_m);
  return {tiles, round_up(divide_up(rows, tiles), step)};
}

// Cycles that HopperRows takes, by the slower of tensor cores and L2 in each stage.
double rows_cycles(const Problem& p, const HopperConfig& c, const Target& target) {
  const double flops = p.scales == Scales::kNone ? 4096 : 8192;  // of one multiprocessor in a cycle
  constexpr double kBytesFromL2 = 46;                            // likewise
  constexpr double kStageCycles = 150;                           // the least: its barriers
  constexpr double kTileCycles = 1500;                           // to fill the first stages and to store
  const Cut average = cut(p, std::max<int64_t>(divide_up(p.m, p.groups), 1), c.tile_m);
  const int64_t units = p.groups * average.tiles * divide_up(p.n, int64_t{kRowsColumns} * c.cluster);
  const auto rows = static_cast<double>(average.rows);
  // A product of few rows reads as much of rhs as one of many, and power bounds both (H200, bf16: tiles of 128 rows are
  // 8% to 12% slower than those of 192, though they fit more sizes exactly).
  constexpr double kRowsOfRhs = 48;
  const auto depth_of_stage = static_cast<double>(depth(p));
  const double products = 2 * (rows + kRowsOfRhs) * kRowsColumns * depth_of_stage / flops;
  const double bytes = (rows / c.cluster + kRowsColumns) * kRowBytes / kBytesFromL2;
  const double stages = static_cast<double>(divide_up(p.k, depth(p)));
  const auto rounds = static_cast<double>(divide_up(units, std::max(target.multiprocessors / c.cluster, 1)));
  return rounds * (stages * std::max({products, bytes, kStageCycles}) + kTileCycles);
}

int64_t product_columns(const Problem& p, const RowEpilogue* epilogue) {
  return epilogue ? epilogue->n * epilogue->sums : p.n;
}

HopperConfig choose_rows(const Problem& p, const Target& target, const RowEpilogue* epilogue) {
  constexpr int kMostStages = 8;
  HopperConfig best;
  double least = std::numeric_limits<double>::infinity();
  for (const int tile_m : {192, 128, 64}) {
    // Stages that groups of few rows leave half empty hide less latency.
    if (tile_m > 64 && tile_m * p.groups >= 4 * p.m) continue;
    // Where the model would have them, tiles of 128 rows are as fast as those of 64 or 192, to 2 %, and a kernel more.
    if (tile_m == 128 && p.scales == Scales::kNone) continue;
    // A pair of blocks takes neighbouring columns of the same rows, whose copies it shares. Of a token's few rows there
    // is nothing to share: 1 row in each of 8 of 128 groups, 2048 x 1536, took 17.7 us alone and 19.2 in pairs (H200),
    // of 2 of 8, 4096 x 14336, 64.2 and 68.8; 64 rows in 8 groups, 7168 x 4096, 117.6 and 114.5.
    constexpr int64_t kRowsOfToken = 16;
    const bool pairs = p.n > kRowsColumns && p.m > kRowsOfToken;
    HopperConfig c{.tile_m = tile_m, .tile_n = kRowsColumns, .stages = 0, .cluster = pairs ? 2 : 1};
    fill_stages(p, target, kMostStages, c, epilogue);
    if (const double cycles = rows_cycles(p, c, target); cycles < least) {
      best = c;
      least = cycles;
    }
  }
  if (const int split = choose_split(p, product_columns(p, epilogue), target); split > 1) {
    best = {.tile_m = kSplitRows, .tile_n = kRowsColumns, .stages = 0, .cluster = 1, .split = split};
    best.depth = static_cast<int>(depth(p));
    fill_stages(p, target, kMostStages, best, epilogue);
  }
  return best;
}

// Sums of a block of k beside those in full precision leave registers for one tile.
HopperConfig choose_blocks(const Problem& p, const Target& target) {
  HopperConfig c{.tile_m = kBlocksRows, .tile_n = kBlocksColumns, .stages = 0, .cluster = p.n > kRowsColumns ? 2 : 1};
  constexpr int kMostStages = 5;
  fill_stages(p, target, kMostStages, c);
  return c;
}

// Rows that are gathered are copied as seldom as can be: by wide tiles. Those of 128 rows leave room for a stage more,
// which hides more of the copies' latency.
HopperConfig choose_gathering(const Problem& p, const Target& target, const RowEpilogue* epilogue) {
  HopperConfig c{.tile_m = 128, .tile_n = kSharedColumns, .stages = 0, .cluster = 1};
  constexpr int kMostStages = 4;
  fill_stages(p, target, kMostStages, c, epilogue);
  return c;
}

HopperConfig choose_contraction(const Problem& p, const Target& target) {
  // Wide tiles, where there are any: the last ones are as narrow as n asks for.
  constexpr int kWide = 192, kNarrow = 128;
  const int64_t boxes = divide_up(p.n, int64_t{kWarpgroupRows});
  const bool wide = boxes > 2 && boxes != 4;
  HopperConfig c{.tile_m = kContractionRows, .tile_n = wide ? kWide : kNarrow, .stages = 0, .cluster = 1};
  constexpr int kMostStages = 6;
  fill_stages(p, target, kMostStages, c);
  return c;
}

// The static_asserts of the kernel headers, asked before a compiler is.
bool fits(const Problem& p, const HopperConfig& c) {
  if (c.depth != depth(p)) return false;
  constexpr int kJoined = 2;  // stages whose place sums of f32 take where blocks share k
  if (c.stages < 2 + (splits_k(p, c) ? kJoined : 0) || c.stages > 16) return false;
  if (c.split > 1 && (p.mode != Mode::kRows || c.tile_m != kSplitRows || c.tile_n != kRowsColumns || c.cluster > 1 ||
                      !can_split(p, c.split))) {
    return false;
  }
  if (p.mode == Mode::kContraction) {
    return c.tile_m == kContractionRows && (c.tile_n == 128 || c.tile_n == 192) && c.cluster == 1;
  }
  if (p.scales == Scales::kBlocks) {
    return c.tile_m == kBlocksRows && c.tile_n == kBlocksColumns && (c.cluster == 1 || c.cluster == 2);
  }
  if (p.lhs_rows > 0 && (c.tile_m > kGatheredRows || c.cluster > 1)) return false;
  if (c.tile_n == kSharedColumns && (p.lhs_rows == 0 || divide_up(p.k, c.depth) <= c.stages)) return false;
  return (c.tile_n == kRowsColumns || c.tile_n == kSharedColumns) && c.tile_m % 64 == 0 && c.tile_m > 0 &&
         c.tile_m <= 192 && (c.cluster == 1 || c.cluster == 2);
}

// At most so many units, one at a time for each of so many clusters.
int64_t most_units(const Problem& p, const HopperConfig& c, const RowEpilogue* epilogue) {
  if (p.mode == Mode::kContraction) return p.groups * divide_up(p.k, c.tile_m) * divide_up(p.n, c.tile_n);
  // Every group and every stretch of padding may end in a part tile.
  const int64_t parts = p.has_starts ? 2 * p.groups + 1 : p.groups + 1;
  const int64_t columns = int64_t{c.tile_n} / (epilogue ? epilogue->sums : 1) * c.cluster;
  return (divide_up(p.m, c.tile_m) + parts - 1) * divide_up(result_columns(p, epilogue), columns);
}
int64_t clusters(const HopperConfig& c, const Target& target) {
  return c.split > 1 ? clusters_at_once(c.split, target.multiprocessors)
                     : std::max(target.multiprocessors / c.cluster, 1);
}

// Groups of so few rows that tiles wait for weights, not for products: all take as long, and none need be taken as they
// come (H200, bf16, 256 rows: 0.996 to 1.02 times as fast without the counter, which has to be reset before).
bool few_rows(const Problem& p) {
  constexpr int64_t kRowsOfGroup = 32;
  return p.m <= kRowsOfGroup * p.groups;
}

int64_t grid(const Problem& p, const HopperConfig& c, const Target& target, const RowEpilogue* epilogue) {
  return std::min(most_units(p, c, epilogue), clusters(c, target)) * c.cluster * c.split;
}

}  // namespace

bool hopper::splits_k(const Problem& p, const HopperConfig& c) {
  const bool could = c.tile_m == kSplitRows && c.tile_n == kRowsColumns && c.cluster == 1;
  return c.split > 1 || (could && may_split(p));
}

int64_t partial_sums(int64_t n) { return divide_up(n, int64_t{kWarpgroupRows}); }

std::string print(const HopperConfig& c) {
  return cat("tile=", c.tile_m, "x", c.tile_n, "x", c.depth, " stages=", c.stages, " cluster=", c.cluster,
             c.split > 1 ? cat(" split=", c.split) : "");
}

std::string why_not_hopper(const Problem& p, const Target& target) {
  if (!has_wgmma(target)) {
    return cat("compute capability ", target.compute_capability / 10, ".", target.compute_capability % 10,
               ", it has that of 9.0");
  }
  if (p.mode == Mode::kBatch) return "the ragged axis is a batch axis";
  if (p.weights != Weights::kNumbers) return "weights of four bits have a kernel of their own";
  const bool scaled = p.scales != Scales::kNone, narrow = p.out == DType::kBF16 || p.out == DType::kF16;
  if (scaled ? !narrow && p.out != DType::kF32 : p.lhs != p.rhs || size_of(p.lhs) != 2 || !has_tensor_cores(p)) {
    return cat(name(p.lhs), " * ", name(p.rhs), " -> ", name(p.out),
               scaled ? ", its result is bf16, f16 or f32" : ", it takes bf16 * bf16 or f16 * f16");
  }
  const bool contraction = p.mode == Mode::kContraction;
  // Rows of both operands and of the result.
  const auto along = contraction && scaled ? std::tuple("m", p.m, p.lhs) : std::tuple("k", p.k, p.lhs);
  for (const auto& [dimension, size, dtype] : {along, std::tuple("n", p.n, scaled ? p.out : p.lhs)}) {
    if (size * size_of(dtype) % kRowAlignment != 0) {
      return cat(dimension, "=", size, " gives rows that are not multiples of ", kRowAlignment, " bytes");
    }
  }
  if (p.m == 0 || p.k == 0 || p.n == 0 || p.groups == 0) return "an operand is empty";
  for (const auto& [dimension, size] :
       {std::pair("m", p.m), std::pair("k", p.k), std::pair("n", p.n), std::pair("groups", p.groups)}) {
    if (size > kMostIndex) return cat(dimension, "=", size, ", it takes ", kMostIndex);
  }
  if (contraction) {
    if (p.groups > kMostGroups) return cat(p.groups, " groups, it orders ", kMostGroups);
    if (p.m > kMostRaggedRows) return cat(p.m, " rows, its maps take ", kMostRaggedRows);
  }
  return "";
}

HopperConfig choose_hopper(const Problem& p, const Target& target, const RowEpilogue* epilogue) {
  HopperConfig c = p.mode == Mode::kContraction  ? choose_contraction(p, target)
                   : p.scales == Scales::kBlocks ? choose_blocks(p, target)
                   : p.lhs_rows > 0              ? choose_gathering(p, target, epilogue)
                                                 : choose_rows(p, target, epilogue);
  c.depth = static_cast<int>(depth(p));
  return c;
}

std::vector<HopperConfig> hopper_configs(const Problem& p, const Target& target, const RowEpilogue* epilogue) {
  const HopperConfig chosen = choose_hopper(p, target, epilogue);
  std::vector<HopperConfig> result;
  const auto add = [&](int tile_m, int tile_n, int cluster, int most_stages, int split = 1) {
    HopperConfig c{
        .tile_m = tile_m, .tile_n = tile_n, .stages = 0, .cluster = cluster, .split = split, .depth = chosen.depth};
    fill_stages(p, target, most_stages, c, epilogue);
    if (fits(p, c) && shared_bytes(p, c, epilogue) <= target.max_shared_bytes) result.push_back(c);
  };
  constexpr int kMostStages = 8;
  if (p.mode == Mode::kContraction) {
    for (const int tile_n : {128, 192}) add(kContractionRows, tile_n, 1, kMostStages);
    return result;
  }
  for (const int tile_m : {192, 128, 64}) {
    for (const int cluster : {2, 1}) add(tile_m, chosen.tile_n, cluster, kMostStages);
  }
  for (const int split : splits(p)) add(kSplitRows, chosen.tile_n, 1, kMostStages, split);
  return result;
}

Parameters fields_of(const HopperConfig& c) {
  return {{"tile_m", int64_t{c.tile_m}},
          {"tile_n", int64_t{c.tile_n}},
          {"stages", int64_t{c.stages}},
          {"cluster", int64_t{c.cluster}},
          {"split", int64_t{c.split}}};
}

HopperConfig edited(HopperConfig c, const Parameters& given) {
  for (const auto& [name, value] : given) {
    int* field = name == "tile_m"    ? &c.tile_m
                 : name == "tile_n"  ? &c.tile_n
                 : name == "stages"  ? &c.stages
                 : name == "cluster" ? &c.cluster
                 : name == "split"   ? &c.split
                                     : nullptr;
    const auto* number = std::get_if<int64_t>(&value);
    JF_REQUIRE(field && number && *number > 0 && *number <= kThreads,
               "[grouped_matmul] expected tile_m, tile_n, stages, ", "cluster and split, small numbers, got ",
               jf::print(given));
    *field = static_cast<int>(*number);
  }
  return c;
}

namespace {

CudaKernel kernel_of(const Problem& p, const HopperConfig& c, const Target& target, const RowEpilogue* epilogue) {
  const std::string why = why_not_hopper(p, target);
  JF_CHECK(why.empty(), "no wgmma kernel: ", why);
  JF_CHECK(p.lhs_rows == 0 || epilogue != nullptr, "rows are gathered where why_not_gather allows it");
  JF_REQUIRE(fits(p, c), "[grouped_matmul] no kernel has the configuration ", print(c), "; use choose_hopper()");
  const int64_t shared = shared_bytes(p, c, epilogue);
  JF_REQUIRE(shared <= target.max_shared_bytes, "[grouped_matmul] ", print(c), " needs ", shared,
             " bytes of shared memory, the GPU has ", target.max_shared_bytes, "; use fewer stages");

  CudaKernel kernel;
  kernel.entry =
      cat("jf_grouped_", p.lhs_rows > 0 ? "gathered_" : "", p.quantizes != OutputFormat::kNone ? "quantized_" : "",
          p.mode == Mode::kContraction ? "contraction" : "rows",
          epilogue                                                    ? "_fused"
          : p.mode == Mode::kContraction || p.scales == Scales::kNone ? ""
                                                                      : "_scaled");
  kernel.block = kThreads;
  kernel.cluster = c.split;
  kernel.shared_bytes = static_cast<int>(shared);
  kernel.shares = shares_units(p, c, target, epilogue);
  kernel.counts = p.mode == Mode::kRows && !kernel.shares;
  kernel.maps = maps(p, epilogue);
  kernel.grid = grid(p, c, target, epilogue);
  kernel.instantiation = hopper::text(p, c, kernel.entry, shared, epilogue);
  return kernel;
}

}  // namespace

bool shares_units(const Problem& p, const HopperConfig& c, const Target& target, const RowEpilogue* epilogue) {
  return p.mode == Mode::kRows && (c.split > 1 || few_rows(p) || most_units(p, c, epilogue) <= clusters(c, target));
}

CudaKernel hopper_kernel(const Problem& p, const HopperConfig& c, const Target& target) {
  return kernel_of(p, c, target, nullptr);
}

std::string why_not_hopper(Problem problem, const RowEpilogue& epilogue, const Target& target) {
  if (problem.mode == Mode::kContraction && (epilogue.sums > 1 || epilogue.several() || !epilogue.tiles.empty())) {
    return "it sums over the rows of groups, and one sum becomes one result then";
  }
  if (problem.scales != Scales::kNone) return "its sums are scaled before they are stored";
  problem.out = epilogue.out;
  if (std::string why = why_not_hopper(problem, target); !why.empty()) return why;
  for (const RowEpilogue::Result& result : epilogue.results) {
    for (const int64_t columns : {result.columns, result.first}) {
      if (columns * size_of(epilogue.out) % kRowAlignment != 0) return cat(columns, " columns are no multiple of 8");
    }
  }
  if (epilogue.n * size_of(epilogue.out) % kRowAlignment != 0) {
    return cat(epilogue.n, " columns give rows that are not multiples of ", kRowAlignment, " bytes");
  }
  return "";
}

std::string why_not_quantize(const Problem& p, const RowEpilogue* epilogue, const Target& target) {
  JF_CHECK(p.quantizes != OutputFormat::kNone, "the result is quantized");
  if (std::string why = epilogue ? why_not_hopper(p, *epilogue, target) : why_not_hopper(p, target); !why.empty()) {
    return why;
  }
  if (p.mode != Mode::kRows || p.scales != Scales::kNone) return "it is no plain product of rows";
  const DType out = epilogue ? epilogue->out : p.out;
  if (size_of(out) != 2) return cat("the result is ", name(out), ", it takes bf16 and f16");
  if (p.lhs_rows > 0) return "its rows are gathered";
  if (epilogue && (epilogue->several() || !epilogue->tiles.empty())) {
    return "what follows the product exchanges more than the sums through shared memory";
  }
  const int64_t columns = result_columns(p, epilogue), of_scale = facts_of(p.quantizes).columns;
  if (columns % of_scale != 0) return cat(columns, " columns are no multiple of ", of_scale);
  // As that of the product alone, so that the sums are the same.
  Problem stored = p;
  stored.out = out;
  stored.quantizes = OutputFormat::kNone;
  const HopperConfig c = choose_hopper(stored, target, epilogue);
  if (c.split > 1) return "of few tiles k is split among blocks";
  if (epilogue && of_scale > kRowsColumns / epilogue->sums && c.cluster != 2) {
    return "of few rows each block computes alone, half of a scale";
  }
  return "";
}

std::string why_not_gather(const Problem& p, const RowEpilogue* epilogue, const Target& target) {
  JF_CHECK(p.lhs_rows > 0, "rows of lhs are named by numbers");
  if (p.mode != Mode::kRows) return "the product sums over them";
  if (std::string why = epilogue ? why_not_hopper(p, *epilogue, target) : why_not_hopper(p, target); !why.empty()) {
    return why;
  }
  if (p.scales != Scales::kNone) return "its operands have scales";
  if (!epilogue) return "nothing follows the product";
  if (epilogue->several() || !epilogue->tiles.empty()) {
    return "what follows exchanges more than the sums through shared memory";
  }
  // Copies by threads, without neighbours to share them, make a product take 1.15 to 1.3 times as long, however many
  // columns it has; copying the rows beforehand takes as long as more than a thousand columns do then (H200, bf16).
  // Where nothing is gated the result is twice as wide, and a product takes 1.3 times as long.
  const int64_t most_columns = epilogue->sums == 2 ? 1024 : 768;
  constexpr int64_t kLeastRows = 64;
  if (p.n > most_columns) return cat(p.n, " columns read them again and again, ", most_columns, " at most");
  if (p.m < kLeastRows * p.groups) return "groups of few rows take longer by wide tiles";
  Problem stored = p;
  stored.out = epilogue->out;
  const HopperConfig c = choose_hopper(stored, target, epilogue);
  if (!fits(stored, c) || shared_bytes(stored, c, epilogue) > target.max_shared_bytes) {
    return cat("k=", p.k, " is too short for tiles of two warpgroups");
  }
  return "";
}

CudaKernel hopper_kernel(Problem problem, const RowEpilogue& epilogue, const Target& target, const Parameters& given) {
  JF_CHECK(why_not_hopper(problem, epilogue, target).empty(), "no wgmma kernel with an epilogue");
  problem.out = epilogue.out;
  return kernel_of(problem, edited(choose_hopper(problem, target, &epilogue), given), target, &epilogue);
}

}  // namespace jf::grouped
