"""Writes into a copy at one computed place inside fusions: dynamic_update_slice, x.at[i].set, add, mul, min, max."""

import functools

import jax
import jax.numpy as jnp
import loop_interpreter
import meshes
import numpy as np
import pytest
from arrays import paired
from jax import lax
from random_programs import Program
from test_cuda_sources import nvrtc_or_skip
from test_fuse_random import check
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core

RNG = np.random.default_rng(0)
SHAPE = (33, 70)


def array(*shape, dtype="float32"):
    if dtype == "bool":
        return jnp.asarray(RNG.standard_normal(shape) > 0)
    return jnp.asarray(4 * RNG.standard_normal(shape), dtype)


def twice(x):
    return x ^ True if x.dtype == bool else x + x


# Of x: [33, 70], u: [5, 70] and a traced i. Places before, inside and behind x.
PLACES = (-40, -33, -2, 0, 7, 30, 32, 33, 100)
UPDATES = {
    "slice of rows": lambda x, u, i: twice(lax.dynamic_update_slice(twice(x), u, (i, 0))),
    "slice of columns": lambda x, u, i: twice(lax.dynamic_update_slice(twice(x), u[:, :9], (3, i))),
    "slice of both": lambda x, u, i: twice(lax.dynamic_update_slice(twice(x), twice(u[:3, 4:20]), (i, 2 * i))),
    "one row": lambda x, u, i: twice(lax.dynamic_update_index_in_dim(twice(x), u[0], i, 0)),
    "one element": lambda x, u, i: twice(lax.dynamic_update_slice(twice(x), u[:1, :1], (i, i))),
    "all": lambda x, u, i: twice(lax.dynamic_update_slice(twice(x), twice(twice(x)), (i, i))),
    "set row": lambda x, u, i: twice(twice(x).at[i].set(u[1])),
    "set row, clipped": lambda x, u, i: twice(twice(x).at[i].set(u[1], mode="clip")),
    "set column": lambda x, u, i: twice(twice(x).at[:, i].set(x[:, 3])),
    "set element": lambda x, u, i: twice(twice(x).at[i, 5].set(u[0, 0])),
    "set static row": lambda x, u, i: twice(twice(x).at[4].set(u[1])),
    "set static rows": lambda x, u, i: twice(twice(x).at[4:9].set(u)),
    "set rows of a stack": lambda x, u, i: twice(jnp.stack([x, twice(x)]).at[1, i].set(u[2])),
    "twice": lambda x, u, i: twice(twice(x).at[i].set(u[1]).at[:, i].set(x[:, 3])),
    "into zeros": lambda x, u, i: twice(jnp.zeros_like(x).at[i].set(twice(u[1]))),
    "one for each row": lambda x, u, i: twice(
        jax.vmap(lambda row, u, at: lax.dynamic_update_slice(row, u, (at + i,)))(twice(x[:5]), u[:, :7], jnp.arange(5))
    ),
    "one for each column": lambda x, u, i: twice(
        jax.vmap(lambda col, at: col.at[at + i].set(col[1]), (1, 0), 1)(twice(x), jnp.arange(70) % 5)
    ),
}  # fmt: skip
NUMBERS = {
    "add to a row": lambda x, u, i: twice(twice(x).at[i].add(u[1])),
    "add to an element": lambda x, u, i: twice(twice(x).at[i, 5].add(u[0, 0])),
    "add to a block": lambda x, u, i: twice(twice(x).at[3:8].add(u)),
    "multiply a row": lambda x, u, i: twice(twice(x).at[i].mul(u[1])),
    "least of a column": lambda x, u, i: twice(twice(x).at[:, i].min(x[:, 3])),
    "largest of a row": lambda x, u, i: twice(twice(x).at[i].max(u[1])),
    "subtract from a row": lambda x, u, i: twice(twice(x).at[i].subtract(u[1])),
}
CASES = {**UPDATES, **NUMBERS}


def kernels(f, *args, platform="cpu"):
    return jf.fuse(f).lower(*args).as_text("loops", platform=platform).count("kernel ")


@pytest.mark.parametrize(
    ("name", "dtype"),
    paired(NUMBERS, ["float32", "bfloat16", "int32", "int8"])
    + paired([name for name in CASES if name not in NUMBERS], ["float32", "bfloat16", "int32", "int8", "bool"]),
)
def test_values(device, name, dtype):
    x, u, f = array(*SHAPE, dtype=dtype), array(5, 70, dtype=dtype), CASES[name]
    # XLA rounds numbers in another way where it sees all of a function.
    fused, plain = jf.fuse(f), f if name in NUMBERS else jax.jit(f)
    for i in PLACES:
        got, want = fused(x, u, i), plain(x, u, i)
        assert got.dtype == want.dtype
        if name in NUMBERS and dtype == "bfloat16":
            assert_close(got.astype("float32"), f(x.astype("float32"), u.astype("float32"), i), "bfloat16")
        else:
            np.testing.assert_array_equal(got.astype("float32"), want.astype("float32"))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64", "uint64"])
def test_dtypes_of_places(device, dtype):
    with jax.enable_x64(True):
        x, u, info = array(300, 8), array(5, 8), jnp.iinfo(dtype)
        update = jf.fuse(lambda x, u, i: twice(lax.dynamic_update_slice(twice(x), u, (i, i * 0))))
        drop = jf.fuse(lambda x, u, i: twice(twice(x).at[i].set(u[0], mode="drop")))
        least = 0 if dtype == "int8" else info.min  # JAX adds 300 to negative ones in int8
        for i in {least, info.max, 0, 3, 120, min(info.max, 299), min(info.max, 300), min(info.max, 2**32 + 3)}:
            at, want = jnp.asarray(i, dtype), np.array(2 * x)
            # XLA by itself clamps to bounds that small integers do not hold.
            start = np.clip(i + 300 if i < 0 else i, 0, 295)
            want[start : start + 5] = u
            np.testing.assert_array_equal(update(x, u, at), 2 * want)
            if dtype != "int8":  # JAX refuses
                np.testing.assert_array_equal(drop(x, u, at), 2 * (2 * x).at[at].set(u[0], mode="drop"))


@pytest.mark.parametrize("name", CASES)
def test_gradients(device, name):
    x, u, f = array(*SHAPE), array(5, 70), CASES[name]

    def loss(f, i):
        return lambda x, u: jnp.sum(jnp.sin(f(x, u, i)))

    for i in (-2, 7):
        got, want = (jax.jit(jax.grad(loss(g, i), (0, 1)))(x, u) for g in (jf.fuse(f), f))
        for a, b in zip(got, want):
            assert_close(a, b, "float32", scale=20)
    tangents = jnp.cos(x), jnp.cos(u)
    got, want = (jax.jit(functools.partial(jax.jvp, loss(g, 7)))((x, u), tangents)[1] for g in (jf.fuse(f), f))
    assert_close(got, want, "float32", scale=20)


@pytest.mark.parametrize("name", ["slice of rows", "set row", "set element", "add to a row", "one for each row"])
def test_vmap(device, name):
    f, x, u, i = CASES[name], array(3, *SHAPE), array(3, 5, 70), jnp.array([-2, 7, 40])
    for axes in ((0, 0, 0), (None, 0, 0), (0, None, None)):
        args = [a if d == 0 else a[0] for a, d in zip((x, u, i), axes)]
        assert_close(jax.vmap(jf.fuse(f), axes)(*args), jax.vmap(f, axes)(*args), "float32")


def test_nan_where_nothing_is_read():
    x, u = jnp.full(SHAPE, jnp.nan).at[3].set(1.0), jnp.full((5, 70), jnp.nan).at[1].set(2.0)
    f = lambda x, u, i: twice(jnp.where(x != x, 0, x).at[i].set(u[1]))  # noqa: E731
    np.testing.assert_array_equal(jf.fuse(f)(x, u, 7), f(x, u, 7))


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("name", [n for n in CASES if not n.startswith("one for")])
def test_one_kernel(name, platform):
    x, u, f = array(*SHAPE), array(5, 70), CASES[name]
    assert not [c for c in jf.explain(f)(x, u, 3).cuts if "update" in c.primitive or "scatter" in c.primitive]
    if name not in ("all", "one element", "add to an element", "twice"):
        assert kernels(f, x, u, 3, platform=platform) <= 2


# The interpreter knows no reads at computed places.
@pytest.mark.parametrize("name", ["one row", "set row", "set column", "set element", "twice", "add to an element"])
def test_cuda_loops(name):
    values = {"x": array(*SHAPE), "u": array(5, 70)}
    fusion = jf.ir.trace(CASES[name], *values.values(), jnp.int32(0))
    [schedule] = jf.ir.propose(fusion, platform="cuda")
    for i in PLACES:
        given = {name: np.asarray(v) for name, v in values.items()} | {"i": np.int32(i)}
        [got] = loop_interpreter.run(schedule, *(given[name] for name in schedule.fusion.inputs))
        np.testing.assert_array_equal(got, CASES[name](*values.values(), i))


def test_the_derivative_of_a_row_is_one_kernel():
    f = jax.grad(lambda x, i: jnp.sum(jnp.sin(jnp.tanh(x)[i])))
    x = array(*SHAPE)
    assert kernels(f, x, 3) == 1
    assert_close(jf.fuse(f)(x, 3), f(x, 3), "float32")


IN_PLACE = "writes into an array of XLA's, in place where it can"


def test_what_xla_writes_in_place_stays_with_it():
    x, u = array(*SHAPE), array(5, 70)

    def cuts(f):
        return [(c.primitive, c.reason) for c in jf.explain(f)(x, u, 3).cuts]

    def cache(x, u, i):
        new = lax.dynamic_update_slice(x, twice(u), (i, 0))
        new = new.at[0].set(u[1])
        return new, jnp.sum(new * new, axis=1)

    found = cuts(cache)
    assert ("dynamic_update_slice", IN_PLACE) in found and ("scatter", IN_PLACE) in found
    for got, want in zip(jf.fuse(cache)(x, u, 3), cache(x, u, 3)):
        assert_close(got, want, "float32")
    # Nobody gets this one: it is not written at all.
    assert not cuts(lambda x, u, i: jnp.sum(lax.dynamic_update_slice(x, u, (i, 0)) ** 2, axis=1))
    # Moves alone are XLA's.
    assert not jf.explain(lambda x, u: jnp.zeros_like(x).at[3].set(u[0]))(x, u).regions

    def loop(x, u):
        return lax.scan(lambda c, i: (cache(c, u, i)[0], None), x, jnp.arange(3))[0]

    assert_close(jax.jit(jf.fuse(loop))(x, u), loop(x, u), "float32")


def test_general_scatters_stay_with_xla():
    x, i = array(*SHAPE), jnp.array([3, 5, 3])
    for f, name, reason in (
        (lambda x, i: twice(twice(x).at[i].set(1.0)), "scatter", "writes to several places"),
        (lambda x, i: twice(twice(x).at[i].add(1.0)), "scatter-add", "adds up what has one place"),
        (lambda x, i: twice(twice(x).at[2].apply(jnp.sin)), "scatter", "applies a function of its own"),
    ):
        found = [(c.primitive.replace("_", "-"), c.reason) for c in jf.explain(f)(x, i).cuts]
        assert (name, reason) in found
        assert_close(jf.fuse(f)(x, i), f(x, i), "float32")


def spread(x):
    """Pull the diagonal to 1 and the rest to 0."""
    return ((jnp.diagonal(x) - 1) ** 2).sum() + ((x * (1 - jnp.eye(x.shape[0]))) ** 2).sum() / 8


@pytest.mark.parametrize("n", [1, 3, 17])
def test_a_diagonal_and_its_derivative_are_one_fusion(device, n):
    x = array(n, n)
    off = np.asarray(x, np.float64) * (1 - np.eye(n))
    want = np.diag(2 * (np.diag(np.asarray(x, np.float64)) - 1)) + off / 4
    for f, args, of_x in (
        (jax.grad(spread), x, want),
        (jax.vmap(jax.grad(spread)), jnp.stack([x, x]), np.stack([want, want])),
    ):
        report = jf.explain(f)(args)
        assert len(report.regions) == 1 and not report.cuts
        assert_close(jf.fuse(f)(args), of_x, "float32")
    assert_close(jax.grad(jf.fuse(spread))(x), want, "float32")
    assert_close(jf.fuse(jnp.trace)(x), np.trace(x), "float32")


def test_a_function_with_a_diagonal_is_exported_for_every_platform():
    exported = jax.export.export(
        jax.jit(jf.fuse(jax.grad(spread))),
        platforms=["cpu", "cuda", "tpu"],
        disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("jax_fuser.program")],
    )(array(17, 17))
    module = exported.mlir_module()
    assert module.count("jax_fuser.program") >= 2 and "scatter" in module  # kernels; ops of XLA for TPUs


# Of x: [33, 70], with an index for each row or column.
COUNTED = {
    "set": lambda x, j: twice(x).at[jnp.arange(33), j].set(x[:, 2]),
    "add": lambda x, j: twice(x).at[jnp.arange(33), j].add(1.0),
    "columns": lambda x, j: twice(x).at[j[0] + jnp.arange(70) % 5, jnp.arange(70)].mul(3.0),
    "unsigned": lambda x, j: twice(x).at[jnp.arange(33, dtype=jnp.uint8), j].min(x[:, 0]),
    "planes": lambda x, j: twice(jnp.stack([x, -x])).at[:, jnp.arange(33), j].add(x[:, 4]),
    "dropped": lambda x, j: twice(x).at[jnp.arange(33), j + 40].set(0.0, mode="drop"),
}


@pytest.mark.parametrize("name", COUNTED)
def test_counted_indices_are_the_axis_of_a_batch(device, name):
    f, x, j = (lambda x, j: twice(COUNTED[name](x, j))), array(*SHAPE), jnp.arange(33) * 7 % 31 - 4
    assert {c.primitive for c in jf.explain(f)(x, j).cuts} == set()
    np.testing.assert_array_equal(jf.fuse(f)(x, j), f(x, j))


def test_what_counts_something_else_is_no_batch():
    x, j = array(*SHAPE), jnp.arange(33)
    for f in (
        lambda x, j: twice(twice(x).at[jnp.arange(33) + 1, j].set(1.0)),
        lambda x, j: twice(twice(x).at[jnp.arange(20), j[:20]].set(1.0)),
        lambda x, j: twice(twice(x).at[jnp.arange(33)[:, None], j].add(1.0)),
        lambda x, j: twice(jnp.tile(x, (9, 1)).at[jnp.arange(297).astype(jnp.uint8), jnp.tile(j, 9)].set(1.0)),
    ):
        assert "writes to several places" in str(jf.explain(f)(x, j)) or "adds up" in str(jf.explain(f)(x, j))
        np.testing.assert_array_equal(jf.fuse(f)(x, j), f(x, j))


def test_a_mesh_splits_what_the_update_does_not_cross():
    mesh = meshes.mesh(d=2)
    x, u, f = array(34, 70), array(5, 70), CASES["slice of rows"]
    for spec in (jax.P("d"), jax.P(None, "d")):
        placed = jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))
        assert_close(jax.jit(jf.fuse(f))(placed, u, 3), f(x, u, 3), "float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("name", CASES)
def test_cuda_sources_compile(name, dtype):
    nvrtc_or_skip()
    args = array(*SHAPE, dtype=dtype), array(5, 70, dtype=dtype), jnp.int32(3)
    fusion = jf.ir.trace(CASES[name], *args)
    assert _core.compile_cuda(str(fusion), _core.cuda_target_for(90))


@pytest.mark.parametrize("seed", range(3))
def test_random_programs(device, seed):
    moves = ("update", "update", "update", "gather", "pad", "reshape")
    programs = [Program([53, seed, i], moves=moves) for i in range(20)]
    found = check(device, programs, seed == 1)
    assert not found, "\n\n".join(found)
