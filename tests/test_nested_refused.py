"""What is no array of numbers, or fits no other argument, is refused by name: not by what JAX and NumPy say inside."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_fuser as jf

x325 = jnp.ones((325, 512))
nt = jf.as_nested(x325, extents=[127, 0, 198])

CASES = [
    (ValueError, "rms_norm: eps must fit in a float, got 1000", lambda: jf.nested.rms_norm(nt, eps=10**400)),
    (ValueError, f"split: factor must be at most 2147483647, got {2**70}", lambda: nt.split("ragged", 2**70)),
    (
        TypeError,
        "as_nested: extents must be an integer array, got {'a': 1}",
        lambda: jf.as_nested(x325, extents={"a": 1}),
    ),
    (
        ValueError,
        f"as_nested: extents[1]={2**70} does not fit in int32",
        lambda: jf.as_nested(x325, extents=[1, 2**70]),
    ),
    (
        TypeError,
        "as_nested: extents must be an integer array, got [",
        lambda: jax.jit(lambda n: jf.as_nested(x325, extents=[[n], [n, 2]]))(1),
    ),
    (
        TypeError,
        "as_nested: extents must be an integer array, got [",
        lambda: jax.jit(lambda n: jf.as_nested(x325, extents=[n, None]))(1),
    ),
    (
        TypeError,
        "as_nested: validate must be True or False, got 'no'",
        lambda: jf.as_nested(x325, extents=[1], validate="no"),
    ),
    (TypeError, "from_list: arrays[1] must be an array, got a str", lambda: jf.nested.from_list([x325, "a"])),
    (TypeError, "sort_by_group: x must be an array, got a str", lambda: jf.nested.sort_by_group("a", [0], 1)),
    (TypeError, "to_padded: fill must be a number, got 'a'", lambda: jf.nested.to_padded(nt, fill="a")),
    (
        TypeError,
        "to_padded: fill must be real, got complex64; pass fill.real",
        lambda: jf.nested.to_padded(nt, fill=jnp.complex64(1j)),
    ),
    (
        TypeError,
        "to_padded: fill must be an integer for int32, got 1.5",
        lambda: jf.nested.to_padded(nt.replace(data=x325.astype(jnp.int32)), fill=jnp.float32(1.5)),
    ),
    # Operands and results that are no arrays of numbers.
    (
        TypeError,
        "map: the other operand must be an array of numbers that fit, got an array of <U1",
        lambda: jf.nested.map(jnp.add, nt, np.array(["a", "b"])),
    ),
    (TypeError, "add: the other operand must be numbers, got <U2", lambda: nt + np.array(["ab"])),
    (TypeError, "add: the other operand must be numbers, got <U1", lambda: nt + np.str_("a")),
    (
        TypeError,
        "multiply: the other operand must be an array of numbers, got key<fry>",
        lambda: nt * jax.random.key(0),
    ),
    (ValueError, f"add: {2**70} does not fit in int32; pass a float or an array", lambda: nt + 2**70),
    (TypeError, "power() takes 2 positional arguments but 3 were given", lambda: pow(nt, 2, 3)),
    (
        TypeError,
        "map: the function must return arrays, it returned a NestedTensor",
        lambda: jf.nested.map(lambda x: nt, nt),
    ),
    (
        TypeError,
        "map: the function must return arrays of numbers, it returned key<fry>",
        lambda: jf.nested.map(lambda x: jax.random.split(jax.random.key(0), 325), nt),
    ),
    (
        TypeError,
        "map: others[0] must be an array, a number or a NestedTensor, got ShapeDtypeStruct",
        lambda: jf.nested.map(jnp.add, nt, jax.ShapeDtypeStruct((), jnp.float32)),
    ),
    (TypeError, "allclose: rtol must be a number, got 'a'", lambda: jf.nested.allclose(nt, nt, rtol="a")),
    (
        TypeError,
        "allclose: equal_nan must be True or False, got 'a'",
        lambda: jf.nested.allclose(nt, nt, equal_nan="a"),
    ),
    # Leaves that do not fit each other, and what holds no arrays at all.
    (
        ValueError,
        "NestedTensor: starts must have the shape of extents, (2,), got (1,)",
        lambda: jf.nested.sum(jf.NestedTensor(x325, jnp.array([3, 2]), jnp.array([0]))),
    ),
    (
        ValueError,
        "replace: starts must have the shape of extents, (2,), got (3,)",
        lambda: jf.nested.align(nt, 8).replace(extents=jnp.array([1, 2])),
    ),
    (
        ValueError,
        "replace: 2-D extents for ragged_dim=0 need shape [G]; got (2, 2)",
        lambda: nt.replace(extents=jnp.ones((2, 2), jnp.int32)),
    ),
    (
        TypeError,
        "NestedTensor: data must be an array of numbers, got key<fry>",
        lambda: jf.nested.sum(jf.NestedTensor(jax.random.split(jax.random.key(0), 5), jnp.array([3, 2]))),
    ),
    (
        TypeError,
        "NestedTensor: data must be an array, got a NestedTensor",
        lambda: jf.nested.sum(jf.NestedTensor(nt, jnp.array([3]))),
    ),
    (
        TypeError,
        "NestedTensor: ragged_dim must be an int, got 'rows'",
        lambda: jf.NestedTensor(x325, jnp.array([3]), ragged_dim="rows"),
    ),
    (
        AttributeError,
        "NestedTensor: offsets needs arrays, this one holds a int as data; build one with as_nested",
        lambda: jf.NestedTensor(0, None).offsets,
    ),
    (
        TypeError,
        "NestedTensor: this one holds axes or specs, not arrays; build one with as_nested",
        lambda: jf.nested.stats(jf.NestedTensor(0, None)),
    ),
    (
        ValueError,
        "grad: argnums must name each argument once, got (0, -1)",
        lambda: jf.nested.grad(lambda nt: jf.nested.sum(nt).sum(), (0, -1))(nt),
    ),
    (
        TypeError,
        "grad: argument 0 must hold arrays alone, got a str in it",
        lambda: jf.nested.grad(lambda nt: 1.0)({"rows": nt, "name": "a"}),
    ),
]


@pytest.mark.parametrize("error, message, call", CASES, ids=[f"{i}" for i in range(len(CASES))])
def test_message(error, message, call):
    with pytest.raises(error, match="^" + re.escape(message)):
        call()


def test_functions_of_rows_take_any_integer():
    assert jf.nested.map(lambda x, n: x * (n % 7), nt, 2**70).data[0, 0] == 2**70 % 7
