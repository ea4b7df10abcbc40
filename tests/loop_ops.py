"""What the dtypes, ops and folds of loop programs are in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_fuser._fp4 import to_e2m1_by_sums

DTYPES = {
    "pred": np.bool_,
    "f16": np.float16,
    "bf16": jnp.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "f8e4m3fn": jnp.float8_e4m3fn,
    "f8e5m2": jnp.float8_e5m2,
    "u4": np.uint8,  # one of each byte's two
    **{
        f"{sign}{bits}": np.dtype(f"{kind}{bits // 8}")
        for sign, kind in (("s", "i"), ("u", "u"))
        for bits in (8, 16, 32, 64)
    },
}


def rem(x: Any, y: Any) -> Any:
    """Return the remainder of a division towards zero; that of an integer by zero is the integer."""
    return np.fmod(x, y) if np.issubdtype(x.dtype, np.floating) else np.where(y == 0, x, np.fmod(x, y))


def shift(x: Any, count: Any, how: Callable[..., Any]) -> Any:
    """Shift bits; by as many as there are, or more, all of them go."""
    inside = count.view(f"u{count.itemsize}") < 8 * x.itemsize
    return np.where(inside, how(x, np.where(inside, count, 0)), 0)


def shift_right_logical(x: Any, count: Any) -> Any:
    unsigned = f"u{x.itemsize}"
    return shift(x.view(unsigned), count.view(unsigned), np.right_shift).view(x.dtype)


def shift_right_arithmetic(x: Any, count: Any) -> Any:
    return np.right_shift(x, np.minimum(count.view(f"u{count.itemsize}"), 8 * x.itemsize - 1).astype(x.dtype))


OPS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "rem": rem,
    "clamp": lambda low, x, high: np.clip(x, low, high),
    "max": np.maximum,
    "min": np.minimum,
    "neg": np.negative,
    "abs": np.abs,
    "floor": np.floor,
    "sign": np.sign,
    "square": np.square,
    "tanh": np.tanh,
    "exp": np.exp,
    "log": np.log,
    "log2": np.log2,
    "is_finite": np.isfinite,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and_": np.bitwise_and,
    "or_": np.bitwise_or,
    "xor_": np.bitwise_xor,
    "shift_left": lambda x, count: shift(x, count, np.left_shift),
    "shift_right_logical": shift_right_logical,
    "shift_right_arithmetic": shift_right_arithmetic,
    "not_": lambda x: ~x,
    "select": np.where,
    "copy": lambda x: x,
    "convert": lambda x: x,
    "e2m1": lambda x: np.asarray(to_e2m1_by_sums(x)),
    "reciprocal": lambda x: (1 / x).astype(x.dtype),
}
FOLDS = {
    "add": (np.add, 0),
    "mul": (np.multiply, 1),
    "max": (np.maximum, None),
    "min": (np.minimum, None),
    "or_": (np.bitwise_or, 0),
    "and_": (np.bitwise_and, -1),
}


def computed_in(dtype: str) -> Any:
    """Return the dtype of the registers that hold a value of a dtype."""
    if dtype == "u4":
        return np.uint32
    return np.float32 if dtype in ("f16", "bf16", "f8e4m3fn", "f8e5m2") else DTYPES[dtype]


def identity(fold: str, dtype: Any) -> Any:
    if FOLDS[fold][1] is not None:
        return FOLDS[fold][1]
    floating = np.issubdtype(dtype, np.floating)
    low, high = (-math.inf, math.inf) if floating else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return low if fold == "max" else high
