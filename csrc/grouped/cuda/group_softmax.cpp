#include "grouped/cuda/group_softmax.h"

#include <algorithm>

#include "base/error.h"
#include "base/integers.h"

namespace jf::grouped {
namespace {

// As in GroupSoftmax of group_softmax.cuh.
constexpr int64_t kFolding = 8, kSoftmaxThreads = 512, kPartBytes = 8, kRunBytes = 32, kMostSlots = 16;
constexpr int64_t kMostRows = int64_t{1} << 30;  // sums of two are 32-bit numbers
constexpr int64_t kFewestBlocks = 16;            // for the bound of the parts
constexpr int64_t kTilesOfGroup = 2;             // on average, or tiles are too empty
constexpr int64_t kGroupsAtOnce = 128;           // one kernel for all numbers of groups up to a multiple of this

int64_t columns_of_strip(const GroupSoftmax& s, const SoftmaxConfig& c) { return c.bytes / size_of(s.dtype); }
int64_t strips(const GroupSoftmax& s, const SoftmaxConfig& c) { return divide_up(s.columns, columns_of_strip(s, c)); }
int64_t table_groups(const GroupSoftmax& s) { return round_up(s.groups, kGroupsAtOnce); }

int64_t few(const GroupSoftmax& s, const SoftmaxConfig& c) { return 24 * 32 / columns_of_strip(s, c); }

// Runs of strips that have several. One of n tiles has more than (n - 1) * rows rows and at most (n + split - 1) /
// split runs, n - 1 being at least run; or, where all blocks have one, fewer than twice that, n - 1 being at least 8 *
// split.
int64_t parts(const GroupSoftmax& s, const SoftmaxConfig& c) { return divide_up(9 * s.rows, 4 * c.split * c.rows); }
// Strips that have more than few runs.
int64_t joined(const GroupSoftmax& s, const SoftmaxConfig& c) {
  return divide_up(s.rows, std::min(few(s, c), kFewestBlocks / 2) * c.split * c.rows);
}

int64_t shared_bytes(const GroupSoftmax& s, const SoftmaxConfig& c) {
  const int64_t line = columns_of_strip(s, c) * kPartBytes;
  const int64_t finals = divide_up(c.slots, 2);
  const int64_t bytes = c.slots * (c.rows * c.bytes + kRunBytes) + 2 * kFolding * line + finals * line +
                        (c.slots + finals) * 2 * 8 + 4 * 4 * (table_groups(s) + 1);
  return round_up(bytes, 128);
}

std::string text(const GroupSoftmax& s, const SoftmaxConfig& c, std::string_view entry) {
  const std::string_view type = device_type(s.dtype);
  std::string t = "#include \"grouped/cuda/group_softmax.cuh\"\n\n";
  t += cat("// ", print(c), "\nusing Kernel = jf::GroupSoftmax<", type, ", ", s.log ? "true" : "false", ", ", c.rows,
           ", ", c.bytes, ", ", c.slots, ", ", c.run, ", ", c.split, ", ", table_groups(s), ">;\n");
  t += cat("static_assert(Kernel::kThreads == ", kSoftmaxThreads, " && Kernel::kFew == ", few(s, c),
           " && sizeof(Kernel::Memory) == ", shared_bytes(s, c), ", \"the launch fits\");\n\n");
  t += cat("extern \"C\" __global__ __launch_bounds__(", kSoftmaxThreads, ", 1) void ", entry, "(\n    const ", type,
           "* x, const int* extents, ", type, "* out, unsigned long* words,\n");
  t += "    const __grid_constant__ jf::TensorMap map, long long rows, long long columns, long long groups,\n";
  t += "    long long parts, long long joined) {\n";
  t += "  extern __shared__ __align__(128) char memory[];\n";
  t += "  Kernel::run(memory, {extents, out, words, int(rows), int(columns), int(groups), int(parts), int(joined)}, ";
  t += "map);\n}\n";
  return t;
}

}  // namespace

SoftmaxConfig choose_softmax(const GroupSoftmax& s) {
  // Strips of 128 bytes leave room for several of a long group, but a lane has two columns. Tiles of 64 rows are for
  // short groups. (Both as measured on an H200.)
  const bool has_short = s.rows < kTilesOfGroup * 128 * s.groups;
  SoftmaxConfig c = s.dtype == DType::kF32 ? SoftmaxConfig{64, 256, 13, 9, 5}
                    : has_short            ? SoftmaxConfig{64, 256, 12, 9, 6}
                                           : SoftmaxConfig{128, 128, 13, 8, 6};
  // The table of many groups takes the place of tiles: the same number on all targets, as of the scratch memory.
  const int64_t room = cuda_target_for(kFirstWithClusters).max_shared_bytes;
  while (c.slots > c.run + 1 && shared_bytes(s, c) > room) --c.slots;
  return c;
}

SoftmaxConfig edited(SoftmaxConfig config, const Parameters& given) {
  for (const auto& [name, value] : given) {
    int64_t* const field = name == "rows"    ? &config.rows
                           : name == "bytes" ? &config.bytes
                           : name == "slots" ? &config.slots
                           : name == "run"   ? &config.run
                           : name == "split" ? &config.split
                                             : nullptr;
    JF_REQUIRE(field != nullptr && std::holds_alternative<int64_t>(value),
               "[tuned] a softmax of groups has the numbers rows, bytes, slots, run and split, got ", jf::print(given));
    *field = std::get<int64_t>(value);
  }
  const auto& [rows, bytes, slots, run, split] = config;
  JF_REQUIRE((rows == 64 || rows == 128 || rows == 256) && (bytes == 128 || bytes == 256) && split > 0 &&
                 split <= run && run < slots && slots <= kMostSlots,
             "[tuned] expected tiles of 64, 128 or 256 rows and 128 or 256 bytes, at most ", kMostSlots,
             " slots, runs of fewer tiles than slots, and no more tiles in a run of several, got ", print(config));
  return config;
}

std::string print(const SoftmaxConfig& c) {
  return cat("group softmax tile=", c.rows, "x", c.bytes, " slots=", c.slots, " run=", c.run, " split=", c.split);
}

std::string why_not_softmax(const GroupSoftmax& s, const SoftmaxConfig& c, const Target& target) {
  if (!has_clusters(target)) {
    return "the kernel that reads them once is for GPUs of compute capability 9.0 or later";
  }
  if (s.dtype != DType::kBF16 && s.dtype != DType::kF16 && s.dtype != DType::kF32) {
    return cat("the kernel that reads them once takes no ", name(s.dtype));
  }
  if (s.rows == 0 || s.columns == 0 || s.groups == 0) return "an operand is empty";
  if (s.dtype == DType::kF32 && c.bytes == 128) return "a warp has two columns a lane, f32 ones 256 bytes";
  if (const int64_t bytes = s.columns * size_of(s.dtype); bytes % kBulkBytes != 0) {
    return cat("copies of tiles need rows of a multiple of ", kBulkBytes, " bytes, got ", bytes);
  }
  // Tiles begin with groups and strips: those that are filled in part take as long as others.
  if (s.columns * size_of(s.dtype) * 2 <= c.bytes) {
    return cat("tiles of ", c.bytes, " bytes would be half empty, rows have ", s.columns * size_of(s.dtype));
  }
  if (s.rows < kTilesOfGroup * c.rows * s.groups) {
    return cat("its tiles have ", c.rows, " rows, and groups ", s.rows / s.groups, " on average");
  }
  if (s.rows >= kMostRows || s.columns >= kMostRows) return cat("it takes sizes below ", kMostRows);
  if (target.multiprocessors < kFewestBlocks) return cat("the device has fewer than ", kFewestBlocks, " processors");
  const int64_t most = target.multiprocessors * c.run * c.rows;
  if (s.rows > most) return cat("a group of ", s.rows, " rows does not fit the device's shared memory, ", most, " do");
  if (const int64_t bytes = shared_bytes(s, c); bytes > target.max_shared_bytes) {
    return cat("tiles and the table of ", s.groups, " groups take ", bytes, " bytes of shared memory, a block has ",
               target.max_shared_bytes);
  }
  // Runs, the tiles of them and what they leave are 32-bit numbers.
  if ((s.rows / c.rows + s.groups) * strips(s, c) >= kMostRows) return "it has too many tiles";
  return "";
}

int64_t softmax_scratch_bytes(const GroupSoftmax& s, const SoftmaxConfig& c) {
  return strips(s, c) * columns_of_strip(s, c) * (parts(s, c) + joined(s, c)) * kPartBytes;
}

CudaKernel softmax_kernel(const GroupSoftmax& s, const SoftmaxConfig& c, const Target& target) {
  const std::string why = why_not_softmax(s, c, target);
  JF_REQUIRE(why.empty(), "[softmax] ", why);
  CudaKernel kernel;
  kernel.entry = "jf_group_softmax";
  kernel.instantiation = text(s, c, kernel.entry);
  kernel.together = true;
  kernel.ones = CudaOnes{3, softmax_scratch_bytes(s, c) / 4};
  kernel.grid = target.multiprocessors;
  kernel.block = kSoftmaxThreads;
  kernel.shared_bytes = static_cast<int>(shared_bytes(s, c));
  const auto bytes = static_cast<uint64_t>(size_of(s.dtype));
  CudaMap map{0, {}};
  map.layout.axes = 2;
  map.layout.element_bytes = static_cast<int>(bytes);
  map.layout.extents = {static_cast<uint64_t>(s.columns), static_cast<uint64_t>(s.rows)};
  map.layout.stride_bytes = {bytes, static_cast<uint64_t>(s.columns) * bytes};
  map.layout.box = {static_cast<uint32_t>(columns_of_strip(s, c)), static_cast<uint32_t>(c.rows)};
  kernel.maps.push_back(map);
  return kernel;
}

std::vector<int64_t> softmax_scalars(const GroupSoftmax& s, const SoftmaxConfig& c) {
  return {s.rows, s.columns, s.groups, parts(s, c), joined(s, c)};
}

}  // namespace jf::grouped
