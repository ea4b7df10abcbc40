"""Random bits inside fusions: threefry2x32 counts, so that every element's bits are integer arithmetic on its index.

`random_bits` with a threefry key is opened into that arithmetic, which gives the very bits of `jax.random`. 100 integer
ops an element are dear to repeat: what is made of nothing but bits (a dropout mask, normal noise) is computed by its
readers where they are one region, element by element, and is a program of its own else. A derivative that needs it
makes it one, too, and reads the stored mask, of one byte an element, as XLA's would.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_fuser._static_sizes import symbolic_size
from jax_fuser._varying import axes_of

# Scopes of the arithmetic, and of its last op.
_ARITHMETIC, _BITS = "threefry2x32", "random_bits"
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
# Of the key; they read and make a few words.
KEY_OPS = frozenset(["random_wrap", "random_unwrap", "random_seed", "random_split", "random_fold_in", "random_clone"])
# Fewer elements are not worth 100 equations; more do not fit the 32-bit counter.
_LEAST, _MOST = 1024, 2**32


def opened(eqn: Any) -> Any | None:
    """Return the arithmetic of a `random_bits` equation as a closed jaxpr; None where it must stay as it is."""
    if not jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
        return None
    key, [out] = eqn.invars[0].aval, eqn.outvars
    if symbolic_size(key.shape, eqn.params["shape"]) is not None:
        return None
    if str(key.dtype) != "key<fry>" or not _LEAST <= math.prod(eqn.params["shape"]) < _MOST:
        return None
    if axes_of(key) or any(eqn.params[name] is not None for name in eqn.params.keys() - {"bit_width", "shape"}):
        return None
    return _arithmetic(key.shape, key.dtype, out.aval.shape, eqn.params["bit_width"])


def draws(label: str) -> bool:
    """Whether an equation of this label is arithmetic of random bits."""
    return label.split("/")[0] in (_ARITHMETIC, _BITS)


def makes_bits(label: str) -> bool:
    """Whether an equation of this label is the last one of a draw."""
    return label.split("/")[0] == _BITS


@functools.lru_cache(maxsize=256)
def _arithmetic(keys: tuple[int, ...], key_dtype: Any, shape: tuple[int, ...], width: int) -> Any:
    def bits(key: jax.Array) -> jax.Array:
        with jax.named_scope(_ARITHMETIC):
            words = jax.random.key_data(key)
            k0, k1 = (
                lax.broadcast_in_dim(lax.index_in_dim(words, i, len(keys), keepdims=False), shape, range(len(keys)))
                for i in range(2)
            )
            high, low = _threefry2x32(k0, k1, _counter(shape, len(keys)))
            if width == 64:
                wide = lax.convert_element_type(high, jnp.uint64)
                high, low = lax.shift_left(wide, _full(wide, 32)), lax.convert_element_type(low, jnp.uint64)
            elif width < 32:
                mixed = lax.bitwise_xor(high, low)
        with jax.named_scope(_BITS):
            if width == 64:
                return lax.bitwise_or(high, low)
            return lax.bitwise_xor(high, low) if width == 32 else lax.convert_element_type(mixed, f"uint{width}")

    return jax.make_jaxpr(bits)(jax.ShapeDtypeStruct(keys, key_dtype))


def _full(like: jax.Array, value: int) -> jax.Array:
    return lax.full_like(like, value)


def _counter(shape: tuple[int, ...], batch: int) -> jax.Array:
    """Return the number of each element; every key counts from 0."""
    total, stride = None, 1
    for axis in reversed(range(batch, len(shape))):
        index = lax.broadcasted_iota(jnp.uint32, shape, axis)
        index = index if stride == 1 else lax.mul(index, _full(index, stride))
        total = index if total is None else lax.add(total, index)
        stride *= shape[axis]
    return lax.full(shape, 0, jnp.uint32) if total is None else total


def _threefry2x32(k0: jax.Array, k1: jax.Array, low: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the hash of the counters (0, low)."""
    keys = (k0, k1, lax.bitwise_xor(lax.bitwise_xor(k0, k1), _full(k0, _PARITY)))
    x0, x1 = keys[0], lax.add(low, keys[1])
    for i in range(5):
        for distance in _ROTATIONS[i % 2]:
            x0 = lax.add(x0, x1)
            left, right = (_full(x1, n) for n in (distance, 32 - distance))
            x1 = lax.bitwise_or(lax.shift_left(x1, left), lax.shift_right_logical(x1, right))
            x1 = lax.bitwise_xor(x1, x0)
        x0 = lax.add(x0, keys[(i + 1) % 3])
        x1 = lax.add(lax.add(x1, keys[(i + 2) % 3]), _full(x1, i + 1))
    return x0, x1
