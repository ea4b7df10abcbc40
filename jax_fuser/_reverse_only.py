"""Operands of products that have derivatives in reverse mode alone: forward mode gives our words, not JAX's.

`jax.custom_vjp` says no more than that forward mode cannot pass it. The tangents of operands that went through
`reverse_only` pass a primitive first that can be transposed, and that cannot run.
"""

from __future__ import annotations

from typing import Any

import jax.extend
from jax.interpreters import ad, batching, mlir

_MESSAGE = (
    "{fn}: format= has derivatives in reverse mode, once; got forward mode (jax.jvp, jax.jacfwd, jax.linearize, "
    "jax.hessian) or a derivative of a derivative; take jax.grad, jax.vjp or jax.jacrev, or {instead}, which has "
    "derivatives of any order"
)
_INSTEAD = {"scaled_grouped_matmul": "multiply the floats by grouped_matmul"}
# Primitives of their own: a `jax.custom_jvp` would be taken into kernels, with operands that these then wait for.
operands_p = jax.extend.core.Primitive("jax_fuser_reverse_only")
tangents_p = jax.extend.core.Primitive("jax_fuser_tangents_of_reverse_only")
once_p = jax.extend.core.Primitive("jax_fuser_differentiated_once")


def reverse_only(fn: str, *operands: Any) -> list[Any]:
    """Return the operands of `fn` as they are; computing with their tangents raises TypeError."""
    result: list[Any] = operands_p.bind(*operands, fn=fn)
    return result


def differentiated_once(fn: str, *operands: Any) -> list[Any]:
    """Return the operands of a derivative of `fn` as they are; differentiating it raises TypeError."""
    result: list[Any] = once_p.bind(*operands, fn=fn)
    return result


def _jvp(primals: Any, tangents: Any, *, fn: str) -> tuple[Any, Any]:
    moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]
    # All at once: in reverse mode some may be known, to be zeros, but not all.
    passed = dict(zip(moving, tangents_p.bind(*(tangents[i] for i in moving), fn=fn)))
    return operands_p.bind(*primals, fn=fn), [passed.get(i, t) for i, t in enumerate(tangents)]


def _refuse(*_: Any, fn: str) -> Any:
    raise TypeError(_MESSAGE.format(fn=fn, instead=_INSTEAD.get(fn, "leave format= out")))


def _same(*operands: Any, fn: str) -> Any:
    del fn
    return operands


def _transpose(cotangents: Any, *_: Any, fn: str) -> Any:
    del fn
    return cotangents


def _lower(_: Any, *operands: Any, fn: str) -> Any:
    del fn
    return operands


for _primitive in (operands_p, tangents_p, once_p):
    _primitive.multiple_results = True
    _primitive.def_abstract_eval(_same)
for _primitive, _rule in ((operands_p, _jvp), (once_p, _refuse)):
    _primitive.def_impl(_same)
    ad.primitive_jvps[_primitive] = _rule
    mlir.register_lowering(_primitive, _lower)
batching.primitive_batchers[operands_p] = lambda args, dims, fn: (operands_p.bind(*args, fn=fn), dims)
batching.primitive_batchers[once_p] = lambda args, dims, fn: (once_p.bind(*args, fn=fn), dims)
tangents_p.def_impl(_refuse)
ad.primitive_jvps[tangents_p] = _refuse
ad.primitive_transposes[tangents_p] = _transpose
batching.primitive_batchers[tangents_p] = lambda args, dims, fn: (tangents_p.bind(*args, fn=fn), dims)
mlir.register_lowering(tangents_p, _refuse)
