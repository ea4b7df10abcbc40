"""Grouped products on four devices under plain `jit` with sharded arguments: no weights and no rows are gathered."""

import functools
import re

import arrays
import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser._grouped_primitive import product

COLLECTIVES = r"(all-gather|all-reduce|all-to-all|collective-permute)[^ ]*\("
SIZES = {
    "uneven": [5, 0, 9, 2],
    "first and last empty": [0, 7, 6, 0],
    "all empty": [0, 0, 0, 0],
    "one has all": [0, 24, 0, 0],
    "full": [6, 6, 6, 6],
}
M, K, N, G = 24, 8, 12, 4
# By mode: shapes of lhs and rhs.
SHAPES = {
    "rows": ((M, K), (G, K, N)),
    "contraction": ((M, K), (M, N)),
    "batch": ((M, 4, K), (M, K, N)),
}
# Mode, specs of lhs, rhs and of the result, collectives that it takes.
CASES = {
    "rows of lhs": ("rows", P("a"), P(), P("a"), []),
    "columns": ("rows", P(), P(None, None, "a"), P(None, "a"), []),
    "rows and columns": ("rows", P("a"), P(None, None, "b"), P("a", "b"), []),
    "rows over both": ("rows", P(("b", "a")), P(), P(("b", "a")), []),
    "groups": ("rows", P(), P(("a", "b")), P(), ["all-reduce"]),
    "groups and rows": ("rows", P("a"), P("b"), P("a"), ["all-reduce"]),
    "inner axis": ("rows", P(None, "a"), P(None, "a"), P(), ["all-reduce"]),
    "contracted rows": ("contraction", P("a"), P("a"), P(), ["all-reduce"]),
    "gradient of columns": ("contraction", P(), P(None, "b"), P(None, None, "b"), []),
    "gradient of both": ("contraction", P("a", "b"), P("a"), P(None, "b"), ["all-reduce"]),
    "batch": ("batch", P("a", "b"), P("a"), P("a", "b"), []),
    "batch, inner axis": ("batch", P(None, None, "a"), P(None, "a", "b"), P(None, None, "b"), ["all-reduce"]),
}


def mesh():
    return meshes.mesh(a=2, b=2)


def placed(value, spec):
    return jax.device_put(value, NamedSharding(mesh(), spec))


@pytest.mark.parametrize("gaps", [False, True], ids=["", "gaps"])
@pytest.mark.parametrize("case", CASES)
def test_each_device_multiplies_its_part(case, gaps):
    mode, lhs_spec, rhs_spec, out_spec, collectives = CASES[case]
    lhs, rhs = (arrays.array(*shape, scale=1.0) for shape in SHAPES[mode])
    args = placed(lhs, lhs_spec), placed(rhs, rhs_spec)

    @jax.jit
    def multiply(lhs, rhs, extents, *starts):
        return product(lhs, rhs, extents, *starts, mode=mode, dtype=jnp.float32)

    def index(name):
        extents = jnp.array(SIZES[name], jnp.int32)
        first = jnp.cumsum(extents) - extents
        # Groups that all begin one row later leave a row of padding in front.
        return (extents, jnp.minimum(first + 1, M)) if gaps else (extents,)

    run = multiply.lower(*args, *index("full")).compile()
    assert re.findall(COLLECTIVES, run.as_text()) == collectives
    for name in SIZES:
        # Rows of no group are never read.
        own, owned = index(name), np.zeros(M, bool)
        first = np.asarray(own[1]) if gaps else np.cumsum(SIZES[name]) - SIZES[name]
        for start, size in zip(first, SIZES[name]):
            owned[start : start + size] = True
        poisoned = jnp.where(owned.reshape(M, *[1] * (lhs.ndim - 1)), lhs, jnp.nan)
        got = run(placed(poisoned, lhs_spec), args[1], *(placed(i, P()) for i in own))
        assert got.sharding.is_equivalent_to(NamedSharding(mesh(), out_spec), got.ndim)
        assert_close(got, multiply(poisoned, rhs, *own))


def test_what_does_not_divide_stays_whole():
    x, w, sizes = arrays.array(6, K), arrays.array(3, K, N), jnp.array([3, 0, 2])
    # A constraint may split unevenly where an argument may not.
    split = NamedSharding(mesh(), P(("a", "b")))
    f = jax.jit(lambda x, w: jf.ragged_dot(x, jax.lax.with_sharding_constraint(jnp.sin(w), split), sizes))
    assert_close(f(placed(x, P("a")), placed(w, P())), jf.ragged_dot(x, jnp.sin(w), sizes))


@pytest.mark.parametrize("spec", [P("a"), P(None, None, "a"), P(None, "a"), P(("a", "b"))], ids=str)
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_experts_train_where_they_lie(dtype, kind, spec):
    """Weights split over devices: gradients stay with them, and experts are not gathered."""
    x, w13, w2 = (arrays.array(*shape, dtype=dtype, scale=0.5) for shape in [(M, K), (G, K, 2 * N), (G, N, K)])
    sizes = jnp.array(SIZES["uneven"], jnp.int32)

    def loss(x, w13, w2, sizes):
        h = jf.grouped_matmul(x, w13, sizes, activation="swiglu")
        return jnp.sum(jnp.square(jf.grouped_matmul(h, w2, sizes).astype(jnp.float32)))

    @jax.jit
    def step(x, w13, w2, sizes):
        value, (dx, *dw) = jax.value_and_grad(loss, (0, 1, 2))(x, w13, w2, sizes)
        return value, dx, [w - 0.1 * d for w, d in zip((w13, w2), dw)]

    want = step(x, w13, w2, sizes)
    there = meshes.mesh(getattr(AxisType, kind), a=2, b=2)
    args = [jax.device_put(v, NamedSharding(there, s)) for v, s in zip((x, w13, w2, sizes), (P("b"), spec, spec, P()))]
    with jax.set_mesh(there):
        run = step.lower(*args).compile()
        gathered = re.findall(r"= \w+\[([\d,]+)\]\S* all-gather\(", run.as_text())
        got = run(*args)
    if spec == P("a"):  # the others share mesh axes with rows, or ask for weights in two places
        assert not {f"{G},{K},{2 * N}", f"{G},{N},{K}"} & set(gathered)
    assert all(w.sharding.is_equivalent_to(NamedSharding(there, spec), 3) for w in got[2])
    jax.tree.map(functools.partial(assert_close, scale=4), got, want)


QUANTIZED = {
    "fp8_row": lambda x, w: (jf.quantize(x, "fp8_row"), jf.quantize(w, "fp8_row")),
    "fp8_block": lambda x, w: (jf.quantize(x, "fp8_block"), jf.quantize(w, "fp8_block", block=(128, 128))),
    "nvfp4": lambda x, w: (x, jf.repack_weights(jf.quantize(w, "nvfp4"))),
}
# Specs of rows, of weights (groups, n, k), of the result; collectives.
QUANTIZED_CASES = {
    "rows and columns": (P("a"), P(None, "b"), P("a", "b"), []),
    "groups": (P("a"), P("b"), P("a"), ["all-reduce"]),
    "inner axis": (P(None, "b"), P(None, None, "b"), P(), ["all-reduce"]),
}


@pytest.mark.parametrize("format", QUANTIZED)
def test_quantized_products_are_split(format):
    """By whole blocks; columns and inner axes that are none are gathered."""
    multiply = jax.jit(functools.partial(jf.scaled_grouped_matmul, preferred_element_type="float32"))

    def place(value, spec):
        def one(leaf):
            return placed(leaf, P(*(axis if n % 2 == 0 else None for n, axis in zip(leaf.shape, spec))))

        return jax.tree.map(one, value)

    for n, k in ((256, 256), (36, 208)):
        x, w = QUANTIZED[format](arrays.array(M, k, scale=1.0), arrays.array(G, n, k, scale=1.0))
        for rows, weights, out, collectives in QUANTIZED_CASES.values():
            args, whole = (place(x, rows), place(w, weights)), placed(jnp.array(SIZES["full"], jnp.int32), P())
            run = multiply.lower(*args, whole).compile()
            if n == 256:
                assert re.findall(COLLECTIVES, run.as_text()) == collectives
            for name in SIZES if n == 256 else ["uneven"]:
                sizes = jnp.array(SIZES[name], jnp.int32)
                got = run(*args, placed(sizes, P()))
                assert n == 36 or got.sharding.is_equivalent_to(NamedSharding(mesh(), out), 2)
                assert_close(got, multiply(x, w, sizes), scale=4)


def test_quantized_products_on_explicit_axes():
    """Their gradients lie where the rows do; sums that are not finished are refused."""
    there = meshes.mesh(AxisType.Explicit, a=2, b=2)
    weights = jf.repack_weights(jf.quantize(arrays.array(G, 16, 32), "mxfp4"))
    sizes = jnp.array(SIZES["uneven"], jnp.int32)
    with jax.set_mesh(there):
        x = jax.device_put(arrays.array(M, 32), P(None, "a"))
        grad = jax.jit(jax.grad(lambda x: jf.scaled_grouped_matmul(x, weights, sizes).sum().astype("float32")))(x)
        assert grad.sharding.spec == P(None, "a")
        part = jax.jit(lambda x: jnp.einsum("mk,nk->mn", x, x, out_sharding=P(unreduced={"a"})))(x)
        w = arrays.array(G, M, N)
        with pytest.raises(ValueError, match="grouped_matmul: operands must be neither unreduced nor reduced"):
            jf.grouped_matmul(part, w, sizes)


@pytest.mark.parametrize("devices", [(4,), (2, 2)], ids=str)
@pytest.mark.parametrize("specs", [(P("a"), P()), (P(None, "a"), P(None, "a")), (P(), P(None, None, "a"))], ids=str)
def test_floats_are_quantized_on_explicit_axes(devices, specs):
    """Also over more devices than an axis has blocks, which is then whole on each."""
    there = meshes.mesh(AxisType.Explicit, **dict(zip("ab", devices)))
    multiply = jax.jit(functools.partial(jf.scaled_grouped_matmul, format="fp8_block"))
    x, w = arrays.array(M, 256, scale=1.0), arrays.array(G, 256, 256, scale=1.0)
    sizes = jnp.array(SIZES["uneven"], jnp.int32)
    want = multiply(x, w, sizes)
    with jax.set_mesh(there):
        got = multiply(*(jax.device_put(a, NamedSharding(there, s)) for a, s in zip((x, w), specs)), sizes)
    assert_close(got, want, scale=4)


@pytest.mark.parametrize("spec", [P(None, "a", None), P(None, None, "a")], ids=["n", "k"])
def test_quantized_blocks_are_fewer_than_devices(spec):
    """The compiler by itself would lay two blocks on parts of the mesh axis of four, which have no name."""
    there = meshes.mesh(a=4)
    x = jax.random.normal(jax.random.key(0), (64, 256), jnp.bfloat16)
    w = jax.random.normal(jax.random.key(1), (4, 256, 256), jnp.bfloat16)
    sizes = jnp.array([10, 0, 20, 30], jnp.int32)
    f = jax.jit(lambda x, w: jf.scaled_grouped_matmul(x, w, sizes, format="fp8_block"))
    want = f(x, w)
    with jax.set_mesh(there):
        got = f(*(jax.device_put(a, NamedSharding(there, s)) for a, s in ((x, P(None, "a")), (w, spec))))
    assert_close(got, want)


@pytest.mark.parametrize(("format", "k", "n"), [("fp8_row", 64, 16), ("fp8_row", 16, 48), ("fp8_block", 128, 128)])
def test_quantized_products_of_one_block(format, k, n):
    there = meshes.mesh(a=2)
    x, w = arrays.array(M, k, scale=1.0), arrays.array(G, n, k, scale=1.0)
    f = jax.jit(lambda x, w: jf.scaled_grouped_matmul(x, w, jnp.array(SIZES["uneven"], jnp.int32), format=format))
    want = f(x, w)
    with jax.set_mesh(there):
        got = f(jax.device_put(x, NamedSharding(there, P("a"))), jax.device_put(w, NamedSharding(there, P())))
    assert_close(got, want)
