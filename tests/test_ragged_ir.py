"""Nested values in the IR: text, types, every refusal, and what they mean, against one component at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf

G, M, H = 3, 11, 4
SIZES = [[2, 0, 5], [0, 0, 0], [0, 11, 0], [4, 3, 4], [1, 2, 3]]


def start(m=M, h=H, groups=G):
    b = jf.ir.Builder("nested")
    x, s, e = b.input("x", "f32", [m, h]), b.input("starts", "s32", [groups]), b.input("sizes", "s32", [groups])
    return b, x, s, e


def data(sizes, h=H, m=M):
    x = np.random.default_rng(0).uniform(0.5, 1.5, (m, h)).astype(np.float32)
    x[sum(sizes) :] = np.nan  # padding is never read
    ends = np.cumsum(sizes)
    return x, (ends - sizes).astype(np.int32), np.asarray(sizes, np.int32)


def parts(x, starts, sizes):
    return [x[s : s + n] for s, n in zip(starts, sizes)]


def every_op():
    """Return a fusion with each op that takes or makes nested values."""
    b, x, s, e = start()
    w = b.input("w", "f32", [G, H])
    n = b.partition(b.pointwise("square", [x]), s, e, 0, M)
    scaled = b.pointwise("mul", [n, b.broadcast_like(w, n, [0, 2])])
    turned = b.transpose(scaled, [2, 0, 1])
    b.output(b.reduce("reduce_max", scaled, [1]))
    b.output(b.reduce("reduce_sum", turned, [1, 2]))
    rows = b.reduce("reduce_sum", scaled, [2])
    b.output(b.combine(rows, s, M))
    wide = b.broadcast(rows, [2, G, M], [1, 2])
    b.output(b.combine(wide, s, M + 2))
    return b.finish()


def test_text_parses_back():
    fusion = every_op()
    text = str(fusion)
    assert str(jf.ir.Fusion(text)) == text and jf.ir.Fusion(text) == fusion
    assert "f32[3,ragged 11 of sizes by 0,4] = partition(x, starts, sizes) {most=11, axis=0}" in text
    assert "f32[3,b ragged 11 of sizes by 0,4] = stretch(" in text and "{most=11, axis=1, by=[0]}" in text
    assert "f32[4,3,ragged 11 of sizes by 1] = transpose(" in text
    assert "f32[b2,3,ragged 11 of sizes by 1] = broadcast(" in text
    assert "= combine(" in text and "{rows=13}" in text
    assert fusion.shape("t4") == [G, M, H]


@pytest.mark.parametrize("sizes", SIZES)
def test_evaluate_is_one_component_at_a_time(sizes):
    x, starts, extents = data(sizes)
    w = np.random.default_rng(1).uniform(0.5, 1.5, (G, H)).astype(np.float32)
    largest, sums, rows, wide = jf.ir.evaluate(every_op(), x, starts, extents, w)
    scaled = [np.square(p) * w[g] for g, p in enumerate(parts(x, starts, extents))]
    assert_close(largest, np.stack([p.max(axis=0, initial=-np.inf) for p in scaled]))
    assert_close(sums, sum(p.sum(axis=0) for p in scaled))
    want = np.zeros(M, np.float32)
    want[: sum(sizes)] = np.concatenate(scaled).sum(axis=1)
    assert_close(rows, want)
    assert_close(wide, np.tile(np.pad(want, (0, 2)), (2, 1)))


def test_outer_axes_have_extents_of_their_own():
    b = jf.ir.Builder("outer")
    x = b.input("x", "f32", [2, M, H])
    s, e = b.input("starts", "s32", [2, G]), b.input("sizes", "s32", [2, G])
    n = b.partition(x, s, e, 1, M)
    b.output(b.reduce("reduce_sum", n, [2]))
    b.output(b.combine(n, s, M))
    fusion = b.finish()
    assert "f32[2,3,ragged 11 of sizes by 0 1,4]" in str(fusion)
    assert jf.ir.Fusion(str(fusion)) == fusion
    (x0, s0, e0), (x1, s1, e1) = data([2, 0, 5]), data([0, 7, 4])
    sums, rows = jf.ir.evaluate(fusion, np.stack([x0, x1]), np.stack([s0, s1]), np.stack([e0, e1]))
    for i, (xi, si, ei) in enumerate([(x0, s0, e0), (x1, s1, e1)]):
        assert_close(sums[i], np.stack([p.sum(axis=0) for p in parts(xi, si, ei)]))
        want = np.where(np.arange(M)[:, None] < ei.sum(), xi, 0)
        np.testing.assert_array_equal(rows[i], want)


@pytest.mark.parametrize("axis", [0, 1])
def test_one_list_of_extents_is_for_any_axis(axis):
    b = jf.ir.Builder("any")
    x = b.input("x", "f32", [M, M])
    s, e = b.input("starts", "s32", [G]), b.input("sizes", "s32", [G])
    b.output(b.reduce("reduce_sum", b.partition(x, s, e, axis, M), [axis + 1]))
    x, starts, extents = np.arange(M * M, dtype=np.float32).reshape(M, M), *data([2, 0, 5])[1:]
    [got] = jf.ir.evaluate(b.finish(), x, starts, extents)
    want = np.stack([p.sum(axis=0) for p in parts(x if axis == 0 else x.T, starts, extents)], axis=axis)
    assert_close(got, want)


def test_what_is_computed_element_by_element_is_partitioned_where_it_comes_from():
    b, x, s, e = start()
    row, column = b.input("row", "f32", [H]), b.input("column", "f32", [M])
    y = b.pointwise("add", [b.pointwise("tanh", [x]), b.broadcast(row, [M, H], [1])])
    y = b.pointwise("mul", [y, b.broadcast(column, [M, H], [0])])
    y = b.transpose(y, [1, 0])
    n = b.partition(b.transpose(y, [1, 0]), s, e, 0, M)
    b.output(b.reduce("reduce_sum", n, [1]))
    fusion = b.finish()
    made = [line for line in str(fusion).splitlines() if "partition(" in line]
    assert len(made) == 2 and all("partition(x," in line or "partition(column," in line for line in made)
    x, starts, extents = data([2, 0, 5])
    r, c = np.linspace(-1, 1, H, dtype=np.float32), np.linspace(1, 2, M, dtype=np.float32)
    want = np.stack([p.sum(axis=0) for p in parts((np.tanh(x) + r) * c[:, None], starts, extents)])
    assert_close(jf.ir.evaluate(fusion, x, starts, extents, r, c)[0], want)


def test_a_slice_along_dense_axes_is_taken_first():
    b, x, s, e = start()
    w = b.input("w", "f32", [G, H])
    n = b.partition(x, s, e, 0, M)
    n = b.pointwise("mul", [n, b.broadcast_like(w, n, [0, 2])])
    b.output(b.reduce("reduce_sum", b.slice(n, [0, 0, 1], [1, 1, 2], [G, M, 2]), [1]))
    fusion = b.finish()
    x, starts, extents = data([2, 0, 5])
    w = np.arange(G * H, dtype=np.float32).reshape(G, H)
    want = np.stack([(p * w[g])[:, 1::2].sum(axis=0) for g, p in enumerate(parts(x, starts, extents))])
    assert_close(jf.ir.evaluate(fusion, x, starts, extents, w)[0], want)


def test_long_and_branching_programs_are_built_in_no_time():
    b, x, s, e = start()
    n = b.partition(x, s, e, 0, M)
    for _ in range(60):
        n = b.pointwise("mul", [n, n])
    b.output(b.reduce("reduce_sum", b.reshape(n, [G, M, 2, 2]), [1]))
    assert len(str(b.finish()).splitlines()) < 100
    b, x, s, e = start()
    for _ in range(30_000):
        x = b.pointwise("abs", [b.pointwise("neg", [x])])
    b.output(b.reduce("reduce_sum", b.partition(x, s, e, 0, M), [1]))
    assert b.finish().shape("x") == [M, H]
    b, x, s, e = start()
    n = b.partition(x, s, e, 0, M)
    for _ in range(30_000):
        n = b.pointwise("neg", [b.pointwise("abs", [n])])
    with pytest.raises(jf.UserError, match="more than 1000 ops lie between"):
        b.reshape(n, [G, M, 2, 2])


def test_gaps_between_components_are_zero():
    b, x, s, e = start()
    n = b.partition(x, s, e, 0, 4)
    b.output(b.combine(b.pointwise("neg", [n]), s, M))
    x, starts, extents = data([11, 0, 0])[0], np.array([6, 0, 1], np.int32), np.array([4, 0, 2], np.int32)
    want = np.zeros((M, H), np.float32)
    want[6:10], want[1:3] = -x[6:10], -x[1:3]
    np.testing.assert_array_equal(jf.ir.evaluate(b.finish(), x, starts, extents)[0], want)


@pytest.mark.parametrize("extents", [[-3, 2, 100], [4, 4, 4], [2**31 - 1, -(2**31), 1]])
@pytest.mark.parametrize("starts", [[0, 2, 9], [-5, 100, 3]])
def test_sizes_that_do_not_fit_are_brought_into_bounds(starts, extents):
    b, x, s, e = start()
    b.output(b.reduce("reduce_sum", b.partition(x, s, e, 0, 6), [1]))
    x, starts, extents = data([M, 0, 0])[0], np.array(starts, np.int32), np.array(extents, np.int32)
    rows = [[min(np.clip(s, 0, M) + r, M - 1) for r in range(np.clip(n, 0, 6))] for s, n in zip(starts, extents)]
    want = np.stack([x[np.array(r, int)].sum(axis=0) for r in rows])
    assert_close(jf.ir.evaluate(b.finish(), x, starts, extents)[0], want)


def test_derivatives_stay_in_the_components():
    b, x, s, e = start()
    n = b.partition(x, s, e, 0, M)
    b.output(b.reduce("reduce_sum", b.pointwise("log", [n]), [1]))
    fusion = b.finish()
    x, starts, extents = data([2, 0, 5])
    got = jax.grad(lambda x: jf.ir.evaluate(fusion, x, starts, extents)[0].sum())(jnp.asarray(x))
    want = np.where(np.arange(M)[:, None] < 7, 1 / x, 0)
    assert_close(got, want)


def nested_values():
    b, x, s, e = start()
    return b, x, s, e, b.partition(x, s, e, 0, M)


def other_extents(b, x, s, e, n):
    other = b.input("others", "s32", [G])
    b.pointwise("add", [n, b.partition(x, s, other, 0, M)])


def turned(b, x, s, e, n):
    square = b.partition(b.input("y", "f32", [M, M]), s, e, 0, M)
    b.pointwise("add", [b.reduce("reduce_sum", square, [2]), b.reduce("reduce_sum", n, [2])])  # fine
    wide = b.partition(b.input("z", "f32", [M, G]), s, e, 0, M)
    b.pointwise("add", [wide, b.transpose(wide, [2, 1, 0])])


REFUSED = {
    "dense and nested": (
        lambda b, x, s, e, n: b.pointwise("add", [n, b.input("y", "f32", [G, M, H])]),
        r"\[add\] t3, f32\[3,ragged 11 of sizes by 0,4\], is nested, and y, f32\[3,11,4\], is dense",
    ),
    "other extents": (other_extents, r"have the extents of sizes and of others; partition both by one value"),
    "other ragged axes": (turned, r"differ in their ragged axes; transpose one of them"),
    "multi-level nesting": (
        lambda b, x, s, e, n: b.partition(n, s, e, 1, 2),
        r"\[partition\] .* is nested; multi-level nesting: its axis 1 is ragged; fold or combine it first",
    ),
    "components of components": (
        lambda b, x, s, e, n: b.partition(n, s, e, 0, 2),
        r"\[partition\] .* multi-level nesting: its axis 0 says which component an element is of; fold or combine",
    ),
    "rows of a fold of rows": (
        lambda b, x, s, e, n: b.partition(b.scan("scan_sum", n, 2), s, e, 2, 2),
        r"\[partition\] .* is nested, and what it comes from is no array that can be partitioned along both axes",
    ),
    "stretch of the component": (
        lambda b, x, s, e, n: b.stretch(
            b.partition(x, b.input("s1", "s32", [1]), b.input("e1", "s32", [1]), 0, M), e, 0, 2, [1]
        ),
        r"\[stretch\] .* multi-level nesting: its axis 0 says which component",
    ),
    "other extents, side by side": (
        lambda b, x, s, e, n: b.concat([n, b.partition(x, s, b.input("others", "s32", [G]), 0, M)], 2),
        r"\[concat\] .* have the extents of sizes and of others; partition both by one value",
    ),
    "fold of the component": (
        lambda b, x, s, e, n: b.reduce("reduce_sum", n, [0]),
        r"axis 0 is its component, whose elements have extents of their own along ragged axis 1; fold the ragged axis",
    ),
    "parts of the ragged axis": (
        lambda b, x, s, e, n: b.reduce("reduce_sum", n, [1], parts=2),
        r"its ragged axis 1 cannot be folded in parts; partition it into more components",
    ),
    "scan of the ragged axis": (
        lambda b, x, s, e, n: b.scan("scan_sum", n, 1),
        r"its ragged axis 1 cannot be scanned; scan before partition",
    ),
    "scan of the component": (
        lambda b, x, s, e, n: b.scan("scan_sum", n, 0),
        r"axis 0 says which component an element is of and cannot be scanned",
    ),
    "slice of every second row": (
        lambda b, x, s, e, n: b.slice(n, [0, 1, 0], [1, 2, 1], [G, 3, H]),
        r"\[slice\] .* is nested; only the builder's slice with strides of 1 along its ragged axis",
    ),
    "pad of the component": (
        lambda b, x, s, e, n: b.pad(n, [1, 0, 0], [0, 0, 0], b.constant("f32", 0.0)),
        r"is nested: its axis 0 says which component an element is of and cannot be padded; pad before partition",
    ),
    "reshape": (
        lambda b, x, s, e, n: b.reshape(n, [G * M, H]),
        r"is nested: its ragged axis and its component stay.* reshape before partition, or combine it",
    ),
    "concat with a dense value": (
        lambda b, x, s, e, n: b.concat([n, b.input("y", "f32", [G, M, H])], 2),
        r"\[concat\] y, f32\[3,11,4\], is dense, and others are nested; broadcast it like those",
    ),
    "select of a dense value": (lambda b, x, s, e, n: b.select(x, 0), r"\[select\] expected a nested value, got f32"),
    "select of no component": (
        lambda b, x, s, e, n: b.select(n, G),
        r"\[select\] expected a component from 0 to 2 of f32\[3,ragged 11 of sizes by 0,4\], got 3",
    ),
    "take": (
        lambda b, x, s, e, n: b.take(n, [b.input("i", "s32", [7, H])], [1], [0, -1, 1], [7, H]),
        r"is nested; take before partition, or combine it first",
    ),
    "search": (
        lambda b, x, s, e, n: b.search(e, b.convert(n, "s32"), "left", []),
        r"is nested; search before partition, or combine it first",
    ),
    "grouped_matmul": (
        lambda b, x, s, e, n: b.grouped_matmul(n, b.input("w", "f32", [G, H, 5]), e, None, "rows", False, "f32"),
        r"is nested; grouped_matmul takes rows in one array",
    ),
    "squeeze of the component": (
        lambda b, x, s, e, n: b.squeeze(
            b.partition(x, b.input("s1", "s32", [1]), b.input("e1", "s32", [1]), 0, M), [0]
        ),
        r"axis 0 says which component an element is of and cannot be squeezed; fold it instead",
    ),
    "nested output": (
        lambda b, x, s, e, n: (b.output(n), b.finish()),
        r"output t3 is .*, nested, which no memory holds",
    ),
    "combine of a dense value": (lambda b, x, s, e, n: b.combine(x, s, M), r"\[combine\] expected a nested value"),
    "combine into too few rows": (
        lambda b, x, s, e, n: b.combine(n, s, M - 1),
        r"can have 11 rows; expected room for as many or more, got rows=10",
    ),
    "combine with other starts": (
        lambda b, x, s, e, n: b.combine(n, b.input("s2", "s32", [G + 1]), M),
        r"\[combine\] starts must have the shape of extents s32\[3\], got s32\[4\]",
    ),
    "most above the array": (
        lambda b, x, s, e, n: b.partition(x, s, e, 0, M + 1),
        r"axis 0 of f32\[11,4\] has 11 elements; a component can have 0 to 11 of them, got most=12",
    ),
    "no such axis": (
        lambda b, x, s, e, n: b.partition(x, s, e, 2, 1),
        r"expected an axis below the rank of f32\[11,4\]",
    ),
    "extents of another dtype": (
        lambda b, x, s, e, n: b.partition(x, s, b.input("e2", "f32", [G]), 0, M),
        r"\[partition\] expected extents of s32\[..., components\], got f32\[3\]",
    ),
    "scalar extents": (
        lambda b, x, s, e, n: b.partition(x, b.input("s3", "s32", []), b.input("e3", "s32", []), 0, M),
        r"\[partition\] expected starts of s32\[..., components\], got s32\[\]",
    ),
    "starts of another shape": (
        lambda b, x, s, e, n: b.partition(x, b.input("s4", "s32", [G + 1]), e, 0, M),
        r"starts and extents must have one shape, got s32\[4\] and s32\[3\]",
    ),
    "extents of two axes": (
        lambda b, x, s, e, n: b.partition(x, b.input("s5", "s32", [M, G]), b.input("e5", "s32", [M, G]), 0, M),
        r"extents of 2 axes, s32\[11,3\], are for axis 1 of a value, got axis 0",
    ),
    "extents of other outer axes": (
        lambda b, x, s, e, n: b.partition(x, b.input("s6", "s32", [2, G]), b.input("e6", "s32", [2, G]), 1, 2),
        r"extents s32\[2,3\] must begin with the first 1 axes of f32\[11,4\]",
    ),
    "like a dense value": (
        lambda b, x, s, e, n: b.broadcast_like(x, x, [0, 1]),
        r"\[broadcast_like\] expected a nested value to be like",
    ),
    "rows that are dense": (
        lambda b, x, s, e, n: b.broadcast_like(x, n, [1, 2]),
        r"axis 1 is ragged, and a dense value has no rows for it; partition the value",
    ),
    "stretch of a long axis": (
        lambda b, x, s, e, n: b.stretch(x, e, 0, M, [1]),
        r"\[stretch\] axis 0 of .* must be one of",
    ),
    "stretch by another axis": (
        lambda b, x, s, e, n: b.stretch(b.input("v", "f32", [G + 1, 1]), e, 1, M, [0]),
        r"\[stretch\] axis 0 of f32\[4,1\] cannot index axis 0 of extents s32\[3\]",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    make, message = REFUSED[case]
    with pytest.raises(jf.UserError, match=message):
        make(*nested_values())


TEXT = """fusion f(x: f32[11,4], s: s32[3], e: s32[3]) -> (t4) {{
  t3: {} = partition(x, s, e) {{most=11, axis=0}}
  t4: f32[3,4] = reduce_sum(t3) {{dims=[1]}}
}}
"""


@pytest.mark.parametrize(
    "written, message",
    [
        ("f32[3,11,4]", r"has type f32\[3,ragged 11 of e by 0,4\], but the fusion says f32\[3,11,4\]"),
        ("f32[3,ragged 11 of s by 0,4]", r"has type f32\[3,ragged 11 of e by 0,4\], but the fusion says"),
        ("f32[3,ragged 11 of e by 2,4]", r"but the fusion says f32\[3,ragged 11 of e by 2,4\]"),
        ("f32[3,ragged 11 of other by 0,4]", r"line 2: expected a defined value; 'other' is not"),
        ("f32[3,ragged 11 by 0,4]", r"line 2: expected 'of'"),
    ],
)
def test_text_that_says_something_else_is_refused(written, message):
    jf.ir.Fusion(TEXT.format("f32[3,ragged 11 of e by 0,4]"))
    with pytest.raises(jf.UserError, match=message):
        jf.ir.Fusion(TEXT.format(written))


def test_inputs_are_dense():
    with pytest.raises(jf.UserError, match=r"input x is .*, nested; make the array an input and partition it"):
        jf.ir.Fusion(
            "fusion f(e: s32[3], x: f32[3,ragged 4 of e by 0]) -> (t2) {\n  t2: f32[3] = reduce_sum(x) {dims=[1]}\n}\n"
        )


def nested_and_dense():
    b = jf.ir.Builder("f")
    x, starts, extents = b.input("x", "f32", [6, 4]), b.input("s", "s32", [3]), b.input("e", "s32", [3])
    nested = b.partition(x, starts, extents, 0, 6)
    return b, x, starts, extents, nested


@pytest.mark.parametrize("axis", [-1, 3, 5, 10**7])
def test_axes_to_partition_lie_in_the_value(axis):
    b, _, starts, extents, nested = nested_and_dense()
    spread = b.broadcast_like(b.input("z", "f32", []), nested, [])
    with pytest.raises(jf.UserError, match=rf"\[partition\] expected an axis below the rank .*, got {axis}$"):
        b.partition(spread, starts, extents, axis, 4)


def test_folds_of_nothing_and_unknown_values_are_refused():
    b, x, _, _, nested = nested_and_dense()
    with pytest.raises(jf.UserError, match=r"\[reduce_sum\] expected at least one axis to fold"):
        b.reduce("reduce_sum", nested, [], "", 3)
    for unknown in (77, 10**6):
        with pytest.raises(jf.UserError, match=rf"\[take\] unknown value {unknown}"):
            b.take(x, [unknown], [0], [0, 1], [2, 4])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f32[3,ragged 9 of sz by 0] = reshape(y)", r"\[reshape\] makes a dense value"),
        ("f32[3,ragged 9 of sz by 99999999] = reshape(y)", r"\[reshape\] makes a dense value"),
        ("s32[b3,ragged 9 of sz by 99999999,b2] = iota() {dims=[1]}", r"\[iota\] makes a dense value"),
        ("f32[3,4] = reduce_sum(nt) {axis=1}", r"\[reduce_sum\] needs \{dims="),
        ("f32[3,4] = reduce_sum(nt) {dims=[], parts=3}", r"\[reduce_sum\] expected at least one axis"),
        ("f32[3,4] = scan_sum(nt) {dims=[1]}", r"\[scan_sum\] needs \{axis="),
        ("f32[3,4] = squeeze(nt) {axis=1}", r"\[squeeze\] needs \{dims="),
    ],
)
def test_texts_that_say_what_no_builder_makes(text, message):
    before = "fusion f(x: f32[6,4], y: f32[3,9], st: s32[3], sz: s32[3]) -> (t3) {\n"
    nested = "  nt: f32[3,ragged 6 of sz by 0,4] = partition(x, st, sz) {most=6, axis=0}\n"
    with pytest.raises(jf.UserError, match=message):
        jf.ir.Fusion(f"{before}{nested}  t3: {text}\n}}\n")
