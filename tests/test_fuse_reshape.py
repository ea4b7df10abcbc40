"""Reshapes inside fusions: the axes of a whole program are cut so that they move nothing."""

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from arrays import array, paired
from jax import lax
from random_programs import Program
from test_cuda_sources import nvrtc_or_skip
from test_fuse_random import check
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _axes, _core


def rms_norm(x):
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1)


def head_norm(x):
    return rms_norm(x.reshape(3, 7, 4, 15)).reshape(x.shape)


def swiglu(x):
    gate, up = jnp.split(x, 2, axis=-1)
    return jax.nn.silu(gate) * up


def rotary(x, angle):
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], axis=-1)


# Of x: [3, 7, 60].
ANY_DTYPE = {
    "split": lambda x: (x + x).reshape(3, 7, 4, 15),
    "merged": lambda x: (x + x).reshape(21, 60),
    "flat": lambda x: x.reshape(-1) + x.ravel(),
    "merged and split": lambda x: (x + x).reshape(63, 20),
    "there and back": lambda x: (x.reshape(3, 7, 4, 15) + x.reshape(3, 7, 4, 15)[:, :1]).reshape(x.shape) + x,
    "with ones": lambda x: (x + x).reshape(3, 1, 7, 1, 6, 10, 1),
    "two ways": lambda x: (x.reshape(21, 60) + 1, x.reshape(3, 420) + 1, x.reshape(3, 7, 60) + 1),
    "the same twice": lambda x: (x + x, (x + x).reshape(21, 60)),
    "uneven": lambda x: (x + x).reshape(4, 315) + 1,
    "of a broadcast": lambda x: (x[:, :1] + jnp.zeros_like(x)).reshape(21, 4, 15) + x.reshape(21, 4, 15),
    "of an iota": lambda x: (x + jnp.arange(60).astype(x.dtype)).reshape(3, 7, 4, 15)
    + jnp.arange(420).astype(x.dtype).reshape(7, 4, 15),
    "of a transpose": lambda x: (x.reshape(21, 4, 15) + 1).transpose(1, 0, 2).reshape(84, 15) + 1,
    "of a slice": lambda x: (x[:, :, 15:45] + 1).reshape(3, 7, 2, 15),
    "of an odd slice": lambda x: (x[:, :, 1:31] + 1).reshape(3, 7, 2, 15),
    "slice of it": lambda x: (x + 1).reshape(3, 7, 4, 15)[:, 2:5, 3] + 1,
    "of a pad": lambda x: jnp.pad(x + 1, [(0, 0), (0, 0), (15, 30)]).reshape(21, 7, 15),
    "of an odd pad": lambda x: jnp.pad(x + 1, [(0, 0), (1, 0), (1, 14)]).reshape(24, 5, 15),
    "of parts": lambda x: jnp.concatenate([x + x, x[:, :, :15]], axis=2).reshape(3, 7, 5, 15) + 1,
    "of stored parts": lambda x: jnp.concatenate([x + x, x[:, :, :15] + 1], axis=2).reshape(3, 7, 5, 15),
    "of odd parts": lambda x: jnp.concatenate([x + x, x[:, :, :12]], axis=2).reshape(3, 7, 9, 8) + 1,
    "of a sum": lambda x: (x.reshape(3, 7, 4, 15).sum(2) + 1).reshape(3, 105),
    "of a row sum": lambda x: (x + x).sum(2).reshape(21)[:, None] + x.reshape(21, 60),
    "beside a scan": lambda x: jnp.cumsum(x.reshape(21, 60) % 3, 0, dtype=x.dtype).reshape(21, 4, 15) + 1,
    "along a scan": lambda x: jnp.cumsum(x.reshape(21, 60) % 3, 1, dtype=x.dtype).reshape(21, 4, 15) + 1,
    "under a sum": lambda x: x.reshape(21, 6, 10).max(1) + 1,
    "under a long sum": lambda x: (x + 1).reshape(-1).sum(),
    "columns as matrices": lambda x: jnp.stack([x[..., i] + x.max(-1) for i in range(9)], -1).reshape(3, 7, 3, 3),
    "stored parts and pairs": lambda x: jnp.concatenate(
        [x[..., :3], (x[..., None] + jnp.arange(2).astype(x.dtype)).reshape(3, 7, 120)], -1),
}  # fmt: skip
FLOATS = {
    "head norm": head_norm,
    "head norm and residual norm": lambda x: rms_norm(head_norm(x) + x),
    "softmax of groups": lambda x: jax.nn.softmax(x.reshape(21, 10, 6), axis=1).reshape(x.shape) * x,
    "rotary of heads": lambda x: rotary(x.reshape(3, 7, 6, 10), (jnp.arange(35).astype(x.dtype) / 35).reshape(7, 1, 5))
    .reshape(x.shape),
    "halves of heads": lambda x: swiglu(x.reshape(3, 7, 6, 10)).reshape(21, 30),
    "query, key and value": lambda x: [rms_norm(p.reshape(3, 7, 2, 10)) for p in jnp.split(x, 3, axis=-1)],
}  # fmt: skip


def compare(got, want, dtype, scale=1.0):
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_close(g, w, dtype, scale)


@pytest.mark.parametrize(("name", "dtype"), paired(ANY_DTYPE, ["float32", "bfloat16", "int32", "int8"]))
def test_values(device, name, dtype):
    x, f = array(3, 7, 60, dtype=dtype), ANY_DTYPE[name]
    wide = x.astype("float32") if dtype == "bfloat16" else x
    compare(jf.fuse(f)(x), jax.jit(f)(wide), dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FLOATS)
def test_floats(device, name, dtype):
    x, f = array(3, 7, 60, dtype=dtype), FLOATS[name]
    compare(jf.fuse(f)(x), jax.jit(f)(x.astype("float32")), dtype)


@pytest.mark.parametrize("name", [*ANY_DTYPE, *FLOATS])
def test_gradients(device, name):
    x, f = array(3, 7, 60), (ANY_DTYPE | FLOATS)[name]

    def loss(f):
        return lambda x: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(f(x)))

    compare(*(jax.jit(jax.grad(loss(g)))(x) for g in (jf.fuse(f), f)), "float32", scale=20)


@pytest.mark.parametrize("name", ["merged and split", "of an iota", "of parts", "head norm and residual norm"])
def test_vmap(device, name):
    x, f = array(5, 3, 7, 60), (ANY_DTYPE | FLOATS)[name]
    compare(jax.vmap(jf.fuse(f), in_axes=1, out_axes=2)(x.swapaxes(0, 1)), jax.vmap(f, out_axes=2)(x), "float32")


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "name",
    [
        n
        for n in (*ANY_DTYPE, *FLOATS)
        if not any(w in n for w in ("ways", "odd", "stored", "row sum", "residual", "scan", "uneven"))
    ],
)
def test_one_kernel(name, platform):
    f = jf.fuse((ANY_DTYPE | FLOATS)[name])
    loops = f.lower(array(3, 7, 60)).as_text("loops", platform=platform)
    assert loops.count("kernel ") == 1
    assert not jf.explain(f)(array(3, 7, 60)).cuts


def test_what_is_stored_is_read_by_another_shape():
    """Sums of pairs, which no cut makes a part of rows of 123, are stored once and read from there."""
    f = jf.fuse(ANY_DTYPE["stored parts and pairs"])
    assert f.lower(array(3, 7, 60)).as_text("loops", platform="cuda").count("kernel ") == 2


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_derivative_of_a_head_norm_is_one_kernel(platform):
    def backward(x, g):
        return jax.vjp(head_norm, x)[1](g)

    x = array(3, 7, 60)
    assert jf.fuse(backward).lower(x, x).as_text("loops", platform=platform).count("kernel ") == 1


def test_flat_views_keep_whole_vectors_on_cuda():
    x = array(1024, 16 * 128, dtype="bfloat16")

    def f(x):
        return rms_norm(x.reshape(1024, 16, 128).astype("float32")).astype(x.dtype).reshape(x.shape)

    source = jf.fuse(f).lower(x).as_text("source", platform="cuda")
    assert "jf::load<f32, 4>" in source and "jf::store<4>" in source
    flat = jf.fuse(lambda x: jnp.tanh(x).reshape(-1, 64) * 2).lower(array(700, 1024)).as_text("source", platform="cuda")
    assert "jf::load<f32, 4>" in flat and "%" not in flat


def test_uneven_reshapes_stay_with_xla(device):
    def f(x):
        return jnp.tanh(jnp.tanh(x).reshape(8, 3)) * 2

    x = array(6, 4)
    assert_close(jf.fuse(f)(x), f(x))
    assert ("reshape", "cuts axes unevenly, (6, 4) to (8, 3)") in [
        (c.primitive, c.reason) for c in jf.explain(f)(x).cuts
    ]


def test_shapes_that_disagree_go_through_memory(device):
    def f(x):
        y = jnp.tanh(x).reshape(24)
        return jnp.sin(y.reshape(8, 3) * 2).sum(1)

    x = array(6, 4)
    assert_close(jf.fuse(f)(x), f(x))


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        ((6, 4), (24,), [([0, 1], [0])]),
        ((6, 4), (2, 3, 4), [([0], [0, 1]), ([1], [2])]),
        ((6, 1, 4), (1, 6, 2, 2), [([0], [1]), ([2], [2, 3])]),
        ((4, 6), (8, 3), [([0, 1], [0, 1])]),
        ((), (1,), []),
    ],
)
def test_groups_of_axes(old, new, want):
    assert _axes.groups(old, new) == want


MESHES = {
    "kept": (lambda x: rms_norm(x.reshape(4, 6, 4, 15)).reshape(x.shape), jax.P("d"), True),
    "split": (lambda x: rms_norm(x.reshape(4, 6, 4, 15)).reshape(x.shape), jax.P(None, None, "d"), True),
    "split unevenly": (lambda x: rms_norm(x.reshape(4, 6, 15, 4)).reshape(x.shape), jax.P(None, None, "d"), False),
    "merged": (lambda x: rms_norm(x.reshape(24, 60)) + 1, jax.P("d"), True),
    "merged behind": (lambda x: rms_norm(x.reshape(24, 60)) + 1, jax.P(None, "d"), False),
    "merged and back": (lambda x: rms_norm(x.reshape(24, 60)).reshape(x.shape) + x, jax.P("d"), True),
    "flat": (lambda x: jnp.tanh(x).reshape(-1) * 2, jax.P("d"), True),
    "summed": (lambda x: jnp.tanh(x).reshape(24, 60).sum(0), jax.P("d"), True),
}


@pytest.mark.parametrize("name", MESHES)
def test_a_mesh_splits_the_slowest_axis_of_a_reshape(name):
    mesh = meshes.mesh(d=2)
    x = array(4, 6, 60)
    f, spec, apart = MESHES[name]
    y = jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))
    run = jax.jit(jf.fuse(f))
    assert_close(run(y), f(x))
    assert ("all-gather" in run.lower(y).compile().as_text()) != apart


TEXT = """fusion f(x: f32[6,4]) -> (t1, t2) {
  t1: f32[8,3] = reshape(x)
  t2: f32[8,3] = exp(t1)
}
"""


def test_text_prints_as_it_parses_and_runs():
    fusion = _core.Fusion(TEXT)
    assert str(fusion) == TEXT
    x = array(6, 4)
    plain, exp = jf.ir.run(fusion, x)
    np.testing.assert_array_equal(plain, x.reshape(8, 3))
    assert_close(exp, jnp.exp(x.reshape(8, 3)))


def test_another_number_of_elements_is_refused():
    with pytest.raises(_core.UserError, match=r"\[reshape\] f32\[6,4\] has 24 elements, f32\[5,5\] has 25"):
        _core.validate("fusion f(x: f32[6,4]) -> (t) {\n  t: f32[5,5] = reshape(x)\n}\n")
    b = _core.Builder("f")
    with pytest.raises(_core.UserError, match=r"\[reshape\] f32\[6,4\] has 24 elements"):
        b.reshape(b.input("x", "f32", [6, 4]), [5, 5])


@pytest.mark.parametrize("name", [*ANY_DTYPE, *FLOATS])
def test_cuda_sources_compile(name):
    nvrtc_or_skip()
    if name == "uneven":
        pytest.skip("it stays with XLA")
    fusion = jf.ir.trace(lambda x: jax.tree.leaves((ANY_DTYPE | FLOATS)[name](x))[0], array(3, 7, 60, dtype="bfloat16"))
    assert _core.compile_cuda(str(fusion), _core.cuda_target_for(90))


@pytest.mark.parametrize("seed", range(4))
def test_random_programs(device, seed):
    programs = [Program([51, seed, i], moves=("reshape", "reshape", "pad")) for i in range(20)]
    found = check(device, programs, seed == 1)
    assert not found, "\n\n".join(found)
