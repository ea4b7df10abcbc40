"""Epilogues of several results: what they are part of, and the device code run by a warpgroup of CPU threads, with
shared memory, tensor copies and barriers that do at once what the GPU does in time."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_text import run_on_cpu
from jax.extend.core import ClosedJaxpr
from jax.interpreters import partial_eval as pe
from test_cuda_sources import assert_no_spills, nvrtc_or_skip
from test_grouped_epilogue import BF16, EDGES, F32, HOPPER, kernels, programs
from test_grouped_hopper import sass
from test_tma import hopper_or_skip
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core
from jax_fuser._activations import GATED
from jax_fuser._expert_rows import NAMED
from jax_fuser._grouped_tail import product_and_tail, tail_backward

M, K, F = 700, 64, 136

HARDWARE = """
struct int4 { int x, y, z, w; };
namespace jf {
struct TensorMap { unsigned short* data; int rows, columns, pitch; };  // boxes of 32 rows by 64 columns
namespace ptx {
alignas(1024) inline unsigned char memory[1 << 16];
inline int phases[64];
inline int awaited[64];
template <int kThreads>
void meet(int) {
  static Barrier barrier(kThreads);
  barrier.arrive_and_wait();
}
template <int>
void bulk_wait_read() {}
inline void bulk_commit() {}
inline void fence_async_shared() {}
inline void mbarrier_arrive_expect(unsigned barrier, unsigned bytes) { awaited[barrier / 8] += bytes; }
inline void mbarrier_wait(unsigned barrier, unsigned parity) {
  const int& phase = phases[barrier / 8];
  while ((phase & 1) == static_cast<int>(parity)) wait_while(phase, int{phase});
}
template <class Use>
void for_box(unsigned shared, const TensorMap& map, int column, int row, Use use) {
  for (int i = 0; i < 32; ++i) {
    for (int j = 0; j < 64; ++j) {
      auto* at = reinterpret_cast<unsigned short*>(memory + shared + i * 128 + ((j / 8) ^ (i % 8)) * 16 + j % 8 * 2);
      const bool inside = row + i < map.rows && column + j < map.columns;
      use(at, inside ? map.data + (row + i) * map.pitch + column + j : nullptr);
    }
  }
}
inline void tile_load(unsigned shared, const void* map, unsigned barrier, int column, int row) {
  for_box(shared, *static_cast<const TensorMap*>(map), column, row,
          [](auto* to, auto* from) { *to = from ? *from : 0; });
  if ((awaited[barrier / 8] -= 4096) == 0) ++phases[barrier / 8];
}
inline void tile_store(const void* map, unsigned shared, int column, int row) {
  for_box(shared, *static_cast<const TensorMap*>(map), column, row, [](auto* from, auto* to) { if (to) *to = *from; });
}
inline int4 ld_shared4(unsigned at) { int4 w; std::memcpy(&w, memory + at, sizeof(w)); return w; }
inline uint2 ld_shared2(unsigned at) { uint2 w; std::memcpy(&w, memory + at, sizeof(w)); return w; }
inline void st_shared(unsigned at, uint2 words) { std::memcpy(memory + at, &words, sizeof(words)); }
inline void st_shared(unsigned at, float value) { std::memcpy(memory + at, &value, sizeof(value)); }
inline unsigned shared_address(const void*) { return 0; }
inline void stmatrix_x4(unsigned, const unsigned (&)[4]) { std::abort(); }
inline void stmatrix_x4_trans(unsigned address, const unsigned (&words)[4]) {
  const unsigned lane = threadIdx.x % 32;
  for (int i = 0; i < 4; ++i) {
    for (int half = 0; half < 2; ++half) {
      const unsigned to = __shfl_sync(~0u, address, i * 8 + lane % 4 * 2 + half) + lane / 4 * 2;
      const unsigned short value = words[i] >> 16 * half;
      std::memcpy(memory + to, &value, 2);
    }
  }
}
}  // namespace ptx
}  // namespace jf
"""

READ = """
#include "grouped/cuda/hopper_several.cuh"
%(functor)s
#include <cstdio>
template <class T>
std::vector<T> read(const char* name, size_t count) {
  std::vector<T> values(count);
  std::FILE* file = std::fopen(name, "rb");
  if (std::fread(values.data(), sizeof(T), count, file) != count) std::abort();
  std::fclose(file);
  return values;
}
"""

MAIN = (
    READ
    + """
int main() {
  using namespace jf::grouped;
  constexpr int m = %(m)d, n = %(n)d, groups = %(groups)d, kRows = %(rows)d, kParts = (n + 63) / 64;
  const auto y = read<float>("y", m * n);
  const auto extents = read<int>("extents", groups);
  auto before = read<jf::bf16>("before", m * 2 * n);
  const auto scale = read<float>("scale", m);
  std::vector<jf::bf16> d_before(m * 2 * n, jf::bf16{0x7fc0}), again(m * n, jf::bf16{0x7fc0});
  std::vector<float> partial(kParts * m, NAN);
  const auto map = [](auto& array, int columns, int pitch) {
    return jf::TensorMap{&array[0].bits, m, columns, pitch};
  };
  const jf::TensorMap in = map(before, 2 * n, 2 * n), gate = map(d_before, n, 2 * n), up = map(d_before, 2 * n, 2 * n),
                      out = map(again, n, n);
  const Ragged ragged = {extents.data(), nullptr, groups, m};
  const Epilogue epilogue = {before.data(), scale.data()};
  using Several = HopperSeveral<jf::bf16, kRows, Epilogue>;
  const Several::Memory memory = {
      {{&out, again.data(), n, 0}, {&gate, d_before.data(), 2 * n, 0}, {&up, d_before.data(), 2 * n, n}}, {&in, &in},
      partial.data()};
  const auto thread = [&] {
    const unsigned id = threadIdx.x;
    Several several(1024, 8, memory);
    for (int g = 0, first = 0; g < groups; first += ragged.extents[g++]) {
      for (int row = first; row < first + ragged.extents[g]; row += kRows) {
        for (int column = 0; column < n + 128; column += 128) {  // a cluster's second block may have none
          const RowUnit unit = {g, row, std::min(kRows, first + ragged.extents[g] - row), column};
          float sums[2][kRows / 2];
          for (int slice = 0; slice < 2; ++slice) {
            for (int i = 0; i < kRows / 2; ++i) {
              const int r = i / 4 * 8 + id %% 4 * 2 + i %% 2;
              const int c = column + slice * 64 + id / 32 * 16 + id %% 32 / 4 + i / 2 %% 2 * 8;
              sums[slice][i] = r < unit.count && c < n ? y[(row + r) * n + c] : NAN;
            }
          }
          several.begin(unit, n);
          several.finish(epilogue, sums, unit, n, m);
        }
      }
    }
    Several::padding<false>(epilogue, ragged, memory, n, id / 32, 4);
  };
  run_threads(128, [](Thread& t, int i) { t.thread.x = i; }, thread);
  std::fwrite(d_before.data(), 2, d_before.size(), stdout);
  std::fwrite(again.data(), 2, again.size(), stdout);
  std::fwrite(partial.data(), 4, partial.size(), stdout);
}
"""
)


# The sums, h [m, kSums * n], are stored, and of them one result, or two that read an array each, [m, n].
KEEPS = (
    READ
    + """
int main() {
  using namespace jf::grouped;
  constexpr int m = %(m)d, n = %(n)d, groups = %(groups)d, kRows = %(rows)d, kSums = Epilogue::kSums;
  constexpr int kSlices = kSums == 2 ? 1 : 2, kColumns = 64 * kSlices;
  const auto h = read<float>("h", m * kSums * n);
  const auto extents = read<int>("extents", groups);
  const auto scale = read<float>("scale", m);
  auto r = read<jf::bf16>("r", m * n), q = read<jf::bf16>("q", m * n);
  const jf::bf16 nan{0x7fc0};
  std::vector<jf::bf16> product(m * kSums * n, nan), result(m * n, nan), other(m * n, nan);
  const auto map = [](auto& array, int columns, int pitch) {
    return jf::TensorMap{&array[0].bits, m, columns, pitch};
  };
  const jf::TensorMap out = map(result, n, n), more = map(other, n, n), first = map(product, n, kSums * n),
                      second = map(product, 2 * n, kSums * n), tile_r = map(r, n, n), tile_q = map(q, n, n);
  const Ragged ragged = {extents.data(), nullptr, groups, m};
  const Epilogue epilogue = {%(members)s};
  using Several = HopperSeveral<jf::bf16, kRows, Epilogue>;
  static_assert(Epilogue::kKeeps && Epilogue::kResults == %(results)d && Epilogue::kTiles == %(tiles)d);
  const Several::Memory memory = {
      {{&out, result.data(), n, 0}, %(more)s {&first, product.data(), kSums * n, 0} %(second)s}, {%(maps)s}, nullptr};
  const auto thread = [&] {
    const unsigned id = threadIdx.x;
    Several several(1024, 8, memory);
    for (int g = 0, begin = 0; g < groups; begin += ragged.extents[g++]) {
      for (int row = begin; row < begin + ragged.extents[g]; row += kRows) {
        for (int column = 0; column < n + kColumns; column += kColumns) {
          const RowUnit unit = {g, row, std::min(kRows, begin + ragged.extents[g] - row), column};
          float sums[2][kRows / 2];
          for (int slice = 0; slice < 2; ++slice) {
            for (int i = 0; i < kRows / 2; ++i) {
              const int r = i / 4 * 8 + id %% 4 * 2 + i %% 2;
              const int c = column + (kSums == 2 ? 0 : slice * 64) + id / 32 * 16 + id %% 32 / 4 + i / 2 %% 2 * 8;
              const int of_sum = kSums == 2 ? Epilogue::first(slice) : 0;
              sums[slice][i] = r < unit.count && c < n ? h[(row + r) * kSums * n + of_sum + c] : NAN;
            }
          }
          several.begin(unit, n);
          several.finish(epilogue, sums, unit, n, m);
        }
      }
    }
    Several::padding<false>(epilogue, ragged, memory, n, id / 32, 4);
  };
  run_threads(128, [](Thread& t, int i) { t.thread.x = i; }, thread);
  std::fwrite(product.data(), 2, product.size(), stdout);
  std::fwrite(result.data(), 2, result.size(), stdout);
  std::fwrite(other.data(), 2, other.size(), stdout);
}
"""
)
ONE_RESULT = {"members": "scale.data()", "results": 1, "tiles": 0, "more": "", "maps": ""}
TWO_RESULTS = {"members": "r.data(), q.data()", "results": 2, "tiles": 2, "more": "{&more, other.data(), n, 0},",
               "maps": "&tile_r, &tile_q"}  # fmt: skip


def backward(cotangent, w2, extents, before, scale):
    return tail_backward(cotangent, w2, extents, before, scale, activation=GATED["swiglu"], gated=True,
                         wanted=(True, True, True))  # fmt: skip


def shapes(groups=7, m=M, k=K, f=F):
    kinds = [((m, k), BF16), ((groups, f, k), BF16), ((groups,), jnp.int32), ((m, 2 * f), BF16), ((m,), F32)]
    return [jax.ShapeDtypeStruct(*kind) for kind in kinds]


def arrays(extents, f=F):
    rng, owned = np.random.default_rng(1), np.arange(M) < sum(extents)
    cotangent = np.where(owned[:, None], rng.normal(size=(M, K)), np.nan)  # padding is never read
    before, scale = rng.normal(size=(M, 2 * f)) * owned[:, None], rng.uniform(0.5, 2, M) * owned
    w2 = rng.normal(size=(len(extents), f, K)) * K**-0.5
    return [jnp.asarray(cotangent, BF16), jnp.asarray(w2, BF16), jnp.asarray(extents, jnp.int32),
            jnp.asarray(before, BF16), jnp.asarray(scale, F32)]  # fmt: skip


def truth(back, before, scale):
    """Return the derivatives by `before` and `scale` and the tail's result, of the product's derivative."""

    def tail(before, scale):
        gate, up = jnp.split(before.astype(F32), 2, axis=1)
        return jax.nn.silu(gate) * up * scale[:, None]

    out, pull = jax.vjp(tail, before.astype(F32), scale)
    return [*pull(jnp.asarray(back, F32)), out]


def product(cotangent, w2, extents, *_):
    back, first = np.zeros((M, w2.shape[1]), np.float32), 0
    for g, count in enumerate(np.asarray(extents)):
        rows = slice(first, first + count)
        back[rows] = np.asarray(cotangent, np.float32)[rows] @ np.asarray(w2, np.float32)[g].T
        first += count
    return back


def test_backward_of_a_gated_tail_is_one_kernel():
    given = shapes()
    fused, sums = kernels(backward, given)
    assert fused["entry"] == "jf_grouped_rows_fused" and sums["strategy"] == "reduction"
    assert sums["reads"][0][2] == [3, M]  # a number for each 64 of 136 columns
    [program] = programs(backward, given)
    hopper, ampere = (_core.workspace_bytes(program, _core.cuda_target_for(sm), portable=True) for sm in (90, 80))
    assert hopper == ampere


def test_the_layer_has_no_derivative_between_its_products_in_memory():
    def loss(x, weights, w13, w2, experts):
        return jf.moe.mlp(x, experts, weights, w13, w2).astype(F32).sum()

    given = [((64, 32), BF16), ((64, 2), F32), ((4, 32, 256), BF16), ((4, 128, 32), BF16), ((64, 2), jnp.int32)]
    ran = kernels(jax.grad(loss, range(4)), [jax.ShapeDtypeStruct(*kind) for kind in given])
    [fused] = [k for k in ran if k["entry"] == "jf_grouped_rows_fused"]
    assert [w[2] for w in fused["writes"]] == [[128, 128]] * 3 + [[128]]
    assert sum("grouped" in k["entry"] for k in ran) == 5  # a sum does not ask for the second product forward


@pytest.mark.parametrize("edge", ["odd", "empty groups"])
def test_every_element_gets_its_own(edge, tmp_path):
    given = arrays(EDGES[edge])
    [program] = programs(backward, shapes())
    source = _core.stages(program, HOPPER)["source"]
    source = source[source.rindex('#include "grouped/') :]
    places = re.findall(r"\{&out_map\d*, out\d*, (\d+), (\d+)\}", source)
    assert places == [(str(F), "0"), (str(2 * F), "0"), (str(2 * F), str(F))]
    assert "Epilogue{e0, e1}" in source and "tile == 0 ? 0 : 136" in source
    back = product(*given)
    first = sum(EDGES[edge])
    y = np.where(np.arange(M)[:, None] < first, back, np.nan)
    for name, array in (("y", y), ("extents", given[2]), ("before", given[3]), ("scale", given[4])):
        (tmp_path / name).write_bytes(np.asarray(array).tobytes())
    functor = source[source.index('#include "codegen') : source.index("// tile=")]
    rows = int(re.findall(r"HopperTile<(\d+)", source)[0])
    main = HARDWARE + MAIN % {"functor": functor, "m": M, "n": F, "groups": 7, "rows": rows}
    raw = run_on_cpu(main, tmp_path)
    d_before = np.frombuffer(raw[: M * 2 * F * 2], BF16).reshape(M, 2 * F)
    again = np.frombuffer(raw[M * 2 * F * 2 : M * 3 * F * 2], BF16).reshape(M, F)
    partial = np.frombuffer(raw[M * 3 * F * 2 :], np.float32).reshape(-1, M)
    want = truth(np.asarray(jnp.asarray(back, BF16), np.float32), *given[3:])
    for got, expected in zip((d_before, partial.sum(0), again), want):
        assert_close(got, expected, BF16)


def forward(name, n):
    """Return a product with its activation, both results, and their columns."""
    activation, gated = NAMED[name], name in GATED

    def f(x, rhs, extents, scale):
        return product_and_tail(x, rhs, extents, None, None, scale, transpose_rhs=False, activation=activation,
                                gated=gated, dtype=BF16, keeps=True)  # fmt: skip

    return f, n * (2 if gated else 1)


def forward_shapes(columns, groups=7, m=M, k=K):
    kinds = [((m, k), BF16), ((groups, k, columns), BF16), ((groups,), jnp.int32), ((m,), F32)]
    return [jax.ShapeDtypeStruct(*kind) for kind in kinds]


@pytest.mark.parametrize("activation", ["swiglu", "gelu", "relu"])
def test_a_product_that_is_needed_is_stored_by_the_kernel_of_its_activation(activation):
    f, columns = forward(activation, F)
    given = forward_shapes(columns)
    [kernel] = kernels(f, given)
    assert kernel["entry"] == "jf_grouped_rows_fused" and "which are stored, too" in kernel["reason"]
    assert [w[2] for w in kernel["writes"]] == [[M, F], [M, columns]]
    older = [k["entry"] for k in kernels(f, given, _core.cuda_target_for(80))]
    assert [entry for entry in older if "grouped" in entry] == ["jf_grouped_rows"]


@pytest.mark.parametrize("through", ["grad", "value_and_grad of fuse", "fuse of value_and_grad", "checkpoint"])
@pytest.mark.parametrize("activation", ["swiglu", "gelu"])
def test_training_has_the_activation_in_the_kernel_of_its_product(activation, through):
    gated = activation in GATED
    given = [((64, 32), BF16), ((4, 32, 128 * (1 + gated)), BF16), ((4, 128, 32), BF16), ((4,), jnp.int32)]

    def loss(x, w1, w2, extents):
        h = jf.grouped_matmul(x, w1, extents, activation=activation)
        return (jf.grouped_matmul(h, w2, extents).astype(F32) ** 2).sum()

    f = {
        "grad": jax.grad(loss, (0, 1, 2)),
        "value_and_grad of fuse": jax.value_and_grad(jf.fuse(loss), (0, 1, 2)),
        "fuse of value_and_grad": jf.fuse(jax.value_and_grad(loss, (0, 1, 2))),
        "checkpoint": jax.grad(jax.checkpoint(loss), (0, 1, 2)),
    }[through]
    ran = kernels(f, [jax.ShapeDtypeStruct(*kind) for kind in given])
    fused = [k for k in ran if k["entry"] == "jf_grouped_rows_fused" and "stored, too" in k["reason"]]
    assert [[w[2] for w in k["writes"]] for k in fused][:1] == [[[64, 128], [64, 128 * (1 + gated)]]]
    assert sum("grouped" in k["entry"] for k in ran) == 6


@pytest.mark.parametrize("which, entry", [(0, "jf_grouped_rows_fused"), (1, "jf_grouped_rows")])
def test_what_no_one_reads_is_not_stored(which, entry):
    f, columns = forward("swiglu", F)
    one = jax.jit(lambda *given: f(*given)[which].astype(F32).sum())
    jaxpr, used = pe.dce_jaxpr(jax.make_jaxpr(one)(*forward_shapes(columns)).jaxpr, [True])
    assert used == [True, True, True, which == 0]
    left = [s for s, u in zip(forward_shapes(columns), used) if u]
    ran = kernels(jax.extend.core.jaxpr_as_fun(ClosedJaxpr(jaxpr, ())), left)
    assert [(k["entry"], len(k["writes"])) for k in ran if "grouped" in k["entry"]] == [(entry, 1)]


@pytest.mark.parametrize("activation", ["swiglu", "gelu"])
@pytest.mark.parametrize("edge", ["odd", "empty groups"])
def test_a_kept_product_and_its_activation_are_those_of_every_place(activation, edge, tmp_path):
    f, columns = forward(activation, F)
    [program] = programs(f, forward_shapes(columns))
    source = _core.stages(program, HOPPER)["source"]
    source = source[source.rindex('#include "grouped/') :]
    places = re.findall(r"\{&out_map\d*, out\d*, (\d+), (\d+)\}", source)
    firsts = range(0, columns, F)
    assert places == [(str(F), "0"), *((str(columns), str(first)) for first in firsts)]
    h, scale, _, _, kept, result, _ = run_kept(source, columns, edge, ONE_RESULT, tmp_path)
    owned = np.arange(M) < sum(EDGES[edge])
    np.testing.assert_array_equal(kept, h)
    want = NAMED[activation](jnp.asarray(h[:, :F], F32))
    want = want * h[:, F:].astype(np.float32) if columns > F else want
    assert_close(result, np.where(owned[:, None], want * scale[:, None], 0), BF16)


def run_kept(source, columns, edge, what, tmp_path):
    """Return h, rounded, zero in rows of no group, scale, r and q, then what device code stores: h and two results."""
    rng, owned = np.random.default_rng(2), np.arange(M) < sum(EDGES[edge])
    h = rng.normal(size=(M, columns)).astype(np.float32)
    scale = np.where(owned, rng.uniform(0.5, 2, M), np.nan).astype(np.float32)
    r, q = (np.asarray(jnp.asarray(rng.normal(size=(M, F)), BF16)) for _ in range(2))
    extents = np.asarray(EDGES[edge], np.int32)
    for name, array in (("h", h), ("extents", extents), ("scale", scale), ("r", r), ("q", q)):
        (tmp_path / name).write_bytes(array.tobytes())
    functor = source[source.index('#include "codegen') : source.index("// tile=")]
    rows = int(re.findall(r"HopperTile<(\d+)", source)[0])
    second = f", {{&second, product.data(), {columns}, {F}}}" if columns > F else ""
    shape = {"functor": functor, "m": M, "n": F, "groups": 7, "rows": rows, "second": second}
    raw = run_on_cpu(HARDWARE + KEEPS % {**shape, **what}, tmp_path)
    stored = np.split(np.frombuffer(raw, BF16), [M * columns, M * (columns + F)])
    rounded = np.asarray(jnp.asarray(np.where(owned[:, None], h, 0), BF16))
    return rounded, scale, r, q, stored[0].reshape(M, columns), *(a.reshape(M, F) for a in stored[1:])


@pytest.mark.parametrize("edge", ["odd", "empty groups"])
def test_two_results_of_gates_that_read_arrays_beside_a_kept_product(edge, tmp_path):
    def f(x, rhs, extents, r, q):
        h = jf.grouped_matmul(x, rhs, extents)
        gate, up = jnp.split(h.astype(F32), 2, axis=1)
        return (jax.nn.silu(gate) * up + r.astype(F32)).astype(BF16), (gate * q.astype(F32)).astype(BF16), h

    given = [*forward_shapes(2 * F)[:3], *[jax.ShapeDtypeStruct((M, F), BF16)] * 2]
    [source] = [_core.stages(p, HOPPER)["source"] for p in programs(jf.fuse(f), given) if "grouped_matmul(" in p]
    source = source[source.rindex('#include "grouped/') :]
    h, _, r, q, kept, first, second = run_kept(source, 2 * F, edge, TWO_RESULTS, tmp_path)
    np.testing.assert_array_equal(kept, h)
    gate, up = (h[:, columns].astype(np.float32) for columns in (slice(F), slice(F, None)))
    assert_close(first, jax.nn.silu(gate) * up + r.astype(np.float32), BF16)
    assert_close(second, gate * q.astype(np.float32), BF16)


@pytest.mark.parametrize("activation", ["swiglu", "gelu"])
def test_a_kept_product_compiles_without_spills(activation, tmp_path):
    nvrtc_or_skip()
    f, columns = forward(activation, 768)
    [program] = programs(f, forward_shapes(columns, 16, 8192, 2048))
    [used] = assert_no_spills(program, tmp_path)
    assert used["STACK"] == 0 and used["REG"] <= 168
    [(_, _, cubin)] = _core.compile_cuda(program, HOPPER)
    (tmp_path / "product.cubin").write_bytes(cubin)
    text = sass(tmp_path / "product.cubin")
    assert 0 < text.count("WARPGROUP.DEPBAR") <= text.count("HGMMA") // 2 + 1  # products overlap


def test_it_compiles_without_spills(tmp_path):
    nvrtc_or_skip()
    [program] = programs(backward, shapes(16, 8192, 2048, 768))
    for used in assert_no_spills(program, tmp_path):
        assert used["STACK"] == 0 and used["REG"] <= 168
    [product] = [cubin for entry, _, cubin in _core.compile_cuda(program, HOPPER) if entry == "jf_grouped_rows_fused"]
    (tmp_path / "product.cubin").write_bytes(product)
    text = sass(tmp_path / "product.cubin")
    assert "UTMALDG" in text and "UTMASTG" in text
    assert 0 < text.count("WARPGROUP.DEPBAR") <= text.count("HGMMA") // 2 + 1  # products overlap


@pytest.mark.gpu
@pytest.mark.parametrize("f", [72, 136, 1160])
@pytest.mark.parametrize("edge", EDGES)
def test_numbers_on_hopper(edge, f):
    device = hopper_or_skip()
    given = arrays(EDGES[edge], f)
    want = truth(product(*given), *given[3:])
    with jax.default_device(device):
        operands = jax.device_put(given, device)
        jax.block_until_ready([jnp.full(w.shape, jnp.nan, BF16) for w in want])  # what the results' memory may hold
        got, again = jax.jit(backward)(*operands), jax.jit(backward)(*operands)
    owned = sum(EDGES[edge])  # rows behind them may hold anything
    for a, b, w in zip(*([r[:owned] for r in results] for results in (got, again, want))):
        np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))
        assert_close(a, w, BF16)


@pytest.mark.gpu
@pytest.mark.parametrize("f", [72, 136, 1160])
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("activation", ["swiglu", "gelu"])
def test_a_kept_product_on_hopper(activation, edge, f):
    device = hopper_or_skip()
    both, columns = forward(activation, f)
    rng, owned = np.random.default_rng(3), np.arange(M) < sum(EDGES[edge])
    x = jnp.asarray(np.where(owned[:, None], rng.normal(size=(M, K)), np.nan), BF16)
    rhs = jnp.asarray(rng.normal(size=(7, K, columns)) * K**-0.5, BF16)
    scale = jnp.asarray(np.where(owned, rng.uniform(0.5, 2, M), np.nan), F32)
    extents = jnp.asarray(EDGES[edge], jnp.int32)
    h = product(x, np.swapaxes(np.asarray(rhs, np.float32), 1, 2), extents)
    want = NAMED[activation](jnp.asarray(h[:, :f]))
    want = want * h[:, f:] if columns > f else want
    want = np.where(owned[:, None], want * np.asarray(scale)[:, None], 0)
    with jax.default_device(device):
        operands = jax.device_put([x, rhs, extents, scale], device)
        jax.block_until_ready([jnp.full((M, c), jnp.nan, BF16) for c in (f, columns)])
        got, again = jax.jit(both)(*operands), jax.jit(both)(*operands)
    for a, b, w in zip(got, again, (want, h)):
        np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))
        assert_close(a, w, BF16)
