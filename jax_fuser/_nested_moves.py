"""Row movements whose derivatives are row movements: no scatter-add, so every result is repeatable.

They take one ragged dimension in front (`[rows, ..]`); callers `vmap` over outer dimensions.
"""

from __future__ import annotations

import jax

from jax_fuser._sum_rows import sum_rows


def move_rows(
    x: jax.Array | tuple[jax.Array, ...],
    source: jax.Array,
    target: jax.Array,
    copies: int = 1,
    fill: jax.Array | None = None,
) -> jax.Array:
    """Return `y` with `y[j] = x[source[j] // copies]`, and zero, or `fill`, where `source[j]` is -1.

    Args:
        x: `[rows, ..]`, or arrays that have these rows one after another.
        source: int32 `[n]`, index into the rows of `x`, each repeated `copies` times; every index at most once.
        target: int32 `[rows * copies]`, the inverse: where a row of `x` went, or -1.
        copies: how often each row of `x` is repeated; the gradient adds them up in this order, in float32.
        fill: a scalar.
    """
    rows = sum(part.shape[0] for part in x) if isinstance(x, tuple) else x.shape[0]
    return sum_rows(x, (source // copies)[:, None], target.reshape(rows, copies), fill=fill)
