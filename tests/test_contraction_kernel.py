"""The kernel that sums over the rows of groups, on a CPU (hopper_block.h): 16-bit rows as they are, and transposed
8-bit floats with scales for the columns of each group."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from grouped_reference import contraction
from test_fp8_blocks import run_blocks_on_cpu
from tolerances import assert_close

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
K, N, M = 72, 264, 288  # columns of lhs and rhs, rows
# Groups of no row, of parts of a stage, of several stages; one with all rows.
EXTENTS = np.int32([[0, 32, 64, 0, 160, 0, 32], [0, 0, 0, 288, 0, 0, 0]])
STARTS = np.int32([[0, 0, 32, 96, 96, 256, 256], [0] * 7])
MAIN = """
#include "grouped/cuda/hopper_fp8_contraction.cuh"
using namespace jf;
constexpr int k = %d, n = %d, m = %d, groups = %d;

template <class In, class Out, int kN, bool kHasStarts, class Scales>
void run(const char* lhs_name, const char* rhs_name, Scales scales) {
  using Kernel = grouped::HopperContraction<In, Out, kN, 2, 64, kHasStarts, Scales>;
  constexpr int size = sizeof(Out);
  constexpr bool turned = sizeof(In) == 1;
  auto lhs = read(lhs_name), rhs = read(rhs_name), extents = read("extents"), starts = read("starts");
  for (int problem = 0; problem < 2; ++problem) {
    std::vector<unsigned char> out(size * groups * k * n, 255);  // NaN
    const auto map = [&](auto& data, int columns) {
      return turned ? TensorMap{data.data(), m, columns, 1} : TensorMap{data.data(), columns * 2, m, 2};
    };
    const TensorMap lhs_map = map(lhs, k), rhs_map = map(rhs, n), out_map = {out.data(), n * size, k, size};
    const int first = problem * groups;
    const grouped::Ragged ragged = {data<int>(extents) + first, data<int>(starts) + first, groups, m};
    ptx::launch(2, 1, [&](void* memory) { Kernel::run(memory, {lhs_map, rhs_map, out_map}, ragged, k, n, scales); });
    std::fwrite(out.data(), 1, out.size(), stdout);
  }
}

int main() {
  using namespace grouped;
  auto lhs_scales = read("lhs_scales"), rhs_scales = read("rhs_scales");
  const ContractionScales scales = {data<float>(lhs_scales), data<float>(rhs_scales)};
  run<bf16, float, 192, true, NoContractionScales>("lhs", "rhs", {});
  run<Fp8<false, false>, bf16, 192, false, ContractionScales>("lhs8", "rhs8", scales);
  run<Fp8<false, true>, float, 128, true, ContractionScales>("lhs8", "rhs8_e5m2", scales);
}
"""


def test_sums_of_groups(tmp_path):
    groups, rng = EXTENTS.shape[1], np.random.default_rng(0)
    lhs, rhs = (rng.normal(size=(M, c)).astype(BF16) for c in (K, N))
    scales = [rng.uniform(0.5, 2, (groups, c)).astype(np.float32) for c in (K, N)]
    eight = {"lhs8": lhs.T.astype(E4M3), "rhs8": rhs.T.astype(E4M3), "rhs8_e5m2": rhs.T.astype(E5M2)}
    arrays = {"lhs": lhs, "rhs": rhs, "extents": EXTENTS, "starts": STARTS, "lhs_scales": scales[0],
              "rhs_scales": scales[1], **{name: np.ascontiguousarray(a) for name, a in eight.items()}}  # fmt: skip
    raw = run_blocks_on_cpu(MAIN % (K, N, M, groups), arrays, 2, tmp_path)
    both = scales[0][:, :, None] * scales[1][:, None]
    at = 0
    turned = {name: a.T for name, a in eight.items()}
    for x, y, out, starts, factor in (
        (lhs, rhs, np.float32, True, 1),
        (turned["lhs8"], turned["rhs8"], BF16, False, both),
        (turned["lhs8"], turned["rhs8_e5m2"], np.float32, True, both),
    ):
        for problem in range(2):
            got = np.frombuffer(raw, out, groups * K * N, at).reshape(groups, K, N)
            at += got.nbytes
            want = contraction(x, y, EXTENTS[problem], STARTS[problem] if starts else None) * factor
            assert (got[EXTENTS[problem] == 0] == 0).all()
            assert_close(got, want, dtype=jnp.dtype(out).name)
    assert at == len(raw)
