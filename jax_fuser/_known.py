"""Values of a function that are known already: its derivative is the function's, to any order.

A primitive. Of a `jax.custom_jvp` all of whose operands are known, as in a `scan` that is differentiated, JAX keeps the
body alone and drops the rule; a body that gives known values would have no derivative then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend
from jax.interpreters import ad, batching, mlir

from jax_fuser._spread_sum import front

known_p = jax.extend.core.Primitive("jax_fuser_known")
known_p.multiple_results = True


def known(f: Callable[..., Sequence[Any]], static: Any, values: Sequence[Any], *operands: Any) -> list[Any]:
    """Return `values`, which are what `f(static, *operands)` gives; `f` and `static` are hashable."""
    result: list[Any] = known_p.bind(*operands, *values, f=f, static=static, outer=0, count=len(values))
    return result


def _values(*operands: Any, count: int, **_: Any) -> list[Any]:
    return list(operands[-count:])


def _jvp(primals: Any, tangents: Any, *, f: Any, static: Any, outer: int, count: int) -> tuple[Any, Any]:
    values = known_p.bind(*primals, f=f, static=static, outer=outer, count=count)
    operands = list(primals[:-count])
    moving = [i for i, tangent in enumerate(tangents[:-count]) if type(tangent) is not ad.Zero]
    if not moving:
        return values, [ad.Zero(jax.typeof(value).to_tangent_aval()) for value in values]

    def of_moving(*moved: Any) -> list[Any]:
        for i, operand in zip(moving, moved):
            operands[i] = operand

        def all(*operands: Any) -> list[Any]:
            return list(f(static, *operands))

        for _ in range(outer):
            all = jax.vmap(all)
        return all(*operands)

    return values, jax.jvp(of_moving, [operands[i] for i in moving], [tangents[i] for i in moving])[1]


def _batch(args: Any, dims: Any, *, f: Any, static: Any, outer: int, count: int) -> tuple[Any, Any]:
    return known_p.bind(*front(args, dims), f=f, static=static, outer=outer + 1, count=count), [0] * count


known_p.def_impl(_values)
known_p.def_abstract_eval(_values)
ad.primitive_jvps[known_p] = _jvp
batching.primitive_batchers[known_p] = _batch
mlir.register_lowering(known_p, lambda _, *operands, **params: _values(*operands, **params))
