"""Padding inside fusions, and what the derivatives of slices, splits and concatenations become: one kernel."""

import re

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
from jax_fuser import _core

DTYPES = ["float32", "bfloat16", "int32", "int8", "bool"]


def pad(x, low, high, by=0):
    return lax.pad(x, jnp.asarray(by, x.dtype), [(a, b, 0) for a, b in zip(low, high)])


def twice(x):
    return x ^ True if x.dtype == bool else x + x


@pytest.mark.parametrize(
    "f",
    [
        lambda x: tuple(jnp.concatenate([x, x + 1]).sum() for _ in range(3)),
        lambda x: tuple(jnp.argmax(jnp.stack([x, x + 1]), 0) for _ in range(2)),
        lambda x: (jnp.concatenate([x, -x]).max(), 2 * jnp.concatenate([x, -x]).max()),
        jax.scipy.special.sici,
    ],
)
def test_equal_results_of_concatenations(f):
    x = jnp.linspace(0.5, 9, 7)
    for got, want in zip(jf.fuse(f)(x), f(x), strict=True):
        assert_close(got, want)


@pytest.mark.parametrize("shape", [(3, 5, 4), (5, 3), (1, 2, 3)])
def test_reshapes_of_no_elements_beside_slices(shape):
    x = jnp.ones(shape)
    assert jf.fuse(lambda x: x[:, :0].reshape(-1) * 2)(x).shape == (0,)
    assert jf.fuse(lambda x: (jnp.split(x, [0, 1], 1)[0].reshape(-1) * 2).sum())(x) == 0


N = 2**31 + 11  # elements that no array in memory has


@pytest.mark.parametrize(
    ("f", "want"),
    [
        (lambda c: lax.iota("float32", N)[-3:] * c, [2.0**31] * 3),
        (lambda c: lax.iota("uint32", N)[-3:] * c.astype("uint32"), [N - 3, N - 2, N - 1]),
        (lambda c: jnp.pad(jnp.full(N - 3, c), (3, 0))[-3:] * c, [1, 1, 1]),
        (lambda c: lax.dynamic_update_slice(jnp.full(N, c), jnp.full(9, 9.0), (5,))[-3:] * c, [1, 1, 1]),
        (lambda c: lax.dynamic_update_slice(jnp.full(N, c), jnp.full(9, 9.0), (5,))[3:8] * c, [1, 1, 9, 9, 9]),
    ],
)
def test_places_past_2_to_31(f, want):
    np.testing.assert_array_equal(jf.fuse(f)(jnp.float32(1)), want)


def rotary(x, angle):
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], axis=-1)


def geglu(x):
    half = x.shape[-1] // 2
    return jax.nn.gelu(x[..., :half]) * x[..., half:]


ANY_DTYPE = {
    "both ends": lambda x: twice(pad(x, (1, 3), (2, 5))),
    "even ends": lambda x: twice(pad(x, (2, 16), (0, 32))),
    "by a number": lambda x: twice(pad(x, (1, 0), (0, 5), 1)),
    "of a computed value": lambda x: pad(twice(x), (0, 7), (3, 0), 1),
    "cut off": lambda x: twice(pad(x, (-2, 3), (1, -30), 1)),
    "all cut off": lambda x: twice(pad(x, (-40, 0), (50, 0), 1)),
    "of a slice": lambda x: pad(twice(x)[3:20, 4:60:3], (1, 2), (3, 4)),
    "slice of it": lambda x: twice(pad(twice(x), (3, 5), (4, 6), 1)[1:30, 2:60:3]),
    "twice": lambda x: twice(pad(pad(twice(x), (1, 1), (1, 1), 1), (2, 3), (0, 1))),
    "of a transpose": lambda x: twice(pad(x.T, (1, 2), (3, 4))),
    "of a broadcast": lambda x: pad(jnp.broadcast_to(x[:, :1], x.shape) & x if x.dtype == bool else x[:, :1] + x,
                                    (1, 2), (3, 4)),
    "of one axis": lambda x: twice(pad(x[3], (5,), (6,))),
    "read by parts": lambda x: twice(jnp.concatenate([twice(x), x[:, :7]], axis=1))[:, 3:],
}  # fmt: skip
FLOATS = {
    "of an iota": lambda x: x + pad(jnp.arange(60, dtype=x.dtype), (3,), (2,), 9),
    "under a reduction": lambda x: pad(x, (0, 3), (0, 60)).sum(1),
    "beside a reduction": lambda x: pad(jax.nn.softmax(x, -1), (2, 3), (0, 9)) + 1,
    "of a reduction": lambda x: pad(x.sum(1), (2,), (7,)) * 2,
    "norm of parts": lambda x: (lambda y: y * lax.rsqrt((y * y).mean(-1, keepdims=True) + 1))(
        jnp.concatenate([jnp.tanh(x[:, 30:]), x[:, :9] * 2], axis=1)
    ),
    "halves": lambda x: geglu(x[:, :64]),
    "rotary": lambda x: rotary(x[:, :64], jnp.linspace(0, 1, 32, dtype=x.dtype)),
    "sum of parts": lambda x: pad(jnp.tanh(x), (0, 0), (0, 65)) + pad(x * 2, (0, 65), (0, 0)),
    "sum of uneven parts": lambda x: pad(x[:, :3], (0, 0), (0, 7)) + pad(x[:, 3:10], (0, 3), (0, 0)),
    "sum of parts with gaps": lambda x: pad(x[:, :3], (0, 0), (0, 8)) + pad(x[:, 3:10], (0, 4), (0, 0)),
    "sum of overlapping parts": lambda x: pad(x[:, :5], (0, 0), (0, 5)) + pad(x[:, 3:10], (0, 3), (0, 0)),
}


@pytest.mark.parametrize(("name", "dtype"), paired(ANY_DTYPE, DTYPES))
def test_values(device, name, dtype):
    x, f = array(33, 65, dtype=dtype), ANY_DTYPE[name]
    assert_close(jf.fuse(f)(x), jax.jit(f)(x), dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FLOATS)
def test_floats(device, name, dtype):
    x, f = array(33, 65, dtype=dtype), FLOATS[name]
    assert_close(jf.fuse(f)(x), jax.jit(f)(x.astype("float32")), dtype)


@pytest.mark.parametrize("name", [*ANY_DTYPE, *FLOATS])
def test_gradients(device, name):
    x, f = array(33, 65), (ANY_DTYPE | FLOATS)[name]

    def loss(f):
        return lambda x: jnp.sum(jnp.sin(f(x)))

    assert_close(*(jax.jit(jax.grad(loss(g)))(x) for g in (jf.fuse(f), f)), "float32", scale=20)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_outside_leaks_nothing(device, value):
    x = jnp.full((40, 130), value).at[3:30, 5:100].set(array(27, 95))

    def f(x):
        return pad(jnp.tanh(x[3:30, 5:100] / x[3:30, 5:100]), (2, 7), (1, 3), 5.0) * 2

    got = jf.fuse(f)(x)
    assert np.isfinite(got).all()
    assert_close(got, f(x))


def test_a_traced_padding(device):
    x = array(33, 65)

    def f(x, by):
        return lax.pad(jnp.tanh(x), by * 2, [(1, 2, 0), (3, 4, 0)]) + 1

    assert_close(jf.fuse(f)(x, 1.5), f(x, 1.5))


def test_minus_zero_in_a_sum_of_parts(device):
    def f(x):
        return pad(x, (0,), (4,)) + pad(-x, (4,), (0,))

    x = jnp.array([0.0, -0.0, 1.0, -1.0])
    np.testing.assert_array_equal(np.signbit(jf.fuse(f)(x)), np.signbit(f(x)))


def test_vmap(device):
    x = array(5, 33, 65)
    f = FLOATS["beside a reduction"]
    assert_close(jax.vmap(jf.fuse(f))(x), jax.vmap(f)(x), scale=2)


def kernels(f, *args, platform="cpu"):
    return jf.fuse(f).lower(*args).as_text("loops", platform=platform).count("kernel ")


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_derivatives_of_halves_are_one_kernel_that_loads_each_element_once(platform):
    x, angle, g = array(64, 512), array(64, 256), array(64, 512)

    def rotary_backward(g, x, angle):
        return jax.vjp(lambda x: rotary(x, angle), x)[1](g)

    def geglu_backward(g, x):
        return jax.vjp(geglu, x)[1](g)

    for f, args, loads in ((rotary_backward, (g, x, angle), 3), (geglu_backward, (g[:, :256], x), 3)):
        loops = jf.fuse(f).lower(*args).as_text("loops", platform=platform)
        assert loops.count("kernel ") == 1 and loops.count(" load ") == loads
        assert not jf.explain(f)(*args).cuts


def test_norm_of_a_rotary_embedding_is_one_kernel():
    def f(x, angle):
        y = rotary(x, angle)
        return y * lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6)

    assert kernels(f, array(8, 64, 128), array(64, 64)) == 1


def test_even_padding_keeps_whole_vectors_on_cuda():
    x = array(4096, 512)
    source = jf.fuse(lambda x: pad(x, (1, 64), (0, 128)) * 2).lower(x).as_text("source", platform="cuda")
    assert "jf::load<f32, 4>" in source and "load_within" not in source


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", [*ANY_DTYPE, *FLOATS])
def test_cuda_sources_compile(name, dtype):
    nvrtc_or_skip()
    fusion = jf.ir.trace((ANY_DTYPE | FLOATS)[name], array(33, 65, dtype=dtype))
    assert _core.compile_cuda(str(fusion), _core.cuda_target_for(90))


@pytest.mark.parametrize(
    ("shape", "padding"),
    [
        ((33,), [(0, 1, 1)]),  # the derivative of x[::2], of x[1::2]
        ((33,), [(1, 0, 1)]),
        ((33,), [(2, 3, 1)]),
        ((5,), [(-3, -2, 2)]),
        ((1,), [(0, 0, 3)]),
        ((4, 0), [(1, 1, 1), (0, 2, 1)]),
        ((4, 6, 17), [(0, 1, 1), (1, 0, 0), (3, -2, 3)]),
        ((), []),
    ],
)
def test_padding_between_elements(device, shape, padding):
    def f(x):
        return lax.pad(jnp.tanh(x), x.dtype.type(7), padding) * 2

    x = array(*shape)
    assert_close(jf.fuse(f)(x), f(x))
    assert not x.size or not jf.explain(f)(x).cuts


def interleaved(x, cos, sin):
    """Rotary embeddings of even and odd elements: of slices, of tables that repeat."""
    even, odd = x[..., ::2], x[..., 1::2]
    rotated = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], -1).reshape(x.shape)
    other = jnp.stack([-odd, even], -1).reshape(x.shape)
    return rotated, x * jnp.repeat(cos, 2, -1) + other * jnp.repeat(sin, 2, -1)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_interleaved_rotary_embeddings_are_one_kernel(device, dtype, which):
    x, cos, sin = array(3, 5, 14, dtype=dtype), array(5, 7, dtype=dtype), array(5, 7, dtype=dtype)

    def f(x, cos, sin):
        return interleaved(x, cos, sin)[which]

    assert_close(jf.fuse(f)(x, cos, sin), f(*(a.astype(jnp.float32) for a in (x, cos, sin))), dtype)
    assert kernels(f, x, cos, sin) == 1
    # Threads of a GPU store pairs, not every other element.
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape in ((64, 512, 128), (512, 64), (512, 64))]
    stored = jf.fuse(f).lower(*shapes).as_text("loops", platform="cuda")
    assert re.findall(r"store .* lane \* (\d+)", stored) == ["1"]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cuda_sources_of_interleaved_rotary_embeddings_compile(dtype, which):
    nvrtc_or_skip()
    x, cos, sin = array(64, 512, 128, dtype=dtype), array(512, 64, dtype=dtype), array(512, 64, dtype=dtype)

    def with_tables(x, cos, sin):
        out, back = jax.vjp(lambda x: interleaved(x, cos, sin)[which], x)
        return out, back(jnp.sin(out))[0]

    fusion = jf.ir.trace(with_tables, x, cos, sin)
    assert _core.compile_cuda(str(fusion), _core.cuda_target_for(90))


@pytest.mark.parametrize("parts", [(1, 1), (1, 2), (3, 1, 2), (1, 1, 1, 1), (5, 3, 1, 1, 1), (64, 1)])
def test_short_parts_side_by_side(device, parts):
    """Stored each in its place, or chosen and stored in whole lines."""
    arrays = [array(6, 5, n) for n in parts]
    for axis, order in ((2, (0, 1, 2)), (1, (0, 2, 1)), (0, (2, 1, 0))):

        def f(*arrays, axis=axis, order=order):
            return jnp.concatenate([jnp.sin(a).transpose(order) + n for n, a in enumerate(arrays)], axis)

        assert_close(jf.fuse(f)(*arrays), f(*arrays))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_derivative_of_slices_with_strides_is_one_kernel(device, dtype):
    x, cos, sin = array(3, 5, 14, dtype=dtype), array(5, 7, dtype=dtype), array(5, 7, dtype=dtype)

    def rotated(x):
        even, odd = x[..., ::2], x[..., 1::2]
        return jnp.stack([even * cos - odd * sin, odd * cos + even * sin], -1).reshape(x.shape)

    def back(x):
        return jax.vjp(rotated, x)[1](jnp.sin(x))[0]

    assert_close(jf.fuse(back)(x), back(x.astype(jnp.float32)), dtype)
    assert kernels(back, x) == 1


def test_a_mesh_splits_other_axes_only():
    mesh = meshes.mesh(d=2)
    x = array(8, 512)
    for spec in (jax.P(None, "d"), jax.P("d", None)):
        y = jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))
        f = FLOATS["beside a reduction"]
        assert_close(jax.jit(jf.fuse(f))(y), f(x))
        grad = jax.jit(jax.grad(lambda y: jf.fuse(geglu)(y).sum()))(y)
        assert_close(grad, jax.grad(lambda x: geglu(x).sum())(x))


def test_text_prints_as_it_parses():
    b = _core.Builder("f")
    x = b.input("x", "f32", [33, 65])
    b.output(b.pad(x, [1, 0], [-3, 7], b.constant("f32", 0.0)))
    text = b.finish()
    assert "pad(x) {starts=[0,0], strides=[1,1], low=[1,0], counts=[30,65]}" in text
    assert str(_core.Fusion(text)) == text


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("{starts=[0,0], strides=[1,1], low=[0,0], counts=[34,20]}", r"\[pad\] axis 0 of f32\[33,65\]: 34 elements"),
        ("{starts=[0,0], strides=[1,1], low=[-1,0], counts=[4,20]}", r"\[pad\] axis 0 of f32\[33,65\]: 4 elements"),
        ("{starts=[0,0], strides=[1,1], low=[0,1], counts=[4,20]}", "20 elements from 1 on do not fit into an axis of"),
        ("{starts=[0,0], strides=[1,1], low=[0], counts=[4,20]}", r"\[pad\] needs a low end"),
        ("{starts=[0,0], strides=[1,1]}", r"\[pad\] needs {starts"),
    ],
)
def test_text_that_does_not_fit_is_refused(attribute, message):
    text = f"fusion f(x: f32[33,65]) -> (t) {{\n  t: f32[4,20] = pad(x) {attribute}\n}}\n"
    with pytest.raises(_core.UserError, match=message):
        _core.validate(text)


def test_builder_says_what_is_wrong():
    b = _core.Builder("f")
    x, zero = b.input("x", "f32", [4]), b.constant("f32", 0.0)
    with pytest.raises(_core.UserError, match=r"\[pad\] axis 0 of extent 4 cannot lose 3 and 2 elements"):
        b.pad(x, [-3], [-2], zero)
    with pytest.raises(_core.UserError, match=r"\[pad\] expected a padding of f32\[\], got s32"):
        b.pad(x, [1], [1], b.constant("s32", 0))


@pytest.mark.parametrize("seed", range(4))
def test_random_programs(device, seed):
    programs = [Program([50, seed, i], moves=("pad",)) for i in range(20)]
    found = check(device, programs, seed == 1)
    assert not found, "\n\n".join(found)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jnp.pad(x, ((2, 0), (0, 0)), constant_values=7)[0::3] + 1,
        lambda x: jnp.pad(x * 2, ((1, 1), (0, 0)))[2::3] + 1,
        lambda x: jnp.concatenate([x, x * 2])[1::3] * 2,
    ],
)
def test_one_element_of_a_slice_with_a_long_stride(device, f):
    x = np.arange(18, dtype=np.float32).reshape(2, 9)
    np.testing.assert_array_equal(jf.fuse(f)(x), f(x))
