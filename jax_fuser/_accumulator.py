"""Which dtypes values are computed in, also where the caller has JAX refuse to promote (`strict`)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp


def accumulator(dtype: Any) -> Any:
    """Return the dtype to add in: float32 for narrower floats, else the dtype itself."""
    narrow = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.dtype(jnp.float32) if narrow else jnp.dtype(dtype)


def at_least_float32(dtype: Any) -> Any:
    """Return the dtype itself if it has floats of 32 bits or more, or is complex, otherwise float32."""
    return accumulator(dtype) if jnp.issubdtype(dtype, jnp.inexact) else jnp.dtype(jnp.float32)
