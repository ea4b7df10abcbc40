"""Static slices, splits and concatenations inside fusions: what is asked for is loaded once and stored in place."""

import functools

import arrays
import jax
import jax.numpy as jnp
import meshes
import pytest
from tolerances import assert_close

import jax_fuser as jf

array = functools.partial(arrays.array, scale=1)


def swiglu(x):
    gate, up = jnp.split(x, 2, axis=-1)
    return jax.nn.silu(gate) * up


def rotary(x, angle):
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], axis=-1)


CASES = {
    "two halves": swiglu,
    "uneven split": lambda x: [jnp.tanh(p) for p in jnp.split(x, [3, 300], axis=1)],
    "strides": lambda x: x[3:20:2, 5:300:7] * 2 + x[0:9, 100:143],
    "of a computed value": lambda x: jnp.tanh(x * 2 + x[:1])[4:9, 7:] + 1,
    "of a broadcast": lambda x: (x[:, :1] + jnp.zeros_like(x))[2:5, 3:70] * x[2:5, 3:70],
    "of a transpose": lambda x: (x.T * 2)[5:, 3:7],
    "of a slice": lambda x: (x[1:, ::2] + 1)[::3, 4:9],
    "of an iota": lambda x: (x + jnp.arange(512))[:, 7:40:3],
    "of a reduction": lambda x: (x.sum(1) * 2)[4:9] + 1,
    "under a reduction": lambda x: jax.nn.softmax(x[:, 3:300], axis=-1),
    "beside a reduction": lambda x: x[:, :256] * jax.lax.rsqrt((x[:, 256:] ** 2).mean(-1, keepdims=True)),
    "one row": lambda x: jnp.exp(x[5]) + x[6],
    "nothing": lambda x: x[4:4] * 2,
    "rotary": lambda x: rotary(x, jnp.linspace(0, 1, 256, dtype=x.dtype)),
    "uneven parts": lambda x: jnp.concatenate([x[:, :3] * 2, jnp.tanh(x[:, 7:100]), x], axis=1),
    "rows of parts": lambda x: jnp.concatenate([x * 2, x[:5]]) + 1,
    "one part twice": lambda x: jnp.concatenate([x, x]),
    "parts of parts": lambda x: jnp.concatenate(
        [jnp.concatenate([x * 2, x], axis=1), jnp.concatenate([x, x], axis=1)], axis=0
    ),
    "parts read again": lambda x: (lambda c: (c.sum(0), c * 2, jnp.tanh(c)))(jnp.concatenate([x * 2, x])),
    "parts of a reduction": lambda x: jnp.concatenate([jax.nn.softmax(x, -1), x + x.sum(1, keepdims=True)], axis=1),
    "slice across parts": lambda x: jnp.concatenate([x * 2, x], axis=1)[:, 300:700] + 1,
    "slice of one part": lambda x: jnp.concatenate([x * 2, x], axis=1)[:, 3:300],
    "empty parts": lambda x: (lambda c: (c + 1, c.sum(0), c.max(0)))(jnp.concatenate([x[:0] * 3, x[:2] * 2, x[:0]])),
    "empty parts beside columns": lambda x: jnp.concatenate([x[:0], x[:2] * 2]) * jnp.concatenate([x[:1], x[1:2] - 1]),
    "nothing but empty parts": lambda x: (jnp.concatenate([x[:0] * 2, x[:0]]) + 1, jnp.tanh(x)),
    "constant parts": lambda x: jnp.concatenate([jnp.zeros((33, 4), x.dtype), x * 2], axis=1),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values(device, name, dtype):
    x, f = array(33, 512, dtype=dtype), CASES[name]
    wide = jax.jit(f)(x.astype("float32"))
    for got, want in zip(jax.tree.leaves(jf.fuse(f)(x)), jax.tree.leaves(wide)):
        assert got.shape == want.shape
        assert_close(got, want, dtype)


@pytest.mark.parametrize("name", [n for n in CASES if n != "nothing"])
def test_gradients(device, name):
    x, f = array(33, 512), CASES[name]

    def loss(f):
        return lambda x: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(f(x)))

    # A softmax leaves little of what it subtracts.
    assert_close(jax.jit(jax.grad(loss(jf.fuse(f))))(x), jax.jit(jax.grad(loss(f)))(x), "float32", scale=20)


def test_halves_are_one_kernel_that_loads_each_element_once():
    x = array(64, 512)
    loops = jf.fuse(swiglu).lower(x).as_text("loops")
    assert loops.count("kernel ") == 1 and loops.count(" load ") == 2


def test_rotary_is_one_kernel_that_stores_both_halves_in_place():
    loops = jf.fuse(rotary).lower(array(64, 512), array(64, 256)).as_text("loops")
    assert loops.count("kernel ") == 1 and loops.count(" load ") == 3 and loops.count("store ") == 2


def test_vmap(device):
    x = array(5, 33, 512)
    assert_close(jax.vmap(jf.fuse(swiglu))(x), jax.vmap(swiglu)(x), "float32")


def test_sliced_axis_is_not_split_by_a_mesh():
    mesh = meshes.mesh(d=2)
    x = array(8, 512)
    for spec in (jax.P(None, "d"), jax.P("d", None)):
        y = jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))
        assert_close(jax.jit(jf.fuse(swiglu))(y), swiglu(x), "float32")


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("{starts=[0,500], strides=[1,1]}", r"\[slice\] axis 1 of f32\[33,512\]: 20 elements from 500 on"),
        ("{starts=[-1,0], strides=[1,1]}", r"\[slice\] axis 0 of f32\[33,512\]"),
        ("{starts=[0,0], strides=[1,0]}", r"\[slice\] axis 1"),
        ("{starts=[0], strides=[1,1]}", r"\[slice\] needs a start"),
    ],
)
def test_text_outside_of_the_operand_is_refused(attribute, message):
    from jax_fuser import _core

    text = f"fusion f(x: f32[33,512]) -> (t) {{\n  t: f32[4,20] = slice(x) {attribute}\n}}\n"
    with pytest.raises(_core.UserError, match=message):
        _core.validate(text)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("{starts=[0,4], shape=[3,10]}", r"\[concat\] operand 1, f32\[3,5\] from \[0,4\] on, does not go on from 5"),
        ("{starts=[0,5], shape=[3,9]}", r"\[place\] f32\[3,5\] from \[0,5\] on is no part"),
        ("{starts=[0,5], shape=[3,11]}", r"\[concat\] operand 1"),
    ],
)
def test_text_with_parts_that_do_not_fit_is_refused(second, message):
    from jax_fuser import _core

    text = f"""fusion f(x: f32[3,5]) -> (c) {{
  a: f32[3,5] = place(x) {{starts=[0,0], shape=[3,10]}}
  b: f32[3,5] = place(x) {second}
  c: f32[3,10] = concat(a, b) {{dims=[1]}}
}}
"""
    with pytest.raises(_core.UserError, match=message):
        _core.validate(text)
