"""How `jax.export` writes our pytrees, so that exported functions may take and return them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from jax import export

from jax_fuser._nested_tensor import NestedTensor, _Layout
from jax_fuser._packed_weights import PackedWeights
from jax_fuser._quant import ScaledTensor
from jax_fuser._route import Routing
from jax_fuser.moe import DispatchState, Stats


def _to_static(value: Any) -> Any:
    """JSON has lists where static fields are tuples."""
    return tuple(map(_to_static, value)) if isinstance(value, list) else value


def _register() -> None:
    """Register every pytree of the package."""
    for kind in (ScaledTensor, PackedWeights, Routing, DispatchState, Stats):
        export.register_pytree_node_serialization(
            kind,
            serialized_name=f"jax_fuser.{kind.__name__}",
            serialize_auxdata=lambda static: json.dumps(static).encode(),
            deserialize_auxdata=lambda data: _to_static(json.loads(bytes(data))),
        )
    export.register_pytree_node_serialization(
        NestedTensor,
        serialized_name="jax_fuser.NestedTensor",
        serialize_auxdata=lambda layout: json.dumps(layout.dense_ndim).encode(),
        deserialize_auxdata=lambda data: _Layout(json.loads(bytes(data))),
    )


# The package may be loaded again, by importlib.reload.
register: Callable[[], None] = functools.cache(_register)
