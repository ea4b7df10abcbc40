"""`ragged_dot` and `ragged_dot_general` against `jax.lax`; against loops where `jax.lax` has no implementation."""

import functools

import grouped_reference as ref
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf

Dims = jax.lax.RaggedDotDimensionNumbers


def random(*shape, dtype="float32", seed=0):
    x = np.random.default_rng([seed, *shape]).normal(size=shape)
    return jnp.asarray((np.round(x * 3) if np.issubdtype(jnp.dtype(dtype), np.integer) else x).astype(dtype))


def on_cpu(f, *args):
    """Run the truth on the CPU: on GPUs XLA's own ragged_dot fails for some shapes and rounds to TF32 for others."""
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):
        return jax.jit(f)(*jax.device_put(args, cpu))


def expect_same(device, args, **options):
    del device
    got = jax.jit(functools.partial(jf.ragged_dot, **options))(*args)
    want = on_cpu(functools.partial(jax.lax.ragged_dot, **options), *args)
    assert got.dtype == want.dtype
    assert_close(got, want)


@pytest.mark.parametrize("m, k, n, sizes", [
    (40, 16, 24, [10, 0, 13, 5]), (7, 1, 1, [3, 4]), (1, 129, 127, [1]), (129, 33, 65, [100, 0, 0, 29]),
    (16, 8, 8, [0, 0]), (0, 4, 4, [0, 0]), (5, 4, 3, []),
])  # fmt: skip
def test_shapes(device, m, k, n, sizes):
    expect_same(device, (random(m, k), random(len(sizes), k, n), jnp.asarray(sizes, jnp.int32)))


@pytest.mark.parametrize("lhs, rhs, preferred", [
    ("bfloat16", "bfloat16", None), ("bfloat16", "bfloat16", "float32"), ("float16", "float16", "float32"),
    ("float32", "bfloat16", None), ("float16", "bfloat16", None), ("float32", "float32", "bfloat16"),
    ("int8", "int8", "int32"), ("int32", "int32", None), ("int32", "float32", None), ("uint8", "int32", None),
    ("complex64", "complex64", None), ("int4", "int8", None), ("bfloat16", "int4", None), ("int4", "uint4", "int32"),
])  # fmt: skip
def test_dtypes(device, lhs, rhs, preferred):
    args = random(12, 9, dtype=lhs), random(3, 9, 7, dtype=rhs), jnp.array([5, 0, 4])
    got = jax.jit(functools.partial(jf.ragged_dot, preferred_element_type=preferred))(*args)
    want = on_cpu(functools.partial(jax.lax.ragged_dot, preferred_element_type=preferred), *args)
    assert got.dtype == want.dtype
    if got.dtype.kind == "c":
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())
    else:
        assert_close(got, want)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_integers_of_floats_are_cut_off_once(device, dtype):
    lhs, rhs, sizes = random(12, 9, dtype=dtype), random(3, 9, 7, dtype=dtype), jnp.array([5, 0, 4])
    got = jf.ragged_dot(lhs, rhs, sizes, preferred_element_type="int32")
    assert got.dtype == "int32"
    np.testing.assert_array_equal(got, np.trunc(ref.rows(lhs, rhs, sizes)))


def test_float64_truth():
    with jax.enable_x64(True):
        lhs, rhs, sizes = random(30, 17, dtype="float64"), random(4, 17, 9, dtype="float64"), jnp.array([9, 0, 20, 1])
        assert_close(jf.ragged_dot(lhs, rhs, sizes), ref.rows(lhs, rhs, sizes))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32"])
def test_group_sizes_of_any_integer_dtype(device, dtype):
    # jax.lax counts rows in the dtype of the sizes, and wraps for int8.
    lhs, rhs = random(300, 4), random(2, 4, 3)
    assert_close(jf.ragged_dot(lhs, rhs, jnp.asarray([100, 27], dtype)), ref.rows(lhs, rhs, [100, 27]))


def test_group_sizes_of_64_bits_do_not_wrap():
    with jax.enable_x64(True):
        got = jf.ragged_dot(random(6, 4), random(2, 4, 3), jnp.array([2, 2**32 + 1]))
        assert_close(got, ref.rows(random(6, 4), random(2, 4, 3), [2, 4]))


def test_sizes_beyond_the_rows_clip_and_padding_is_zero(device):
    expect_same(device, (random(10, 4), random(2, 4, 3), jnp.array([8, 8])))
    out = jf.ragged_dot(random(10, 4).at[6:].set(jnp.nan), random(2, 4, 3), jnp.array([2, 4]))
    assert (np.asarray(out)[6:] == 0).all() and np.isfinite(out).all()


def test_gradients(device):
    args = random(12, 5), random(3, 5, 4), jnp.array([4, 0, 6])

    def loss(f):
        return lambda a, b: jnp.sum(jnp.sin(f(a, b, args[2])))

    ours = jax.jit(jax.grad(loss(jf.ragged_dot), (0, 1)))(*args[:2])
    for got, want in zip(ours, on_cpu(jax.grad(loss(jax.lax.ragged_dot), (0, 1)), *args[:2])):
        assert_close(got, want)
    low = [a.astype(jnp.bfloat16) for a in args[:2]]
    wide = functools.partial(jf.ragged_dot, group_sizes=args[2], preferred_element_type=jnp.float32)
    grads = jax.eval_shape(jax.grad(lambda a, b: jnp.sum(wide(a, b)), (0, 1)), *low)
    assert [g.dtype for g in grads] == [jnp.bfloat16] * 2


@pytest.mark.parametrize("offset, local", [(0, 2), (1, 3), (3, 1), (0, 4)])
def test_group_offset(device, offset, local):
    lhs, rhs, sizes = random(20, 6), random(4, 6, 5), np.array([4, 0, 7, 5])
    mine = np.zeros((4, 1, 1), "f")
    mine[offset : offset + local] = 1
    want = ref.rows(lhs, rhs * mine, sizes)
    part = rhs[offset : offset + local]

    def f(lhs, rhs, offset):
        return jf.ragged_dot(lhs, rhs, jnp.asarray(sizes), group_offset=offset)

    assert_close(f(lhs, part, offset), want)
    for given in (jnp.array([offset]), jnp.int32(offset)):
        assert_close(jax.jit(f)(lhs, part, given), want)
    each = jax.jit(jax.vmap(f, in_axes=(None, None, 0)))(lhs, part, jnp.array([offset, 0]))
    assert_close(each[0], want)
    dlhs, drhs = jax.jit(jax.grad(lambda *a: jnp.sum(f(*a) ** 2), (0, 1)))(lhs, part, offset)
    assert_close(dlhs, ref.rows(2 * want, rhs * mine, sizes, transpose_rhs=True))
    assert_close(drhs, ref.contraction(lhs, 2 * want, sizes)[offset : offset + local])


GENERAL = {
    # name: (lhs shape, rhs shape, group_sizes shape, dimension numbers)
    "rows": ((10, 4), (3, 4, 5), (3,), Dims((((1,), (1,)), ((), ())), [0], [0])),
    "rows_transposed": ((4, 10), (5, 4, 3), (3,), Dims((((0,), (1,)), ((), ())), [1], [2])),
    "rows_weights_nk": ((10, 4), (3, 5, 4), (3,), Dims((((1,), (2,)), ((), ())), [0], [0])),
    "rows_two_contracted": ((10, 4, 2), (3, 2, 4, 5), (3,), Dims((((1, 2), (2, 1)), ((), ())), [0], [0])),
    "rows_no_free_rhs": ((10, 4), (3, 4), (3,), Dims((((1,), (1,)), ((), ())), [0], [0])),
    "rows_inner": ((10, 6, 4), (3, 4, 5), (3,), Dims((((2,), (1,)), ((), ())), [0], [0])),
    "rows_outer": ((6, 10, 4), (3, 4, 5), (3,), Dims((((2,), (1,)), ((), ())), [1], [0])),
    "rows_outer_own_sizes": ((6, 10, 4), (3, 4, 5), (6, 3), Dims((((2,), (1,)), ((), ())), [1], [0])),
    "rows_batch": ((2, 10, 4), (3, 2, 4, 5), (3,), Dims((((2,), (2,)), ((0,), (1,))), [1], [0])),
    "rows_batch_own_sizes": ((2, 10, 4), (3, 2, 4, 5), (2, 3), Dims((((2,), (2,)), ((0,), (1,))), [1], [0])),
    "rows_all": ((5, 3, 2, 9, 4, 6), (2, 3, 6, 5, 4), (2, 5, 3, 3), Dims((((5,), (2,)), ((2,), (0,))), [3], [1])),
    "contraction": ((10, 4), (10, 5), (3,), Dims((((0,), (0,)), ((), ())), [0], [])),
    "contraction_last": ((4, 10), (5, 10), (3,), Dims((((1,), (1,)), ((), ())), [1], [])),
    "contraction_batch": ((2, 4, 10), (10, 2, 5), (3,), Dims((((2,), (0,)), ((0,), (1,))), [2], [])),
    "contraction_batch_own_sizes": ((2, 4, 10), (10, 2, 5), (2, 3), Dims((((2,), (0,)), ((0,), (1,))), [2], [])),
    "contraction_inner": ((10, 6, 4), (10, 6, 5), (3,), Dims((((0, 1), (0, 1)), ((), ())), [0], [])),
    "contraction_outer": ((6, 10, 4), (6, 10, 5), (3,), Dims((((0, 1), (0, 1)), ((), ())), [1], [])),
    "contraction_outer_own_sizes": ((6, 10, 4), (6, 10, 5), (6, 3), Dims((((0, 1), (0, 1)), ((), ())), [1], [])),
    "batch": ((10, 4, 6), (10, 6, 5), (3,), Dims((((2,), (1,)), ((0,), (0,))), [0], [])),
    "batch_last": ((4, 6, 10), (5, 6, 10), (3,), Dims((((1,), (1,)), ((2,), (2,))), [2], [])),
    "batch_inner": ((10, 3, 4, 6), (3, 10, 6, 5), (3,), Dims((((3,), (2,)), ((0, 1), (1, 0))), [0], [])),
    "batch_outer": ((3, 10, 4, 6), (3, 10, 6, 5), (3,), Dims((((3,), (2,)), ((0, 1), (0, 1))), [1], [])),
    "batch_outer_own_sizes": ((3, 10, 4, 6), (3, 10, 6, 5), (3, 3), Dims((((3,), (2,)), ((0, 1), (0, 1))), [1], [])),
}  # fmt: skip


@pytest.mark.parametrize("name", GENERAL)
def test_general(device, name):
    lhs_shape, rhs_shape, sizes_shape, dims = GENERAL[name]
    lhs, rhs = random(*lhs_shape), random(*rhs_shape)
    rows = lhs_shape[dims.lhs_ragged_dimensions[0]]
    sizes = np.random.default_rng(1).multinomial(rows, [0.5, 0.1, 0.4], sizes_shape[:-1])
    if not name.startswith("batch"):
        sizes[..., -1] -= 2  # jax.lax ignores the sizes of a ragged batch dimension; rows past them are zero here
        sizes = np.maximum(sizes, 0)
    sizes = jnp.asarray(sizes, jnp.int32)
    got = jax.jit(jf.ragged_dot_general, static_argnums=3)(lhs, rhs, sizes, dims)
    want = on_cpu(lambda *args: jax.lax.ragged_dot_general(*args, dims), lhs, rhs, sizes)
    assert_close(got, want)


@pytest.mark.parametrize("name", ["rows_all", "contraction_outer_own_sizes", "batch_inner"])
def test_gradients_of_general(device, name):
    lhs_shape, rhs_shape, sizes_shape, dims = GENERAL[name]
    lhs, rhs = random(*lhs_shape), random(*rhs_shape)
    sizes = jnp.broadcast_to(jnp.array([4, 0, 3], jnp.int32), sizes_shape)

    def f(a, b):
        return jf.ragged_dot_general(a, b, sizes, dims)

    # Linear in each operand: the gradient contracted with a direction is the derivative in it.
    ct, da, db = (random(*s, seed=1) for s in (jax.eval_shape(f, lhs, rhs).shape, lhs_shape, rhs_shape))
    dlhs, drhs = jax.jit(lambda a, b: jax.vjp(f, a, b)[1](ct))(lhs, rhs)
    f = jax.jit(f)
    assert_close(np.vdot(dlhs, da), np.vdot(ct, f(da, rhs)), scale=20)
    assert_close(np.vdot(drhs, db), np.vdot(ct, f(lhs, db)), scale=20)


def test_ragged_batch_rows_past_the_total_are_zero(device):
    _, _, _, dims = GENERAL["batch"]
    out = jf.ragged_dot_general(random(10, 4, 6), random(10, 6, 5), jnp.array([4, 0, 3]), dims)
    assert (np.asarray(out)[7:] == 0).all() and (np.asarray(out)[:7] != 0).all()


def test_group_offset_without_rhs_groups(device):
    lhs, rhs, dims = random(10, 4), random(10, 5), GENERAL["contraction"][3]
    got = jf.ragged_dot_general(lhs, rhs, jnp.array([4, 2, 3]), dims, group_offset=1)
    want = ref.contraction(lhs, rhs, [4, 2, 3])
    want[0] = 0
    assert_close(got, want)


def test_vmap_where_lax_has_none(device):
    lhs, rhs, sizes = random(3, 10, 4), random(2, 4, 5), jnp.array([[4, 2], [0, 10], [1, 1]])
    got = jax.jit(jax.vmap(jf.ragged_dot, in_axes=(0, None, 0)))(lhs, rhs, sizes)
    for i in range(3):
        assert_close(got[i], ref.rows(lhs[i], rhs, sizes[i]))


@pytest.mark.parametrize("change", [
    {"lhs": (10, 3)}, {"rhs": (3, 4, 5)}, {"sizes": jnp.array([1.0, 2.0])}, {"sizes": jnp.int32(3)}, {"rhs": (4, 5)},
])  # fmt: skip
def test_refuses_what_lax_refuses(change):
    lhs, rhs = random(*change.get("lhs", (10, 4))), random(*change.get("rhs", (2, 4, 5)))
    sizes = change.get("sizes", jnp.array([4, 2]))
    with pytest.raises(Exception) as theirs:
        jax.lax.ragged_dot(lhs, rhs, sizes)
    with pytest.raises(type(theirs.value)) as ours:
        jf.ragged_dot(lhs, rhs, sizes)
    assert str(ours.value).startswith(
        f"ragged_dot: {str(theirs.value).rstrip('.')}; expected lhs (m, k), rhs (g, k, n)"
    )


def test_refuses_fp8_and_bad_offsets():
    with pytest.raises(TypeError, match=r"ragged_dot: float8_e4m3fn x float32 not supported; supported pairs:"):
        jf.ragged_dot(random(4, 4).astype(jnp.float8_e4m3fn), random(1, 4, 4), jnp.array([4]))
    with pytest.raises(TypeError, match="ragged_dot: group_offset must be one integer, got float32"):
        jf.ragged_dot(random(4, 4), random(1, 4, 4), jnp.array([4]), group_offset=jnp.array([0.5]))
    with pytest.raises(TypeError, match="rhs has 2 groups, more than the 1 of group_sizes"):
        jf.ragged_dot(random(4, 4), random(2, 4, 4), jnp.array([4]), group_offset=0)


def test_precision_is_accepted_as_in_lax():
    args = random(4, 4), random(1, 4, 4), jnp.array([4])
    for precision in ("highest", jax.lax.Precision.DEFAULT, None):
        assert_close(jf.ragged_dot(*args, precision), jax.lax.ragged_dot(*args, precision=precision))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_narrow_group_offsets(dtype):
    """Bounds of 199 and 256 groups do not wrap in the dtype of the offset."""
    x, w = jnp.ones((5, 4)), jnp.ones((1, 4, 2))
    for groups in (200, 257):
        sizes = np.zeros(groups, np.int32)
        sizes[3] = 5
        for f in (jf.ragged_dot, jf.grouped_matmul):
            out = jax.jit(lambda offset, f=f, sizes=sizes: f(x, w, sizes, group_offset=offset))(jnp.asarray(3, dtype))
            np.testing.assert_array_equal(out, np.full((5, 2), 4))
