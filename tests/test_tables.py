"""Dear values that many elements share are computed and stored once, and read by the kernels that need them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf


def angles(positions, half):
    return positions[..., None] * 10000.0 ** (-jnp.arange(half) / half)


def rotated(x, c, s):
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    return (a * c - b * s).astype(x.dtype), (b * c + a * s).astype(x.dtype)


def rope(x, positions):
    angle = angles(positions, x.shape[-1] // 2)[:, None]
    return rotated(x, jnp.cos(angle), jnp.sin(angle))


def interleaved(x, positions):
    angle = angles(positions, x.shape[-1] // 2)[:, None]
    c, s = jnp.cos(angle), jnp.sin(angle)
    a, b = x[..., ::2], x[..., 1::2]
    return jnp.stack([a * c - b * s, b * c + a * s], -1).reshape(x.shape)


def sinusoids(x):
    angle = angles(jnp.arange(x.shape[1]), x.shape[2] // 2)
    return x + jnp.stack([jnp.sin(angle), jnp.cos(angle)], -1).reshape(x.shape[1:])


def shaped(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


TOKENS = shaped(4096)
# By name: the function, its operands and the shapes of the tables.
TABLES = {
    "rotary": (rope, [shaped(4096, 64, 128), TOKENS], ["4096,1,64"] * 2),
    "rotary of bf16": (rope, [shaped(4096, 64, 128, dtype=jnp.bfloat16), TOKENS], ["4096,1,64"] * 2),
    "interleaved": (interleaved, [shaped(4096, 64, 128), TOKENS], ["4096,1,64"] * 2),
    "frequencies of tables": (sinusoids, [shaped(16, 4096, 1024)], ["512", "4096,512,2"]),
    "beside folds": (
        lambda x, w: x / x.sum(1, keepdims=True) * jnp.sin(jnp.cos(w)),
        [shaped(65536, 1024), shaped(1024)],
        ["1024"],
    ),
    # Computing these again hides behind what is read and stored, or takes no time.
    "few elements": (rope, [shaped(64, 16, 128), shaped(64)], []),
    "few heads": (rope, [shaped(65536, 2, 128), shaped(65536)], []),
    "angles of all": (lambda x, y: x * jnp.cos(y) + jnp.sin(y), [shaped(8192, 4096)] * 2, []),
    "one for each row": (lambda x, y: x * jnp.cos(y)[:, None], [shaped(8192, 4096), shaped(8192)], []),
    "an exponential": (lambda x, y: x * jnp.exp(y), [shaped(8192, 4096), shaped(4096)], []),
    "a mask": (lambda x: jnp.where(jnp.arange(4096)[:, None] >= jnp.arange(4096), x, 0), [shaped(8, 4096, 4096)], []),
    "a quotient": (lambda x: x[..., None] // 16 == jnp.arange(16), [shaped(8192, 4096, dtype=jnp.uint8)], []),
}


def stored(f, *operands, platform="cuda"):
    """Return the segments, and the shapes of what goes from one to another."""
    text = jf.fuse(f).lower(*operands).as_text("segments", platform=platform)
    segments = [jf.ir.Fusion(part) for part in re.findall(r"^fusion .*?^}", text, re.DOTALL | re.MULTILINE)]
    made = [(fusion, name) for fusion in segments for name in fusion.outputs]
    between = [(f, n) for f, n in made if any(n in reader.inputs for reader in segments)]
    return segments, [",".join(map(str, fusion.shape(name))) for fusion, name in between]


@pytest.mark.parametrize("name", TABLES)
def test_what_is_stored(name):
    f, operands, tables = TABLES[name]
    assert stored(f, *operands)[1] == tables
    if tables and name != "beside folds":
        # Calling a kernel takes less there, so frequencies are in one of their own, too.
        assert {*tables} <= {*stored(f, *operands, platform="cpu")[1]}


def test_values():
    """Of as few elements as have tables."""
    rng = np.random.default_rng(0)
    x, positions = rng.standard_normal((129, 63, 514)).astype(np.float32), rng.integers(0, 64, 129).astype(np.float32)
    segments, tables = stored(rope, x, positions)
    assert tables == ["129,1,257"] * 2
    values = dict(zip(["x", "positions"], [x, positions]))
    for fusion in segments:
        results = jf.ir.evaluate(fusion, *[values[name] for name in fusion.inputs])
        values.update(zip(fusion.outputs, results))
    angle = positions[:, None, None] * (10000.0 ** (-np.arange(257) / 257)).astype(np.float32)
    for got, want in zip(results, rotated(jnp.asarray(x), np.cos(angle), np.sin(angle)), strict=True):
        assert_close(np.asarray(got), np.asarray(want), scale=16)


@pytest.mark.parametrize("f", [rope, interleaved])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_of_the_call(device, f, dtype):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((129, 63, 514)), dtype)
    positions = jnp.asarray(rng.integers(0, 64, 129), "float32")
    want = jax.jit(f)(x.astype("float32"), positions)
    jax.tree.map(lambda got, w: assert_close(got, w, dtype, scale=16), jf.fuse(f)(x, positions), want)
