"""Reads at computed places inside fusions: rows x[i], take_along_axis, slices from traced starts."""

import re

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from arrays import array, integers, paired
from jax import lax
from random_programs import Program
from test_cuda_sources import nvrtc_or_skip
from test_fuse_random import check
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core


def twice(x):
    return x ^ True if x.dtype == bool else x + x


def rms_norm(x):
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1)


def swiglu(x):
    gate, up = jnp.split(x, 2, axis=-1)
    return jax.nn.silu(gate) * up


# Of x: [33, 70], i: [4, 9] with indices that are negative or too large.
ANY_DTYPE = {
    **{f"rows, {mode}": lambda x, i, mode=mode: twice(jnp.take(x, i, axis=0, mode=mode)) for mode in ("clip", "fill")},
    "rows that are there": lambda x, i: twice(x.at[i % 33].get(mode="promise_in_bounds")),
    "rows by brackets": lambda x, i: twice(x[i]),
    "rows, filled": lambda x, i: twice(x.at[i].get(mode="fill", fill_value=1)),
    "columns": lambda x, i: twice(jnp.take(x, i, axis=1, mode="clip")),
    "elements": lambda x, i: twice(x[i, i + 1]),
    "computed indices": lambda x, i: twice(x[(i * 7 + i[:, :1]) % 33]),
    "of a computed value": lambda x, i: twice(twice(x)[i]),
    "of a transpose": lambda x, i: twice(x.T[i]),
    "rows, then columns": lambda x, i: twice(x[i[:, 0]][:, i[0]]),
    "columns, then a slice of rows": lambda x, i: twice(x[1:][:, i[0]][i[:, 1]][::2]),
    "rows again and again": lambda x, i: twice(x[:5][:, i[0]][i % 5]),
    "of a slice": lambda x, i: twice(x[1:, ::2][i]),
    "of parts": lambda x, i: twice(jnp.concatenate([twice(x), x])[i]),
    "slice of rows": lambda x, i: twice(x[i])[1:3, ::2, 5:60:3],
    "padded rows": lambda x, i: jnp.pad(twice(x[i]), [(0, 1), (2, 0), (0, 0)]),
    "padded columns": lambda x, i: jnp.pad(twice(x[i]), [(0, 0), (0, 0), (3, 1)]),
    "rows under other shapes": lambda x, i: twice(x[i.reshape(36)].reshape(4, 9, 7, 10)),
    "along the last axis": lambda x, i: twice(jnp.take_along_axis(x[:4], i, axis=-1, mode="clip")),
    "along the first axis": lambda x, i: twice(jnp.take_along_axis(x[:, :9], i, axis=0, mode="fill")),
    "slice from a start": lambda x, i: twice(lax.dynamic_slice(x, (i[0, 0], i[1, 1]), (5, 64))),
    "row from a start": lambda x, i: twice(lax.dynamic_index_in_dim(x, i[2, 2], keepdims=False)),
    "slices from starts": lambda x, i: twice(
        jax.vmap(lambda row, at: lax.dynamic_slice(row, (at,), (20,)))(x[:9], i[3])
    ),
}  # fmt: skip
FLOATS = {
    "embedding and norm": lambda x, i: rms_norm(x[i]),
    "embedding and scale and norm": lambda x, i: rms_norm(x[i] * jnp.sqrt(70.0).astype(x.dtype)),
    "rows, bias and gelu": lambda x, i: jax.nn.gelu(jnp.take(x, i, axis=0, mode="clip") + x[3]),
    "halves of rows": lambda x, i: swiglu(jnp.take(x, i, axis=0, mode="clip")),
    "cast table": lambda x, i: jnp.take(x.astype("float32"), i, axis=0, mode="clip") * 2,
    "sum of rows": lambda x, i: jnp.take(x, i, axis=0, mode="clip").sum(1),
    "loss of targets": lambda x, i: -jnp.take_along_axis(jax.nn.log_softmax(x[:4]), i[:, :1], -1, mode="clip").mean(),
}


def indices(dtype="int32", low=-40, high=45):
    return integers(low, high, (4, 9), dtype)


@pytest.mark.parametrize(("name", "dtype"), paired(ANY_DTYPE, ["float32", "bfloat16", "int32", "int8", "bool"]))
def test_values(device, name, dtype):
    x, i, f = array(33, 70, dtype=dtype), indices(), ANY_DTYPE[name]
    got, want = jf.fuse(f)(x, i), jax.jit(f)(x, i)
    assert got.dtype == want.dtype
    if dtype == "bfloat16":  # whose NaN numpy does not know
        got, want = got.astype("float32"), want.astype("float32")
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FLOATS)
def test_floats(device, name, dtype):
    x, i, f = array(33, 70, dtype=dtype), indices(low=-33, high=33), FLOATS[name]
    assert_close(jf.fuse(f)(x, i), jax.jit(f)(x.astype("float32"), i), dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32"])
@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_dtypes_of_indices(device, dtype, mode):
    x, i = array(300, 64), indices(dtype, -128, 127)

    def f(x, i):
        return jnp.take(x, i, axis=0, mode=mode) * 2

    np.testing.assert_array_equal(jf.fuse(f)(x, i), f(x, i))


def test_extreme_indices(device):
    x = array(33, 64)
    with jax.enable_x64(True):
        i = jnp.array([-(2**63), -(2**31) - 5, -1, 0, 32, 33, 2**31 + 3, 2**32, 2**63 - 1])
        for mode in ("clip", "fill"):
            f = lambda x, i: x.at[i].get(mode=mode) * 2  # noqa: B023, E731
            np.testing.assert_array_equal(jf.fuse(f)(x, i), f(x, i))
            u = i.astype("uint64")
            np.testing.assert_array_equal(jf.fuse(f)(x, u), f(x, u))


@pytest.mark.parametrize("name", [*ANY_DTYPE, *FLOATS])
def test_gradients(device, name):
    x, i, f = array(33, 70), indices(low=-33, high=33), (ANY_DTYPE | FLOATS)[name]

    def loss(f):
        return lambda x: jnp.sum(jnp.sin(jnp.nan_to_num(f(x, i))))

    assert_close(*(jax.jit(jax.grad(loss(g)))(x) for g in (jf.fuse(f), f)), "float32", scale=20)


@pytest.mark.parametrize("name", ["rows, fill", "along the last axis", "slice from a start", "embedding and norm"])
def test_vmap(device, name):
    f = (ANY_DTYPE | FLOATS)[name]
    x, i = array(3, 33, 70), jnp.stack([indices(low=-33, high=33) for _ in range(3)])
    assert_close(jax.vmap(jf.fuse(f))(x, i), jax.vmap(f)(x, i), "float32")
    assert_close(jax.vmap(jf.fuse(f), (None, 0))(x[0], i), jax.vmap(f, (None, 0))(x[0], i), "float32")
    assert_close(jax.vmap(jf.fuse(f), (0, None))(x, i[0]), jax.vmap(f, (0, None))(x, i[0]), "float32")


def test_rows_that_are_not_asked_for_leak_nothing(device):
    x = jnp.full((33, 70), jnp.nan).at[5].set(1.0).at[7].set(2.0)
    i = jnp.array([5, 7, 5])
    np.testing.assert_array_equal(jf.fuse(lambda x, i: x[i] * 2)(x, i), (x[i] * 2))
    mask = jnp.array([True, False, True])
    f = lambda x, i: jnp.where(mask[:, None], x[jnp.where(mask, i, 0)], 0) * 2  # noqa: E731
    np.testing.assert_array_equal(jf.fuse(f)(x, i), f(x, i))


# The others store what they read from, or compute a scalar first.
SEVERAL = (
    "rows again and again",
    "of parts",
    "loss of targets",
    "padded columns",
    "slice from a start",
    "row from a start",
)
ONE_KERNEL = [n for n in (*ANY_DTYPE, *FLOATS) if n not in SEVERAL]


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name, platform):
    f = (ANY_DTYPE | FLOATS)[name]
    loops = jf.fuse(f).lower(array(33, 70), indices()).as_text("loops", platform=platform)
    assert loops.count("kernel ") == 1
    assert not [c for c in jf.explain(f)(array(33, 70), indices()).cuts if c.primitive in ("gather", "dynamic_slice")]


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_a_slice_from_a_traced_start_is_one_kernel_of_whole_vectors(platform):
    x = array(64, 512)
    lowered = jf.fuse(lambda x, at: lax.dynamic_slice_in_dim(x, at, 16) * 2 + 1).lower(x, 3)
    assert lowered.as_text("loops", platform=platform).count("kernel ") == 1
    assert "load_at" not in lowered.as_text("source", platform=platform)


def test_rows_are_whole_vectors_on_cuda():
    i = jnp.zeros(4096, "int32")
    source = jf.fuse(FLOATS["rows, bias and gelu"]).lower(array(33, 512), i).as_text("source", platform="cuda")
    assert "jf::load<f32, 4>(x" in source and "load_at" not in source
    source = jf.fuse(FLOATS["embedding and norm"]).lower(array(33, 510), i).as_text("source", platform="cuda")
    assert "jf::load<f32, 2>(x" in source


def test_a_gathered_row_is_read_once():
    i = jnp.zeros(4096, "int32")
    loops = jf.fuse(FLOATS["embedding and norm"]).lower(array(33, 512), i).as_text("loops", platform="cuda")
    assert loops.count("load x[") == 1


def test_what_stays_with_xla():
    x, i = array(33, 70), indices()
    grad = jax.grad(lambda x: jf.fuse(lambda x, i: jnp.tanh(x[i]))(x, i).sum())
    assert ("scatter-add", "adds up what has one place") in [(c.primitive, c.reason) for c in jf.explain(grad)(x).cuts]
    moves = jf.explain(lambda x, i: x.at[i, 0].get(mode="promise_in_bounds"))(x, i)
    assert not moves.regions or "take" in moves.regions[0].kernels


def test_a_mesh_splits_rows_and_columns_but_not_the_table():
    mesh = meshes.mesh(d=2)
    x, i = array(34, 70), indices(low=0, high=34)
    f = FLOATS["rows, bias and gelu"]
    for x_spec, i_spec in ((jax.P(), jax.P("d")), (jax.P(None, "d"), jax.P()), (jax.P("d"), jax.P())):
        placed = (jax.device_put(a, jax.sharding.NamedSharding(mesh, s)) for a, s in ((x, x_spec), (i, i_spec)))
        run, args = jax.jit(jf.fuse(f)), list(placed)
        assert_close(run(*args), f(x, i))
        assert ("all-gather" in run.lower(*args).compile().as_text()) == (x_spec == jax.P("d"))


TEXT = """fusion f(x: f32[9,8], i: s32[5]) -> (t2) {
  t1: s32[5,b8] = broadcast(i) {dims=[0]}
  t2: f32[5,8] = take(x, t1) {axes=[0], limits=[8], dims=[-1,1], starts=[0,0], strides=[1,1]}
}
"""


def test_text_prints_as_it_parses_and_runs(device):
    assert str(_core.Fusion(TEXT)) == TEXT
    b = _core.Builder("f")
    x, i = b.input("x", "f32", [9, 8]), b.input("i", "s32", [5])
    b.output(b.take(x, [b.broadcast(i, [5, 8], [0])], [0], [-1, 1], [5, 8]))
    text = b.finish().replace("t2", "t1").replace("t3", "t2")
    assert text == TEXT
    values, at = array(9, 8), jnp.array([-5, 0, 8, 9, 3])
    [got] = jf.ir.run(_core.Fusion(TEXT), values, at)
    np.testing.assert_array_equal(got, values[jnp.clip(at, 0, 8)])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "limits=[8]",
            "limits=[9]",
            r"\[take\] axis 0 of f32\[9,8\]: 1 elements from 0 on, 1 apart, with an index up to",
        ),
        ("starts=[0,0]", "starts=[0,1]", r"\[take\] axis 1 of f32\[9,8\]: 8 elements from 1 on"),
        ("dims=[-1,1]", "dims=[1,1]", "must be axes of the result, each once, or -1"),
        ("axes=[0]", "axes=[2]", "index 0 needs an axis of its own"),
        ("limits=[8]", "limits=[-1]", "a limit from 0 on"),
        ("s32[5", "f32[5", r"index 0 must be integers of the shape of f32\["),
        ("take(x, t1)", "take(x)", r"\[take\] expected 2 operands, got 1"),
    ],
)
def test_text_that_could_read_outside_is_refused(old, new, message):
    with pytest.raises(_core.UserError, match=message):
        _core.validate(TEXT.replace(old, new))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("name", [*ANY_DTYPE, *FLOATS])
def test_cuda_sources_compile(name, dtype):
    nvrtc_or_skip()
    if name in FLOATS and dtype == "int8":
        pytest.skip("a function of floats")
    fusion = jf.ir.trace((ANY_DTYPE | FLOATS)[name], array(33, 70, dtype=dtype), indices())
    assert _core.compile_cuda(str(fusion), _core.cuda_target_for(90))


@pytest.mark.parametrize("seed", range(4))
def test_random_programs(device, seed):
    programs = [Program([52, seed, i], moves=("gather", "gather", "pad", "reshape")) for i in range(20)]
    found = check(device, programs, seed == 1)
    assert not found, "\n\n".join(found)


# Of x: [90, 300] and i: [4, 9]: rows long enough to be fetched ahead.
AHEAD = {
    "rows": lambda x, i: jnp.take(x, i, axis=0, mode="fill", fill_value=0) * 2,
    "computed numbers": lambda x, i: x[(i * 7) // 2 % 90] * 2,
    "two of each": lambda x, i: x[i[:, :5]] + x[i[:, 4:]],
    "of a matrix each": lambda x, i: jax.vmap(lambda x, i: x[i] * 2)(x[:88].reshape(4, 22, 300), i // 8),
    "in passes": lambda x, i: jax.nn.softmax(x[i], axis=-1),
}


@pytest.mark.parametrize("name", AHEAD)
def test_the_next_row_is_fetched_ahead(name):
    x, i, f = array(90, 300), indices(low=-90, high=90), AHEAD[name]
    loops = jf.fuse(f).lower(x, i).as_text("loops")
    assert re.search(r"load i\[.*min\(", loops) and re.search("prefetch .* up to", loops)
    assert_close(jf.fuse(f)(x, i), f(x, i), "float32")


def test_the_next_row_of_tasks_that_are_not_full():
    """Behind the last index there is none to read."""
    x, i = array(999, 1030), integers(-999, 998, (1021,))
    f = jf.fuse(lambda x, i: x[i] * 2)
    assert re.search(r"load i\[min\(.*1020\)\]", f.lower(x, i).as_text("loops"))
    np.testing.assert_array_equal(f(x, i), x[i] * 2)


@pytest.mark.parametrize("rows", [8192, 8191])
def test_rows_in_order_are_fetched_ahead_too(rows):
    """Where no tasks of equally many rows divide them, too: the last task's loop then has a condition."""
    loops = jf.fuse(jax.nn.softmax).lower(jax.ShapeDtypeStruct((rows, 4096), "float32")).as_text("loops")
    assert "prefetch x[" in loops and (" if " in loops) == (rows == 8191)
