"""What our primitives do outside of every trace: one compiled program for each call."""

from __future__ import annotations

from typing import Any

import jax


def compile_when_eager(primitive: Any, *static: str) -> None:
    """Let `primitive`, bound with arrays and the parameters `static`, run as a compiled program.

    Under `jax.disable_jit`, too: without a compiler there is nothing that could run it.
    """
    compiled = jax.jit(primitive.bind, static_argnames=static)
    config: Any = jax.config

    def run(*operands: Any, **params: Any) -> Any:
        if not config.jax_disable_jit:
            return compiled(*operands, **params)
        with jax.disable_jit(False):
            return compiled(*operands, **params)

    primitive.def_impl(run)
