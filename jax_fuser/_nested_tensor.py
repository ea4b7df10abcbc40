"""The nested tensor: one array of rows and the number of rows of each group.

`data` keeps every group's rows along one dimension, `extents[g]` says how many of them group `g` owns. Both are
pytree leaves, so extents live on the device and may be traced; only shapes and `ragged_dim` are static. Nothing
here reads a value of `extents`. Constructors and their checks are in `_nested.py`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jax_fuser import _arguments
from jax_fuser._nested_checks import check_extents, check_layout_shape, check_starts, index_array, to_int32
from jax_fuser._row_groups import row_groups, rows_used, spans


class _Ragged:
    """Stands for the ragged size in `NestedTensor.shape`; equal to itself and to the string "ragged"."""

    def __repr__(self) -> str:
        return "ragged"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Ragged) or other == "ragged"

    def __hash__(self) -> int:
        return hash("ragged")


ragged = _Ragged()


@dataclasses.dataclass(frozen=True, eq=False)
class _Layout:
    """Static pytree part: the number of dimensions after the ragged one.

    Counting from the end keeps the value true when `vmap` or `scan` takes leading dimensions away. `None` belongs to
    trees of axes or partition specs, such as `NestedTensor(0, None)`: it equals every layout, so that they are
    prefixes of any nested tensor. `made` is the shape that data had when the nested tensor was made, where known: it
    tells that a transform took another axis.
    """

    dense_ndim: int | None
    made: tuple[int, ...] | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Layout):
            return NotImplemented
        return None in (self.dense_ndim, other.dense_ndim) or self.dense_ndim == other.dense_ndim

    def __hash__(self) -> int:
        return hash(_Layout)


def _is_array(value: Any) -> bool:
    """Return whether extents or starts hold numbers: not so in trees of axes, of shapes and of cotangents."""
    dtype = getattr(value, "dtype", None)
    is_array = dtype is not None and dtype != jax.dtypes.float0 and not isinstance(value, jax.ShapeDtypeStruct)
    return is_array or isinstance(value, (list, tuple))


def _is_without_one(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether a shape is the other without one of its axes."""
    return len(shape) + 1 == len(other) and any(other[:i] + other[i + 1 :] == shape for i in range(len(other)))


@functools.partial(jax.jit, static_argnums=2)
def _row_ids(extents: jax.Array, starts: jax.Array | None, capacity: int) -> jax.Array:
    return row_groups(extents, starts, capacity, ordered=False)


def _binary(name: str, fn: Callable[..., Any], reflected: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: NestedTensor, other: Any) -> Any:
        from jax_fuser._nested_map import check_number, elementwise, is_operand

        if not is_operand(other):
            return NotImplemented
        check_number(name, other)
        operands = (other, self) if reflected else (self, other)
        return elementwise(name, fn, *operands)

    method.__name__ = method.__qualname__ = name
    return method


def _unary(name: str, fn: Callable[..., Any]) -> Callable[[Any], Any]:
    def method(self: NestedTensor) -> Any:
        from jax_fuser._nested_map import elementwise

        return elementwise(name, fn, self)

    method.__name__ = method.__qualname__ = name
    return method


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, eq=False, repr=False, init=False)
class NestedTensor:
    """A tensor with one ragged dimension: `[.., groups, ragged, ..]`, stored as rows `[.., capacity, ..]`.

    Build one with `as_nested` or the constructors of `jax_fuser.nested`; this class checks nothing, so that it can
    also carry axes (`vmap(f, in_axes=NestedTensor(0, None))`) or partition specs.

    Rows that belong to no group are padding: never read into a result, written as zero, zero cotangent.
    Operators `+ - * / **`, comparisons, unary minus and `abs` act on rows; the other operand is a scalar, an array
    that broadcasts over the dense dimensions (`[h]`), a per-group array `[groups, 1, h]`, or a nested tensor of the
    same layout. `nt @ w` is `jax_fuser.grouped_matmul(nt, w)`. `nt == x` compares elements; use
    `nested.allclose` and `nested.same_layout` for whole tensors. Differentiate with `nested.grad`, or with respect to
    `nt.data`: `jax.grad` refuses the integer extents.

    Args:
        data: rows, `[.., capacity, ..]`, any dtype. Differentiable.
        extents: rows of each group, int32 `[groups]` (the same for every outer index) or `[d0, .., groups]`.
        starts: first row of each group where storage has gaps, int32, shape of `extents`; None when the groups lie
            one after another from row 0.
        ragged_dim: dimension of `data` that holds the rows.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> nt = jf.as_nested(jnp.ones((5, 2)), extents=[2, 0, 3])
        >>> nt
        NestedTensor(f32[expert=3, ragged=[2,0,3], 2], rows 5/5)
        >>> (nt * 2).shape
        (3, ragged, 2)
    """

    data: Any
    extents: Any
    _starts: Any
    _layout: _Layout

    # NumPy arrays then leave `array + nt` to this class.
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, data: Any, extents: Any, starts: Any = None, ragged_dim: int = 0):
        ndim = getattr(data, "ndim", None)
        ragged_dim = _arguments.integer("NestedTensor", "ragged_dim", ragged_dim)
        if ndim is not None and not 0 <= ragged_dim < ndim:
            raise ValueError(f"NestedTensor: ragged_dim={ragged_dim} is not a dimension of data of shape {data.shape}")
        layout = _Layout(None) if ndim is None else _Layout(ndim - 1 - ragged_dim, tuple(data.shape))
        self._set(data, extents, starts, layout)

    def _set(self, data: Any, extents: Any, starts: Any, layout: _Layout) -> None:
        for name, value in (("data", data), ("extents", extents), ("_starts", starts), ("_layout", layout)):
            object.__setattr__(self, name, value)

    def tree_flatten_with_keys(self) -> tuple[tuple[Any, ...], _Layout]:
        key = jax.tree_util.GetAttrKey
        return ((key("data"), self.data), (key("extents"), self.extents), (key("starts"), self._starts)), self._layout

    def tree_flatten(self) -> tuple[tuple[Any, ...], _Layout]:
        return (self.data, self.extents, self._starts), self._layout

    @classmethod
    def tree_unflatten(cls, layout: _Layout, children: Any) -> NestedTensor:
        nt = object.__new__(cls)
        data, extents, starts = children
        nt._set(data, extents, starts, layout)
        return nt

    # Static facts.

    @property
    def ragged_dim(self) -> int:
        """Dimension of `data` that holds the rows."""
        if self._layout.dense_ndim is None:
            raise TypeError("NestedTensor: this one holds axes or specs, not arrays; build one with as_nested")
        self._check_kinds()
        dim = self.data.ndim - 1 - self._layout.dense_ndim
        outer = self.extents.shape[:-1]
        if dim < 0 or self.extents.ndim == 0 or (outer and outer != self.data.shape[:dim]):
            raise ValueError(
                "vmap: NestedTensor needs the same batch axis on data and extents, before the rows of data, "
                "and so does scan; in_axes=NestedTensor(0, None) shares the extents, a scan over nt.data does, and a "
                "dense axis is mapped with nested.map"
            )
        if self._starts is not None and self._starts.shape != self.extents.shape:
            raise ValueError(
                f"NestedTensor: starts must have the shape of extents, {self.extents.shape}, got {self._starts.shape}; "
                "build one with as_nested"
            )
        made, shape = self._layout.made, self.data.shape
        if made is not None and shape[dim:] != made[-1 - self._layout.dense_ndim :]:
            taken, put = _is_without_one(shape, made), _is_without_one(made, shape)
            if taken or put:
                raise ValueError(
                    f"vmap: NestedTensor of data {made} has data {shape} now, {'without' if taken else 'with'} an axis "
                    "at or behind its rows; map a leading axis, and a dense axis with nested.map"
                )
        return dim

    def _check_kinds(self) -> None:
        """Refuse what the leaves cannot be: the class takes everything, and trees are mapped."""
        for name, value in (("data", self.data), ("extents", self.extents), ("starts", self._starts)):
            if value is None and name == "starts":
                continue
            dtype = getattr(value, "dtype", None)
            if dtype is None or isinstance(value, NestedTensor):
                raise TypeError(
                    f"NestedTensor: {name} must be an array, got a {type(value).__name__}; build one with as_nested"
                )
            if name == "data" and getattr(dtype, "kind", "O") in "OSU":  # keys have no kind
                raise TypeError(f"NestedTensor: data must be an array of numbers, got {dtype}")
            if dtype == jax.dtypes.float0 and name != "data":
                raise TypeError(
                    "grad: NestedTensor carries integer extents; use jax_fuser.nested.grad, or differentiate w.r.t. "
                    "nt.data"
                )
            # Narrow integers do not hold the rows that they are compared with.
            if name != "data" and not (jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize >= 4):
                raise TypeError(
                    f"NestedTensor: {name} must be int32, got {dtype}; build one with as_nested, and map values with "
                    "nested.map, not with jax.tree.map"
                )

    @property
    def shape(self) -> tuple[Any, ...]:
        """`(.., groups, ragged, ..)`; the ragged entry is `nested.ragged`, equal to the string "ragged"."""
        dim = self.ragged_dim
        return (*self.data.shape[:dim], self.num_groups, ragged, *self.data.shape[dim + 1 :])

    @property
    def ndim(self) -> int:
        return self.data.ndim + 1

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    @property
    def num_groups(self) -> int:
        return self.extents.shape[-1]

    @property
    def capacity(self) -> int:
        """Rows of storage (static): valid rows and padding."""
        return self.data.shape[self.ragged_dim]

    @property
    def gapped(self) -> bool:
        """Whether groups are placed by a `starts` leaf rather than one after another."""
        return self._starts is not None

    # Device values.

    @property
    def offsets(self) -> jax.Array:
        """int32 `[.., groups + 1]`: 0, then the running sum of extents; positions after `as_flattened`.

        Where traced extents lead past the array, groups have the rows that are left: nothing exceeds the capacity.
        """
        starts, extents = spans(self._one_after_another(), None, self.capacity)
        zero = jnp.zeros_like(starts, shape=(*starts.shape[:-1], 1))
        return jnp.concatenate([zero, starts + extents], axis=-1)

    @property
    def starts(self) -> jax.Array:
        """int32 `[.., groups]`: first row of each group in `data`."""
        return self._spans()[0] if self._starts is None else self._starts.astype(jnp.int32)

    @property
    def total(self) -> jax.Array:
        """int32 `[..]`: valid rows, the sum of extents; no more than the capacity."""
        return rows_used(self._one_after_another(), self.capacity)

    def _one_after_another(self) -> jax.Array:
        """Return the extents that groups have without gaps, not clipped yet where they have none."""
        return self.extents if self._starts is None else self._spans()[1]

    def _spans(self) -> tuple[jax.Array, jax.Array]:
        """Return `starts` and `extents`, clipped to rows that there are: without gaps, that earlier groups leave."""
        return spans(self.extents, self._starts, self.capacity)

    def row_ids(self) -> jax.Array:
        """Return the group of each row, int32 `[.., capacity]`; `num_groups` for padding rows.

        Example:
            >>> import jax.numpy as jnp
            >>> import jax_fuser as jf
            >>> jf.as_nested(jnp.ones((5, 2)), extents=[2, 0, 1]).row_ids().tolist()
            [0, 0, 2, 3, 3]
        """
        return _row_ids(self.extents, self._starts, self.capacity)

    def row_mask(self) -> jax.Array:
        """Return which rows belong to a group, bool `[.., capacity]`."""
        if self._starts is not None:
            return self.row_ids() < self.num_groups
        rows, total = jnp.arange(self.capacity, dtype=jnp.int32), self.total[..., None]
        return jax.lax.broadcast_to_rank(rows, total.ndim) < total

    def replace(self, **changes: Any) -> NestedTensor:
        """Return a copy with other `data`, `extents` or `starts` and the same `ragged_dim`.

        New data keeps the rows; its dense dimensions and dtype may differ.

        Raises:
            TypeError: extents or starts are no integers.
            ValueError: `data` alone is replaced and has another number of rows; extents of a shape that does not fit
                the data or the starts; concrete extents that are negative or more than the rows.

        Example:
            >>> import jax.numpy as jnp
            >>> import jax_fuser as jf
            >>> nt = jf.as_nested(jnp.ones((5, 2)), extents=[2, 3])
            >>> nt.replace(data=jnp.ones((5, 7))).shape
            (2, ragged, 7)
        """
        unknown = set(changes) - {"data", "extents", "starts"}
        if unknown:
            raise TypeError(f"replace: unknown field {sorted(unknown)[0]!r}; fields are data, extents, starts")
        data = changes.get("data", self.data)
        layout = self._layout
        if hasattr(data, "ndim") and hasattr(self.data, "ndim") and "data" in changes:
            dim = self.ragged_dim
            rows = data.shape[dim] if data.ndim > dim else None
            if "extents" not in changes and rows != self.capacity:
                raise ValueError(
                    f"replace: data {tuple(data.shape)} needs {self.capacity} rows in dimension {dim}; "
                    f"build a new nested tensor with as_nested"
                )
            layout = _Layout(data.ndim - 1 - dim, tuple(data.shape))
        extents, starts = changes.get("extents", self.extents), changes.get("starts", self._starts)
        if "starts" in changes and _is_array(starts):
            starts = to_int32(index_array("replace", "starts", starts))
        if "extents" in changes and _is_array(extents):
            extents = index_array("replace", "extents", extents)
            if layout.dense_ndim is not None and hasattr(data, "shape"):
                dim = len(data.shape) - 1 - layout.dense_ndim
                check_layout_shape("replace", "extents", extents, data.shape, dim)
                if starts is None:
                    check_extents("replace", extents, data.shape[dim], dim)
            extents = to_int32(extents)
        if ("starts" in changes or "extents" in changes) and _is_array(starts) and _is_array(extents):
            check_starts("replace", starts, extents, data.shape[self.ragged_dim] if hasattr(data, "shape") else None)
        return NestedTensor.tree_unflatten(layout, (data, extents, starts))

    def merge(self, i: int | str, j: int | str, **options: Any) -> Any:
        """Merge two dimensions: `nested.merge(nt, i, j, ..)`."""
        from jax_fuser._nested_reshape import merge

        return merge(self, i, j, **options)

    def split(self, axis: int | str, factor: int | None = None, **options: Any) -> NestedTensor:
        """Split a dimension: `nested.split(nt, axis, factor, ..)`."""
        from jax_fuser._nested_reshape import split

        return split(self, axis, factor, **options)

    # Python protocol.

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        raise TypeError("NestedTensor has no truth value; reduce it first, or use nested.allclose")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("NestedTensor is not one array; use nt.data, as_flattened(nt) or nested.to_padded(nt)")

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):  # a property, whose own AttributeError Python brings here
            raise AttributeError(
                f"NestedTensor: {name} needs arrays, this one holds a {type(self.data).__name__} as data; build one "
                "with as_nested"
            )
        raise AttributeError(
            f"NestedTensor has no attribute {name!r}; functions of nested tensors are in jax_fuser.nested, whose map "
            "applies a function of arrays to all rows"
        )

    def __getitem__(self, index: Any) -> Any:
        from jax_fuser._nested_rows import getitem

        return getitem(self, index)

    def __repr__(self) -> str:
        from jax_fuser._nested_repr import text

        return text(self)

    def _repr_html_(self) -> str:
        from jax_fuser._nested_repr import html

        return html(self)

    def __matmul__(self, other: Any) -> Any:
        from jax_fuser._grouped_matmul import grouped_matmul

        return grouped_matmul(self, other)

    __add__, __radd__ = _binary("add", jnp.add), _binary("add", jnp.add, True)
    __sub__, __rsub__ = _binary("subtract", jnp.subtract), _binary("subtract", jnp.subtract, True)
    __mul__, __rmul__ = _binary("multiply", jnp.multiply), _binary("multiply", jnp.multiply, True)
    __truediv__, __rtruediv__ = _binary("divide", jnp.divide), _binary("divide", jnp.divide, True)
    __floordiv__, __rfloordiv__ = (
        _binary("floor_divide", jnp.floor_divide),
        _binary("floor_divide", jnp.floor_divide, True),
    )
    __mod__, __rmod__ = _binary("remainder", jnp.remainder), _binary("remainder", jnp.remainder, True)
    __and__, __rand__ = _binary("bitwise_and", jnp.bitwise_and), _binary("bitwise_and", jnp.bitwise_and, True)
    __or__, __ror__ = _binary("bitwise_or", jnp.bitwise_or), _binary("bitwise_or", jnp.bitwise_or, True)
    __xor__, __rxor__ = _binary("bitwise_xor", jnp.bitwise_xor), _binary("bitwise_xor", jnp.bitwise_xor, True)
    __pow__, __rpow__ = _binary("power", jnp.power), _binary("power", jnp.power, True)
    __eq__, __ne__ = _binary("equal", jnp.equal), _binary("not_equal", jnp.not_equal)  # type: ignore[assignment]
    __lt__, __le__ = _binary("less", jnp.less), _binary("less_equal", jnp.less_equal)
    __gt__, __ge__ = _binary("greater", jnp.greater), _binary("greater_equal", jnp.greater_equal)
    __neg__, __abs__ = _unary("negative", jnp.negative), _unary("abs", jnp.abs)
    __invert__ = _unary("invert", jnp.invert)
