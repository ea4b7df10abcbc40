"""nvFuser's 42 tests of RaggedIterDomain, one by one, each on data.

Theirs build the IR and look at it; here each case runs, and what they refuse because it has no meaning yet (folds of
rows, slices, pads, reshapes, concatenation) is computed. Truth is one component at a time in numpy.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf

G, M, H = 3, 11, 4
SIZES = [2, 0, 5]


def ends(sizes):
    sizes = np.asarray(sizes, np.int32)
    return (np.cumsum(sizes, axis=-1) - sizes).astype(np.int32), sizes


def rows(shape=(M, H), seed=0):
    x = np.random.default_rng(seed).uniform(0.5, 1.5, shape).astype(np.float32)
    x[sum(SIZES) :] = np.nan  # padding is never read
    return x


X, (S, E) = rows(), ends(SIZES)
BF16 = np.asarray(jnp.asarray(X, jnp.bfloat16), np.float32)


def parts(x, starts=S, sizes=E):
    return [x[s : s + n] for s, n in zip(starts, sizes)]


def whole(components, starts=S, total=M):
    """Return the rows of all components in one array, zeros elsewhere."""
    out = np.zeros((total, *components[0].shape[1:]), np.float32)
    for s, c in zip(starts, components):
        out[s : s + len(c)] = c
    return out


def start():
    b = jf.ir.Builder("nested")
    x, s, e = b.input("x", "f32", [M, H]), b.input("starts", "s32", [G]), b.input("sizes", "s32", [G])
    return b, x, s, e, b.partition(x, s, e, 0, M)


def check(make, want, *more):
    """Run what `make(b, nested, starts, sizes)` returns; dense results are the truth, nested ones are combined."""
    b, _, s, e, n = start()
    y = make(b, n, s, e)
    b.output(y)
    assert_close(jf.ir.run(b.finish(), X, S, E, *more)[0], want, "float32")


def refused(make, message):
    with pytest.raises(jf.UserError, match=message):
        make(*start())


# The type.


def test_construction(device):
    """A ragged axis knows its extents and most rows; nothing else is asked for."""
    check(lambda b, n, s, e: b.combine(n, s, M), whole(parts(X)))
    assert "f32[3,ragged 11 of sizes by 0,4]" in str(copy_fusion())


def copy_fusion():
    b, _, s, _e, n = start()
    b.output(b.combine(b.pointwise("neg", [n]), s, M))
    return b.finish()


def scheduled(value, *calls):
    scheduler = jf.ir.Scheduler(copy_fusion())
    for call, *arguments in calls:
        getattr(scheduler, call)(value, *arguments)
    scheduler.transform_like(value)
    scheduler.parallelize_like(value)
    scheduler.inline_most()
    return scheduler.schedule


def test_parallelization(machine):
    """One parallel type for all components, since there is one axis."""
    schedule = scheduled("t5", ("split", 1, 4), ("parallelize", 1, machine.outer), ("parallelize", 2, machine.inner))
    assert f"[3, 3 {machine.outer}, 4 {machine.inner}, 4]" in str(schedule)
    assert_close(machine.run(schedule, X, S, E)[0], -whole(parts(X)))


def test_same_as_comparison(device):
    """Equal partitions are one value; others differ in their extents."""
    b, x, s, e, n = start()
    assert b.partition(x, s, e, 0, M) == n and b.partition(x, s, e, 0, 5) != n
    b.output(b.reduce("reduce_sum", b.pointwise("add", [n, b.partition(x, s, e, 0, M)]), [1]))
    fusion = b.finish()
    assert jf.ir.Fusion(str(fusion)) == fusion
    assert jf.ir.Fusion(str(fusion).replace("ragged 11", "ragged 9").replace("most=11", "most=9")) != fusion
    assert_close(jf.ir.run(fusion, X, S, E)[0], [2 * p.sum(0) for p in parts(X)])


def test_printing(device):
    """Fusion and schedule read back as what was written, and compute the same."""
    schedule = scheduled("t5", ("split", 1, 4), ("merge", 1), ("merge", 1))
    fusion = jf.ir.Fusion(str(copy_fusion()))
    assert fusion == copy_fusion() and "t5[3,11,4]: split(1,4)" in str(schedule)
    again = jf.ir.Schedule(fusion, str(schedule))
    assert str(again) == str(schedule)
    assert_close(jf.ir.run(again, X, S, E)[0], -whole(parts(X)))


OUTER = np.stack([rows(seed=1), rows(seed=2)])
OUTER_STARTS, OUTER_SIZES = ends([[2, 0, 5], [3, 4, 0]])


def outer(b):
    x = b.input("x", "f32", [2, M, H])
    s, e = b.input("starts", "s32", [2, G]), b.input("sizes", "s32", [2, G])
    return b.partition(x, s, e, 1, M), s, e


def outer_parts():
    return [parts(OUTER[d], OUTER_STARTS[d], OUTER_SIZES[d]) for d in range(2)]


def test_multi_dimensional_extents(device):
    b = jf.ir.Builder("outer")
    n, _s, _e = outer(b)
    b.output(b.reduce("reduce_sum", n, [2]))
    fusion = b.finish()
    assert "f32[2,3,ragged 11 of sizes by 0 1,4]" in str(fusion)
    got = jf.ir.run(fusion, OUTER, OUTER_STARTS, OUTER_SIZES)[0]
    assert_close(got, [[p.sum(0) for p in one] for one in outer_parts()])


def test_validation_null_extents():
    with pytest.raises(TypeError):
        b, x, s, _, _ = start()
        b.partition(x, s, None, 0, M)
    refused(lambda b, x, s, e, n: b.partition(x, s, 99, 0, M), r"\[partition\] unknown value 99")


def test_validation_non_integer_extents():
    message = r"\[partition\] expected extents of s32\[..., components\], got f32\[3\]"
    refused(lambda b, x, s, e, n: b.partition(x, s, b.input("f", "f32", [G]), 0, M), message)


def test_iter_visitor(device):
    """What the extents are computed from belongs to the program: it is neither dropped nor computed too late."""
    b = jf.ir.Builder("computed")
    x, half = b.input("x", "f32", [M, H]), b.input("half", "s32", [G])
    sizes = b.pointwise("add", [half, half])
    starts = b.pointwise("sub", [b.scan("scan_sum", sizes, 0), sizes])
    b.output(b.reduce("reduce_sum", b.partition(x, starts, sizes, 0, M), [1]))
    s, e = ends([2, 0, 4])
    assert_close(jf.ir.run(b.finish(), X, e // 2)[0], [p.sum(0) for p in parts(X, s, e)])


# Partition.


def test_partition_basic(device):
    """One axis becomes the component and the ragged axis, whose elements count from 0 in each."""
    b, _x, _s, _e, n = start()
    b.output(b.reduce("reduce_max", n, [1]))
    fusion = b.finish()
    nested = next(v for v in fusion.values if len(fusion.shape(v)) == 3)
    assert fusion.shape(nested) == [G, M, H]
    want = [p.max(0, initial=-np.inf) for p in parts(X)]
    np.testing.assert_array_equal(jf.ir.run(fusion, X, S, E)[0], want)


PARTITIONS = {
    "scalar extents": (
        lambda b, x, s, e, n: b.partition(x, b.input("a", "s32", []), b.input("c", "s32", []), 0, M),
        r"expected starts of s32\[..., components\], got s32\[\]",
    ),
    "nested already": (
        lambda b, x, s, e, n: b.partition(n, s, e, 1, 2),
        r"is nested; multi-level nesting: its axis 1 is ragged; fold or combine",
    ),
    "no such axis": (lambda b, x, s, e, n: b.partition(x, s, e, 2, 1), r"expected an axis below the rank"),
    "more than there are": (lambda b, x, s, e, n: b.partition(x, s, e, 0, M + 1), r"got most=12"),
    "starts of another shape": (
        lambda b, x, s, e, n: b.partition(x, b.input("a", "s32", [G + 1]), e, 0, M),
        r"starts and extents must have one shape, got s32\[4\] and s32\[3\]",
    ),
}


@pytest.mark.parametrize("case", PARTITIONS)
def test_partition_validation(case):
    refused(*PARTITIONS[case])


def test_tensor_view_partition(machine):
    """Loops of a nested value are split, merged and moved like others."""
    for calls in [("split", 1, 4), ("merge", 1)], [("split", 1, 3), ("reorder", [2, 0, 1, 3])], [("merge", 0)]:
        assert_close(machine.run(scheduled("t5", *calls), X, S, E)[0], -whole(parts(X)))


# Combine.


def test_combine_basic(device):
    """The component and its rows become one axis, of as many rows as asked for."""
    check(lambda b, n, s, e: b.combine(n, s, M + 3), whole(parts(X), total=M + 3))
    b = jf.ir.Builder("all")
    n, _s, _e = outer(b)
    b.output(b.combine(n, b.input("to", "s32", [2, G]), 2 * M, components=2))
    to = np.array([[0, 5, 9], [2, 5, 14]], np.int32)  # by component, the outer indices in each in order
    got = jf.ir.run(b.finish(), OUTER, OUTER_STARTS, OUTER_SIZES, to)[0]
    both = outer_parts()
    assert_close(got, np.pad(np.concatenate([both[d][g] for g in range(G) for d in range(2)]), ((0, 8), (0, 0))))


def test_combine_validation_null_component():
    message = r"the components of .* have 1 to 1 axes, got 0"
    refused(lambda b, x, s, e, n: b.combine(n, s, M, components=0), message)


def test_combine_validation_null_ragged():
    refused(lambda b, x, s, e, n: b.combine(x, s, M), r"\[combine\] expected a nested value, got f32\[11,4\]")


def test_combine_validation_component_is_ragged():
    """What is combined is dense: there is no component left."""
    twice = lambda b, x, s, e, n: b.combine(b.combine(n, s, M), s, M)  # noqa: E731
    refused(twice, r"\[combine\] expected a nested value")


# asNested.


def test_as_nested_basic(device):
    nt = jf.as_nested(X, extents=SIZES)
    assert nt.shape == (G, "ragged", H) and nt.extents.tolist() == SIZES
    for got, want in zip(nt, parts(X)):
        np.testing.assert_array_equal(got, want)


def test_as_nested_then_combine(device):
    check(lambda b, n, s, e: b.combine(n, s, M), whole(parts(X)))
    np.testing.assert_array_equal(jf.as_flattened(jf.as_nested(X, extents=SIZES)), X)


def test_as_nested_then_set_then_combine(device):
    """A value computed from a nested one is nested alike; the pair is never looked for."""
    check(lambda b, n, s, e: b.combine(b.convert(b.convert(n, "bf16"), "f32"), s, M), whole(parts(BF16)))


def test_as_nested_different_dimension(device):
    b = jf.ir.Builder("across")
    x, s, e = b.input("x", "f32", [H, M]), b.input("starts", "s32", [G]), b.input("sizes", "s32", [G])
    n = b.partition(x, s, e, 1, M)
    b.output(b.combine(b.pointwise("exp", [n]), s, M))
    b.output(b.reduce("reduce_sum", n, [2]))
    both, sums = jf.ir.run(b.finish(), np.ascontiguousarray(X.T), S, E)
    assert_close(both, whole([np.exp(p) for p in parts(X)]).T)
    assert_close(sums, np.stack([p.sum(0) for p in parts(X)], axis=1))


def test_as_nested_1d_tensor(device):
    b = jf.ir.Builder("line")
    x, s, e = b.input("x", "f32", [M]), b.input("starts", "s32", [G]), b.input("sizes", "s32", [G])
    n = b.partition(x, s, e, 0, M)
    b.output(b.combine(b.pointwise("exp", [n]), s, M))
    b.output(b.reduce("reduce_sum", n, [1]))
    line, sums = jf.ir.run(b.finish(), X[:, 0].copy(), S, E)
    assert_close(line, whole([np.exp(p[:, 0]) for p in parts(X)]))
    assert_close(sums, [p[:, 0].sum() for p in parts(X)])


def test_as_nested_validation_null_data():
    with pytest.raises((TypeError, ValueError), match="None"):
        jf.as_nested(None, extents=SIZES)


def test_as_nested_validation_null_extents():
    with pytest.raises(TypeError, match="as_nested"):
        jf.as_nested(X)


def test_as_nested_2d_offsets(device):
    """[D, tokens, hidden] with extents [D, E] is [D, E, ragged, hidden]."""
    nt = jf.as_nested(OUTER, extents=OUTER_SIZES, ragged_dim=1)
    assert nt.shape == (2, G, "ragged", H)
    for d, one in enumerate(outer_parts()):
        for g, want in enumerate(one):
            np.testing.assert_array_equal(nt[d, g], want)
    b = jf.ir.Builder("outer")
    n, s, _e = outer(b)
    b.output(b.combine(b.pointwise("neg", [n]), s, M))
    got = jf.ir.run(b.finish(), OUTER, OUTER_STARTS, OUTER_SIZES)[0]
    assert_close(got, -np.stack([whole(one, OUTER_STARTS[d]) for d, one in enumerate(outer_parts())]))


def test_as_nested_invalid_shape():
    with pytest.raises(ValueError, match="extents"):
        jf.as_nested(OUTER, extents=np.ones((2, 2, 2), np.int32), ragged_dim=1)
    three = lambda b, x, s, e, n: b.partition(  # noqa: E731
        b.input("y", "f32", [2, M, H]), b.input("a", "s32", [2, 2, 2]), b.input("c", "s32", [2, 2, 2]), 1, M
    )
    refused(three, r"extents of 3 axes, s32\[2,2,2\], are for axis 2 of a value, got axis 1")


# Propagation.


def test_load_store_with_nested_tensor(machine):
    """A copy of a nested value, in shared memory where there is some, has its ragged axis."""
    fusion = copy_fusion()
    nested = next(v for v in fusion.values if len(fusion.shape(v)) == 3)
    scheduler = jf.ir.Scheduler(fusion)
    copy = scheduler.cache_after(nested)
    assert f"{copy}: f32[3,ragged 11 of sizes by 0,4] = " in str(scheduler.fusion)
    scheduler.inline_most()
    assert_close(machine.run(scheduler.schedule, X, S, E)[0], -whole(parts(X)))


def test_unary_op(device):
    check(lambda b, n, s, e: b.combine(b.pointwise("tanh", [n]), s, M), whole([np.tanh(p) for p in parts(X)]))


def test_binary_op_with_nested_tensors(device):
    y = rows(seed=3)
    both = lambda b, n, s, e: b.pointwise("mul", [n, b.partition(b.input("y", "f32", [M, H]), s, e, 0, M)])  # noqa: E731
    check(lambda b, n, s, e: b.combine(both(b, n, s, e), s, M), whole(parts(X * y)), y)


def test_binary_op_mixed_inputs_error():
    message = r"\[add\] t3, .*, is nested, and y, f32\[3,11,4\], is dense; partition it or broadcast it"
    refused(lambda b, x, s, e, n: b.pointwise("add", [n, b.input("y", "f32", [G, M, H])]), message)


def test_binary_op_different_ragged_structures():
    """Upstream takes two values of extents and hopes; here they are one value or the op is refused."""
    other = lambda b, x, s, e, n: b.pointwise("add", [n, b.partition(x, s, b.input("o", "s32", [G]), 0, M)])  # noqa: E731
    refused(other, r"have the extents of sizes and of o; partition both by one value")
    with pytest.raises(ValueError, match="extents"):
        jf.as_nested(X, extents=SIZES) + jf.as_nested(X, extents=[1, 1, 5])


def test_broadcast(device):
    """A number for each component, and a dense axis in front, along the rows of each."""
    w = np.random.default_rng(5).uniform(0.5, 1.5, (G, H)).astype(np.float32)

    def make(b, n, s, e):
        scaled = b.pointwise("mul", [n, b.broadcast_like(b.input("w", "f32", [G, H]), n, [0, 2])])
        return b.combine(b.broadcast(scaled, [2, G, M, H], [1, 2, 3]), s, M)

    check(make, np.stack([whole([p * w[g] for g, p in enumerate(parts(X))])] * 2), w)


def test_squeeze_non_ragged_dim(device):
    def make(b, n, s, e):
        return b.combine(b.squeeze(b.broadcast(b.pointwise("exp", [n]), [1, G, M, 1, H], [1, 2, 4]), [0, 3]), s, M)

    check(make, whole([np.exp(p) for p in parts(X)]))


def test_unsqueeze(device):
    check(lambda b, n, s, e: b.combine(b.broadcast(n, [G, M, 1, H], [0, 1, 3]), s, M), whole(parts(X))[:, None])


def test_permute(device):
    """Also with the ragged axis before its component."""
    for order in [0, 2, 1], [1, 0, 2], [2, 1, 0]:

        def make(b, n, s, e, order=order):
            turned = b.pointwise("exp", [b.transpose(n, order)])
            return b.combine(b.transpose(turned, list(np.argsort(order))), s, M)

        check(make, whole([np.exp(p) for p in parts(X)]))


def test_reduction_on_non_ragged_dim(device):
    check(lambda b, n, s, e: b.combine(b.reduce("reduce_sum", n, [2]), s, M), whole([p.sum(1) for p in parts(X)]))


def test_reduction_on_ragged_dim_error(device):
    """Refused upstream; here the rows of each component are folded, nothing to the fold's identity."""
    check(lambda b, n, s, e: b.reduce("reduce_sum", n, [1]), [p.sum(0) for p in parts(X)])
    nt = jf.as_nested(X, extents=SIZES)
    assert_close(jf.nested.sum(nt, axis="ragged"), [p.sum(0) for p in parts(X)])


def test_reduction_on_component_dim_error(device):
    """Skipped upstream. Alone it has no meaning; with the ragged axis it folds all rows."""
    message = r"axis 0 is its component, .* fold the ragged axis with it, or before"
    refused(lambda b, x, s, e, n: b.reduce("reduce_sum", n, [0]), message)
    check(lambda b, n, s, e: b.reduce("reduce_sum", n, [0, 1]), X[: sum(SIZES)].sum(0))


def test_reshape_error(device):
    """Dense axes are reshaped; the component and its rows stay."""
    check(lambda b, n, s, e: b.combine(b.reshape(n, [G, M, 2, 2]), s, M), whole(parts(X)).reshape(M, 2, 2))
    turned = lambda b, n, s, e: b.reshape(b.transpose(b.pointwise("exp", [n]), [2, 0, 1]), [2, 1, 2, G, M, 1])  # noqa: E731
    want = whole([np.exp(p) for p in parts(X)]).T.reshape(2, 1, 2, M, 1)
    check(lambda b, n, s, e: b.combine(turned(b, n, s, e), s, M), want)
    message = r"\[reshape\] .* is nested: its ragged axis and its component stay.*combine it first"
    refused(lambda b, x, s, e, n: b.reshape(n, [M, G, H]), message)
    refused(lambda b, x, s, e, n: b.reshape(n, [G, M * H]), message)


def test_flatten_error(device):
    """Flattening the component with its rows is `combine`."""
    refused(lambda b, x, s, e, n: b.reshape(n, [G * M, H]), r"combine it first")
    check(lambda b, n, s, e: b.reshape(b.combine(n, s, M), [M * H]), whole(parts(X)).reshape(-1))


def test_slice_ragged_dimension_error(device):
    """A slice of rows has what each component has of them; one of components, their rows."""
    some = lambda b, n, s, e: b.slice(b.pointwise("exp", [n]), [0, 1, 0], [1, 1, 1], [G, 3, H])  # noqa: E731
    check(lambda b, n, s, e: b.reduce("reduce_sum", some(b, n, s, e), [1]), [np.exp(p[1:4]).sum(0) for p in parts(X)])
    every = lambda b, n, s, e: b.slice(n, [0, 0, 1], [2, 1, 2], [2, M, 2])  # noqa: E731
    check(lambda b, n, s, e: b.reduce("reduce_sum", every(b, n, s, e), [1]), [p[:, 1::2].sum(0) for p in parts(X)[::2]])
    check(lambda b, n, s, e: b.select(b.reduce("reduce_sum", n, [2]), 2), np.pad(parts(X)[2].sum(1), (0, M - 5)))
    message = r"only the builder's slice with strides of 1 along its ragged axis"
    refused(lambda b, x, s, e, n: b.slice(n, [0, 0, 0], [1, 2, 1], [G, 3, H]), message)


def test_cat_ragged_dimension_error(device):
    """Rows after rows in each component move, which `nested.concat` does."""
    message = r"\[concat\] .* is nested: its ragged axis 1 cannot be extended; put arrays side by side before"
    refused(lambda b, x, s, e, n: b.concat([n, n], 1), message)
    refused(lambda b, x, s, e, n: b.concat([n, n], 0), r"axis 0 says which component")
    a, c = jf.as_nested(X, extents=SIZES), jf.as_nested(2 * X[:9], extents=[1, 3, 0])
    for got, p, q in zip(jf.nested.concat([a, c], axis=1), parts(X), parts(2 * X, *ends([1, 3, 0]))):
        np.testing.assert_array_equal(got, np.concatenate([p, q]))


def test_cat_non_ragged_dimension_error(device):
    def make(b, n, s, e):
        return b.combine(b.concat([n, b.pointwise("neg", [n]), b.slice(n, [0, 0, 0], [1, 1, 1], [G, M, 1])], 2), s, M)

    check(make, whole([np.concatenate([p, -p, p[:, :1]], axis=1) for p in parts(X)]))


def test_pad_ragged_dimension_error(device):
    """Dense axes are padded; rows are, in storage, by `nested.align`."""
    pad = lambda b, n, low, high: b.pad(n, low, high, b.constant("f32", 7.0))  # noqa: E731
    padded = [np.pad(p[:, 1:], ((0, 0), (0, 2)), constant_values=7) for p in parts(X)]
    check(lambda b, n, s, e: b.combine(pad(b, n, [0, 0, -1], [0, 0, 2]), s, M), whole(padded))
    refused(lambda b, x, s, e, n: pad(b, n, [0, 0, 0], [0, 2, 0]), r"its ragged axis 1 cannot be padded; pad before")
    aligned = jf.nested.align(jf.as_nested(X, extents=SIZES), 4)
    assert aligned.starts.tolist() == [0, 4, 4]
    np.testing.assert_array_equal(aligned.data[:9], whole(parts(X), [0, 4, 4], 9))


def test_gradients_of_views():
    b, _, s, _e, n = start()
    b.output(b.combine(b.concat([n, b.pad(n, [0, 0, 1], [0, 0, 1], b.constant("f32", 0.0))], 2), s, M))
    fusion = b.finish()
    got = jax.grad(lambda x: jf.ir.run(fusion, x, S, E)[0].sum())(jnp.asarray(X))
    assert_close(got, np.where(np.arange(M)[:, None] < sum(SIZES), 2, 0) * np.ones(H))
