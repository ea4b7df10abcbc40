"""Gradients with respect to nested tensors: JAX's own, with the integer leaves left out."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_fuser import _arguments
from jax_fuser._nested_rows import over_rows
from jax_fuser._nested_tensor import NestedTensor


def value_and_grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Any:
    """`jax.value_and_grad` for functions of nested tensors.

    A nested argument (or one inside a pytree argument) gets a nested gradient: the gradient of its data, zero in
    padding rows, with the same extents. Other integer arrays get JAX's `float0` zeros. Inside `jax.shard_map` it is as
    with `jax.grad`: what is the same on every device gets the sum of the devices' gradients.

    Args:
        fun: function that returns a float scalar, or (scalar, aux) with `has_aux`.
        argnums: position or positions to differentiate.
        has_aux: whether `fun` also returns auxiliary data.

    Returns:
        A function of the same arguments that returns (value, gradient), or (value, gradients) for several `argnums`;
        with `has_aux` the value is (scalar, aux). It is differentiable again with respect to `nt.data`.

    Raises:
        TypeError: an argument to differentiate has no floating data (when the result is called).

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> nt = jf.as_nested(jnp.array([1.0, 2.0, 9.0]), extents=[1, 1])
        >>> value, g = jf.nested.value_and_grad(lambda nt: jnp.sum((nt * nt).data))(nt)
        >>> float(value), g.data.tolist(), g.extents.tolist()
        (5.0, [2.0, 4.0, 0.0], [1, 1])
    """
    argnums = _checked("value_and_grad", fun, argnums)
    inner = jax.value_and_grad(fun, argnums=argnums, has_aux=has_aux, allow_int=True)
    positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        for i in positions:
            if not -len(args) <= i < len(args):
                raise TypeError(
                    f"grad: argnums has {i}, but the function got {len(args)} positional arguments; pass what to "
                    "differentiate by position, not by name"
                )
            _require_floating(args[i], i)
        if len({i % len(args) for i in positions}) < len(positions):
            raise ValueError(f"grad: argnums must name each argument once, got {argnums!r}")
        value, grads = inner(*args, **kwargs)
        if isinstance(argnums, int):
            return value, _restore(args[argnums], grads)
        return value, tuple(_restore(args[i], g) for i, g in zip(positions, grads))

    return wrapped


def grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Any:
    """`jax.grad` for functions of nested tensors; see `value_and_grad`.

    Args:
        fun: function that returns a float scalar, or (scalar, aux) with `has_aux`.
        argnums: position or positions to differentiate.
        has_aux: whether `fun` also returns auxiliary data.

    Returns:
        A function of the same arguments that returns the gradient, or (gradient, aux). Differentiable again.

    Raises:
        TypeError: an argument to differentiate has no floating data (when the result is called).

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> nt = jf.as_nested(jnp.array([1.0, 2.0, 9.0]), extents=[1, 1])
        >>> jf.nested.grad(lambda nt: jnp.sum((3 * nt).data))(nt).data.tolist()
        [3.0, 3.0, 0.0]
    """
    both = value_and_grad(fun, _checked("grad", fun, argnums), has_aux)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return wrapped


def _checked(fn: str, fun: Any, argnums: Any) -> int | tuple[int, ...]:
    _arguments.function(fn, "fun", fun)
    try:
        several = isinstance(argnums, Iterable)
        positions = tuple(map(operator.index, argnums)) if several else operator.index(argnums)
    except TypeError:
        raise TypeError(f"{fn}: argnums must be an int or several, got {argnums!r}") from None
    if positions == ():
        raise ValueError(f"{fn}: argnums must name at least one argument, got {argnums!r}")
    return positions


def _require_floating(arg: Any, position: int) -> None:
    leaves = jax.tree.leaves(arg)
    for leaf in leaves:
        if not hasattr(leaf, "dtype") and not isinstance(leaf, (bool, int, float, complex)):
            raise TypeError(f"grad: argument {position} must hold arrays alone, got a {type(leaf).__name__} in it")
    if not any(jnp.issubdtype(jnp.result_type(leaf), jnp.inexact) for leaf in leaves):
        kind = f"NestedTensor of {jnp.result_type(arg.data)}" if isinstance(arg, NestedTensor) else type(arg).__name__
        raise TypeError(f"grad: argument {position} ({kind}) has no floating data to differentiate")


def _restore(arg: Any, gradient: Any) -> Any:
    """Give nested gradients the extents of their arguments, and zero padding."""

    def one(primal: Any, g: Any) -> Any:
        if not isinstance(primal, NestedTensor) or g.data.dtype == jax.dtypes.float0:
            return g
        mask = over_rows(primal.row_mask(), g.data.ndim, primal.ragged_dim)
        return primal.replace(data=jnp.where(mask, g.data, jnp.zeros((), g.data.dtype)))

    return jax.tree.map(one, arg, gradient, is_leaf=lambda x: isinstance(x, NestedTensor))
