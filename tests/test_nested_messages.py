"""What wrong calls on nested tensors say."""

import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

import jax_fuser as jf

x325 = jnp.ones((325, 512))
stacked = jnp.ones((2, 5, 4))
nt = jf.as_nested(x325, extents=[127, 0, 198])
big = 2**31 + 5


@jax.jit
def traced_eps(eps):
    return jf.nested.rms_norm(nt, eps=eps)


CASES = [
    (
        ValueError,
        "as_nested: offsets[0] must be 0, got 2; for group sizes use extents=",
        lambda: jf.as_nested(x325, [2, 0, 3]),
    ),
    (TypeError, "from_list: expected a list of arrays, got a dict", lambda: jf.nested.from_list({"a": x325})),
    (
        TypeError,
        "map: others[0] must be an array, a number or a NestedTensor, got 'a'",
        lambda: jf.nested.map(jnp.add, nt, "a"),
    ),
    (
        ValueError,
        "replace: starts must have the shape of extents, (3,), got (2,)",
        lambda: nt.replace(starts=jnp.array([0, 127])),
    ),
    (
        ValueError,
        "replace: group 2 begins at row 128 and has 198 of the 325 rows; it must lie inside of the data",
        lambda: nt.replace(starts=jnp.array([0, 127, 128])),
    ),
    (TypeError, "as_nested: pass exactly one of offsets= or extents=", lambda: jf.as_nested(x325)),
    (
        TypeError,
        "as_nested: pass exactly one of offsets= or extents=",
        lambda: jf.as_nested(x325, [0, 325], extents=[325]),
    ),
    (
        TypeError,
        "as_nested: offsets must be an integer array, got float32",
        lambda: jf.as_nested(x325, jnp.array([0.0, 325.0])),
    ),
    (
        TypeError,
        "as_nested: extents must be an integer array, got bool",
        lambda: jf.as_nested(x325, extents=np.array([True])),
    ),
    (ValueError, "as_nested: offsets[0] must be 0, got 3", lambda: jf.as_nested(x325, [3, 127, 325])),
    (
        ValueError,
        "as_nested: offsets must be non-decreasing; offsets[2]=127 > offsets[3]=120",
        lambda: jf.as_nested(x325, jnp.array([0, 5, 127, 120, 325])),
    ),
    (
        ValueError,
        "as_nested: offsets[-1]=330 exceeds data.shape[0]=325",
        lambda: jf.as_nested(x325, [0, 127, 330]),
    ),
    (
        ValueError,
        "as_nested: offsets has 3 entries summing to data.shape[0]=325; these look like group sizes, use extents=",
        lambda: jf.as_nested(x325, [127, 0, 198]),
    ),
    (
        ValueError,
        "as_nested: 3-D offsets for ragged_dim=1 need shape [d0, G+1]; got (2, 4, 5)",
        lambda: jf.as_nested(stacked, np.zeros((2, 4, 5), int), ragged_dim=1),
    ),
    (
        ValueError,
        "as_nested: 2-D extents for ragged_dim=1 need shape [d0, G]; got (3, 2), data has [d0=2]",
        lambda: jf.as_nested(stacked, extents=np.zeros((3, 2), int), ragged_dim=1),
    ),
    (
        ValueError,
        "as_nested: offsets[1, -1]=6 exceeds data.shape[1]=5",
        lambda: jf.as_nested(stacked, [[0, 1, 5], [0, 1, 6]], ragged_dim=1),
    ),
    (
        ValueError,
        "as_nested: offsets needs at least one entry (G+1); got shape (0,)",
        lambda: jf.as_nested(x325, []),
    ),
    (
        ValueError,
        "as_nested: extents must be non-negative; extents[1]=-1",
        lambda: jf.as_nested(x325, extents=[5, -1]),
    ),
    (
        ValueError,
        "as_nested: extents sum to 330, which exceeds data.shape[0]=325",
        lambda: jf.as_nested(x325, extents=[130, 200]),
    ),
    (
        ValueError,
        f"as_nested: offsets[1]={big} does not fit in int32",
        lambda: jf.as_nested(x325, np.array([0, big]), validate=False),
    ),
    (
        ValueError,
        "as_nested: ragged_dim=2 is out of range for data of shape (325, 512)",
        lambda: jf.as_nested(x325, [0], ragged_dim=2),
    ),
    (
        NotImplementedError,
        "as_nested: data is a NestedTensor already and multi-level nesting is not supported; "
        "flatten it first with as_flattened, or keep the inner groups in N-D extents",
        lambda: jf.as_nested(nt, [0, 325]),
    ),
    (
        ValueError,
        "as_nested: data of shape (300, 2) does not fit like=, which needs [325, ...]",
        lambda: jf.as_nested(jnp.ones((300, 2)), like=nt),
    ),
    (
        ValueError,
        "add: operands have different ragged layouts: [3 groups, capacity 325] vs [4 groups, capacity 325]",
        lambda: nt + jf.as_nested(x325, extents=[1, 1, 1, 1]),
    ),
    (
        ValueError,
        "add: operands have different ragged layouts: [3 groups, capacity 325] vs [3 groups, capacity 325]; "
        "extents differ at group 1: 0 vs 5",
        lambda: nt + jf.as_nested(x325, extents=[127, 5, 193]),
    ),
    (
        ValueError,
        "multiply: operands have different ragged layouts: [3 groups, capacity 325, contiguous] vs "
        "[3 groups, capacity 325, gapped]",
        lambda: nt * nt.replace(starts=nt.starts),
    ),
    (
        TypeError,
        "add: cannot combine NestedTensor [3, ragged, 512] with array (325, 512); "
        "wrap it with as_nested(y, like=nt) or use nt.data",
        lambda: nt + x325,
    ),
    (
        TypeError,
        "subtract: cannot combine NestedTensor [3, ragged, 512] with array (7,); "
        "expected a scalar, [512], per-group [3, 1, 512], or the same layout",
        lambda: np.ones(7) - nt,
    ),
    (
        TypeError,
        "to_padded: max_extent must be a Python int under jit (extents are traced); pass e.g. max_extent=capacity",
        lambda: jax.jit(jf.nested.to_padded)(nt),
    ),
    (
        TypeError,
        "to_padded: max_extent must be a Python int under jit (extents are traced); pass e.g. max_extent=capacity",
        lambda: jax.jit(jf.nested.to_padded)(nt, 5),
    ),
    (
        ValueError,
        "to_padded: extents[0]=127 exceeds max_extent=100",
        lambda: jf.nested.to_padded(nt, 100),
    ),
    (
        TypeError,
        "nt[1]: indexing a ragged group under jit needs a static size; use select(nt, 1, max_extent=...)",
        lambda: jax.jit(lambda nt: nt[1])(nt),
    ),
    (
        TypeError,
        "nt[1]: indexing a ragged group under jit needs a static size; use select(nt, 1, max_extent=...)",
        lambda: jax.jit(lambda nt: jf.nested.select(nt, 1))(nt),
    ),
    (IndexError, "nt[3]: group index out of range, the size is 3", lambda: nt[3]),
    (
        TypeError,
        "nt[...]: expected an int group index, got slice; slice nt.data instead",
        lambda: nt[1:],
    ),
    (
        ValueError,
        "vmap: NestedTensor needs the same batch axis on data and extents, before the rows of data, and so does scan",
        lambda: jax.lax.scan(
            lambda total, nt: (total + jf.nested.sum(nt).sum(), None),
            0.0,
            jf.as_nested(stacked, extents=[1, 2], ragged_dim=1),
        ),
    ),
    (
        ValueError,
        "vmap: NestedTensor of data (2, 5, 4) has data (2, 5) now, without an axis at or behind its rows",
        lambda: jax.vmap(jf.nested.sum, in_axes=(jf.NestedTensor(2, None),))(
            jf.as_nested(jnp.ones((2, 5, 4)), extents=[1, 2], ragged_dim=1)
        ),
    ),
    (
        ValueError,
        "vmap: NestedTensor of data (5, 4) has data (5, 3, 4) now, with an axis at or behind its rows",
        lambda: jf.nested.sum(
            jax.vmap(lambda s: jf.as_nested(jnp.ones((5, 4)), extents=[1, 2]) * s, out_axes=jf.NestedTensor(1, None))(
                jnp.ones(3)
            )
        ),
    ),
    (
        ValueError,
        "replace: extents must be non-negative; extents[1]=-1",
        lambda: nt.replace(extents=jnp.array([2, -1, 0])),
    ),
    (
        ValueError,
        "replace: extents sum to 9, which exceeds data.shape[1]=5",
        lambda: jf.as_nested(stacked, extents=[1, 2], ragged_dim=1).replace(extents=jnp.array([4, 5])),
    ),
    (TypeError, "replace: extents must be an integer array, got float32", lambda: nt.replace(extents=jnp.ones(3))),
    (
        ValueError,
        "combine: nt must have the extents that dispatch returned, [1, 2], got [2, 1]",
        lambda: jf.moe.combine(
            jf.moe.dispatch(jnp.ones((3, 1)), jnp.array([0, 0, 1]), num_experts=2)[0],
            jf.moe.dispatch(jnp.ones((3, 1)), jnp.array([0, 1, 1]), num_experts=2)[1],
            jnp.ones(3),
        ),
    ),
    (
        ValueError,
        "combine: nt must have the 2 groups that dispatch returned, got 1",
        lambda: jf.moe.combine(
            jf.as_nested(jnp.ones((3, 1)), extents=[3]),
            jf.moe.dispatch(jnp.ones((3, 1)), jnp.array([0, 1, 1]), num_experts=2)[1],
            jnp.ones(3),
        ),
    ),
    (
        TypeError,
        "rms_norm: data must be real, got complex64; take it of the real and imaginary parts",
        lambda: jf.nested.rms_norm(jf.as_nested(jnp.ones((3, 2), jnp.complex64), extents=[1, 2]), "ragged"),
    ),
    (
        ValueError,
        "vmap: NestedTensor needs the same batch axis on data and extents",
        lambda: jax.vmap(lambda nt: nt + 1)(jf.as_nested(jnp.ones((3, 5)), extents=[1, 1, 1])),
    ),
    (
        ValueError,
        "vmap: NestedTensor needs the same batch axis on data and extents",
        lambda: jax.vmap(lambda nt: nt + 1, in_axes=(jf.NestedTensor(0, None),))(
            jf.as_nested(stacked, extents=[[1, 2], [3, 2]], ragged_dim=1)
        ),
    ),
    (
        TypeError,
        "grad: NestedTensor carries integer extents; use jax_fuser.nested.grad, or differentiate w.r.t. nt.data",
        lambda: nt - 0.1 * jax.grad(lambda nt: nt.data.sum(), allow_int=True)(nt),
    ),
    (
        TypeError,
        "grad: argument 0 (NestedTensor of int32) has no floating data to differentiate",
        lambda: jf.nested.grad(lambda nt: 1.0)(jf.as_nested(jnp.arange(3), extents=[3])),
    ),
    (TypeError, "NestedTensor has no truth value", lambda: bool(nt == nt)),
    (TypeError, "NestedTensor is not one array", lambda: np.asarray(nt)),
    (
        ValueError,
        "from_segment_ids: ids must be sorted; ids[1]=2 > ids[2]=0; use sort_by_group",
        lambda: jf.nested.from_segment_ids(jnp.ones(3), [0, 2, 0], 3),
    ),
    (
        ValueError,
        "from_segment_ids: ids must be sorted; ids[1]=2 > ids[2]=0; use sort_by_group",
        lambda: jf.nested.from_segment_ids(jnp.ones(3), np.array([0, 2, 0], np.uint8), 3),
    ),
    (
        TypeError,
        "from_list: array 1 has dtype int32, expected float32 as array 0",
        lambda: jf.nested.from_list([jnp.ones((1, 2)), jnp.ones((1, 2), jnp.int32)]),
    ),
    (
        ValueError,
        "from_list: array 1 has shape (1, 3), expected [n, 2]",
        lambda: jf.nested.from_list([jnp.ones((1, 2)), jnp.ones((1, 3))]),
    ),
    (
        ValueError,
        "from_padded: extents[1]=6 is not in 0..5",
        lambda: jf.nested.from_padded(stacked, [1, 6]),
    ),
    (
        ValueError,
        "sort_by_group: ids need shape [t] or [t, k] with t=(2,); got (3,)",
        lambda: jf.nested.sort_by_group(stacked, [1, 2, 3], 4),
    ),
    (
        ValueError,
        "map: the function must keep the dimensions up to the rows (325,); it returned (512,)",
        lambda: jf.nested.map(lambda x: x.sum(0), nt),
    ),
    (
        ValueError,
        "replace: data (300, 512) needs 325 rows in dimension 0; build a new nested tensor with as_nested",
        lambda: nt.replace(data=x325[:300]),
    ),
    (
        ValueError,
        "concat: operands have different ragged layouts: [3 groups, capacity 325] vs [3 groups, capacity 325]; "
        "extents differ at group 1: 0 vs 5",
        lambda: jf.nested.concat([nt, jf.as_nested(x325, extents=[127, 5, 193])], axis=-1),
    ),
    (TypeError, "as_nested: data must be an array, got a str", lambda: jf.as_nested("rows", [0, 1])),
    (TypeError, "as_nested: ragged_dim must be an int, got 0.0", lambda: jf.as_nested(x325, [0, 1], ragged_dim=0.0)),
    (
        TypeError,
        "as_nested: extents must be an integer array, got a NestedTensor",
        lambda: jf.as_nested(x325, extents=nt),
    ),
    (TypeError, "merge: a dimension must be an int, got None", lambda: jf.nested.merge(nt, None, 1)),
    (TypeError, "split: factor must be an int, got 1.5", lambda: jf.nested.split(nt, 1, factor=1.5)),
    (ValueError, "align: multiple must be at least 1, got 0", lambda: jf.nested.align(nt, 0)),
    (
        TypeError,
        "sum: axis must be 'ragged', 'group' or an int, one at a time, got None",
        lambda: jf.nested.sum(nt, None),
    ),
    (TypeError, "map: f must be a function, got 3", lambda: jf.nested.map(3, nt)),
    (TypeError, "stats: expected a NestedTensor, got int", lambda: jf.nested.stats(3)),
    (TypeError, "allclose: expected a NestedTensor, got ArrayImpl", lambda: jf.nested.allclose(nt, x325)),
    (TypeError, "concat: expected a list of NestedTensors, got a NestedTensor", lambda: jf.nested.concat(nt)),
    (TypeError, "from_list: expected a list of arrays, got a int", lambda: jf.nested.from_list(3)),
    (TypeError, "grad: fun must be a function, got 3", lambda: jf.nested.grad(3)),
    (TypeError, "grad: argnums must be an int or several, got 1.5", lambda: jf.nested.grad(jnp.sum, 1.5)),
    (TypeError, "value_and_grad: argnums must be an int", lambda: jf.nested.value_and_grad(jnp.sum, [0, "x"])),
    (
        TypeError,
        "to_padded: fill must be an array of numbers that fit, got 300",
        lambda: jf.nested.to_padded(nt.replace(data=x325.astype(jnp.int8)), fill=300),
    ),
    (
        TypeError,
        "mlp: experts must be integers, got float32",
        lambda: jf.moe.mlp(x325, x325[:, :2], x325[:, :2], x325[None], x325[None]),
    ),
    (ValueError, "to_padded: fill must be a scalar, got an array (2,)", lambda: jf.nested.to_padded(nt, fill=[1, 2])),
    (
        TypeError,
        "select: the group index must be one integer, got int32[2]",
        lambda: jf.nested.select(nt, jnp.arange(2)),
    ),
    (TypeError, "select: the group index must be an int, got 1.0", lambda: jf.nested.select(nt, 1.0)),
    (IndexError, "select: group index 3 out of range, the size is 3", lambda: jf.nested.select(nt, 3)),
    (TypeError, "nt[...]: expected an int group index, got bool; slice nt.data instead", lambda: nt[True]),
    (TypeError, "to_padded: max_extent must be an int, got True", lambda: jf.nested.to_padded(nt, True)),
    (TypeError, "rms_norm: eps must be a number, got 'small'", lambda: jf.nested.rms_norm(nt, eps="small")),
    (TypeError, "map: the function must return arrays, it returned a float", lambda: jf.nested.map(lambda x: 1.0, nt)),
    (
        ValueError,
        "concat: dense dimensions differ: [3, ragged, 512] vs [3, ragged, 2]",
        lambda: jf.nested.concat([nt, nt.replace(data=x325[:, :2])]),
    ),
    (IndexError, "nt[9]: group index out of range, the size is 3", lambda: nt[jnp.int32(9)]),
    (
        TypeError,
        "grouped_matmul: transpose_rhs must be True or False, got None",
        lambda: jf.grouped_matmul(nt, jnp.ones((3, 512, 2)), transpose_rhs=None),
    ),
    (TypeError, "route: logits must be an array, got a NestedTensor; pass its data", lambda: jf.moe.route(nt, 2)),
    (TypeError, "ragged_dot: lhs must be an array, got a NoneType", lambda: jf.ragged_dot(None, x325, [1])),
    (TypeError, "route: top_k must be an int, got 1.5", lambda: jf.moe.route(x325, 1.5)),
    (
        ValueError,
        "combine: weights must be (tokens, top_k)=(325, 2), got ()",
        lambda: jf.moe.combine(*jf.moe.dispatch(x325, np.zeros((325, 2), int), num_experts=2), 1.0),
    ),
    (
        ValueError,
        "concat: axis 0 is outer; join the groups (axis 1), their rows or a dense dimension",
        lambda: jf.nested.concat([jf.as_nested(stacked, extents=[2, 3], ragged_dim=1)] * 2, axis=0),
    ),
    (
        TypeError,
        "sum: axis must be 'ragged', 'group' or an int, one at a time, got (1, 2); reduce the result again, or take",
        lambda: jf.nested.sum(nt, (1, 2)),
    ),
    (TypeError, "sum() got an unexpected keyword argument 'keepdims'", lambda: jf.nested.sum(nt, keepdims=True)),
    (
        ValueError,
        "divide: dense dimensions do not broadcast: [3, ragged, 512] vs [3, ragged]; nested.map(lambda x: x[...,",
        lambda: nt / jf.nested.sum(nt, -1),
    ),
    (
        ValueError,
        "add: dense dimensions do not broadcast: [3, ragged, 512] vs [3, ragged, 2]; each must be equal, or 1 in one",
        lambda: nt + nt.replace(data=x325[:, :2]),
    ),
    (TypeError, "softmax: data must be real, got complex64", lambda: jf.nested.softmax(nt + 1j)),
    (
        AttributeError,
        "NestedTensor has no attribute 'astype'; functions of nested tensors are in jax_fuser.nested, whose map",
        lambda: nt.astype("bfloat16"),
    ),
    # What is no array, and trees that were mapped.
    (
        TypeError,
        "as_nested: extents must be an integer array, got [[1], [2, 3]]",
        lambda: jf.as_nested(x325, extents=[[1], [2, 3]]),
    ),
    (
        TypeError,
        "NestedTensor: extents must be an array, got a list; build one with as_nested",
        lambda: jf.nested.sum(jf.NestedTensor(x325, [3, 2])),
    ),
    (
        TypeError,
        "NestedTensor: data must be an array, got a bool; build one with as_nested",
        lambda: jax.tree.map(lambda leaf: True, nt) + 1,
    ),
    (
        TypeError,
        "NestedTensor: extents must be int32, got uint8; build one with as_nested, and map values with nested.map",
        lambda: jf.nested.sum(jf.NestedTensor(x325, jnp.array([200, 125], jnp.uint8))),
    ),
    (
        TypeError,
        "NestedTensor: extents must be int32, got bfloat16",
        lambda: jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), nt) * 2,
    ),
    (
        ValueError,
        "NestedTensor: ragged_dim=5 is not a dimension of data of shape (325, 512)",
        lambda: jf.NestedTensor(x325, jnp.array([3, 2]), ragged_dim=5),
    ),
    # By the name of the function and of the argument that it was given.
    (TypeError, "partition: axis must be an int, got None", lambda: jf.nested.partition(x325, None, [0, 325])),
    (ValueError, "partition: axis=2 is out of range", lambda: jf.nested.partition(x325, 2, [0, 325])),
    (TypeError, "combine: expected a NestedTensor, got", lambda: jf.nested.combine(x325)),
    (
        ValueError,
        "split: part 0 has 325 rows, which exceed capacity=9",
        lambda: jf.nested.split(nt, 0, num=1, capacity=9),
    ),
    (TypeError, "split: blocks must be True or False, got 'no'", lambda: jf.nested.split(nt, 1, 2, blocks="no")),
    (
        NameError,
        "merge: axis 3 is not bound; call inside jax.shard_map over a mesh with that axis",
        lambda: jf.nested.merge(jf.as_nested(stacked, extents=[[5], [2]], ragged_dim=1), 0, 2, axis_name=3),
    ),
    (
        TypeError,
        "grad: argnums has 1, but the function got 1 positional arguments; pass what to differentiate by position",
        lambda: jf.nested.grad(lambda nt: jf.nested.sum(nt).sum(), 1)(nt),
    ),
    (ValueError, "grad: argnums must name at least one argument, got ()", lambda: jf.nested.grad(jnp.sum, ())),
    (TypeError, "rms_norm: eps must be a number, got a DynamicJaxprTracer (traced)", lambda: traced_eps(1e-3)),
]


@pytest.mark.parametrize("error, message, call", CASES, ids=[f"{i}" for i in range(len(CASES))])
def test_message(error, message, call):
    with pytest.raises(error, match="^" + re.escape(message)):
        call()


def test_values_are_not_checked_when_traced():
    bad = jax.jit(lambda x, o: jf.as_nested(x, o) + 1)(x325, jnp.array([3, 900, 100]))
    assert bad.data.shape == (325, 512)


def test_static_facts_are_checked_when_traced():
    with pytest.raises(TypeError, match="offsets must be an integer array"):
        jax.jit(jf.as_nested)(x325, jnp.ones(3))


def test_constants_are_checked_under_jit():
    with pytest.raises(ValueError, match=re.escape("offsets[0] must be 0, got 3")):
        jax.jit(lambda x: jf.as_nested(x, np.array([3, 325])))(x325)


def test_debug_checks():
    f = jax.jit(lambda x, o: jf.as_nested(x, o).data)
    offsets = jnp.array([0, 5, 3])
    assert not jnp.isnan(f(x325, offsets)).any()
    with jf.debug_checks():
        error, data = jax.jit(checkify.checkify(f))(x325, offsets)
        assert "as_nested: offsets must be non-decreasing" in error.get()
        error, _ = jax.jit(checkify.checkify(f))(x325, offsets.astype(jnp.uint8))
        assert "as_nested: offsets must be non-decreasing" in error.get()
        _, data = jax.jit(checkify.checkify(f))(x325, jnp.array([0, 5, 7]))
        assert jnp.isnan(data[7:]).all() and not jnp.isnan(data[:7]).any()
        doubled = jf.as_nested(x325, extents=[3]) * 2
        assert jnp.isnan(doubled.data[3:]).all() and (doubled.data[:3] == 2).all()
    assert not jnp.isnan(f(x325, offsets)).any()


def test_functions_are_named_as_they_are_called():
    """In Python's messages, and in pickles."""
    for name in jf.nested.__all__:
        f = getattr(jf.nested, name)
        assert getattr(f, "__name__", name) == name
        if callable(f):
            assert pickle.loads(pickle.dumps(f)) is f


def test_a_capacity_beyond_int32_cuts_nothing():
    outer = jf.as_nested(stacked, extents=[[5], [2]], ragged_dim=1)
    assert jf.nested.merge(outer, 0, 2, capacity=big).extents.tolist() == [7]
