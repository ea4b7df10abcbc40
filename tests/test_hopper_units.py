"""Hopper kernels on a CPU (hopper_block.h): blocks that take units of work from a queue and blocks that share them
evenly compute the same, and every block ends."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from grouped_reference import contraction, owned_rows, rows
from test_fp8_blocks import run_blocks_on_cpu
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser._packed_weights import unpack_weights

BF16 = ml_dtypes.bfloat16
# More units than blocks; groups of a row, of part of a tile, of several tiles; none; one with all rows.
M, LAST = 380, 367  # rows; what lies behind is nobody's
EXTENTS = np.int32([[0, 1, 64, 0, 0, 65, 13, 217, 0], [0] * 9, [0, 0, 0, 0, 0, 0, 0, 0, 100]])
STARTS = np.int32([[0, 0, 3, 70, 70, 70, 135, 150, 380], [0] * 9, [0, 0, 0, 0, 0, 0, 0, 0, 8]])

ROWS = """
using namespace jf;
constexpr int m = %(m)d, k = %(k)d, n = %(n)d, groups = %(groups)d;

template <class Out, class Tile, bool kRhsKMajor, bool kHasStarts>
void run(int blocks, int cluster = Tile::kCluster) {
  using Kernel = grouped::HopperRows<bf16, Out, Tile, kRhsKMajor, kHasStarts>;
  constexpr int size = sizeof(Out);
  auto lhs = read("lhs"), rhs = read(kRhsKMajor ? "rhs_t" : "rhs"), extents = read("extents"), starts = read("starts");
  for (int problem = 0; problem < %(problems)d; ++problem) {
    for (const bool shares : {false, true}) {
      std::vector<unsigned char> out(size * m * n, 255);  // NaN
      const TensorMap lhs_map = {lhs.data(), k * 2, m, 2}, out_map = {out.data(), n * size, m, size, 128 / size};
      const TensorMap rhs_map = {rhs.data(), (kRhsKMajor ? k : n) * 2, kRhsKMajor ? n : k, 2, kRhsKMajor ? 128 : 64};
      const int first = problem * groups;
      const grouped::Ragged ragged = {data<int>(extents) + first, data<int>(starts) + first, groups, m};
      unsigned next = 0;
      ptx::launch(blocks, cluster, [&](void* memory) {
        Kernel::run(memory, lhs_map, rhs_map, out_map, ragged, data<Out>(out), shares ? nullptr : &next, k, n);
      });
      std::fwrite(out.data(), 1, out.size(), stdout);
    }
  }
}

using Split = grouped::HopperTile<64, 4, 1, false, true>;
int main() {
%(main)s
}
"""
ALONE_AND_PAIRS = """
  run<bf16, grouped::HopperTile<64, 2, 1>, false, false>(3);
  run<bf16, grouped::HopperTile<128, 3, 2>, true, true>(4);
  run<float, grouped::HopperTile<192, 2, 2>, false, true>(4);
"""
SPLIT = """
  run<float, Split, true, false>(4, 2);
  for (const int split : {1, 2, 4, 8}) run<bf16, Split, false, true>(8, split);
"""


FOUR_BIT = """
#include "grouped/cuda/hopper_four_bit.cuh"
using namespace jf;
constexpr int m = %(m)d, k = %(k)d, n = %(n)d, groups = %(groups)d;

// Gates in the first half of the columns, numbers of rows and columns, an array.
struct Gate {
  static constexpr int kSums = 2, kTiles = 1;
  static int first(int sum) { return sum * n; }
  struct Group {
    float bias;
  };
  struct alignas(4) Row {
    float scale;
  };
  const float* array;
  Group group(int group) const { return {group * 0.25f}; }
  Row row(const Group&, int row) const { return {1 + row %% 3 * 0.5f}; }
  float tile(int row, int column) const { return array[row * n + column]; }
  float at(const Group& group, const Row& row, const float (&sums)[2], float tile, int, int column) const {
    return row.scale * (sums[0] + group.bias) * sums[1] + column %% 5 + tile;
  }
};

using grouped::NoEpilogue;
template <class Format, class Out, class Tile, bool kHasStarts, bool kBack = false, class Epilogue = NoEpilogue>
void run(const char* weights, const Epilogue& epilogue = {}) {
  using Kernel = grouped::HopperFourBit<Format, Out, Tile, kHasStarts, kBack, Epilogue>;
  constexpr int size = sizeof(Out), columns = n * std::max(Epilogue::kSums, 1);
  auto lhs = read("lhs"), pieces = read(weights), extents = read("extents"), starts = read("starts");
  const auto factors = read("factors");
  for (int problem = 0; problem < %(problems)d; ++problem) {
    for (const bool shares : {false, true}) {
      std::vector<unsigned char> out(size * m * n, 255);  // NaN
      const int first = problem * groups;
      TensorMap boxes[Kernel::kBoxes];
      const TensorMap* maps[Kernel::kBoxes];
      for (int i = 0; i < Kernel::kBoxes; ++i) {
        boxes[i] = {lhs.data(), k * 2, m, 2, Kernel::box_rows(i)};
        maps[i] = boxes + i;
      }
      const int stored = Tile::kBlocks > 1 && Tile::kRows >= 64 ? 32 / size : std::min(Tile::kRows, 128 / size);
      const TensorMap out_map = {out.data(), n * size, m, size, stored};
      const grouped::Ragged ragged = {data<int>(extents) + first, data<int>(starts) + first, groups, m};
      unsigned next = 0;
      ptx::launch(3, 1, [&](void* memory) {
        Kernel::run(memory, maps, pieces.data(), reinterpret_cast<const float*>(factors.data()), out_map, ragged,
                    data<Out>(out), shares ? nullptr : &next, k, n, columns, epilogue);
      });
      std::fwrite(out.data(), 1, out.size(), stdout);
    }
  }
}

int main() {
  using namespace grouped;
%(main)s
}
"""
FORWARD = """
  run<Mxfp4, float, FourBitTile<32, 2, 2>, false>("mxfp4_32");
  run<Nvfp4, bf16, FourBitTile<64, 2, 2>, true>("nvfp4_16");
  run<Int4<32>, float, FourBitTile<128, 2, 1>, true>("int4_32");
  run<Int4<64>, bf16, FourBitTile<256, 2, 1>, false>("int4_64");
  run<Mxfp4, bf16, FourBitTile<16, 3, 2>, true>("mxfp4_32");
  run<Nvfp4, float, FourBitTile<96, 2, 2>, false>("nvfp4_16");
"""
BACK = """
  run<Mxfp4, float, FourBitTile<32, 3, 2>, false, true>("mxfp4_32");
  run<Nvfp4, bf16, FourBitTile<64, 2, 1>, true, true>("nvfp4_16");
  run<Int4<32>, float, FourBitTile<128, 2, 1>, true, true>("int4_32");
  run<Int4<64>, bf16, FourBitTile<256, 2, 1>, false, true>("int4_64");
  run<Mxfp4, bf16, FourBitTile<16, 3, 2>, true, true>("mxfp4_32");
"""
GATED = """
  const auto array = read("addend");
  const Gate gate{reinterpret_cast<const float*>(array.data())};
  run<Nvfp4, bf16, FourBitTile<32, 3, 2>, true, false, Gate>("nvfp4_16", gate);
  run<Mxfp4, float, FourBitTile<256, 2, 1>, false, false, Gate>("mxfp4_32", gate);
  run<Mxfp4, bf16, FourBitTile<16, 3, 2>, true, false, Gate>("mxfp4_32", gate);
"""


CONTRACTION = """
using namespace jf;
constexpr int m = %(m)d, k = %(k)d, n = %(n)d, groups = %(groups)d;

template <class Out, int kN, bool kHasStarts>
void run() {
  using Kernel = grouped::HopperContraction<bf16, Out, kN, 3, 64, kHasStarts>;
  constexpr int size = sizeof(Out);
  auto lhs = read("lhs"), rhs = read("rhs"), extents = read("extents"), starts = read("starts");
  const TensorMap lhs_map = {lhs.data(), k * 2, m, 2}, rhs_map = {rhs.data(), n * 2, m, 2};
  for (int problem = 0; problem < %(problems)d; ++problem) {
    std::vector<unsigned char> out(size * groups * k * n, 255);  // NaN
    const TensorMap out_map = {out.data(), n * size, k, size, 64};
    const int first = problem * groups;
    const grouped::Ragged ragged = {data<int>(extents) + first, data<int>(starts) + first, groups, m};
    ptx::launch(2, 1, [&](void* memory) { Kernel::run(memory, {lhs_map, rhs_map, out_map}, ragged, k, n); });
    std::fwrite(out.data(), 1, out.size(), stdout);
  }
}

int main() {
  run<bf16, 192, false>();
  run<float, 128, true>();
}
"""


def results(raw, kinds, n):
    """(with starts, from a queue, shared) of each problem of each kernel, for kernels (type of out, with starts)."""
    at = 0
    for dtype, starts in kinds:
        for problem in range(len(EXTENTS)):
            pair = np.frombuffer(raw, dtype, 2 * M * n, at).reshape(2, M, n)
            at += pair.nbytes
            yield EXTENTS[problem], STARTS[problem] if starts else None, *pair
    assert at == len(raw)


def check(queued, shared, want, extents, starts, **tolerance):
    np.testing.assert_array_equal(queued.view(np.uint8), shared.view(np.uint8))
    owned = owned_rows(extents, M, starts)
    assert (shared[~owned] == 0).all()
    assert_close(shared[owned], want[owned], dtype=shared.dtype.name, **tolerance)


@pytest.mark.parametrize(
    ("main", "blocks", "k", "kinds"),
    [
        (ALONE_AND_PAIRS, 4, 264, [(BF16, False), (BF16, True), (np.float32, True)]),
        (SPLIT, 8, 520, [(np.float32, False), *[(BF16, True)] * 4]),
    ],
    ids=["alone and pairs", "k is split"],
)
def test_rows(main, blocks, k, kinds, tmp_path):
    n, groups = 328, EXTENTS.shape[1]
    rng = np.random.default_rng(0)
    lhs, rhs = (rng.normal(size=s).astype(BF16) for s in ((M, k), (groups, k, n)))
    lhs[LAST:] = np.nan
    arrays = {"lhs": lhs, "rhs": rhs, "rhs_t": rhs.swapaxes(1, 2), "extents": EXTENTS, "starts": STARTS}
    source = ROWS % {"m": M, "k": k, "n": n, "groups": groups, "problems": len(EXTENTS), "main": main}
    raw = run_blocks_on_cpu(source, arrays, blocks, tmp_path)
    for extents, starts, queued, shared in results(raw, kinds, n):
        check(queued, shared, rows(lhs, rhs, extents, starts), extents, starts)


def test_contraction(tmp_path):
    """Matrices of empty groups are zeros, which another thread stores than those of the others."""
    k, n, groups = 72, 200, EXTENTS.shape[1]
    rng = np.random.default_rng(0)
    lhs, rhs = (rng.normal(size=(M, columns)).astype(BF16) for columns in (k, n))
    lhs[LAST:] = rhs[LAST:] = np.nan
    arrays = {"lhs": lhs, "rhs": rhs, "extents": EXTENTS, "starts": STARTS}
    source = CONTRACTION % {"m": M, "k": k, "n": n, "groups": groups, "problems": len(EXTENTS)}
    raw = run_blocks_on_cpu(source, arrays, 2, tmp_path)
    at = 0
    for dtype, has_starts in ((BF16, False), (np.float32, True)):
        for extents, starts in zip(EXTENTS, STARTS):
            got = np.frombuffer(raw, dtype, groups * k * n, at).reshape(groups, k, n)
            at += got.nbytes
            assert_close(got, contraction(lhs, rhs, extents, starts if has_starts else None), dtype=got.dtype.name)
            assert (got[extents == 0] == 0).all()
    assert at == len(raw)


def with_every_code(w, group, rng):
    """`w`, but in one group all codes, and scales from all over their range."""
    codes = np.resize(np.arange(16, dtype=np.uint8), w.shape[1:])
    if w.format == "int4":
        scales = (rng.uniform(-2, 2, w.scales.shape[1:]) * 2.0 ** rng.integers(-90, 5, w.scales.shape[1:])).astype(BF16)
    else:
        choice = np.delete(np.arange(256), [127, 255]) if w.format == "nvfp4" else np.arange(130, 253)
        scales = rng.choice(choice, w.scales.shape[1:]).astype(np.uint8).view(w.scales.dtype)
    return jf.ScaledTensor(w.data.at[group].set(codes[:, 0::2] | codes[:, 1::2] << 4), w.scales.at[group].set(scales),
                           None, w.format, w.block)  # fmt: skip


KINDS = {("mxfp4", 32): (np.float32, False), ("nvfp4", 16): (BF16, True), ("int4", 32): (np.float32, True),
         ("int4", 64): (BF16, False)}  # fmt: skip
rng = np.random.default_rng(0)
ONCE = slice(143, LAST)  # rows that each read one weight of every column, of all groups with every code among them


def four_bit_operands(kinds, k, columns, contracts):
    """Rows, packed weights `(groups, columns, k)`, and these as numbers."""
    groups, depth = EXTENTS.shape[1], columns if contracts else k
    lhs = rng.normal(size=(M, depth)).astype(BF16)
    lhs[ONCE] = np.resize(np.eye(depth), (ONCE.stop - ONCE.start, depth))
    lhs[LAST:] = np.nan
    factors = rng.choice(np.float32([0.5, 1, 2]), groups)
    arrays, wide = {"lhs": lhs, "extents": EXTENTS, "starts": STARTS, "factors": factors}, []
    for format, block in kinds:
        w = jf.quantize(jnp.asarray(rng.normal(size=(groups, columns, k)), jnp.float32), format, block=(block,))
        packed = jf.repack_weights(with_every_code(w, 7, rng))
        arrays[f"{format}_{block}"] = packed.pieces
        own = np.asarray(unpack_weights(packed, jnp.float32)) / np.asarray(packed.factors)[:, None, None]
        wide.append(own * factors[:, None, None])
    return arrays, wide


def run_four_bit(main, arrays, k, n, tmp_path):
    numbers = {"m": M, "k": k, "n": n, "groups": EXTENTS.shape[1], "problems": len(EXTENTS), "main": main}
    return run_blocks_on_cpu(FOUR_BIT % numbers, arrays, 3, tmp_path)


@pytest.mark.parametrize("contracts", [False, True])
def test_weights_of_four_bits(contracts, tmp_path):
    """Every weight is read exactly, forward, and in products that sum over their columns."""
    k, columns = 192 if contracts else 320, 136  # forward, once around a ring of two stages
    arrays, wide = four_bit_operands(KINDS, k, columns, contracts)
    shape = (columns, k) if contracts else (k, columns)
    raw = run_four_bit(BACK if contracts else FORWARD, arrays, *shape, tmp_path)
    kinds = [*KINDS.values(), (BF16, True), *[(np.float32, False)] * (not contracts)]
    found = results(raw, kinds, shape[1])
    for rhs in [*wide, wide[0], *wide[1:2] * (not contracts)]:
        rhs = rhs if contracts else rhs.swapaxes(1, 2)
        for _ in EXTENTS:
            extents, starts, queued, shared = next(found)
            want = rows(arrays["lhs"], rhs, extents, starts)
            check(queued, shared, want, extents, starts)
            np.testing.assert_array_equal(shared[ONCE], want[ONCE].astype(shared.dtype))
    assert next(found, None) is None


def test_gated_weights_of_four_bits(tmp_path):
    """Two warpgroups make an element together, with rows of no group."""
    k, n = 192, 192
    kinds = {("nvfp4", 16): (BF16, True), ("mxfp4", 32): (np.float32, False)}
    arrays, wide = four_bit_operands(kinds, k, 2 * n, False)
    arrays["addend"] = rng.normal(size=(M, n)).astype(np.float32)
    found = results(run_four_bit(GATED, arrays, k, n, tmp_path), [*kinds.values(), (BF16, True)], n)
    for rhs in [*wide, wide[1]]:
        for _ in EXTENTS:
            extents, starts, queued, shared = next(found)
            np.testing.assert_array_equal(queued.view(np.uint8), shared.view(np.uint8))
            product = rows(arrays["lhs"], rhs.swapaxes(1, 2), extents, starts)
            gate, up = product[:, :n], product[:, n:]
            scale = 1 + np.arange(M)[:, None] % 3 * 0.5
            owned = owned_rows(extents, M, starts)
            group = group_numbers(extents, starts)[:, None]
            want = scale * (gate + group * 0.25) * up + np.arange(n) % 5 + arrays["addend"]
            assert_close(shared[owned], want[owned], dtype=shared.dtype.name, scale=20)
            rest = (np.arange(n) % 5 + arrays["addend"])[~owned]
            assert_close(shared[~owned], rest, dtype=shared.dtype.name)


def group_numbers(extents, starts):
    numbers, at = np.zeros(M), 0
    for group, extent in enumerate(extents):
        first = at if starts is None else starts[group]
        numbers[first : first + extent] = group
        at += extent
    return numbers
