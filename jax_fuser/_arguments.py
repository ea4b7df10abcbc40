"""Arguments of the public functions, refused by name where they are no array, no integer, no function."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def array(fn: str, name: str, value: Any, dtype: Any = None) -> jax.Array:
    """Return an argument as a JAX array; numbers and lists of numbers are some, and become one of `dtype`."""
    if isinstance(value, jax.Array):
        check_stored(fn, name, value)
        if jnp.issubdtype(value.dtype, jax.dtypes.extended):
            raise TypeError(f"{fn}: {name} must be an array of numbers, got {value.dtype}; see jax.random.key_data")
        return value
    held = getattr(value, "dtype", None)
    converts = hasattr(value, "__jax_array__") or hasattr(value, "__array__")
    if not isinstance(value, (bool, int, float, complex, list, tuple)) and (
        not (converts or held is not None) or hasattr(value, "extents") or isinstance(value, jax.ShapeDtypeStruct)
    ):
        hint = "; pass its data" if hasattr(value, "extents") else ""
        # ScaledTensor and PackedWeights, whose data are no numbers without their scales.
        hint = "; dequantize it, or see scaled_grouped_matmul" if hasattr(value, "block") else hint
        raise TypeError(f"{fn}: {name} must be an array, got a {type(value).__name__}{hint}")
    try:
        return jnp.asarray(value, dtype)
    except (TypeError, ValueError, OverflowError):
        what = f"an array of {held}" if held is not None else repr(value)
        raise TypeError(f"{fn}: {name} must be an array of numbers that fit, got {what[:80]}") from None


def check_stored(fn: str, name: str, value: Any) -> None:
    """Refuse an array whose memory is gone: XLA would not say which."""
    if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and value.is_deleted():
        raise RuntimeError(
            f"{fn}: {name} {value.dtype}{list(value.shape)} has been deleted or donated; pass a copy to what takes its "
            "memory (donate_argnums), or what that returned to this function"
        )


def check_real(fn: str, name: str, value: jax.Array) -> None:
    """Refuse complex numbers, whose imaginary part would be lost."""
    if jnp.issubdtype(value.dtype, jnp.complexfloating):
        raise TypeError(f"{fn}: {name} must be real, got {value.dtype}; pass {name}.real")


def integer(fn: str, name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return an argument that is a Python int or as good as one."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except (TypeError, jax.errors.TracerIntegerConversionError):
        raise TypeError(f"{fn}: {name} must be an int, got {_spell(value)}") from None
    if least is not None and number < least:
        raise ValueError(f"{fn}: {name} must be at least {least}, got {number}")
    if most is not None and number > most:
        raise ValueError(f"{fn}: {name} must be at most {most}, got {number}")
    return number


def real(fn: str, name: str, value: Any) -> float:
    """Return an argument that is a number known now."""
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)
    except TypeError:
        raise TypeError(f"{fn}: {name} must be a number, got {_spell(value)}") from None
    except OverflowError:
        raise ValueError(f"{fn}: {name} must fit in a float, got {str(value)[:60]}") from None


def flag(fn: str, name: str, value: Any) -> bool:
    """Return an argument that is true or false."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{fn}: {name} must be True or False, got {_spell(value)}")
    return bool(value)


def function(fn: str, name: str, value: Any) -> Any:
    """Return an argument that can be called."""
    if not callable(value):
        raise TypeError(f"{fn}: {name} must be a function, got {_spell(value)}")
    return value


def text(fn: str, name: str, value: Any) -> str:
    """Return an argument that is a string."""
    if not isinstance(value, str):
        raise TypeError(f"{fn}: {name} must be a string, got {_spell(value)}")
    return value


def dtype(fn: str, name: str, value: Any) -> Any:
    """Return an argument as a dtype, the one that JAX has for it: float64 is float32 without x64; None stays."""
    if value is None:
        return None
    try:
        found = jax.dtypes.canonicalize_dtype(jnp.dtype(value))
        if found.kind in "OSUVMm" and not jnp.issubdtype(found, np.number):  # ml_dtypes' floats are of kind V
            raise TypeError
    except (TypeError, ValueError):
        raise TypeError(f"{fn}: {name} must be a dtype of numbers, got {_spell(value)}") from None
    return found


def _spell(value: Any) -> str:
    if isinstance(value, (bool, int, float, str, type(None))):
        return repr(value)
    traced = " (traced)" if isinstance(value, jax.core.Tracer) else ""
    return f"a {type(value).__name__}{traced}"
