"""`jf.explain`: kernels, what flows between them, what they cost, and the drawing."""

import dataclasses
import re
import xml.etree.ElementTree as ElementTree

import jax
import jax.numpy as jnp
import pytest

import jax_fuser as jf
from jax_fuser import _trace

X, W, B = jnp.ones((40, 24)), jnp.ones((24, 36)), jnp.ones(36)


def norms(x, w, b):
    """A matrix product between fused parts, one of which takes several kernels."""
    h = jnp.tanh(x * 2) @ w + b
    columns = jax.nn.softmax(h, axis=0)
    return jax.nn.softmax(columns, axis=1), x[:, 2:5] * 3


@pytest.fixture(params=["cpu", "cuda"])
def report(request):
    return jf.explain(norms, platform=request.param)(X, W, B)


def segments(report):
    return [segment for region in report.regions for segment in region.segments]


def test_every_kernel_has_its_facts(report):
    found = segments(report)
    assert {s.strategy for s in found} >= {"pointwise", "reduction"}
    assert len({s.entry for s in found}) == len(found)
    for s in found:
        assert s.name and s.reason and s.parameters and s.launch
        assert s.reads and s.writes and s.operations > 0
        assert s.bytes_read == sum(f.bytes for f in s.reads) and s.bytes_written == sum(f.bytes for f in s.writes)
        assert s.launch.startswith("grid") == (report.platform == "cuda")


def test_bytes_and_operations_of_one_kernel():
    [region] = jf.explain(lambda x, b: jnp.exp(x + b) * 2)(X, jnp.ones(24)).regions
    [segment] = region.segments
    assert (segment.bytes_read, segment.bytes_written) == (4 * (40 * 24 + 24), 4 * 40 * 24)
    assert segment.operations == 3 * 40 * 24


def test_operations_of_reductions_conversions_and_repeated_values():
    def cost(f, *args):
        [region] = jf.explain(f)(*args).regions
        return sum(s.operations for s in region.segments)

    assert cost(lambda x: (x * x).sum(axis=1), X) == 2 * 40 * 24
    assert cost(lambda x: x.astype(jnp.float64 if jax.config.jax_enable_x64 else jnp.bfloat16) + 1, X) == 40 * 24
    # What is the same along an axis is computed once.
    assert cost(lambda x, b: x + jnp.exp(b)[None], X, jnp.ones(24)) == 40 * 24 + 24


def test_a_slice_reads_what_it_takes():
    [region] = jf.explain(lambda x: x[:, 2:5] * 3)(X).regions
    assert (region.segments[0].bytes_read, region.segments[0].bytes_written) == (4 * 40 * 3, 4 * 40 * 3)


def test_a_grouped_product_counts_multiplications_and_additions():
    from jax_fuser import _core, _ffi

    program = (
        "fusion g(lhs: f32[12,8], rhs: f32[3,8,4], extents: s32[3]) -> (out) {\n"
        "  out: f32[12,4] = grouped_matmul(lhs, rhs, extents) {mode=rows}\n}\n"
    )
    [facts] = _core.facts(program, _ffi.target_text("cpu"))
    assert facts["strategy"] == "grouped" and facts["operations"] == 2 * 12 * 8 * 4
    assert [value for value, *_ in facts["reads"]] == ["lhs", "rhs", "extents"]


def test_values_flow_from_arguments_to_results(report):
    origins = [origin for region in report.regions for origin in region.origins.values()]
    readers = [reader for region in report.regions for reader in region.readers.values()]
    assert {"argument x", "argument b", "dot_general of XLA"} <= {*origins}
    assert {"result [1]", "dot_general of XLA"} <= {*readers}
    for region in report.regions:
        known = {*region.origins}
        for segment in region.segments:  # in an order in which they can run
            assert {f.value for f in segment.reads} <= known
            known |= {f.value for f in segment.writes}
        assert {*region.readers} <= known


def test_values_flow_between_regions_and_through_bodies():
    def f(x):
        y = jnp.tanh(x)
        return jnp.exp(y) + (y @ y.T).sum()

    regions = jf.explain(f)(X).regions
    assert any(origin == "[0]" for region in regions for origin in region.origins.values())

    def scanned(x):
        return jax.lax.scan(lambda c, _: (jf.fuse(jnp.tanh)(c), None), x, None, length=2)[0]

    [region] = jf.explain(scanned)(X).regions
    assert [*region.origins.values()] in (["the body of scan"], ["argument x"])


def provenance(f, *args, **options):
    """Return the lines of the drawing that say where arrays come from and go to."""
    lines = str(jf.explain(f, **options)(*args)).splitlines()
    return [line.strip() for line in lines if re.search(r", (from|to) ", line) and "│" not in line]


ROWS, MATRICES = jnp.ones((512, 256), "bfloat16"), jnp.ones((3, 128, 256), "bfloat16")
SIZES, BIAS = jnp.array([1, 2, 509]), jnp.ones((3, 128), "bfloat16")
FLOWING = {
    "bias": lambda x: jf.grouped_matmul(x, MATRICES, SIZES, transpose_rhs=True, bias=BIAS),
    "fused tail": jf.fuse(
        lambda x: jf.grouped_matmul(x, MATRICES, SIZES, transpose_rhs=True, bias=BIAS, row_scale=jnp.ones(512)) + 1
    ),
    "nvfp4": lambda x: jf.quantize(x, "nvfp4"),
    "fp8_block": lambda x: jf.quantize(x, "fp8_block"),
    "packed": lambda x: jf.scaled_grouped_matmul(x, jf.repack_weights(jf.quantize(MATRICES[:1] + x[0], "int4")), [512]),
    "format": lambda x: jf.scaled_grouped_matmul(x, MATRICES, SIZES, format="fp8_row"),
    "output format": lambda x: jf.grouped_matmul(x, MATRICES, SIZES, transpose_rhs=True, output_format="fp8_row"),
    "reshape": lambda x: jnp.tanh(x).reshape(8, 64, 16, 16).transpose(0, 2, 1, 3).reshape(512, 256),
    "while": lambda x: jax.lax.while_loop(lambda c: jnp.max(jnp.tanh(c)) > 2, lambda c: jnp.sin(c) * 2, jnp.exp(x) + 1),
    "results alike": lambda x: (jnp.tanh(x), jnp.tanh(x).reshape(8, -1), jnp.tanh(x) @ x.T),
    "parts": lambda x: jnp.concatenate([jnp.tanh(x), x * 2]).reshape(4, -1),
}


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("name", FLOWING)
def test_every_array_comes_from_somewhere_and_goes_somewhere(name, platform):
    lines = provenance(FLOWING[name], ROWS, platform=platform)
    assert lines and not [line for line in lines if line.endswith(("from ?", "to nobody"))]
    assert any("to the result" in line or "to result " in line or "to jax_fuser" in line for line in lines)


def test_readers_are_inside_of_calls():
    """A custom derivative, a loop: what reads a value in there is named, as what makes one is."""
    flows = provenance(FLOWING["packed"], ROWS, platform="cuda")
    ends = {re.split(", (?=from|to )", flow)[-1] for flow in flows}
    assert {"to [1]", "to [2]", "from [0]", "to jax_fuser_packed_matmul"} <= ends
    assert not [flow for flow in flows if "custom_jvp_call" in flow or flow.endswith("scan of XLA")]


def test_a_segment_that_a_kernel_makes_needless_is_said_to_be():
    [region] = jf.explain(FLOWING["fused tail"], platform="cuda")(ROWS).regions
    [segment] = region.segments
    assert "segment 0 does not run: the product's tiles know its values" in segment.reason
    assert {flow.value for flow in segment.reads} == {*region.origins}


def test_every_cut_has_a_reason():
    for f in FLOWING.values():
        cuts = jf.explain(f, platform="cuda")(ROWS).cuts
        assert all(cut.reason and cut.reason != "None" for cut in cuts)
    assert jf.explain(FLOWING["fp8_block"])(ROWS).cuts == ()


def test_equal_calls_are_one_region():
    def f(x, w):
        for _ in range(4):
            x = jnp.tanh(x @ w)
        return x

    [region] = jf.explain(f)(jnp.ones((8, 8)), jnp.ones((8, 8))).regions
    assert region.count == 4 and "x4" in region.title(0)


def test_the_drawing_names_kernels_arrays_and_reasons(report):
    text = str(report)
    for segment in segments(report):
        assert f"┌─ {segment.name}: {segment.strategy}" in text
        for flow in (*segment.reads, *segment.writes):
            assert str(flow) in text
    assert "from argument x" in text and "to result [1]" in text and "dot_general x1  a matrix product" in text
    assert "FLOP: every op counts 1" in text
    boxes = [line for line in text.splitlines() if line.lstrip()[:1] in "┌│└" and line.strip()]
    assert {len(line) for line in boxes} == {len(boxes[0])}


def test_parameters_are_in_words(report):
    text = str(report)
    assert "vectors of" in text or "one element at a time" in text
    assert "lane_loop" not in text and "=" not in text.replace("==", "")


def test_our_own_calls_are_known_by_how_they_are_made():
    """Each with why it is in no region, and never as left to XLA."""
    x, w = jnp.ones((8, 512), "bfloat16"), jnp.ones((2, 1024, 512), "bfloat16")
    sizes = jnp.array([3, 5])

    def f(x, w):
        loss = lambda w: jf.scaled_grouped_matmul(x, w, sizes, format="fp8_row", drhs_format="fp8_row").sum()  # noqa: E731
        quantized = jf.grouped_matmul(x, w, sizes, transpose_rhs=True, output_format="fp8_block")
        packed = jf.scaled_grouped_matmul(x, jf.repack_weights(jf.quantize(w, "int4")), sizes)
        return jax.value_and_grad(loss)(w), quantized, packed, jf.grouped_matmul(x, w, sizes, transpose_rhs=True)

    reasons = {cut.primitive: cut.reason for cut in jf.explain(f, platform="cuda")(x, w).cuts if cut.own_call}
    assert set(reasons) <= set(_trace.OWN_CALLS)
    assert reasons["jax_fuser_scaled_grouped_matmul"] == "a grouped product of quantized operands"
    assert reasons["jax_fuser_quantize_matrices"] == "quantizes arrays for a product"
    assert "jax_fuser_quantized_product" in reasons and "jax_fuser_grouped_matmul" in reasons
    assert "jax_fuser_packed_matmul" in reasons


def test_parameters_of_products_stay_as_they_are():
    """Their tiles, stages and clusters are none of a strategy's."""
    x, w = (jax.ShapeDtypeStruct(shape, "bfloat16") for shape in ((4096, 512), (8, 512, 1024)))
    sizes = jax.ShapeDtypeStruct((8,), "int32")
    layer = jf.fuse(lambda x, w, sizes: jf.grouped_matmul(x, w, sizes, activation="gelu"))
    assert "│ wgmma, tile=192x128x64 stages=" in str(jf.explain(layer, platform="cuda")(x, w, sizes))


def test_time_at_the_memory_limit_where_it_is_known(report):
    assert report.bandwidth is None or report.bandwidth > 1e9
    slow = dataclasses.replace(report, bandwidth=1e9)
    [time, *_] = re.findall(r"at least ([\d.]+) us at 0.00 TB/s", re.sub(r"[\s│]+", " ", str(slow)))
    first = segments(slow)[0]
    assert float(time) == pytest.approx((first.bytes_read + first.bytes_written) / 1e3, abs=0.06)
    assert "at least" not in str(dataclasses.replace(report, bandwidth=None))


def test_the_overview_stays_short(report):
    assert repr(report).count("\n") < 20
    assert "segment 0" in repr(report)


# The picture.


def texts(svg):
    root = ElementTree.fromstring(svg)
    names = {"s": "http://www.w3.org/2000/svg"}
    return root, root.findall(".//s:text", names), root.findall(".//s:rect", names)


def test_the_picture_has_every_kernel_and_array(report):
    root, lines, _ = texts(report.svg())
    words = "\n".join(line.text or "" for line in lines)
    for segment in segments(report):
        assert f"{segment.name}: {segment.strategy}" in words
        assert all(f"{flow.value} {flow.dtype}[" in words for flow in (*segment.reads, *segment.writes))
    assert "a matrix product" in words
    assert float(root.get("width")) < 4000


def test_nothing_overlaps_in_the_picture():
    def f(x, y):
        for axis in (0, 1, 0):
            x = jax.nn.softmax(x + y, axis=axis)
        return x, y.sum(), x.sum(axis=1)

    root, _, _ = texts(jf.explain(f, platform="cuda")(jnp.ones((999, 1000)), jnp.ones((999, 1000))).svg())
    name = "{http://www.w3.org/2000/svg}"
    for group in root.iter(f"{name}g"):
        boxes = [tuple(float(r.get(k)) for k in ("x", "y", "width", "height")) for r in group.iter(f"{name}rect")]
        assert len(boxes) > 4
        for i, (x, y, w, h) in enumerate(boxes):
            assert all(x + w <= a or a + c <= x or y + h <= b or b + d <= y for a, b, c, d in boxes[:i])


def test_pictures_are_saved(report, tmp_path):
    report.save(tmp_path / "a.svg")
    ElementTree.parse(tmp_path / "a.svg")
    report.save(str(tmp_path / "a.html"))
    assert "<svg" in (tmp_path / "a.html").read_text() and "<svg" in report._repr_html_()
    with pytest.raises(ValueError, match=r"save: expected a file name that ends with .svg or .html, got .*a.png"):
        report.save(tmp_path / "a.png")


def test_names_of_the_user_are_escaped():
    f = jf.fuse(lambda x: jnp.tanh(x) + 1, name="a<b>&c")
    ElementTree.fromstring(jf.explain(f)({"<k>": X}["<k>"]).svg())


def test_functions_without_kernels():
    report = jf.explain(lambda x, w: x @ w)(X, W)
    assert report.regions == () and "dot_general" in str(report)
    ElementTree.fromstring(report.svg())
    scalars = jf.explain(jf.fuse(lambda x: x * 2 + 1))(1.0)
    assert "scalars" in str(scalars)
    ElementTree.fromstring(scalars.svg())


def test_static_arguments_of_jitted_functions():
    f = jax.jit(lambda x, n, mode: jnp.tanh(x) * n + 1 if mode == "a" else x, static_argnums=1, static_argnames="mode")
    [region] = jf.explain(f)(jax.ShapeDtypeStruct((4,), "float32"), 2, mode="a").regions
    assert region.ops == 3
    fused = jf.fuse(lambda x, n: jnp.tanh(x) * n, static_argnums=1)
    step = jax.jit(jax.grad(lambda x, n: jnp.sum(fused(x, n))), static_argnums=1)
    assert len(jf.explain(step)(jnp.ones(4), 3).regions) == 2


def test_bytes_of_what_is_gathered_and_padded():
    def reads(f, *args):
        return [flow.bytes for flow in jf.explain(f, platform="cpu")(*args).regions[0].segments[0].reads]

    table = jnp.ones((1000, 64))
    assert reads(lambda t, i: t[i] * 2 + 1, table, jnp.zeros(3, jnp.int32)) == [3 * 64 * 4, 3 * 4]
    assert reads(lambda t: jnp.pad(t[2:4], ((1, 1), (0, 0))) * 2 + 1, table) == [2 * 64 * 4]
