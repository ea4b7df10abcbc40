"""Grouped products of 8-bit floats: their numbers on the CPU and on Hopper, their kernels, and what is refused."""

import functools
import re
import warnings

import grouped_reference as ref
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_cuda_sources import nvrtc_or_skip, resources, tool
from test_grouped_hopper import EDGES, sass
from test_tma import hopper_or_skip
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core, _ffi, _scaled_primitive
from jax_fuser._quant import spread as spread_scales

E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2
HOPPER = _core.cuda_target_for(90)
# Formats of both operands: lhs, rhs, block of rhs.
FORMATS = {
    "rows": ("fp8_row", "fp8_row", None),
    "tensor": ("fp8_tensor", "fp8_row", None),
    "blocks": ("fp8_block", "fp8_block", (128, 128)),
}


def operands(formats, m, k, n, groups, dtypes=(E4M3, E4M3), seed=0):
    rng = np.random.default_rng(seed)
    lhs_format, rhs_format, block = FORMATS[formats]
    # Rows and columns of very different sizes: a scale at the wrong place shows.
    x = rng.normal(size=(m, k)) * np.exp2(rng.integers(-3, 4, size=(m, 1)))
    w = rng.normal(size=(groups, n, k)) * np.exp2(rng.integers(-3, 4, size=(groups, n, 1)))
    x[:, : k // 2] *= 4
    return (
        jf.quantize(jnp.asarray(x, "float32"), lhs_format, dtype=dtypes[0]),
        jf.quantize(jnp.asarray(w, "float32"), rhs_format, dtype=dtypes[1], block=block),
    )


def truth(lhs, rhs, extents, starts=None):
    numbers = [np.asarray(x.data).astype(np.float64) * spread(x) for x in (lhs, rhs)]
    return ref.rows(*numbers, extents, starts, transpose_rhs=True)


def spread(x):
    return np.asarray(spread_scales(x.scales, x.block, x.data.shape), np.float64)


@pytest.mark.parametrize(
    ("formats", "edge"),
    [("rows", edge) for edge in ref.EDGES]
    + [(formats, edge) for formats in ("tensor", "blocks") for edge in ("below_capacity", "no_tile_fits")],
)
def test_ragged_edges(formats, edge):
    extents = ref.EDGES[edge]
    lhs, rhs = operands(formats, ref.ROWS, 144, 136, len(extents), (E4M3, E5M2))
    want = truth(lhs, rhs, extents)
    padding = ~ref.owned_rows(extents, ref.ROWS)
    lhs = spoil(lhs, padding)
    got = jf.scaled_grouped_matmul(lhs, rhs, jnp.asarray(extents), preferred_element_type="float32")
    assert_close(got, want)
    assert (np.asarray(got)[padding] == 0).all()


def spoil(x, rows):
    """NaN in those rows, in elements and scales."""
    scales = x.scales if x.scales.ndim == 0 else x.scales.at[rows].set(jnp.nan)
    return jf.ScaledTensor(x.data.at[rows].set(jnp.nan), scales, None, x.format, x.block)


@pytest.mark.parametrize("formats", ["rows", "blocks"])
def test_results_are_rounded_once_and_long_sums_fit(formats):
    extents = [3, 0, 5]
    lhs, rhs = operands(formats, 8, 2880, 24, 3)
    for dtype in ("bfloat16", "float16"):
        got = jf.scaled_grouped_matmul(lhs, rhs, jnp.asarray(extents), preferred_element_type=dtype)
        assert got.dtype == dtype
        assert_close(got, truth(lhs, rhs, extents))


def test_nan_stays_in_its_row_and_group():
    lhs, rhs = operands("rows", 40, 32, 16, 4)
    lhs = spoil(lhs, np.arange(40) == 3)
    rhs = jf.ScaledTensor(rhs.data, rhs.scales.at[2].set(jnp.nan), None, "fp8_row")
    got = np.asarray(jf.scaled_grouped_matmul(lhs, rhs, jnp.array([10, 10, 10, 10])), np.float32)
    bad = np.isnan(got).all(axis=1)
    np.testing.assert_array_equal(bad, (np.arange(40) == 3) | (np.arange(40) // 10 == 2))
    assert np.isfinite(got[~bad]).all()


def test_nested_tensors_keep_their_layout():
    rng = np.random.default_rng(1)
    _, rhs = operands("rows", 8, 32, 16, 3)
    for extents, starts in (([4, 0, 9], None), ([4, 2, 5], [1, 6, 11])):
        nt = jf.NestedTensor(jnp.asarray(rng.normal(size=(20, 32)), "float32"), jnp.array(extents),
                             None if starts is None else jnp.array(starts))  # fmt: skip
        x = jf.quantize(nt, "fp8_row")
        got = jf.scaled_grouped_matmul(x, rhs, preferred_element_type="float32")
        assert isinstance(got, jf.NestedTensor) and got.shape == (3, "ragged", 16)
        flat = jf.ScaledTensor(x.data.data, x.scales, None, "fp8_row")
        assert_close(got.data, truth(flat, rhs, extents, starts))


def test_transforms_and_the_gradient_of_lhs():
    extents = jnp.array([3, 5])
    lhs, rhs = operands("rows", 8, 48, 32, 2)
    want = truth(lhs, rhs, extents)
    multiply = jax.jit(lambda x, w, s: jf.scaled_grouped_matmul(x, w, s, preferred_element_type="float32"))
    assert_close(multiply(lhs, rhs, extents), want)
    both = jax.tree.map(lambda a: jnp.stack([a, a]), (lhs, extents))
    got = jax.vmap(multiply, (0, None, 0))(both[0], rhs, both[1].at[1].set(jnp.array([0, 8])))
    assert_close(got[0], want)
    assert_close(got[1], truth(lhs, rhs, [0, 8]))
    weights = jf.dequantize(rhs)
    dy = jnp.asarray(np.random.default_rng(2).normal(size=(8, 32)), "float32")
    grad = jax.vjp(lambda x: jf.grouped_matmul(x, weights, extents, transpose_rhs=True), jf.dequantize(lhs))[1](dy)[0]
    quantized = jf.quantize(dy, "fp8_row"), jf.quantize(jnp.swapaxes(weights, 1, 2), "fp8_row")
    assert_close(multiply(*quantized, extents), truth(*quantized, extents))
    assert_close(multiply(*quantized, extents), grad, dtype="bfloat16", scale=4)


def assert_trained(results, x, w, dy, extents, padding, format, transpose):
    """Check a product of floats and its gradients; return how weights are quantized, and they as (n, k) and (k, n)."""
    got, d_x, d_w = results
    block = (128, 128) if format == "fp8_block" else None
    by_k, by_n = (w, jnp.swapaxes(w, 1, 2)) if transpose else (jnp.swapaxes(w, 1, 2), w)
    for result, rows, matrices in ((got, x, by_k), (d_x, dy, by_n)):
        want = truth(jf.quantize(rows, format), jf.quantize(matrices, format, block=block), extents)
        assert_close(result, want)
        assert (np.asarray(result, np.float32)[padding] == 0).all()
    sides = (dy, x) if transpose else (x, dy)
    assert_close(d_w, ref.contraction(*(np.asarray(a, np.float64) for a in sides), extents), dtype="bfloat16")
    return block, by_k, by_n


@pytest.mark.parametrize(
    ("format", "edge", "transpose", "k", "n"),
    [
        ("fp8_row", "no_tile_fits", True, 144, 80),
        ("fp8_block", "below_capacity", False, 70, 136),
        ("fp8_block", "first_empty", False, 128, 144),
    ],
)
def test_floats_are_quantized_and_have_gradients(format, edge, transpose, k, n):
    """Values and the gradient of lhs are products of quantized operands; that of rhs is the product of the floats."""
    extents = ref.EDGES[edge]
    rng = np.random.default_rng(3)
    padding = ~ref.owned_rows(extents, ref.ROWS)
    x, dy = (jnp.asarray(rng.normal(size=(ref.ROWS, size)), "bfloat16") for size in (k, n))
    w = jnp.asarray(rng.normal(size=(len(extents), *((n, k) if transpose else (k, n)))), "float32")
    sizes = jnp.asarray(extents)

    def multiply(x, w):
        return jf.scaled_grouped_matmul(x, w, sizes, format=format, transpose_rhs=transpose)

    poisoned = [a.at[padding].set(jnp.nan) for a in (x, dy)]
    got, pull = jax.vjp(jax.jit(multiply), poisoned[0], w)
    d_x, d_w = pull(poisoned[1])
    assert (got.dtype, d_x.dtype, d_w.dtype) == (jnp.bfloat16, jnp.bfloat16, jnp.float32)
    block, by_k, by_n = assert_trained((got, d_x, d_w), x, w, dy, extents, padding, format, transpose)
    if k % 16 == n % 16 == 0:
        copies = tuple(jf.quantize(a, format, block=block) for a in (by_k, by_n))

        def again(x, w, copies):
            return jf.scaled_grouped_matmul(x, w, sizes, format=format, quantized_rhs=copies, transpose_rhs=transpose)

        same, pull = jax.vjp(lambda x, w: jax.jit(again)(x, w, copies), poisoned[0], w)
        for a, b in zip((same, *pull(poisoned[1])), (got, d_x, d_w)):
            np.testing.assert_array_equal(a, b)
    assert (np.asarray(d_w)[np.asarray(extents) == 0] == 0).all()


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 2.0**-27), ("float32", 2.0**18)])
def test_cotangents_that_float16_does_not_hold(dtype, size):
    x, w = jnp.ones((4, 16), "float16") / 32, jnp.ones((2, 8, 16), "float32")

    def f(w):
        return jf.scaled_grouped_matmul(x, w, jnp.array([3, 0]), format="fp8_row", preferred_element_type=dtype)

    got = jax.vjp(f, w)[1](jnp.full((4, 8), size, dtype))[0]
    assert_close(got, jnp.zeros_like(w).at[0].set(3 / 32 * size), dtype="bfloat16")


def test_floats_train_under_transforms():
    """jit, vmap, scan with checkpoint, nested rows, a gapped layout: one rule serves all of them."""
    rng = np.random.default_rng(4)
    x, w = jnp.asarray(rng.normal(size=(2, 9, 32)), "float32"), jnp.asarray(rng.normal(size=(3, 16, 32)), "float32")
    nested = jf.NestedTensor(x[0], jnp.array([2, 0, 5]), jnp.array([1, 3, 4]))

    def loss(w, x):
        rows = jf.scaled_grouped_matmul(nested.replace(data=x), w, format="fp8_block", preferred_element_type="float32")
        return (rows.data**2).sum()

    each = jnp.stack([jax.grad(loss)(w, a) for a in x])
    assert_close(jax.vmap(jax.jit(jax.grad(loss)), (None, 0))(w, x), each)
    carried = jax.lax.scan(lambda s, a: (s + jax.checkpoint(jax.grad(loss))(w, a), None), jnp.zeros_like(w), x)[0]
    assert_close(carried, each.sum(0))
    with pytest.raises(TypeError, match=r"format= has derivatives in reverse mode, once; got .* a derivative of a"):
        jax.grad(lambda w: jax.grad(loss)(w, x[0]).sum())(w)


def test_one_scale_for_each_matrix():
    """As `vmap` of `quantize` makes them."""
    rng = np.random.default_rng(7)
    x, w = jnp.asarray(rng.normal(size=(9, 16)), "float32"), jnp.asarray(rng.normal(size=(3, 16, 16)), "float32")
    w8 = jax.vmap(lambda w: jf.quantize(w, "fp8_tensor"))(w * jnp.array([1.0, 10, 100])[:, None, None])
    x8, sizes = jf.quantize(x, "fp8_row"), jnp.array([2, 3, 4])
    out = jf.scaled_grouped_matmul(x8, w8, sizes, preferred_element_type="float32")
    assert_close(out, jf.grouped_matmul(jf.dequantize(x8), jf.dequantize(w8), sizes, transpose_rhs=True))


def test_forward_mode_is_refused_by_name():
    """Wherever it begins: eagerly, in a program, in a loop, batched, around or within a gradient."""
    x, w, sizes = jnp.ones((5, 8)), jnp.ones((3, 8, 8)), jnp.array([2, 0, 3])

    def f(x):
        return jf.scaled_grouped_matmul(x, w, sizes, format="fp8_row", preferred_element_type="float32")

    def along(f):
        return lambda x: jax.jvp(f, (x,), (x,))[1]

    def steps(x):
        return jax.lax.fori_loop(0, 2, lambda i, x: f(x), x)

    def loss(x):
        return (f(x) ** 2).sum()

    for use in (
        along(f), jax.jit(along(f)), along(jax.jit(f)), along(steps), jax.jacfwd(f), jax.linearize(f, x)[1],
        lambda x: jax.vmap(along(f))(x[None]), along(jax.grad(loss)), jax.grad(along(loss)), jax.hessian(loss),
    ):  # fmt: skip
        with pytest.raises(
            TypeError, match=r"^scaled_grouped_matmul: format= has derivatives in reverse mode, once; .* take jax.grad"
        ):
            use(x)
    assert_close(jax.grad(jax.checkpoint(loss))(x), jax.jit(jax.grad(loss))(x))
    assert_close(jax.jacrev(f)(x).sum((0, 1)), jax.vjp(f, x)[1](jnp.ones((5, 8)))[0])


@pytest.mark.parametrize("format", ["fp8_row", "fp8_block", "fp8_tensor", "mxfp8"])
def test_floats_take_weights_of_eight_bits(format):
    rng = np.random.default_rng(5)
    extents = [3, 0, 4]
    x, w = jnp.asarray(rng.normal(size=(8, 40)), "float32"), jnp.asarray(rng.normal(size=(3, 24, 40)), "float32")
    weights = jf.quantize(w, format, block=(128, 128) if format == "fp8_block" else None)
    wide = np.asarray(jf.dequantize(weights), np.float64)

    def multiply(x):
        return jf.scaled_grouped_matmul(x, weights, jnp.array(extents), preferred_element_type="float32")

    got, pull = jax.vjp(multiply, x.at[7].set(jnp.nan))
    assert_close(got, ref.rows(np.asarray(x, np.float64), wide, extents, None, transpose_rhs=True))
    dy = jnp.asarray(rng.normal(size=(8, 24)), "float32")
    assert_close(pull(dy)[0], ref.rows(np.asarray(dy, np.float64), wide, extents, None))


def rows_of(k=32, n=16):
    return operands("rows", 8, k, n, 2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, w, s: jf.scaled_grouped_matmul(x, jf.dequantize(w), s), TypeError, "fp8_row x float32 not supp"),
        (lambda x, w, s: jf.scaled_grouped_matmul(x, w, s, format="fp8_row"), TypeError, "format= quantizes floats"),
        (
            lambda x, w, s: jf.scaled_grouped_matmul(
                jf.dequantize(x), jf.dequantize(w), s, format="fp8_row", quantized_rhs=(w, w)
            ),
            ValueError,
            r"quantized_rhs must hold fp8_row \(2, 32, 16\) with scales \(2, 32\), got ScaledTensor",
        ),
        (
            lambda x, w, s: jf.scaled_grouped_matmul(
                jf.dequantize(x), jf.dequantize(w), s, format="fp8_row", quantized_rhs=(w, s)
            ),
            TypeError,
            r"must be two ScaledTensors, of .*, got fp8_row and int32; quantize makes them",
        ),
        (
            lambda x, w, s: jf.scaled_grouped_matmul(x, w, s, quantized_rhs=(w, w)),
            ValueError,
            "quantized_rhs= needs format=",
        ),
        (
            lambda x, w, s: jf.scaled_grouped_matmul(jf.dequantize(x), jf.dequantize(w), s, format="mxfp8"),
            ValueError,
            r"format must be one of \['fp8_block', 'fp8_row'\], got 'mxfp8'",
        ),
        (
            lambda x, w, s: jf.scaled_grouped_matmul(
                jf.dequantize(x), jf.dequantize(w), s, format="fp8_row", transpose_rhs=False
            ),
            ValueError,
            r"lhs has k=32 but rhs \(2, 16, 32\) as \(groups, k, n\) has k=16",
        ),
        (
            lambda x, w, s: jf.scaled_grouped_matmul(x, jf.quantize(jf.dequantize(w), "mxfp4"), s),
            TypeError,
            "fp8_row x mxfp4 not supported; supported pairs: .* x nvfp4 or mxfp4 or int4 or eight bits",
        ),
        (
            lambda x, w, s: jf.scaled_grouped_matmul(jf.ScaledTensor(jf.dequantize(x), x.scales), w, s),
            TypeError,
            "8-bit formats hold .*, got float32",
        ),
        (lambda x, w, s: jf.grouped_matmul(x, w, s), TypeError, "fp8_row operands not supported; use scaled_grouped"),
        (
            lambda x, w, s: jf.scaled_grouped_matmul(x, w, s, transpose_rhs=False),
            ValueError,
            "k as the last axis alone",
        ),
        (lambda x, w, s: jf.scaled_grouped_matmul(x, w), TypeError, "group_sizes= is needed"),
        (lambda x, w, s: jf.scaled_grouped_matmul(x, w, s[:1]), ValueError, r"needs lhs \(m, k\)"),
        (lambda x, w, s: jf.scaled_grouped_matmul(x, w, jnp.array([-1, 3])), ValueError, "non-negative"),
        (lambda x, w, s: jf.scaled_grouped_matmul(*rows_of(k=40), s), ValueError, "k must be a multiple of 16, got 40"),
        (lambda x, w, s: jf.scaled_grouped_matmul(x, rows_of(k=48)[1], s), ValueError, "lhs has k=32 but rhs"),
        (
            lambda x, w, s: jf.scaled_grouped_matmul(x, operands("blocks", 8, 32, 16, 2)[1], s),
            TypeError,
            "fp8_row x fp8_block .* not supported; supported pairs",
        ),
        (
            lambda x, w, s: jf.scaled_grouped_matmul(x, w, s, preferred_element_type="int32"),
            TypeError,
            "preferred_element_type must be one of",
        ),
        (
            lambda x, w, s: jf.scaled_grouped_matmul(x, w, s, preferred_element_type="nonsense"),
            TypeError,
            "preferred_element_type must be one of .*got 'nonsense'",
        ),
        (
            lambda x, w, s: jf.scaled_grouped_matmul(x, w, s, transpose_rhs=1),
            TypeError,
            "scaled_grouped_matmul: transpose_rhs must be True or False, got 1",
        ),
        (
            lambda x, w, s: jf.scaled_grouped_matmul(x, w, s, row_scale=jnp.ones((8, 1))),
            ValueError,
            r"row_scale must have one value per row \(8,\), got \(8, 1\); reshape it, or",
        ),
        (
            lambda x, w, s: jf.scaled_grouped_matmul(x, w, s, row_scale=jnp.ones(8, complex)),
            TypeError,
            "scaled_grouped_matmul: row_scale must be real, got complex64",
        ),
        (
            lambda x, w, s: jax.grad(
                lambda scales: jf.scaled_grouped_matmul(
                    jf.ScaledTensor(x.data, scales), w, s, preferred_element_type="float32"
                ).sum()
            )(x.scales),
            TypeError,
            "has no derivative in quantized operands: .* pass floats and format=",
        ),
    ],
)
def test_messages(call, error, message):
    with pytest.raises(error, match=message):
        call(*rows_of(), jnp.array([3, 5]))


# Kernels.


def program(scaled, m=4096, k=2880, n=768, groups=8, dtypes=("f8e4m3fn", "f8e4m3fn"), out="bf16", starts=False):
    blocks = _scaled_primitive.block_count
    shapes = {"rows": ((m,), (groups, n)), "blocks": ((m, blocks(k)), (groups, blocks(n), blocks(k)))}[scaled]
    types = [(dtypes[0], (m, k)), (dtypes[1], (groups, n, k)), ("s32", (groups,)), *[("s32", (groups,))] * starts]
    return _scaled_primitive._program((*types, *(("f32", s) for s in shapes)), scaled, out)


@pytest.mark.parametrize(
    ("options", "tile"),
    [
        (
            {"scaled": "rows", "m": 16384, "dtypes": ("f8e5m2", "f8e4m3fn"), "out": "f32", "starts": True},
            "tile=192x128x128 stages=4 cluster=2",
        ),
        ({"scaled": "blocks", "m": 16384, "out": "f32", "starts": True}, "tile=128x192x128 stages=5 cluster=2"),
        ({"scaled": "blocks", "m": 200, "n": 128, "dtypes": ("f8e4m3fn", "f8e5m2"), "out": "f16"}, "cluster=1"),
    ],
)
def test_kernels_compile_to_8_bit_products(options, tile, tmp_path):
    """Nothing spills, and tensor copies feed products of 8-bit operands."""
    made = program(**options)
    [facts] = _core.facts(made, HOPPER)
    assert facts["parameters"].startswith("wgmma, ") and tile in facts["parameters"]
    nvrtc_or_skip()
    tool("cuobjdump")
    [(_, _, cubin)] = _core.compile_cuda(made, HOPPER)
    [used] = resources(cubin, tmp_path / "kernel.cubin")
    assert used["LOCAL"] == 0 and used["STACK"] == 0 and used["REG"] <= 168
    count = {op: len(re.findall(rf"\b{op}\b", sass(tmp_path / "kernel.cubin"))) for op in ("QGMMA", "HGMMA", "UTMALDG")}
    assert count["QGMMA"] >= 8 and count["HGMMA"] == 0 and count["UTMALDG"] >= 2


def test_other_targets_say_why_they_have_no_kernel():
    for options, target, why in (
        ({}, _core.cuda_target_for(80), "compute capability 8.0"),
        ({"n": 36}, HOPPER, "n=36 gives rows that are not multiples of 16 bytes"),
        ({}, _core.host_target(), "no kernel takes f8e4m3fn"),
    ):
        assert why in _ffi.why_no_kernel(functools.partial(program, "rows", **options), target)


def test_programs_of_8_bit_floats_are_checked():
    b = _core.Builder("bad")
    x = b.input("x", "f8e4m3fn", [4, 32])
    with pytest.raises(jf.UserError, match="does not take 8-bit floats"):
        b.pointwise("add", [x, x])
    w, sizes = b.input("w", "f8e4m3fn", [2, 8, 32]), b.input("sizes", "s32", [2])
    with pytest.raises(jf.UserError, match="8-bit floats need scales"):
        b.grouped_matmul(x, w, sizes, None, "rows", True, "bf16")
    ones = b.input("ones", "f32", [4])
    with pytest.raises(jf.UserError, match="scales must be f32 for each row and column"):
        b.grouped_matmul(x, w, sizes, None, "rows", True, "bf16", "", "rows", [ones, ones])


# On a GPU of compute capability 9.0.


@pytest.mark.gpu
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize(
    ("formats", "dtypes", "out", "k", "n"),
    [
        ("rows", (E4M3, E4M3), "bfloat16", 2880, 768),
        ("rows", (E5M2, E4M3), "float32", 16, 264),
        ("tensor", (E4M3, E5M2), "float16", 1040, 8),
        ("blocks", (E4M3, E4M3), "float32", 2880, 768),
        ("blocks", (E5M2, E5M2), "bfloat16", 144, 136),
        ("blocks", (E4M3, E5M2), "float16", 16, 584),
    ],
)
def test_ragged_edges_on_hopper(formats, dtypes, out, k, n, edge):
    device = hopper_or_skip()
    extents, starts = EDGES[edge]
    with jax.default_device(device), warnings.catch_warnings():
        warnings.simplefilter("error")
        lhs, rhs = operands(formats, 700, k, n, len(extents), dtypes)
        want = truth(lhs, rhs, extents, starts)
        padding = ~ref.owned_rows(extents, 700, starts)
        ours = np.ones(700, bool)
        if len(extents) > 4:
            for g, span in ref.groups(extents, starts, 700):
                ours[span] = g != int(np.argmax(extents))
        lhs = spoil(lhs, padding | ~ours)
        jax.block_until_ready(jnp.full(want.shape, jnp.nan, out))  # what the result's memory may hold
        nt = jf.NestedTensor(lhs.data, jnp.asarray(extents), None if starts is None else jnp.asarray(starts))
        lhs = jf.ScaledTensor(nt, lhs.scales, None, lhs.format, lhs.block)
        got = np.asarray(jf.scaled_grouped_matmul(lhs, rhs, preferred_element_type=out, validate=False).data)
    assert (got[padding] == 0).all()
    assert formats == "tensor" or np.isnan(got[~ours].astype("float32")).all()
    # Tensor cores sum with 14 bits: up to the whole row, or 128 elements of it.
    assert_close(got[ours], want[ours], dtype="bfloat16" if formats != "blocks" else out,
                 scale=40 if formats == "blocks" and out == "float32" else 1)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(("format", "transpose"), [("fp8_row", False), ("fp8_block", True)])
def test_gradients_of_floats_on_hopper(format, transpose):
    device = hopper_or_skip()
    extents, m, k, n = [130, 0, 64, 1, 200], 420, 264, 328
    rng = np.random.default_rng(6)
    padding = ~ref.owned_rows(extents, m)
    with jax.default_device(device), warnings.catch_warnings():
        warnings.simplefilter("error")
        x, dy = (jnp.asarray(rng.normal(size=(m, size)), "bfloat16") for size in (k, n))
        w = jnp.asarray(rng.normal(size=(5, *((n, k) if transpose else (k, n)))), "bfloat16")

        def multiply(x, w):
            return jf.scaled_grouped_matmul(x, w, jnp.array(extents), format=format, transpose_rhs=transpose)

        got, pull = jax.vjp(multiply, x.at[padding].set(jnp.nan), w)
        d_x, d_w = pull(dy.at[padding].set(jnp.nan))
        assert d_w.dtype == jnp.bfloat16
        assert_trained((got, d_x, d_w), x, w, dy, extents, padding, format, transpose)


@pytest.mark.gpu
@pytest.mark.parametrize("formats", ["rows", "blocks"])
def test_many_groups_and_tiles_on_hopper(formats):
    """Every block takes several tiles, of groups with very different sizes. Quantizing there gives the same bits."""
    device = hopper_or_skip()
    rng = np.random.default_rng(0)
    extents = rng.multinomial(6000, rng.dirichlet(np.full(130, 0.3))).astype(np.int32)
    lhs, rhs = operands(formats, 6100, 640, 1152, 130)
    with jax.default_device(device):
        there = operands(formats, 6100, 640, 1152, 130)
        for a, b in zip(jax.tree.leaves((lhs, rhs)), jax.tree.leaves(there)):
            np.testing.assert_array_equal(np.asarray(a).view(np.uint8), np.asarray(b).view(np.uint8))
        got = jf.scaled_grouped_matmul(*there, jnp.asarray(extents))
    assert_close(got, truth(lhs, rhs, extents))
