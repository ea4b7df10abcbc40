"""Rows spread and added by index on GPUs: the kernels on a CPU, their instructions, and where sums of rows ask them."""

import functools

import arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_text import run_on_cpu
from jax import export
from test_cuda_sources import assert_no_spills, nvrtc_or_skip
from tolerances import assert_close

from jax_fuser import _core, _sum_rows, moe
from jax_fuser._sum_rows import sum_rows

HOPPER = _core.cuda_target_for(90)


def relation(rng, sources, results, uses, share=0.6):
    """Return int32 (results, 1) and (sources, uses), in which a part of the results is a row and some sources none."""
    places = np.flatnonzero(rng.random(sources * uses) < share)
    places = rng.permutation(places[places // uses % 5 != 2])[:results]
    row = rng.permutation(results)[: len(places)].astype(np.int32)
    take, back = np.full(results, -1, np.int32), np.full(sources * uses, -1, np.int32)
    take[row], back[places] = places // uses, row
    return take[:, None], back.reshape(sources, uses)


MAIN = """
#include <type_traits>
inline void __stcs(uint4* to, uint4 value) { *to = value; }
#include "grouped/cuda/move_rows.cuh"
using namespace jf;

template <class Kernel>
void run(std::string number, long sources, long rows, long vectors, int terms) {
  auto x = read(("x" + number).c_str()), index = read(("index" + number).c_str());
  auto take = read(("take" + number).c_str());
  std::vector<unsigned char> out(rows * vectors * 16, 0xee);
  typename Kernel::Args args;
  args.x = data<uint4>(x), args.out = reinterpret_cast<uint4*>(out.data());
  args.sources = sources, args.rows = rows, args.vectors = vectors;
  if constexpr (requires { args.back; }) {
    args.take = data<int>(take), args.back = data<int>(index), args.uses = terms;
  } else {
    args.take = data<int>(index), args.terms = terms;
  }
  ptx::launch(JF_BLOCKS, 1, [&](void*) { Kernel::run(args); });
  std::fwrite(out.data(), 1, out.size(), stdout);
}
int main() { %s }
"""


def test_the_kernels_do_what_numpy_does(tmp_path):
    """More uses than a warp has lanes, rows of several pieces and parts of one, indices outside, no index at all."""
    rng = np.random.default_rng(0)
    calls, wanted = "", []

    def call(kernel, x, index, rows, take=()):
        number = len(wanted)
        (tmp_path / f"take{number}").write_bytes(np.array(take, np.int32).tobytes())
        (tmp_path / f"x{number}").write_bytes(np.ascontiguousarray(x).tobytes())
        (tmp_path / f"index{number}").write_bytes(np.ascontiguousarray(index, np.int32).tobytes())
        vectors = x[0].nbytes // 16
        return f'run<{kernel}>("{number}", {len(x)}, {rows}, {vectors}, {index.shape[1]});'

    for sources, rows, uses, vectors in ((7, 40, 40, 3), (5, 12, 3, 600), (3, 4, 1, 256)):
        x = rng.integers(0, 256, (sources, vectors * 16), np.uint8)
        take, back = relation(rng, sources, rows, uses)
        used = take[:, 0] >= 0
        back[back < 0] = rng.choice([-1, -(2**31), rows, 2**31 - 1], np.sum(back < 0))
        take[~used] = rng.choice([-1, -(2**31), sources, 2**31 - 1], (np.sum(~used), 1))
        for zeros, other in (("false", 0xEE), ("true", 0)):
            want = np.full((rows, vectors * 16), other, np.uint8)
            want[used] = x[take[used, 0]]
            calls += call(f"SpreadRows<{zeros}>", x, back, rows, take)
            wanted.append(want)
        calls += call("TakeRows", x, take, rows)
        wanted.append(np.where(used[:, None], x[np.where(used, take[:, 0], 0)], 0).astype(np.uint8))
    for dtype, name in (("float32", "f32"), ("bfloat16", "bf16"), ("float16", "f16")):
        for sources, rows, terms, vectors in ((40, 6, 35, 3), (9, 4, 2, 300), (9, 5, 7, 128)):
            x = np.array(rng.normal(size=(sources, vectors * 16 // np.dtype(jnp.dtype(dtype)).itemsize)), dtype)
            take = rng.integers(0, sources, (rows, terms))
            take[rng.random(take.shape) < 0.4] = -1
            take[1] = [-5, sources + 3] * (terms // 2) + [2**31 - 1] * (terms % 2)
            want = np.zeros((rows, x.shape[1]), np.float32)
            for j in range(terms):
                valid = (take[:, j] >= 0) & (take[:, j] < sources)
                want[valid] += x[take[valid, j]].astype(np.float32)
            calls += call(f"AddRows<{name}>", x, take, rows)
            wanted.append(want.astype(dtype))
    flags = ("-O1", "-DJF_BLOCKS=2", "-DJF_WARPS=8")
    raw = run_on_cpu(MAIN % calls, tmp_path, flags, headers=("warpgroup.h", "hopper_block.h"))
    for want in wanted:
        got = np.frombuffer(raw[: want.nbytes], want.dtype).reshape(want.shape)
        np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))
        raw = raw[want.nbytes :]
    assert raw == b""


def program(kernel, dtype="bfloat16", sources=32768, rows=262144, columns=(2048,), terms=8):
    i32 = jnp.dtype("int32")
    if kernel == "add":
        types = (jnp.dtype(dtype), (rows, *columns)), (i32, (sources, terms))
    else:
        types = (jnp.dtype(dtype), (sources, *columns)), (i32, (rows, 1)), (i32, (sources, terms))
    return _sum_rows._program(kernel, types)


@pytest.mark.parametrize("sm", [80, 90])
@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [("spread", "bfloat16"), ("place", "bfloat16"), ("add", "bfloat16"), ("add", "float16"), ("add", "float32")],
)
def test_kernels_compile_without_spills(kernel, dtype, sm, tmp_path):
    nvrtc_or_skip()
    [used] = assert_no_spills(program(kernel, dtype), tmp_path, sm)
    assert used["STACK"] == 0 and used["REG"] <= (128 if kernel == "add" else 64)
    text = _core.sass(program(kernel, dtype), _core.cuda_target_for(sm))
    assert text.count("LDG.E.128") >= 8 and "STG.E" in text


@pytest.mark.parametrize("kernel", ["spread", "place", "add"])
def test_facts_name_the_kernel(kernel):
    [facts] = _core.facts(program(kernel, columns=(2, 1024)), HOPPER)
    assert (facts["strategy"], facts["parameters"]) == ("written", f"{kernel} rows")


def test_other_programs_are_refused():
    with pytest.raises(_core.UserError, match=r"\[move_rows\] expected rows that s32 indices move, got\nfusion"):
        _core.facts(program("add").replace("kernel add", "kernel spread"), HOPPER)
    with pytest.raises(_core.UserError, match=r"\[move_rows\] rows of 2006 bytes, it takes multiples of 16 from 512"):
        _core.facts(program("place", columns=(1003,)), HOPPER)
    with pytest.raises(_core.UserError, match=r"\[move_rows\] it adds no s32"):
        _core.facts(program("add", "int32"), HOPPER)


def kernels(dtype="bfloat16", columns=2048, terms=8, tokens=1024, **how):
    """Which kernel of its own the gather of a layer has on a GPU, and which its derivative."""
    rows = tokens * terms
    x = jax.ShapeDtypeStruct((tokens, columns), dtype)
    indices = (jax.ShapeDtypeStruct(shape, "int32") for shape in ((rows, 1), (tokens, terms)))

    def both(x, take, back):
        return jax.vjp(lambda x: sum_rows(x, take, back, **how), x)[1](sum_rows(x, take, back, **how))

    ours = [export.DisabledSafetyCheck.custom_call("jax_fuser.program")]
    text = export.export(jax.jit(both), platforms=["cuda"], disabled_checks=ours)(x, *indices).mlir_module()
    return [name for name in ("spread", "place", "add") if f"kernel {name}_rows" in text]


def test_where_they_run():
    assert kernels(leaves=True) == kernels("float32", leaves=True) == ["spread", "add"]
    assert kernels() == kernels(terms=32) == ["place", "add"]
    assert kernels(terms=1, tokens=8192) == []  # each row is read once anyway
    assert kernels(columns=2044) == kernels(columns=128) == kernels(tokens=32) == kernels(by_xla=True) == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32"])
@pytest.mark.parametrize(("columns", "uses"), [((2048,), 3), ((4, 256), 40), ((1030,), 2)])
def test_values_and_derivatives(device, dtype, columns, uses):
    tokens, rows = 1100, 2311
    take, back = relation(np.random.default_rng(0), tokens, rows, uses, 0.6 if uses < 9 else 0.04)
    x, of = (arrays.array(n, *columns, dtype=dtype) for n in (tokens, rows))
    used = take[:, 0] >= 0
    assert 0 < used.sum() < rows

    @functools.partial(jax.jit, static_argnames="leaves")
    def run(x, of, leaves):
        of = of.at[~used].set(0)
        return sum_rows(x, take, back, leaves=leaves), sum_rows(of, back, take, back_leaves=leaves)

    for leaves in (True, False):
        there, again = run(x, of, leaves)
        np.testing.assert_array_equal(there[used], x[take[used, 0]])
        assert leaves or not np.any(there[~used])
        want = np.zeros((tokens, *columns), np.float64)
        np.add.at(want, take[used, 0], np.asarray(of, np.float64)[used])
        assert_close(again, jnp.asarray(want, dtype), dtype)


def test_a_batch_spreads_each_row_to_the_places_of_all(device):
    rng = np.random.default_rng(0)
    pairs = [relation(rng, 600, 900, 2) for _ in range(3)]
    take, back = (jnp.asarray(np.stack(a)) for a in zip(*pairs, strict=True))
    x = arrays.array(3, 600, 1024, dtype="bfloat16")
    spread = functools.partial(sum_rows, leaves=True, back_leaves=True)
    for axis in (0, None):
        got = jax.jit(jax.vmap(spread, (axis, 0, 0)))(x if axis == 0 else x[0], take, back)
        for i, (rows, _) in enumerate(pairs):
            used = rows[:, 0] >= 0
            np.testing.assert_array_equal(got[i][used], x[i if axis == 0 else 0][rows[used, 0]])


def test_what_was_in_memory_is_in_no_result(device):
    """Rows that the layer leaves as they are have NaN on a GPU, where arrays of NaN were freed."""
    tokens, k, experts = 512, 2048, 4
    chosen = jnp.where(jnp.arange(tokens * 8).reshape(tokens, 8) % 7 == 0, 1, -1).at[3].set(-1)
    shapes = (tokens, k), (experts, k, 512), (experts, 256, k)
    args = [arrays.array(*shape, dtype="bfloat16", scale=0.05) for shape in shapes]
    weights = arrays.array(tokens, 8, scale=0.2)

    @jax.jit
    def run(x, w13, w2):
        def loss(*a):
            out = moe.mlp(a[0], chosen, weights, *a[1:], activation="swiglu")
            return jnp.sum(jnp.sin(out.astype(jnp.float32))), out

        return jax.grad(loss, (0, 1, 2), has_aux=True)(x, w13, w2)

    want = run(*(a.astype(jnp.float32) for a in args))
    jax.block_until_ready([jnp.full((1 << 24,), jnp.nan) for _ in range(8)])
    for a, b in zip(jax.tree.leaves(run(*args)), jax.tree.leaves(want), strict=True):
        assert_close(a, b, "bfloat16")
