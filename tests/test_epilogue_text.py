"""The printed epilogue and the device code around it, run by a warpgroup of CPU threads: every element gets its own
sums, row, column and group, in full and part tiles, and so does padding."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from device_text import run_on_cpu
from test_grouped_epilogue import EDGES, HOPPER, TAILS, N, arrays, shapes, truth
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core

MAIN = """
#include "grouped/cuda/hopper_epilogue.cuh"
%(functor)s
#include <cstdio>
constexpr int kRows = %(rows)d, kSlices = 2, kResults = Epilogue::kSums == 2 ? 1 : 2, kColumns = 64 * kResults;
std::vector<char> read(int i) {
  char name[16];
  std::snprintf(name, sizeof(name), "%%d.bin", i);
  std::FILE* file = std::fopen(name, "rb");
  std::vector<char> bytes;
  for (int c; (c = std::fgetc(file)) != EOF;) bytes.push_back(static_cast<char>(c));
  std::fclose(file);
  return bytes;
}
int main() {
  using namespace jf::grouped;
  const int m = %(m)d, product = %(product)d, n = %(n)d, groups = %(groups)d;
  const auto sums_in = read(0), extents = read(1);
%(members)s
  const auto* y = reinterpret_cast<const float*>(sums_in.data());
  const Ragged ragged = {reinterpret_cast<const int*>(extents.data()), nullptr, groups, m};
  std::vector<jf::bf16> out(m * n, jf::bf16{0x7fc0});
  const auto thread = [&] {
    const unsigned id = threadIdx.x;
    for (int g = 0, first = 0; g < groups; first += ragged.extents[g++]) {
      for (int row = first; row < first + ragged.extents[g]; row += kRows) {
        const RowUnit unit = {g, row, std::min(kRows, first + ragged.extents[g] - row), 0};
        for (int column = 0; column < n; column += kColumns) {
          // As the product leaves them: see HopperStore.
          float sums[kSlices][kRows / 2];
          const auto at = [&](int i, auto use) {
            const int r = i / 4 * 8 + id %% 4 * 2 + i %% 2, c = id / 32 * 16 + id %% 32 / 4 + i / 2 %% 2 * 8;
            for (int slice = 0; slice < kSlices; ++slice) use(slice, r, slice * 64 * (kResults - 1) + c);
          };
          for (int i = 0; i < kRows / 2; ++i) {
            at(i, [&](int slice, int r, int c) {
              const int from = column + c + (Epilogue::kSums == 2 ? Epilogue::first(slice) : 0);
              sums[slice][i] = r < unit.count && from < product ? y[(row + r) * product + from] : NAN;
            });
          }
          if constexpr (Epilogue::kTiles == 0) {
            apply<kRows>(epilogue, sums, unit, column, n);
          } else {
            const auto group = epilogue.group(unit.group);
            Epilogue::Row own;
            for (int r = 0; r < unit.count; r += 8) {
              if (r %% 32 == 0) own = row_of_lane(epilogue, group, unit, r);
              for (int slice = 0; slice < kResults; ++slice) {
                const int from = column + slice * 64;
                float tile[4];
                for (int i = 0; i < 4; ++i) {
                  const int c = id / 32 * 16 + id %% 32 / 4 + i / 2 * 8;
                  const int there = min(row + r + int(id) %% 4 * 2 + i %% 2, m - 1);
                  tile[i] = epilogue.tile(there, min(from + c, n - 1));
                }
                apply_to_eight<1, kRows>(epilogue, group, own, sums, tile, unit, r, slice, from, n);
              }
            }
          }
          for (int i = 0; i < kRows / 2; ++i) {
            at(i, [&](int slice, int r, int c) {
              if (slice >= kResults || r >= unit.count || column + c >= n) return;
              out[(row + r) * n + column + c].bits = jf::ptx::bf16_from_f32(sums[slice][i]);
            });
          }
        }
      }
    }
    apply_to_padding<false>(epilogue, ragged, out.data(), n, id / 32, 4);
  };
  run_threads(128, [](Thread& t, int i) { t.thread.x = i; }, thread);
  std::fwrite(out.data(), 2, out.size(), stdout);
}
"""


@pytest.mark.parametrize("extents", [None, [0, 0, 1, 0], [1], [0, 0]])
@pytest.mark.parametrize(
    "tail",
    [
        "bias, swiglu and scale",
        "gelu",
        "fuse around it",
        "residual",
        "a residual of a gated product",
        "a residual beside another column",
    ],
)
def test_every_element_gets_its_own(tail, extents, tmp_path):
    """Of many rows, or of one row in one of some groups, in the only one, in none."""
    edge = EDGES["odd" if tail == "fuse around it" else "empty groups"]
    given = arrays(extents or edge, **({"m": 1} if extents else {}))
    m = len(given[0])
    program = str(jf.ir.trace(TAILS[tail][0], *shapes(m=m, groups=len(extents or edge))))
    stages = _core.stages(program, HOPPER)
    source = stages["source"][stages["source"].rindex('#include "grouped/') :]
    functor = source[source.index('#include "codegen') : source.index("// tile=")]
    types = re.findall(r"(const jf::\w+\*) __restrict__ e\d", source)
    [line] = [line for line in stages["host"].splitlines() if "epilogue" in line]
    refs = re.findall(r"(\w+) (?:\+ )?(\d+)[,)]", line[line.rindex("(") :])
    refs = refs[len(refs) - len(types) :]
    assert all(kind == "input" for kind, _ in refs)
    x, w, extents = (np.asarray(a, None if a.dtype == jnp.int32 else np.float32) for a in given[:3])
    y, first = np.full((m, N), np.nan, np.float32), 0
    for g, count in enumerate(extents):
        y[first : first + count] = x[first : first + count] @ w[g]
        first += count
    for i, array in enumerate([y, extents, *(given[int(n)] for _, n in refs)]):
        (tmp_path / f"{i}.bin").write_bytes(np.asarray(array).tobytes())
    members = [f"  const auto e{i} = read({i + 2});\n" for i in range(len(types))]
    values = ", ".join(f"reinterpret_cast<{t}>(e{i}.data())" for i, t in enumerate(types))
    want = truth(tail, *given)
    main = MAIN % {"functor": functor, "rows": int(re.findall(r"HopperTile<(\d+)", source)[0]), "m": m, "product": N,
                   "n": want.shape[1], "groups": len(extents),
                   "members": "".join(members) + f"  const Epilogue epilogue = {{{values}}};"}  # fmt: skip
    got = np.frombuffer(run_on_cpu(main, tmp_path), jnp.bfloat16).reshape(want.shape)
    assert_close(got, want)
