"""Rows that begin anywhere in memory: lanes move to where vectors are aligned, and results stay the same."""

import jax
import jax.numpy as jnp
import loop_interpreter
import numpy as np
import pytest
from device_text import run_on_cpu
from tolerances import assert_close

import jax_fuser as jf


def rms_norm(x, g):
    y = x.astype(jnp.float32)
    return (y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6) * g).astype(x.dtype)


def layer_norm(x, g, b):
    y = x.astype(jnp.float32)
    y = y - jnp.mean(y, -1, keepdims=True)
    return (y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6) * g + b).astype(x.dtype)


def softmax_backward(x, dy):
    return jax.vjp(lambda x: jax.nn.softmax(x.astype(jnp.float32), -1).astype(x.dtype), x)[1](dy)[0]


def cross_entropy(x, labels):
    y = x.astype(jnp.float32)
    return jax.nn.logsumexp(y, -1) - jnp.take_along_axis(y, labels[:, None], -1)[:, 0]


ON_CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
# By name: the function, how many rows by columns and how many columns it takes.
REDUCTIONS = {
    "rms norm": (rms_norm, 1, 1),
    "layer norm": (layer_norm, 1, 2),
    "add rms norm": (lambda x, y, g: (x + y, rms_norm(x + y, g)), 2, 1),
    "softmax backward": (softmax_backward, 2, 0),
    "least and most": (lambda x: (x.min(-1), x.max(-1), x - x.max(-1, keepdims=True)), 1, 0),
}


def arrays(rows, columns, full, vectors, seed=0, dtype=jnp.bfloat16):
    rng = np.random.default_rng(seed)
    shapes = [(rows, columns)] * full + [(columns,)] * vectors
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def check(f, args, strategy, moved=True, **parameters):
    fusion = jf.ir.trace(f, *args)
    chosen = {**jf.ir.compute_heuristics(fusion, strategy, "cuda"), **parameters}
    schedule = jf.ir.schedule(fusion, strategy, "cuda", parameters=chosen)
    assert (" before " in jf.ir.lower(schedule, "cuda").as_text("loops")) == moved
    got = loop_interpreter.run(schedule, *args)
    want = jax.tree.leaves(f(*args))
    for g, w in zip(got, want, strict=True):
        assert_close(g, np.asarray(w))
    return got


def compare(f, *args):
    got = jax.jit(jf.fuse(f))(*(jnp.asarray(a) for a in args))
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(f(*args)), strict=True):
        assert_close(g, np.asarray(w))


@pytest.mark.parametrize("columns", [263, 1001])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_odd_rows(name, columns):
    f, full, vectors = REDUCTIONS[name]
    lanes = {"lanes": 8, "threads": 64, "unroll": 3} if name == "layer norm" else {}
    check(f, arrays(9, columns, full, vectors), "reduction", **lanes)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_odd_rows_of_f32(name):
    f, full, vectors = REDUCTIONS[name]
    check(f, arrays(7, 519, full, vectors, dtype=np.float32), "reduction")


def far_from_label(x, labels):
    """What softmax says of other columns: a counter runs along the rows, too."""
    y = x.astype(jnp.float32)
    p = jnp.where(jax.lax.broadcasted_iota(jnp.int32, y.shape, 1) == labels[:, None], 0, jax.nn.softmax(y, -1))
    return p.astype(x.dtype), p.sum(-1)


@pytest.mark.parametrize(("dtype", "columns"), [("bfloat16", 50257), ("float32", 50257), ("float32", 20001)])
def test_rows_that_several_blocks_keep(dtype, columns):
    labels = np.array([0, 7, columns - 1, 99, 20000, 1, 2, 3, 4], np.int32)
    args = [*arrays(len(labels), columns, 1, 0, dtype=jnp.dtype(dtype)), labels]
    fusion = jf.ir.trace(far_from_label, *args)
    assert jf.ir.compute_heuristics(fusion, "reduction", "cuda")["cluster"] > 1
    check(far_from_label, args, "reduction")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_long_rows_that_nothing_keeps(dtype):
    f = lambda x: (x.max(-1), (x.astype("float32") ** 2).sum(-1))  # noqa: E731
    check(f, arrays(9, 50257, 1, 0, dtype=jnp.dtype(dtype)), "reduction")


def test_short_rows_of_f32_stay_where_they_are():
    check(rms_norm, arrays(3, 301, 1, 1, dtype=np.float32), "reduction", moved=False)


def test_bias_gelu_of_odd_rows_of_f32():
    f = lambda x, b: jax.nn.gelu(x + b)  # noqa: E731
    check(f, arrays(9, 509, 1, 1, dtype=np.float32), "pointwise", lanes=4, unroll=2)


@pytest.mark.parametrize("columns", [256 + k for k in (1, 2, 4, 7)])
def test_rows_whatever_their_remainder(columns):
    check(rms_norm, arrays(8, columns, 1, 1), "reduction", threads_y=1, lanes=8)


def test_several_rows_of_a_block():
    check(layer_norm, arrays(11, 517, 1, 2), "reduction", lanes=8, threads=32, unroll=3, threads_y=4)


def test_a_neighbouring_row_of_nan_does_no_harm():
    x, g = arrays(6, 519, 1, 1)
    x[1::2] = np.nan
    [got] = check(rms_norm, [x, g], "reduction")
    assert np.isnan(got[1::2].astype(np.float32)).all() and not np.isnan(got[::2].astype(np.float32)).any()


def test_without_a_vector_to_spare_lanes_stay():
    """513 elements are 65 vectors, 520 with seven lanes moved: the loops must have more than these."""
    check(rms_norm, arrays(4, 1023, 1, 1), "reduction", moved=False, lanes=8, threads=64, unroll=2)


@pytest.mark.parametrize(("rows", "unroll"), [(5, 1), (7, 4)])
def test_a_row_for_all_rows(rows, unroll):
    f = lambda x, y, b: jnp.tanh(x + b) * y  # noqa: E731
    check(f, arrays(rows, 1003, 2, 1), "pointwise", lanes=8, unroll=unroll, two_axes=True)


def test_columns_are_folded_where_they_are():
    """What threads keep of columns belongs to all rows, so no lane may move."""
    f = lambda x: x.astype(jnp.float32).sum(0)  # noqa: E731
    check(f, arrays(40, 261, 1, 0), "reduction", moved=False, lanes=8)


@pytest.mark.parametrize(("lanes", "moved"), [(2, False), (4, True)])
def test_a_column_of_bytes_is_moved_in_words(lanes, moved):
    def f(x, b):
        return (x.astype(jnp.float32) + b.astype(jnp.float32)).max(-1)

    [x], b = arrays(5, 257, 1, 0), (np.arange(257) % 3).astype(np.int8)
    check(f, [x, b], "reduction", moved=moved, lanes=lanes, threads=64, unroll=3)


def test_the_last_vector_of_an_array():
    x = arrays(1, 1003, 1, 0)[0].reshape(17, 59)
    fusion = jf.ir.trace(lambda x: -x, jax.ShapeDtypeStruct((8191, 5003), "bfloat16"))
    assert jf.ir.compute_heuristics(fusion, "pointwise", "cuda")["lanes"] == 8
    check(lambda x: -x, [x], "pointwise", moved=False, lanes=8)


@pytest.mark.parametrize("device", [ON_CUDA], indirect=True)
@pytest.mark.parametrize(
    ("columns", "dtype"), [(1001, jnp.bfloat16), (5003, jnp.bfloat16), (1538, np.float32), (5003, np.float32)]
)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_on_a_device(device, name, columns, dtype):
    f, full, vectors = REDUCTIONS[name]
    compare(f, *arrays(100, columns, full, vectors, dtype=dtype))


@pytest.mark.parametrize("device", [ON_CUDA], indirect=True)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float32])
def test_a_row_for_all_rows_on_a_device(device, dtype):
    compare(lambda x, b: jax.nn.gelu(x + b), *arrays(1057, 5003, 1, 1, dtype=dtype))


@pytest.mark.parametrize("device", [ON_CUDA], indirect=True)
def test_labels_beside_the_rows(device):
    [x] = arrays(70, 2777, 1, 0)
    compare(cross_entropy, x, np.random.default_rng(1).integers(0, 2777, 70).astype(np.int32))


def in_turn(kind, rows, columns, parts):
    """Column folds of x * y - 9, of which part p has rows p, p + parts, ..."""
    shape = f"f32[{rows},{columns}]"
    return jf.ir.Fusion(
        f"fusion columns(x: bf16[{rows},{columns}], y: {shape}) -> (t4) {{\n  t0: {shape} = convert(x)\n"
        f"  t1: {shape} = mul(t0, y)\n  c: f32[] = constant() {{value=9}}\n"
        f"  t2: f32[b{rows},b{columns}] = broadcast(c) {{dims=[]}}\n  t3: {shape} = sub(t1, t2)\n"
        f"  t4: f32[{parts},{columns}] = {kind}(t3) {{dims=[0], parts={parts}, in_turn}}\n}}\n"
    )


@pytest.mark.parametrize(
    ("rows", "columns", "parts", "lanes"),
    [(67, 133, 16, 4), (40, 261, 8, 2), (33, 37, 4, 4), (9, 41, 9, 1), (8, 33, 4, 4)],
)
@pytest.mark.parametrize("kind", ["reduce_sum", "reduce_max"])
def test_columns_of_rows_that_begin_alike(kind, rows, columns, parts, lanes):
    """Rows `parts` apart are one row of whole vectors; the last one of the array ends inside of one."""
    fusion = in_turn(kind, rows, columns, parts)
    assert str(jf.ir.Fusion(str(fusion))) == str(fusion)
    chosen = {**jf.ir.compute_heuristics(fusion, "reduction", "cuda"), "lanes": lanes, "threads": 8, "unroll": 2}
    schedule = jf.ir.schedule(fusion, "reduction", "cuda", chosen)
    assert (" less " in jf.ir.lower(schedule, "cuda").as_text("loops")) == (lanes > 1 and rows % parts > 0)
    rng = np.random.default_rng(rows)
    x, y = rng.standard_normal((rows, columns)).astype(jnp.bfloat16), rng.standard_normal((rows, columns))
    y = y.astype(np.float32)
    [got] = loop_interpreter.run(schedule, x, y)
    fold = {"reduce_sum": np.sum, "reduce_max": np.max}[kind]
    z = x.astype(np.float32) * y - 9
    assert_close(got, np.stack([fold(z[p::parts], axis=0) for p in range(parts)]))
    for run in (jf.ir.evaluate, jf.ir.run):
        assert_close(np.asarray(run(fusion, x, y)[0]), got)


@pytest.mark.parametrize(("rows", "columns"), [(300, 263), (131, 517)])
def test_sums_across_rows_that_begin_alike(rows, columns):
    """Copies bring rows of a block one after the other, and its threads keep sums of columns."""
    wide = f"f32[{rows},{columns}]"
    fusion = jf.ir.Fusion(
        f"fusion across(x: bf16[{rows},{columns}], g: bf16[{columns}]) -> (t6, t7) {{\n  t0: {wide} = convert(x)\n"
        f"  t1: f32[{rows}] = reduce_sum(t0) {{dims=[1]}}\n  t2: f32[{rows},b{columns}] = broadcast(t1) {{dims=[0]}}\n"
        f"  t3: {wide} = sub(t0, t2)\n  t4: f32[{columns}] = convert(g)\n"
        f"  t5: f32[b{rows},{columns}] = broadcast(t4) {{dims=[1]}}\n  t8: {wide} = mul(t3, t5)\n"
        f"  t6: f32[128,{columns}] = reduce_sum(t8) {{dims=[0], parts=128, in_turn}}\n"
        f"  t7: bf16[{rows},{columns}] = convert(t8)\n}}\n"
    )
    chosen = {**jf.ir.compute_heuristics(fusion, "reduction", "cuda"), "stages": 2, "threads": 64, "keep": "rows"}
    chosen |= {"lanes": 4, "unroll": -(-columns // 256), "threads_y": 1}
    schedule = jf.ir.schedule(fusion, "reduction", "cuda", chosen)
    text = jf.ir.lower(schedule, "cuda").as_text("loops")
    assert " before " in text and " = bulk x" in text
    x, g = arrays(rows, columns, 1, 1)
    [sums, y] = loop_interpreter.run(schedule, x, g)
    z = (x.astype(np.float32) - x.astype(np.float32).sum(1, keepdims=True)) * g.astype(np.float32)
    assert_close(sums, np.stack([z[p::128].sum(0) for p in range(128)]))
    assert_close(y, z.astype(jnp.bfloat16))


def test_plans_have_rows_in_turn_only_where_it_helps():
    f = lambda x: x.astype(jnp.float32).sum(0)  # noqa: E731
    for columns, platform, expected in ((5003, "cuda", True), (5003, "cpu", False), (5008, "cuda", False)):
        fusion = jf.ir.trace(f, jax.ShapeDtypeStruct((8191, columns), "bfloat16"))
        assert (" in turn" in jf.ir.lower(fusion, platform).as_text("segments")) == expected


def test_nothing_is_read_behind_an_array_of_several_matrices():
    """Where matrices begin anywhere, vectors of parts are no whole ones, and the last one is read by elements."""
    fusion = jf.ir.Fusion(
        "fusion columns(x: bf16[3,39,275]) -> (t1) {\n  t0: f32[3,39,275] = convert(x)\n"
        "  t1: f32[3,16,275] = reduce_max(t0) {dims=[1], parts=16, in_turn}\n}\n"
    )
    chosen = jf.ir.compute_heuristics(fusion, "reduction", "cuda")
    chosen |= {"lanes": 4, "threads": 32, "threads_y": 1, "unroll": 4}
    x = np.random.default_rng(0).standard_normal((3, 39, 275)).astype(jnp.bfloat16)
    [got] = loop_interpreter.run(jf.ir.schedule(fusion, "reduction", "cuda", chosen), x)
    assert_close(got, np.stack([x[:, p::16].astype(np.float32).max(1) for p in range(16)], axis=1))


# Copies the column y, with its lanes moved, to a row that begins anywhere; every other element has to stay.
MOVED = """
#include "codegen/cuda_prelude.cuh"
#include <cstdio>
template <class M, int W>
void check() {
  using T = jf::Compute<M>;
  for (int n : {1, W - 1, W, W + 1, 5 * W - 1, 5 * W, 5 * W + 3}) {
    for (int before = 0; before < W; ++before) {
      alignas(16) M y[8 * W], row[8 * W];
      for (int i = 0; i < 8 * W; ++i) jf::store_one(y + i, T(i < n ? i + 1 : -7)), jf::store_one(row + i, T(-1));
      for (int base = 0; base < 7 * W; base += W) {
        jf::vector_before<W>(base, before, n, base == 0, base + W > n, [&](int i, auto on) {
          jf::store<W>(row, i + before, jf::load_around<jf::Lanes<T, W>>(y, i, before, n, on), on);
        });
      }
      for (int i = 0; i < 8 * W; ++i) {
        const T want = i >= before && i < before + n ? i - before + 1 : -1;
        if (jf::load_one(row + i) == want) continue;
        std::printf("%d bytes, %d lanes, n %d, before %d: %d\\n", int(sizeof(M)), W, n, before, i);
      }
    }
  }
}
int main() {
  for (bool agree : {true, false}) {
    jf::ptx::neighbours_agree = agree;
    check<jf::bf16, 8>(), check<jf::bf16, 2>(), check<jf::s8, 4>(), check<jf::f32, 4>();
  }
}
"""


def test_moved_lanes_of_device_text(tmp_path):
    """By the text of the prelude, with g++ for a GPU's compiler; also where a neighbour has a part of a vector."""
    assert run_on_cpu(MOVED, tmp_path, ("-fsanitize=undefined,address", "-fno-sanitize-recover")) == b""
