"""vmap of a grouped product with what follows it: folded into one kernel, whatever is batched, derivatives too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_grouped_epilogue import BF16, F32, kernels
from tolerances import assert_close

import jax_fuser as jf

SIZE, GROUPS, TOKENS, M, K, F = 3, 4, 30, 50, 16, 24
KINDS = {  # by argument: its shape without a batch, its dtype
    "x": ((M, K), BF16),
    "w": ((GROUPS, K, 2 * F), BF16),
    "extents": ((GROUPS,), jnp.int32),
    "bias": ((GROUPS, 2 * F), BF16),
    "scale": ((M,), F32),
    "index": ((M,), jnp.int32),
}
EXTENTS = np.array([[5, 0, 17, 20], [0, 0, 0, 0], [50, 0, 0, 0]], np.int32)
CASES = {  # the batched arguments, all arguments, and whether one kernel has them all
    "rows": ("x", "x w extents", True),
    "rows, a shared scale and bias": ("x", "x w extents bias scale", True),
    "rows and scales": ("x scale", "x w extents bias scale", True),
    "rows and sizes": ("x extents", "x w extents bias scale", True),
    "sizes alone": ("extents", "x w extents", False),
    "rows, weights and sizes": ("x w extents", "x w extents scale", True),
    "everything": ("x w extents bias scale", "x w extents bias scale", True),
    "rows and weights": ("x w", "x w extents bias", True),
    "a bias alone": ("bias", "x w extents bias", False),
    "weights alone": ("w", "x w extents", False),
    "tokens by number": ("x", "x w extents index", True),
    "numbers": ("index", "x w extents index scale", True),
    "numbers and sizes": ("index extents", "x w extents index", True),
}


def layer(names):
    def f(*arguments):
        given = dict(zip(names, arguments))
        more = {"bias": given.get("bias"), "row_scale": given.get("scale"), "row_index": given.get("index")}
        return jf.grouped_matmul(given["x"], given["w"], given["extents"], activation="swiglu", **more)

    return f


def case(name):
    batched, names, is_one = CASES[name]
    batched, names = batched.split(), names.split()
    return layer(names), names, [0 if n in batched else None for n in names], is_one


def arrays(names, axes):
    rng = np.random.default_rng(0)
    made = []
    for name, axis in zip(names, axes):
        shape, dtype = KINDS[name]
        if name == "x" and "index" in names:
            shape = (TOKENS, K)
        shape = shape if axis is None else (SIZE, *shape)
        if name == "extents":
            made.append(EXTENTS[0] if axis is None else EXTENTS)
        elif name == "index":
            made.append(rng.integers(0, TOKENS, shape))
        else:
            made.append(rng.normal(size=shape) * (K**-0.5 if name == "w" else 1))
        made[-1] = jnp.asarray(made[-1], dtype)
    return made


def entry(given, axes, i):
    return [a if axis is None else a[i] for a, axis in zip(given, axes)]


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_each_entry(name, device):
    f, names, axes, _ = case(name)
    given = arrays(names, axes)
    got = jax.jit(jax.vmap(f, axes))(*given)
    for i in range(SIZE):
        assert_close(got[i], jax.jit(f)(*entry(given, axes, i)), BF16)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_each_entry(name, device):
    f, names, axes, _ = case(name)
    given = arrays(names, axes)
    floats = [i for i, a in enumerate(given) if jnp.issubdtype(a.dtype, jnp.floating)]

    def loss(*arguments):
        return (f(*arguments).astype(F32) ** 2).sum()

    got = jax.jit(jax.vmap(jax.grad(loss, floats), axes))(*given)
    for i in range(SIZE):
        for a, b in zip(got, jax.jit(jax.grad(loss, floats))(*entry(given, axes, i))):
            assert_close(a[i], b, BF16)


@pytest.mark.parametrize("grad", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize("name", CASES)
def test_they_are_one_kernel(name, grad):
    f, names, axes, is_one = case(name)
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays(names, axes)]
    run = jax.grad(lambda *a: (f(*a).astype(F32) ** 2).sum()) if grad else f
    fused = [k for k in kernels(jax.vmap(run, axes), shapes) if k["entry"].endswith("rows_fused")]
    assert len(fused) == is_one
    assert all(("stored, too" in k["reason"]) == grad for k in fused)


@pytest.mark.parametrize("sizes", [[7, 100, 3, 0], [2**30, 3, 0, 0], [2**31 - 1, 5, 0, 0]])
def test_sizes_beyond_the_rows_are_cut_off_as_without_a_batch(sizes, device):
    def f(x):
        return jf.grouped_matmul(x, w, extents, activation="swiglu", validate=False)

    x, w, _ = arrays(["x", "w", "extents"], [0, None, None])
    extents = jnp.asarray(sizes, jnp.int32)
    got = jax.jit(jax.vmap(f))(x)
    for i in range(SIZE):
        assert_close(got[i], jax.jit(f)(x[i]), BF16)
