"""What our primitives do outside of every trace: one compiled program for each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def one_operation(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Tell JAX that `call` binds one primitive: `jax.debug_nans` names it and does not look into it for the cause."""
    call.__name__ = call.__qualname__ = name
    call._apply_primitive = True  # type: ignore[attr-defined]
    return call


def compile_when_eager(primitive: Any, *static: str) -> None:
    """Let `primitive`, bound with arrays and the parameters `static`, run as a compiled program.

    Under `jax.disable_jit`, too: without a compiler there is nothing that could run it.
    """

    def bind(*operands: Any, **params: Any) -> Any:
        return primitive.bind(*operands, **params)

    compiled = jax.jit(one_operation(bind, primitive.name), static_argnames=static)
    config: Any = jax.config

    def run(*operands: Any, **params: Any) -> Any:
        if not config.jax_disable_jit:
            return compiled(*operands, **params)
        with jax.disable_jit(False):
            return compiled(*operands, **params)

    primitive.def_impl(run)
