"""How the lists of functions are written: `corner` registers one with its operands at both scales, its dtypes and what
is differentiated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

SCALES = ("full", "small")
DTYPES = {
    "f32": "float32",
    "bf16": "bfloat16",
    "c64": "complex64",
    "i8": "int8",
    "i32": "int32",
    "u8": "uint8",
    "u32": "uint32",
    "bool": "bool",
}
Shape = tuple[int, ...]
Make = Callable[[jax.Array, jax.ShapeDtypeStruct, str], jax.Array]  # of a key, what to make, and the scale


@dataclass(frozen=True)
class Operand:
    """An array of random numbers; without a dtype it has that of the function."""

    full: Shape
    small: Shape | None  # None: as full
    dtype: str | None
    make: Make

    def spec(self, dtype: str, scale: str) -> jax.ShapeDtypeStruct:
        shape = self.full if scale == "full" or self.small is None else self.small
        return jax.ShapeDtypeStruct(shape, DTYPES[self.dtype or dtype])


def at(scale: str, value: Any) -> Any:
    """Return the value at a scale; a pair is of the full and of the small one."""
    return value[SCALES.index(scale)] if isinstance(value, tuple) else value


def normal(full: Shape, small: Shape | None = None, dtype: str | None = None) -> Operand:
    def make(key: jax.Array, s: jax.ShapeDtypeStruct, scale: str) -> jax.Array:
        complex_numbers = jnp.issubdtype(s.dtype, jnp.complexfloating)
        return jax.random.normal(key, s.shape, s.dtype if complex_numbers else jnp.float32)

    return Operand(full, small, dtype, make)


def uniform(
    full: Shape, small: Shape | None = None, dtype: str | None = None, *, low: float = 0.0, high: Any = 1.0
) -> Operand:
    return Operand(
        full, small, dtype, lambda key, s, scale: jax.random.uniform(key, s.shape, jnp.float32, low, at(scale, high))
    )


def positive(full: Shape, small: Shape | None = None, dtype: str | None = None) -> Operand:
    return uniform(full, small, dtype, low=0.5, high=1.5)


def integers(low: int, high: Any, full: Shape, small: Shape | None = None, dtype: str = "i32") -> Operand:
    return Operand(full, small, dtype, lambda key, s, scale: jax.random.randint(key, s.shape, low, at(scale, high)))


def bits(dtype: str, full: Shape, small: Shape | None = None) -> Operand:
    """Any integers of the dtype."""

    def make(key: jax.Array, s: jax.ShapeDtypeStruct, scale: str) -> jax.Array:
        return jax.random.bits(key, s.shape, f"uint{8 * s.dtype.itemsize}").view(s.dtype)

    return Operand(full, small, dtype, make)


def booleans(full: Shape, small: Shape | None = None, p: float = 0.5) -> Operand:
    return Operand(full, small, "bool", lambda key, s, scale: jax.random.bernoulli(key, p, s.shape))


def segment_ids(count: int, full: Shape, small: Shape | None = None) -> Operand:
    """Which segment an element is of, in order along the last axis."""
    return Operand(full, small, "i32", lambda key, s, scale: jnp.sort(jax.random.randint(key, s.shape, 0, count), -1))


def boxes(full: int, small: int) -> Operand:
    """x0, y0, x1, y1 of each."""

    def make(key: jax.Array, s: jax.ShapeDtypeStruct, scale: str) -> jax.Array:
        u = jax.random.uniform(key, s.shape)
        return jnp.concatenate([u[:, :2], u[:, :2] + 0.05 + 0.3 * u[:, 2:]], -1)

    return Operand((full, 4), (small, 4), None, make)


KEY = bits("u32", (2,))  # of random numbers that the function draws


@dataclass(frozen=True, eq=False)
class Corner:
    """A function as it is timed: `f`, or its derivative, which takes cotangents of f's results before f's operands.
    That of a loss takes f's operands alone and returns the loss, too."""

    name: str
    f: Callable[..., Any]
    operands: tuple[Any, ...]  # of f: Operand, or trees of them
    dtype: str
    argnums: tuple[int, ...] = ()  # in which the derivative is
    floor: Callable[[int], int] | None = None  # bytes, given those of the results; None: every operand and result once

    def shapes(self, scale: str) -> list[Any]:
        """Return the operands' shapes and dtypes."""
        shapes = jax.tree.map(lambda o: o.spec(self.dtype, scale), list(self.operands))
        if self.name.endswith(".vjp"):
            return [jax.tree.leaves(jax.eval_shape(self.f, *shapes)), *shapes]
        return shapes

    def arrays(self, seed: Any, scale: str) -> list[Any]:
        """Return random operands."""
        shapes, tree = jax.tree.flatten(self.shapes(scale))
        mine = jax.tree.leaves(self.operands)
        cotangents = [normal(s.shape) for s in shapes[: len(shapes) - len(mine)]]
        # Half the time of XLA's compiler that the default generator takes.
        keys = jax.random.split(jax.random.key(seed, impl="rbg"), len(shapes))
        made = [o.make(key, s, scale).astype(s.dtype) for o, key, s in zip([*cotangents, *mine], keys, shapes)]
        return jax.tree.unflatten(tree, made)

    def function(self) -> Callable[..., Any]:
        """Return what is timed."""
        if not self.argnums:
            return self.f
        return self._gradient if self.name.endswith(".vag") else self._pulled

    def _gradient(self, *operands: Any) -> Any:
        return jax.value_and_grad(self.f, self.argnums)(*operands)

    def _pulled(self, cotangents: list[jax.Array], *operands: Any) -> Any:
        def of(*changed: Any) -> Any:
            new = dict(zip(self.argnums, changed))
            return self.f(*[new.get(i, o) for i, o in enumerate(operands)])

        results, pull = jax.vjp(of, *[operands[i] for i in self.argnums])
        return pull(jax.tree.unflatten(jax.tree.structure(results), cotangents))


QUICK_SHARE = 4  # of the functions, one
CORNERS: dict[str, Corner] = {}


def corner(
    name: str,
    *operands: Any,
    forward: str | None = "f32",
    vjp: str | tuple[Any, ...] | None = None,
    vag: str | tuple[Any, ...] | None = None,
    floor: Callable[[int], int] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function: its dtype `forward` and that of a derivative, None for no such case. `vjp` is the derivative
    of arrays, `vag` value and gradient of a loss: a dtype, or one with the operands in which it is, else the first."""

    def register(f: Callable[..., Any]) -> Callable[..., Any]:
        several = any(o.dtype is None for o in jax.tree.leaves(operands))

        def add(dtype: str, ending: str, argnums: tuple[int, ...]) -> None:
            label = f"{name}.{dtype}{ending}" if several else name + ending
            if label in CORNERS:
                raise ValueError(f"two functions are called {label}")
            CORNERS[label] = Corner(label, f, operands, dtype, argnums, None if ending else floor)

        if forward is not None:
            add(forward, "", ())
        for ending, derivative in ((".vjp", vjp), (".vag", vag)):
            if derivative is not None:
                dtype, *argnums = (derivative, 0) if isinstance(derivative, str) else derivative
                add(dtype, ending, tuple(argnums))
        return f

    return register


def chosen(only: str, part: tuple[int, int] = (1, 1), quick: bool = False) -> list[Corner]:
    """Return the functions whose names contain one of the texts in `only`, a part of them."""
    texts = [text for text in only.split(",") if text] or [""]
    found = [corner for name, corner in CORNERS.items() if any(text in name for text in texts)]
    return found[:: QUICK_SHARE if quick else 1][part[0] - 1 :: part[1]]


def described(shapes: list[Any]) -> str:
    """Return shapes in a line."""
    return ", ".join(f"{a.dtype.name}{list(a.shape)}" for a in jax.tree.leaves(shapes))


def f32(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32)
