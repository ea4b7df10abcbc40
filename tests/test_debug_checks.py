"""Inside `debug_checks`, what a function checks of concrete values it checks of traced ones, and padding is NaN."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import checkify

import jax_fuser as jf

X = jnp.ones((8, 4))
W = jnp.ones((3, 4, 5))


def nested(extents, starts=None):
    return jf.NestedTensor(X, jnp.asarray(extents, jnp.int32), starts)


# By name: a function of one traced array, a value that is fine, one that is not, and the message.
CASES = {
    "offsets start": (lambda v: jf.as_nested(X, v).data, [0, 3, 8], [1, 3, 8], r"as_nested: offsets\[0\] must be 0"),
    "offsets order": (lambda v: jf.as_nested(X, v).data, [0, 3, 8], [0, 5, 3], "as_nested: offsets must be non-decr"),
    "offsets end": (
        lambda v: jf.as_nested(X, v).data,
        [0, 3, 8],
        [0, 5, 9],
        r"offsets\[-1\] exceeds data.shape\[0\]=8",
    ),
    "extents sign": (lambda v: jf.as_nested(X, extents=v).data, [3, 5], [-1, 5], "extents must be non-negative"),
    "extents sum": (lambda v: jf.as_nested(X, extents=v).data, [3, 5], [4, 5], r"extents exceed data.shape\[0\]=8"),
    "partition": (lambda v: jf.nested.partition(X, 0, v).data, [0, 8], [0, 9], r"offsets\[-1\] exceeds"),
    "ids order": (
        lambda v: jf.nested.from_segment_ids(X, v, 3).data,
        [0, 0, 1, 1, 1, 2, 2, 3],
        [0, 1, 0, 1, 1, 2, 2, 3],
        "from_segment_ids: ids must be sorted; use sort_by_group",
    ),
    "ids sign": (
        lambda v: jf.nested.from_segment_ids(X, v, 3).data,
        [0] * 8,
        [-1] + [0] * 7,
        "from_segment_ids: ids must be non-negative",
    ),
    "blocks": (
        lambda v: jf.nested.from_padded(X.reshape(2, 4, 4), v).data,
        [4, 0],
        [5, 0],
        r"from_padded: extents must be in 0\.\.4",
    ),
    "rows to pad": (
        lambda v: jf.nested.to_padded(nested(v), max_extent=4),
        [4, 0, 2],
        [5, 0, 2],
        "to_padded: an extent exceeds max_extent=4",
    ),
    "rows to select": (
        lambda v: jf.nested.select(nested(v), 1, max_extent=4),
        [5, 3, 0],
        [3, 5, 0],
        "select: an extent exceeds max_extent=4",
    ),
    "layouts": (lambda v: (nested([3, 5, 0]) + nested(v)).data, [3, 5, 0], [3, 4, 1], "add: operands have different"),
    "storage": (
        lambda v: (nested([3, 5], jnp.array([0, 3])) * nested([3, 5], v)).data,
        [0, 3],
        [5, 0],
        "multiply: operands have different ragged layouts: starts differ",
    ),
    "sizes": (
        lambda v: jf.grouped_matmul(X, W, v),
        [3, 5, 0],
        [3, 5, 1],
        r"grouped_matmul: group_sizes exceed lhs.shape\[0\]=8",
    ),
    "order of groups": (
        lambda v: jf.grouped_matmul(nested([3, 0, 2], v), W).data,
        [1, 0, 4],
        [4, 0, 1],
        "grouped_matmul: groups of gapped storage must lie in ascending order",
    ),
    "overlap of groups": (
        lambda v: jf.grouped_matmul(nested([3, 1, 2], v), W).data,
        [0, 4, 6],
        [0, 2, 6],
        "grouped_matmul: groups of gapped storage must lie in ascending order",
    ),
    "extents of a product": (
        lambda v: jf.grouped_matmul(jf.NestedTensor(X, v), W).data,
        [3, 5, 0],
        [3, 5, 1],
        r"grouped_matmul: lhs.extents exceed lhs.data.shape\[0\]=8",
    ),
    "group offset": (
        lambda v: jf.grouped_matmul(X, W[:2], jnp.array([3, 4, 1]), group_offset=v[0]),
        [1],
        [2],
        "grouped_matmul: group_offset and the 2 groups of rhs exceed 3 groups",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_traced_values_are_checked(name):
    f, good, bad, message = CASES[name]
    f = jax.jit(f)
    f(jnp.array(bad))  # without checks nothing is said, and nothing is out of bounds
    with jf.debug_checks():
        checked = jax.jit(checkify.checkify(f))
        assert checked(jnp.array(good))[0].get() is None
        with pytest.raises(checkify.JaxRuntimeError, match=message):
            checked(jnp.array(bad))[0].throw()
    f(jnp.array(bad))


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("group offset",)])
def test_concrete_values_raise(name):
    f, good, bad, message = CASES[name]
    f(jnp.array(good))
    with pytest.raises(ValueError, match=message.split(":")[0].split(" ")[0]):
        f(jnp.array(bad))


PADDED = {
    "as_nested": lambda x: jf.as_nested(x, extents=[3, 2]),
    "from_segment_ids": lambda x: jf.nested.from_segment_ids(x, jnp.array([0, 0, 0, 1, 1, 9, 9, 9]), 2),
    "from_padded": lambda x: jf.nested.from_padded(x.reshape(2, 4, 4), [3, 2]),
    "from_list": lambda x: jf.nested.from_list([x[:3], x[:2]], capacity=8),
    "sort_by_group": lambda x: jf.nested.sort_by_group(x, jnp.array([0, 1, 0, 9, 1, 0, 9, 9]), 2)[0],
    "like": lambda x: jf.as_nested(x, like=jf.as_nested(x, extents=[3, 2])),
    "operator": lambda x: jf.as_nested(x, extents=[3, 2]) * 2 + 1,
}


@pytest.mark.parametrize("name", PADDED)
def test_padding_is_poisoned(name):
    plain = PADDED[name](X)
    with jf.debug_checks():
        nt = PADDED[name](X)
        assert jnp.isnan(nt.data[5:]).all() and not jnp.isnan(nt.data[:5]).any()
        # Who reads it, shows it: sums and products do not.
        w = jnp.ones((2, 4, 3))
        for f in (lambda nt: jf.grouped_matmul(nt, w), lambda nt: jf.nested.sum(nt, axis="ragged"), jf.as_flattened):
            got, want = f(nt), f(plain)
            got, want = getattr(got, "data", got)[:5], getattr(want, "data", want)[:5]
            assert jnp.allclose(got, want)
        slope = jax.grad(lambda x: jf.nested.sum(PADDED[name](x) * 2, axis="ragged").sum())(X)
        assert jnp.isfinite(slope).all()


def product(x, starts):
    return jf.grouped_matmul(jf.NestedTensor(x, jnp.array([3, 0, 2]), starts), W).data.sum()


TRANSFORMED = {
    "grad": (jax.grad(product), X, jnp.array([4, 0, 1])),
    "vmap of rows": (jax.vmap(product, (0, None)), jnp.stack([X, X]), jnp.array([4, 0, 1])),
    "vmap of starts": (jax.vmap(product, (None, 0)), X, jnp.array([[0, 0, 3], [4, 0, 1]])),
    "vmap of grad": (jax.vmap(jax.grad(product), (None, 0)), X, jnp.array([[0, 0, 3], [4, 0, 1]])),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_checks_work_under_transforms(name):
    f, *args = TRANSFORMED[name]
    with jf.debug_checks():
        error, _ = jax.jit(checkify.checkify(f))(*args)
    assert "ascending order" in str(error.get())


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32"])
def test_integers_of_other_widths(dtype):
    """Rows that the dtype of sizes does not hold are no reason to refuse them; sizes beyond int32 are refused."""
    x, extents = jnp.ones(325), jnp.array([100, 20], dtype)

    def build(extents):
        offsets = jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(extents, dtype=dtype)])
        nested = jf.as_nested(x, extents=extents), jf.as_nested(x, offsets)
        return nested, jf.nested.from_padded(x[None], extents[:1])

    def error(extents):
        with jf.debug_checks():
            return jax.jit(checkify.checkify(build))(extents)[0].get()

    assert error(extents) is None
    if dtype == "uint32":
        assert "extents exceed data.shape[0]=325" in error(jnp.array([100, 2**32 - 1], dtype))
        nt = jax.jit(lambda e: jf.as_nested(x, extents=e))(jnp.array([100, 2**32 - 1, 5], dtype))
        assert nt.offsets.tolist() == [0, 100, 325, 325]
