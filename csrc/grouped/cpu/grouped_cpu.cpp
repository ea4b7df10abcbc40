#include "grouped/cpu/grouped_cpu.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "grouped/cpu/blocks.h"
#include "grouped/cpu/kernels.h"
#include "grouped/cpu/segments.h"
#include "runtime/output_pages.h"

namespace jf::grouped {
namespace {

using namespace cpu;

constexpr int64_t kAlignment = 64;

// Where each part of the workspace begins, in bytes.
struct Layout {
  int64_t packed = 0;        // lhs panels, behind the segments
  int64_t scratch = 0;       // of worker 0: one block of rhs, then the accumulators
  int64_t accumulators = 0;  // within a worker's scratch
  int64_t tile = 0;          // of the product, for a tail; also within it
  int64_t worker_bytes = 0;
  int64_t bytes = 0;
};

// For a tail: a task's part of the product, the columns of a row as far apart as in the whole product.
constexpr int64_t kTileRows = 256, kTileColumns = 256, kZeroRows = 64;

// Elements between two rows of the tile. Rows do not all begin in one set of the cache.
int64_t tile_stride(const CpuTail& tail, int64_t columns) {
  const auto [least, most] = std::minmax_element(tail.first.begin(), tail.first.end());
  return round_up(*most - *least + columns, kTailColumns) + kTailColumns;
}

// A task of a product with a tail: whole pieces, of which packed rhs and sums take no more room than others'.
Blocks with_tail(const Blocks& blocks, const Kernel& kernel) {
  constexpr int64_t kGranule = 32;  // a multiple of every depth granule
  const int64_t columns = round_up(blocks.columns, kTailColumns);
  const int64_t most = std::min(kTileRows, kernel.most_sum_bytes / (kernel.accumulator_bytes * columns));
  const int64_t rows = std::max<int64_t>(1, most / kernel.tile_rows) * kernel.tile_rows;
  int64_t depth = blocks.depth;
  if (columns > blocks.columns) {
    depth = std::min(depth, std::max(kGranule, depth * blocks.columns / columns / kGranule * kGranule));
  }
  return {std::min(blocks.rows, rows), columns, depth};
}

Layout layout_of(const Problem& problem, const Kernel& kernel, int workers, const CpuTail* tail) {
  const Extent largest = largest_extent(problem);
  Layout layout;
  layout.packed = round_up(segment_bound(problem) * static_cast<int64_t>(sizeof(Segment)), kAlignment);
  layout.scratch = layout.packed + round_up(packed_bound(problem, kernel) * kernel.packed_bytes, kAlignment);
  layout.accumulators = round_up(rhs_block_bytes(kernel, largest), kAlignment);
  layout.worker_bytes = layout.accumulators + round_up(accumulator_bytes(kernel, largest), kAlignment);
  if (tail) {
    layout.tile = layout.worker_bytes;
    // Few rows have longer pieces of lines.
    const int64_t elements = std::max(kTileRows * tile_stride(*tail, kTileColumns),
                                      kMostRowsOfLongPieces * tile_stride(*tail, kLongestPiece));
    layout.worker_bytes += round_up(elements * size_of(problem.out), kAlignment);
  }
  layout.bytes = layout.scratch + workers * layout.worker_bytes;
  return layout;
}

// One call: what the tasks share.
struct Run {
  const Problem& problem;
  const Kernel& kernel;
  const CpuArguments& arguments;
  std::byte* workspace;
  Layout layout;
  std::span<Segment> segments;
  bool stream;  // stores go past the caches
  const CpuTail* tail;
  double work = 0;  // multiply-adds of all segments
  int64_t packs = 0;
  int64_t tasks = 0;

  const std::byte* lhs(int64_t element) const {
    return static_cast<const std::byte*>(arguments.lhs) + element * size_of(problem.lhs);
  }
  const std::byte* rhs(int64_t element) const {
    return static_cast<const std::byte*>(arguments.rhs) + element * size_of(problem.rhs);
  }
  std::byte* out(int64_t element) const {
    return static_cast<std::byte*>(arguments.out) + element * size_of(problem.out);
  }
  std::byte* packed(int64_t element) const { return workspace + layout.packed + element * kernel.packed_bytes; }
};

// A packing task is this many panels of lhs rows, or this many rows of the ragged axis when that is summed over.
int64_t pack_rows(const Kernel& kernel) { return 4 * kernel.tile_rows; }
constexpr int64_t kPackDepth = 64;

int64_t packs_of_entry(const Run& run, const Extent& extent) {
  if (extent.depth == 0) return 0;
  return run.problem.mode == Mode::kContraction ? divide_up(extent.depth, kPackDepth)
                                                : divide_up(extent.rows, pack_rows(run.kernel));
}

// Rows of zeros that one task writes.
int64_t zero_rows(const Run& run, const Extent& extent) {
  constexpr int64_t kBytes = 256 << 10;
  return std::max<int64_t>(1, kBytes / (extent.columns * size_of(run.problem.out)));
}

// Numbers the tasks of all segments and chooses their blocks.
void plan_tasks(Run& run, int workers) {
  for (const Segment& segment : run.segments) {
    const Extent& extent = segment.extent;
    run.work += static_cast<double>(segment.count) * extent.rows * extent.columns * extent.depth;
  }
  const double share = run.work / (4.0 * workers);
  int64_t packed = 0;
  for (Segment& segment : run.segments) {
    Extent& extent = segment.extent;
    if (run.tail) extent.columns = run.tail->n;
    if (extent.depth == 0 && run.tail) {
      segment.blocks = {kZeroRows, kTileColumns, 0};
    } else if (extent.depth == 0) {
      segment.blocks = {zero_rows(run, extent), extent.columns, 0};
    } else {
      segment.blocks = choose_blocks(run.kernel, extent, run.problem.transpose_rhs, share);
    }
    if (run.tail && extent.depth > 0) segment.blocks = with_tail(segment.blocks, run.kernel);
    segment.packed = packed;
    segment.first_pack = run.packs;
    segment.first_task = run.tasks;
    packed += segment.count * packed_elements(run.kernel, extent);
    run.packs += segment.count * packs_of_entry(run, extent);
    run.tasks +=
        segment.count * divide_up(extent.rows, segment.blocks.rows) * divide_up(extent.columns, segment.blocks.columns);
  }
}

// The last segment whose `first` is at most `index`: segments without tasks share the number of the next.
const Segment& segment_at(const Run& run, int64_t index, int64_t Segment::* first) {
  auto after = std::upper_bound(run.segments.begin(), run.segments.end(), index,
                                [first](int64_t value, const Segment& segment) { return value < segment.*first; });
  return *std::prev(after);
}

void pack_task(const Run& run, int64_t index) {
  const Segment& segment = segment_at(run, index, &Segment::first_pack);
  const Extent& extent = segment.extent;
  const int64_t per_entry = packs_of_entry(run, extent);
  const int64_t entry = (index - segment.first_pack) / per_entry;
  const int64_t part = (index - segment.first_pack) % per_entry;
  PackArguments pack;
  pack.stride = run.problem.k;
  pack.packed_depth = round_up(extent.depth, run.kernel.depth_granule);
  int64_t first_row = 0;
  if (run.problem.mode == Mode::kContraction) {
    pack.source = run.lhs(segment.lhs);
    pack.width = extent.rows;
    pack.depth_begin = part * kPackDepth;
    pack.depth_end = std::min(pack.depth_begin + kPackDepth, extent.depth);
  } else {
    first_row = part * pack_rows(run.kernel);
    pack.source = run.lhs(segment.lhs + (entry * extent.rows + first_row) * run.problem.k);
    pack.depth_contiguous = true;
    pack.width = std::min(pack_rows(run.kernel), extent.rows - first_row);
    pack.depth_end = extent.depth;
  }
  pack.packed =
      run.packed(segment.packed + entry * packed_elements(run.kernel, extent) + first_row * pack.packed_depth);
  run.kernel.pack_lhs(pack);
}

// Rows and columns of one entry of a segment.
struct Block {
  int64_t entry, row, column;
  int64_t rows, columns;
};

// A block's sums over the whole depth, to `out`.
void multiply_block(const Run& run, const Segment& segment, const Block& at, std::byte* scratch, void* out,
                    int64_t out_stride, bool stream) {
  const int64_t depth = segment.extent.depth, line = run.problem.n;
  const Blocks& blocks = segment.blocks;
  MultiplyArguments block;
  block.rows = at.rows;
  block.columns = at.columns;
  block.out = out;
  block.out_stride = out_stride;
  block.stream = stream;
  block.lhs_depth = round_up(depth, run.kernel.depth_granule);
  block.lhs =
      run.packed(segment.packed + at.entry * packed_elements(run.kernel, segment.extent) + at.row * block.lhs_depth);
  block.rhs = scratch;
  block.accumulators = scratch + run.layout.accumulators;
  const int64_t rhs = segment.rhs + at.entry * depth * line;
  if (has_few_rows(run.kernel, segment.extent, run.problem.transpose_rhs)) {
    FewRowsArguments few;
    few.lhs = block.lhs;
    few.rows = at.rows;
    few.rhs = run.rhs(rhs + at.column);
    few.stride = line;
    few.depth = depth;
    few.columns = at.columns;
    few.accumulators = block.accumulators;
    few.out = out;
    few.out_stride = out_stride;
    few.stream = stream;
    run.kernel.multiply_few_rows(few);
    return;
  }

  PackArguments pack;
  pack.depth_contiguous = run.problem.transpose_rhs;
  pack.stride = pack.depth_contiguous ? depth : line;
  pack.width = block.columns;
  pack.packed = scratch;
  const auto source = [&](int64_t k) {
    return run.rhs(rhs + (pack.depth_contiguous ? at.column * depth + k : k * line + at.column));
  };
  for (int64_t k = 0; k < depth; k += blocks.depth) {
    pack.source = source(k);
    pack.depth_end = std::min(blocks.depth, depth - k);
    pack.packed_depth = round_up(pack.depth_end, run.kernel.depth_granule);
    run.kernel.pack_rhs(pack);
    block.depth_begin = k;
    block.depth = pack.packed_depth;
    block.first = k == 0;
    const int64_t next_depth = std::min(blocks.depth, depth - k - pack.depth_end);
    block.last = next_depth == 0;
    block.next = {};
    if (!block.last) {
      const int64_t element = size_of(run.problem.rhs);
      block.next.begin = source(k + blocks.depth);
      block.next.lines = pack.depth_contiguous ? block.columns : next_depth;
      block.next.line_bytes = (pack.depth_contiguous ? next_depth : block.columns) * element;
      block.next.stride_bytes = pack.stride * element;
    }
    run.kernel.multiply(block);
  }
}

// Rows and columns of the result as the tail makes them of the product, of zeros where the rows are of no group.
void tail_block(const Run& run, const Segment& segment, const Block& at, std::byte* scratch) {
  const CpuTail& tail = *run.tail;
  const int64_t bytes = size_of(run.problem.out), least = *std::min_element(tail.first.begin(), tail.first.end());
  const int64_t stride = tile_stride(tail, at.columns);
  JF_CHECK(run.layout.tile + at.rows * stride * bytes <= run.layout.worker_bytes, at.rows, " rows of ", at.columns);
  std::byte* tile = scratch + run.layout.tile;
  for (int64_t first : tail.first) {
    std::byte* part = tile + (first - least) * bytes;
    if (segment.extent.depth == 0) {
      for (int64_t i = 0; i < at.rows; ++i) run.kernel.fill_zero(part + i * stride * bytes, at.columns * bytes, false);
    } else {
      Block of_product = at;
      of_product.column += first;
      multiply_block(run, segment, of_product, scratch, part, stride, false);
    }
  }
  const int64_t row = segment.out / run.problem.n + at.row;
  for (int64_t i = 0; i < at.rows; ++i) {
    // Where (0, 0) would be, of which the piece's offsets are counted; nothing is there.
    const uintptr_t here = reinterpret_cast<uintptr_t>(tile + i * stride * bytes);
    const uintptr_t product = here - static_cast<uintptr_t>(((row + i) * run.problem.n + at.column + least) * bytes);
    for (int64_t column = 0; column < at.columns; column += kTailColumns) {
      tail.apply(row + i, (at.column + column) / kTailColumns, reinterpret_cast<const void*>(product));
    }
  }
}

void multiply_task(const Run& run, int64_t index, int worker) {
  const Segment& segment = segment_at(run, index, &Segment::first_task);
  const auto [rows, columns, depth] = segment.extent;
  const Blocks& blocks = segment.blocks;
  // Tasks on the same columns follow each other: their rhs is still in the shared cache.
  const int64_t row_blocks = divide_up(rows, blocks.rows);
  const int64_t column_blocks = divide_up(columns, blocks.columns);
  const int64_t local = index - segment.first_task;
  Block at;
  at.row = local % row_blocks * blocks.rows;
  at.column = local / row_blocks % column_blocks * blocks.columns;
  at.entry = local / row_blocks / column_blocks;
  at.rows = std::min(blocks.rows, rows - at.row);
  at.columns = std::min(blocks.columns, columns - at.column);
  std::byte* scratch = run.workspace + run.layout.scratch + worker * run.layout.worker_bytes;
  if (run.tail) {
    tail_block(run, segment, at, scratch);
    return;
  }
  std::byte* out = run.out(segment.out + (at.entry * rows + at.row) * columns + at.column);
  if (depth == 0) {
    run.kernel.fill_zero(out, at.rows * columns * size_of(run.problem.out), run.stream);
  } else {
    multiply_block(run, segment, at, scratch, out, columns, run.stream);
  }
}

// Calls fn(index, worker) for each index, in pieces large enough to hide the cost of handing them out.
template <class Fn>
void for_each_task(const ParallelFor& parallel_for, bool alone, int64_t tasks, const Fn& fn) {
  const int64_t pieces_wanted = int64_t{64} * parallel_for.workers;
  const int64_t piece = std::max<int64_t>(1, tasks / pieces_wanted);
  const int64_t pieces = divide_up(tasks, piece);
  if (alone || pieces <= 1) {
    for (int64_t task = 0; task < tasks; ++task) fn(task, 0);
    return;
  }
  struct Shared {
    const Fn& fn;
    int64_t tasks;
    int64_t piece;
  } const shared{fn, tasks, piece};
  parallel_for.run(pieces, [&shared](int64_t index, int worker) {
    const int64_t end = std::min((index + 1) * shared.piece, shared.tasks);
    for (int64_t task = index * shared.piece; task < end; ++task) shared.fn(task, worker);
  });
}

}  // namespace

int64_t cpu_workspace_bytes(const Problem& problem, const Target& target, int workers, const CpuTail* tail) {
  return layout_of(problem, find_kernel(target.isa, problem.lhs, problem.out), workers, tail).bytes;
}

void run_cpu(const Problem& problem, const Target& target, const CpuArguments& arguments,
             std::span<std::byte> workspace, const ParallelFor& parallel_for, const CpuTail* tail) {
  JF_CHECK(problem.lhs == problem.rhs, "lhs is ", name(problem.lhs), ", rhs is ", name(problem.rhs));
  JF_CHECK(problem.has_starts == (arguments.starts != nullptr), "has_starts is ", problem.has_starts);
  const Kernel& kernel = find_kernel(target.isa, problem.lhs, problem.out);
  const Layout layout = layout_of(problem, kernel, parallel_for.workers, tail);
  JF_CHECK(static_cast<int64_t>(workspace.size()) >= layout.bytes, workspace.size(), " of ", layout.bytes, " bytes");
  JF_CHECK(reinterpret_cast<uintptr_t>(workspace.data()) % kAlignment == 0, "workspace is not at a multiple of 64");

  const Extent largest = largest_extent(problem);
  const int64_t products = problem.mode == Mode::kRows ? 1 : problem.mode == Mode::kBatch ? problem.m : problem.groups;
  const int64_t columns = tail ? tail->n : largest.columns;
  const int64_t out_bytes = products * largest.rows * columns * size_of(problem.out);
  if (out_bytes == 0) return;
  const bool resident = !tail && runtime::prepare_output(arguments.out, out_bytes);
  const bool aligned = reinterpret_cast<uintptr_t>(arguments.out) % kAlignment == 0 &&
                       problem.n * size_of(problem.out) % kAlignment == 0;

  std::span<Segment> table(reinterpret_cast<Segment*>(workspace.data()), segment_bound(problem));
  std::uninitialized_default_construct(table.begin(), table.end());
  Run run{problem, kernel, arguments, workspace.data(), layout, {}, resident && aligned, tail};
  run.segments = find_segments(problem, arguments.extents, arguments.starts, table);
  plan_tasks(run, parallel_for.workers);

  // Waking a helper costs about as much as this many multiply-adds and bytes.
  constexpr double kFewMultiplyAdds = 2e6;
  constexpr int64_t kFewBytes = 512 << 10;
  const bool alone = run.work < kFewMultiplyAdds && out_bytes < kFewBytes;
  for_each_task(parallel_for, alone, run.packs, [&run](int64_t index, int) { pack_task(run, index); });
  for_each_task(parallel_for, alone, run.tasks,
                [&run](int64_t index, int worker) { multiply_task(run, index, worker); });
}

}  // namespace jf::grouped
