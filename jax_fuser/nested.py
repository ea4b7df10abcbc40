"""Nested (ragged, jagged) tensors: constructors, elementwise work, reductions, padding, gradients.

`NestedTensor`, `as_nested` and `as_flattened` are also at the top of the package. A nested tensor is a pytree with
an integer leaf: map over its values with `nested.map` (never `jax.tree.map`), differentiate with `nested.grad` or
with respect to `nt.data`.
"""

from jax_fuser._nested import as_nested, combine, from_list, from_padded, from_segment_ids, partition, sort_by_group
from jax_fuser._nested_grad import grad, value_and_grad
from jax_fuser._nested_map import allclose, same_layout
from jax_fuser._nested_map import map_nested as map
from jax_fuser._nested_reduce import layer_norm, log_softmax, logsumexp, rms_norm, softmax
from jax_fuser._nested_reduce import reduce_max as max
from jax_fuser._nested_reduce import reduce_mean as mean
from jax_fuser._nested_reduce import reduce_min as min
from jax_fuser._nested_reduce import reduce_prod as prod
from jax_fuser._nested_reduce import reduce_sum as sum
from jax_fuser._nested_repr import Stats, stats
from jax_fuser._nested_reshape import align, concat, merge, split
from jax_fuser._nested_rows import as_flattened, select, to_padded
from jax_fuser._nested_tensor import NestedTensor, ragged

__all__ = [
    "NestedTensor",
    "Stats",
    "align",
    "allclose",
    "as_flattened",
    "as_nested",
    "combine",
    "concat",
    "from_list",
    "from_padded",
    "from_segment_ids",
    "grad",
    "layer_norm",
    "log_softmax",
    "logsumexp",
    "map",
    "max",
    "mean",
    "merge",
    "min",
    "partition",
    "prod",
    "ragged",
    "rms_norm",
    "same_layout",
    "select",
    "softmax",
    "sort_by_group",
    "split",
    "stats",
    "sum",
    "to_padded",
    "value_and_grad",
]

# Python's own words about arguments, and pickles, name functions as they are called here.
for _name, _function in {"map": map, "max": max, "mean": mean, "min": min, "prod": prod, "sum": sum}.items():
    _function.__name__ = _function.__qualname__ = _name
    _function.__module__ = __name__
