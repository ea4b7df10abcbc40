"""Softmax over the rows of groups in one kernel that reads them once: its program, its fallback, and its numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_text import run_on_cpu
from test_cuda_sources import assert_no_spills, nvrtc_or_skip
from test_ragged_cases import groups, poisoned
from test_tma import hopper_or_skip
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core, _tuned

HOPPER = _core.cuda_target_for(90)


def traced(dtype="bfloat16", shape=(65536, 2048), count=128, f=jf.nested.softmax):
    x, extents = jax.ShapeDtypeStruct(shape, dtype), jax.ShapeDtypeStruct((count,), jnp.int32)
    return str(jf.ir.trace(lambda x, e: f(jf.NestedTensor(x, e)).data, x, extents, name="soft"))


def kernels(text, target=HOPPER):
    return [(k["name"], k["parameters"], k["reason"]) for k in _core.facts(text, target)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("f", [jf.nested.softmax, jf.nested.log_softmax])
def test_it_is_one_kernel_where_a_group_fits_the_device(dtype, f):
    [(name, parameters, reason)] = kernels(traced(dtype, f=f))
    assert name == "soft_softmax" and parameters.startswith("group softmax tile=") and "stay in shared memory" in reason


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_table_of_many_groups_takes_the_place_of_tiles(dtype):
    for count in (256, 500):
        [(_, parameters, _)] = kernels(traced(dtype, count=count))
        assert "slots=1" in parameters


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"shape": (200_000, 256)}, "a group of 200000 rows does not fit"),
        ({"shape": (2000, 257)}, "copies of tiles need rows of a multiple of 16 bytes, got 514"),
        ({"count": 3000}, "its tiles have 64 rows, and groups 21 on average"),
        ({"shape": (65536, 32)}, "tiles of 128 bytes would be half empty, rows have 64"),
    ],
)
def test_others_read_rows_twice_and_explain_says_why(how, why):
    *_, (_, _, reason) = kernels(traced(**how))
    assert "it reads the rows again" in reason and why in reason
    *_, (_, _, reason) = kernels(traced(), _core.cuda_target_for(80))
    assert "compute capability 9.0 or later" in reason


def test_memory_between_kernels_is_enough_for_every_device():
    """Programs that are exported run on devices with one kernel and with five."""
    needs = [_core.workspace_bytes(traced(), _core.cuda_target_for(sm), True) for sm in (80, 90)]
    assert needs[0] == needs[1] > 0


def test_what_only_looks_like_it_keeps_its_kernels():
    def other(nt):
        return nt.replace(data=jnp.where(nt.data > 0, jf.nested.softmax(nt).data, 0))

    assert len(kernels(traced(f=other))) > 1


def test_parameters_that_it_does_not_have_are_refused():
    given = {"rows": 64, "bytes": 128, "slots": 12, "run": 2, "split": 1}
    for wrong in ({}, {"slots": 17}, {"run": 12}, {"run": 0}, {"rows": 96}, {"bytes": 64}, {"split": 0}, {"split": 3}):
        parameters = " ".join(f"{name}={value}" for name, value in {**given, **wrong}.items())
        text = traced(shape=(8192, 2048), count=32) + _tuned.text_of({"soft_softmax": parameters})
        if not wrong:
            assert "slots=12 run=2 split=1" in kernels(text)[0][1]
            continue
        with pytest.raises(jf.UserError, match=r"expected tiles of .* at most 16 slots, .* got group softmax tile="):
            kernels(text)


# Truth is in f64; words of other launches cannot be told from all ones by accident, so they begin so.
MAIN = """
#include <climits>
#include "codegen/cuda_lanes.cuh"
inline unsigned __popc(unsigned x) { return __builtin_popcount(x); }
inline float logf(float x) { return std::log(x); }
inline float expf(float x) { return std::exp(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
namespace jf::ptx {
inline void store_word(unsigned long* to, unsigned long word) { *to = word; }
// The larger of each of two 16-bit floats: these are integers of the same order, but for their signs.
inline unsigned max_nan_bf16x2(unsigned a, unsigned b) {
  const auto larger = [](unsigned short a, unsigned short b) {
    const auto order = [](unsigned short x) { return x >> 15 ? -int(x & 0x7fff) : int(x); };
    return unsigned(order(a) < order(b) ? b : a);
  };
  return larger(a >> 16, b >> 16) << 16 | larger(a, b);
}
inline unsigned max_nan_f16x2(unsigned a, unsigned b) { return max_nan_bf16x2(a, b); }
inline void load_words(const unsigned long* from, unsigned long& first, unsigned long& second) {
  first = from[0], second = from[1];
}
}
#include "grouped/cuda/group_softmax.cuh"
using namespace jf;

float wide(float x) { return x; }
float wide(bf16 x) { return std::bit_cast<float>(unsigned(x.bits) << 16); }
float wide(f16 x) { return ptx::f32_from_f16(x.bits); }
template <class T> T narrow(float x) {
  if constexpr (is_same<T, f32>) return x;
  else return {is_same<T, bf16> ? ptx::bf16_from_f32(x) : ptx::f16_from_f32(x)};
}

template <class T, bool kLog, int kRows, int kBytes, int kSlots, int kRun, int kSplit = kRun>
void run(int blocks, int rows, int columns, std::vector<int> extents, double tolerance, int late = -1) {
  using Kernel = GroupSoftmax<T, kLog, kRows, kBytes, kSlots, kRun, kSplit, 128>;
  const int groups = int(extents.size()), strips = (columns + Kernel::kColumns - 1) / Kernel::kColumns;
  std::vector<T> x(rows * columns), out(x.size(), narrow<T>(7));
  const std::vector<int> given = extents;
  int end = 0;
  for (int& n : extents) n = std::min(std::max(n, 0), rows - end), end += n;
  const auto number = [](unsigned i) { return (i * 40503u >> 4) % 997 / 50.f - 9; };
  for (int i = 0; i < rows * columns; ++i) x[i] = narrow<T>(i < end * columns ? number(i) : NAN);
  // As masks have it: a column of the lowest number, one with some of it.
  const float low = is_same<T, f16> ? -65504 : -0x1.fep127f;
  for (int i = 0; i < end; ++i) x[i * columns + 3] = narrow<T>(low), x[i * columns + 5] = narrow<T>(i % 3 ? low : 2);
  const int parts = rows / kRows * 3 + groups, joined = rows / kRows + 1;
  std::vector<unsigned long> words(long(strips) * Kernel::kColumns * (parts + joined), ~0ul);
  const typename Kernel::Args args = {given.data(), out.data(), words.data(), rows, columns, groups, parts, joined};
  const TensorMap map = {reinterpret_cast<unsigned char*>(x.data()), columns * int(sizeof(T)), rows, sizeof(T), kRows,
                         kBytes, false};
  ptx::launch(blocks, 1, [&](unsigned char* memory) {
    for (int i = 0; int(blockIdx.x) == late && i < 3000; ++i) __syncwarp();
    Kernel::run(reinterpret_cast<char*>(memory), args, map);
  });
  double worst = 0;
  for (int c = 0; c < columns; ++c) {
    for (int g = 0, row = 0; g < groups; row += extents[g++]) {
      double most = -INFINITY, sum = 0;
      for (int r = 0; r < extents[g]; ++r) most = std::max(most, double(wide(x[(row + r) * columns + c])));
      for (int r = 0; r < extents[g]; ++r) sum += std::exp(wide(x[(row + r) * columns + c]) - most);
      for (int r = 0; r < extents[g]; ++r) {
        const int at = (row + r) * columns + c;
        const double log = wide(x[at]) - most - std::log(sum), want = kLog ? log : std::exp(log);
        const double off = std::abs(wide(out[at]) - want) / std::max(std::abs(want), extents[g] == 1 ? 1e-30 : 1e-4);
        worst = off <= worst ? worst : off == off ? off : 1e9;
      }
    }
    for (int r = end; r < rows; ++r) worst = wide(out[r * columns + c]) == 0 ? worst : 1e9;
  }
  std::printf("%s %g\\n", worst < tolerance ? "right" : "WRONG", worst);
  std::fflush(stdout);
}
int main() {
  const std::vector<int> mixed = {40, 0, 1, 300, 17, 0, 133, 128, 5}, one = {0, 0, 700, 0};
  run<bf16, false, 128, 256, 4, 2>(6, 700, 136, mixed, 5e-3);
  run<bf16, false, 128, 256, 3, 1>(6, 720, 264, one, 5e-3);
  run<f16, true, 256, 128, 3, 1>(6, 700, 72, mixed, 2e-3);
  run<f32, false, 128, 256, 4, 1>(6, 700, 132, mixed, 1e-5);
  run<f32, true, 128, 256, 4, 3>(6, 700, 68, one, 1e-5);
  run<bf16, false, 256, 128, 4, 1>(6, 1400, 72, {1300, 7, 0}, 5e-3);
  run<bf16, false, 128, 256, 3, 1>(6, 50, 8, {0, 0, 0}, 5e-3);
  run<bf16, false, 128, 128, 13, 8, 6>(6, 700, 136, mixed, 5e-3);
  run<bf16, false, 64, 128, 13, 4, 3>(6, 1400, 136, {600, 257, 256, 0, 280}, 5e-3);
  run<f16, false, 64, 256, 12, 5, 2>(6, 1700, 136, {320, 321, 1059}, 2e-3);
  run<f32, false, 64, 256, 13, 9, 5>(6, 1900, 132, {1000, 576, 100}, 1e-5, 2);
  run<bf16, false, 64, 256, 8, 3>(6, 700, 136, mixed, 5e-3);
  run<f32, false, 64, 256, 12, 9>(6, 1700, 132, {1500, 0, 3, 140}, 1e-5);
  run<bf16, false, 64, 128, 12, 1>(6, 600, 832, {384, 64, 64}, 5e-3, 5);
  run<bf16, false, 64, 256, 12, 9>(6, 3456, 136, {3456}, 5e-3, 3);
  run<f32, false, 64, 256, 8, 3>(6, 700, 132, {-5, 100, INT_MIN, 300, INT_MAX, 30, INT_MAX}, 1e-5);
}
"""


def test_its_threads_give_every_row_its_share(tmp_path):
    """Its threads on a CPU: mixed groups, all rows in one, none; few and many runs of a strip; edges of columns; the
    lowest number; a row alone, whose logarithms are 0; a block that begins late; extents below 0, beyond the rows."""
    flags = ("-O1", "-DJF_BLOCKS=6", f"-DJF_WARPS={16 * 6}")
    lines = run_on_cpu(MAIN, tmp_path, flags, headers=("warpgroup.h", "hopper_block.h")).decode().splitlines()
    assert len(lines) == 16 and all(line.startswith("right") for line in lines), lines


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_it_compiles_within_its_registers(dtype, tmp_path):
    nvrtc_or_skip()
    for f, count in ((jf.nested.softmax, 128), (jf.nested.log_softmax, 500)):
        [used] = assert_no_spills(traced(dtype, f=f, count=count), tmp_path)
        assert used["REG"] <= 128


def spreads(rows):
    """Extents of groups of 400 to 700 rows: empty ones, single rows, one with most, one with all, fewer than rows."""
    return {
        "mixed": [40, 0, 1, rows - 700, 17, 0, 133, 128, 5],
        "one": [0, 0, rows, 0],
        "none": [0, 0, 0],
        "even": [rows // 8] * 8,
    }


@pytest.fixture
def hopper():
    """The device, as the default."""
    with jax.default_device(found := hopper_or_skip()):
        yield found


@pytest.mark.gpu
@pytest.mark.parametrize("f", [jf.nested.softmax, jf.nested.log_softmax])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("rows", "columns"), [(1300, 136), (40_000, 64), (20_011, 520)])
def test_on_the_device(f, dtype, rows, columns, hopper):
    """Results in memory that held NaN, of rows behind the sum that are NaN."""
    for sizes in spreads(rows).values():
        x = np.random.default_rng(rows).normal(size=(rows, columns)).astype(np.float32) * 3
        x[sum(sizes) :] = np.nan
        x = jnp.asarray(x, dtype)
        got = poisoned(lambda x, e: f(jf.NestedTensor(x, e)).data, x, jnp.asarray(sizes, jnp.int32))
        wide = np.asarray(x.astype("float32"), np.float64)
        for part, result in zip(groups(wide, sizes), groups(np.asarray(got.astype("float32")), sizes)):
            if not len(part):
                continue
            shifted = part - part.max(0)
            log = shifted - np.log(np.exp(shifted).sum(0))
            assert_close(result, log if f is jf.nested.log_softmax else np.exp(log), dtype)
        np.testing.assert_array_equal(np.asarray(got)[sum(sizes) :], 0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_infinities_and_nan_on_the_device(dtype, hopper):
    """As of dense arrays: an infinity leaves NaN, a column of negative ones too; others never notice. Columns of the
    lowest number, as masks have it, are even."""
    x = np.random.default_rng(0).normal(size=(3000, 64)).astype(np.float32)
    x[1500, 0], x[1600, 1], x[1000:2500, 2], x[1700, 3], x[1200:2400, 4] = np.inf, np.nan, -np.inf, -np.inf, -3e38
    x[1000:2500, 5] = x[1600:1700, 6] = float(jnp.finfo(dtype).min)
    x = jnp.asarray(x).astype(dtype)
    sizes = [1000, 1500, 500]
    got = jf.nested.softmax(jf.as_nested(x, extents=sizes)).data
    want = np.concatenate([np.asarray(jax.nn.softmax(jnp.asarray(part), 0)) for part in groups(np.float32(x), sizes)])
    assert_close(np.float32(got), want, dtype)


@pytest.mark.gpu
def test_captured_and_many_at_once_on_the_device(hopper):
    """Eight whose order nothing says, in a graph of XLA, of other groups each time: none keeps another waiting, nor
    takes words of the run before for its own."""
    layouts = [[0, 20_000, 7, 12_000], [32_768, 0, 0, 0], [0, 0, 0, 0], [900, 1, 0, 31_000]]
    cases = [jnp.asarray(sizes, jnp.int32) for sizes in layouts]
    xs = [jax.random.normal(jax.random.key(i), (32_768, 256), jnp.bfloat16) for i in range(8)]
    one = jax.jit(lambda x, sizes: jf.nested.softmax(jf.NestedTensor(x, sizes)).data)
    want = [[np.asarray(one(x, sizes)) for x in xs] for sizes in cases]
    run = jax.jit(lambda xs, sizes: [one(x, sizes) for x in xs])
    for _ in range(5):
        for sizes, results in zip(cases, want):
            for got, alone in zip(run(xs, sizes), results):
                np.testing.assert_array_equal(np.asarray(got).view(np.uint16), alone.view(np.uint16))
