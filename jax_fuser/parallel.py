"""Ragged arrays moved among the devices of a mesh, inside `jax.shard_map`; for layers of experts see `moe.ep_mlp`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jax_fuser import _arguments
from jax_fuser import _nested_checks as checks
from jax_fuser._automatic import automatically, names_of
from jax_fuser._exchange import End, axis_size, exchange, longest_stream
from jax_fuser._static_sizes import check_sizes

__all__ = ["ragged_all_to_all"]

_FN = "ragged_all_to_all"


def ragged_all_to_all(
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    axis_name: Any,
    axis_index_groups: Any = None,
) -> jax.Array:
    """Send slices of rows to every device of a mesh axis: `jax.lax.ragged_all_to_all`, on every platform.

    Slice `i` of `slices` goes to device `i // (slices / devices)`. Where slices that arrive overlap, the last one
    stays, in the order of the devices that sent them. Rows travel by dense `all_to_all`: a round with room for 1.25 of
    an equal share, then as many of a quarter of it as the longest pair of devices needs; memory is that of one round
    and of the result. On CPUs, and where it makes few bytes more, it is one round with room for all that may come.

    Derivatives are the exchange back. A row of `operand` that several slices send gets the sum of their cotangents, one
    that was overwritten gets none, and `output` gets those of the rows that nothing was written to. Works under
    `jit`, `vmap`, `jvp`, `grad`, to any order.

    Args:
        operand: rows `(n, ..)`, any dtype. Differentiable.
        output: rows `(m, ..)` of the same dtype, kept where nothing arrives. Differentiable.
        input_offsets: integers `(slices,)`, first row of `operand` of each slice.
        send_sizes: integers `(slices,)`, rows of each slice.
        output_offsets: integers `(slices,)`, the row that each slice begins at on the device that gets it.
        recv_sizes: integers `(slices,)`, rows of each slice that arrives: what the senders have as `send_sizes`.
        axis_name: a mesh axis of the `shard_map` around the call, or a tuple of them.
        axis_index_groups: not supported.

    Returns:
        `(m, ..)`, `output` with the slices that arrived. Rows of a slice that are outside of `operand` arrive as zeros,
        those outside of the result are not written.

    Raises:
        NameError: the axis is not bound.
        TypeError: dtypes do not fit.
        ValueError: shapes do not fit, the axis does not divide the slices.
        NotImplementedError: `axis_index_groups` is given.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> mesh = jax.make_mesh((1,), ("ep",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
        >>> def send(x, output):
        ...     sizes, first = jnp.array([2]), jnp.array([1])
        ...     return jf.parallel.ragged_all_to_all(x, output, first, sizes, first, sizes, axis_name="ep")
        >>> on_mesh = jax.shard_map(send, mesh=mesh, in_specs=jax.P("ep"), out_specs=jax.P("ep"))
        >>> jax.jit(on_mesh)(jnp.arange(4.0), -jnp.ones(5)).tolist()
        [-1.0, 1.0, 2.0, -1.0, -1.0]
    """
    operand, output = _arguments.array(_FN, "operand", operand), _arguments.array(_FN, "output", output)
    lists = {"input_offsets": input_offsets, "send_sizes": send_sizes,
             "output_offsets": output_offsets, "recv_sizes": recv_sizes}  # fmt: skip
    check_sizes(_FN, operand=operand, output=output, **lists)
    if axis_index_groups is not None:
        raise NotImplementedError(
            f"{_FN}: axis_index_groups is not supported; give the mesh an axis for each level of groups"
        )
    if operand.dtype != output.dtype:
        raise TypeError(f"{_FN}: operand and output must have one dtype, got {operand.dtype} and {output.dtype}")
    if operand.ndim < 1 or output.ndim < 1 or operand.shape[1:] != output.shape[1:]:
        raise ValueError(
            f"{_FN}: operand and output must have rows of one shape, got {operand.shape} and {output.shape}"
        )
    lists = {name: checks.to_int32(checks.index_array(_FN, name, value)) for name, value in lists.items()}
    shapes = {value.shape for value in lists.values()}
    devices = axis_size(_FN, axis_name)
    slices = lists["send_sizes"].size
    if len(shapes) != 1 or lists["send_sizes"].ndim != 1 or slices % devices or not slices:
        got = ", ".join(f"{name} {value.shape}" for name, value in lists.items())
        raise ValueError(
            f"{_FN}: offsets and sizes must all be (slices,), a multiple of the {devices} devices of axis "
            f"{axis_name!r}, got {got}"
        )
    width = slices // devices * min(operand.shape[0], output.shape[0])
    if 2 * width > checks.INT32_MAX:
        raise ValueError(f"{_FN}: {slices // devices} slices of {width} rows in all do not fit in int32; send fewer")
    run = functools.partial(_exchange, axis_name=axis_name, devices=devices, width=width)
    out: jax.Array = automatically(run, operand, output, *lists.values(), like=lambda _: [names_of(output)])
    return out


def _exchange(
    operand: jax.Array,
    output: jax.Array,
    input_offsets: jax.Array,
    send_sizes: jax.Array,
    output_offsets: jax.Array,
    recv_sizes: jax.Array,
    *,
    axis_name: Any,
    devices: int,
    width: int,
) -> jax.Array:
    n, m = operand.shape[0], output.shape[0]
    # Where the slices that come here shall lie is known to those who send them.
    starts = jax.lax.all_to_all(output_offsets, axis_name, 0, 0, tiled=True)
    sizes = jnp.clip(recv_sizes, 0, m)
    rows = jnp.arange(m, dtype=jnp.int32)[None, :]
    number = jnp.arange(sizes.shape[0], dtype=jnp.int32)[:, None]
    covers = (rows >= starts[:, None]) & (rows - starts[:, None] < sizes[:, None])
    owner = jnp.max(jnp.where(covers, number, -1), axis=0)
    sent = jnp.clip(send_sizes, 0, n).reshape(devices, -1)
    return exchange(
        operand,
        End(input_offsets.reshape(sent.shape), sent, jnp.zeros(n, jnp.int32), shared=True),
        End(starts.reshape(sent.shape), sizes.reshape(sent.shape), owner),
        longest_stream(sent, axis_name),
        output,
        axis_name=axis_name,
        width=width,
        balanced=-(-min(n, m) // devices),
    )
