"""What the dtypes, ops and folds of loop programs are in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

DTYPES = {
    "pred": np.bool_,
    "f16": np.float16,
    "bf16": jnp.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "f8e4m3fn": jnp.float8_e4m3fn,
    "f8e5m2": jnp.float8_e5m2,
    **{
        f"{sign}{bits}": np.dtype(f"{kind}{bits // 8}")
        for sign, kind in (("s", "i"), ("u", "u"))
        for bits in (8, 16, 32, 64)
    },
}
OPS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "clamp": lambda low, x, high: np.clip(x, low, high),
    "max": np.maximum,
    "min": np.minimum,
    "neg": np.negative,
    "abs": np.abs,
    "square": np.square,
    "tanh": np.tanh,
    "exp": np.exp,
    "log": np.log,
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
    "and_": np.bitwise_and,
    "not_": lambda x: ~x,
    "select": np.where,
    "copy": lambda x: x,
    "convert": lambda x: x,
}
FOLDS = {
    "add": (np.add, 0),
    "mul": (np.multiply, 1),
    "max": (np.maximum, None),
    "min": (np.minimum, None),
    "or_": (np.bitwise_or, 0),
}


def computed_in(dtype: str) -> Any:
    """Return the dtype of the registers that hold a value of a dtype."""
    return np.float32 if dtype in ("f16", "bf16", "f8e4m3fn", "f8e5m2") else DTYPES[dtype]


def identity(fold: str, dtype: Any) -> Any:
    if FOLDS[fold][1] is not None:
        return FOLDS[fold][1]
    floating = np.issubdtype(dtype, np.floating)
    low, high = (-math.inf, math.inf) if floating else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return low if fold == "max" else high
