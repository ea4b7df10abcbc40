"""The gradient of weights as a product of 8-bit floats: rows quantized with a scale for each column of each group."""

import warnings

import grouped_reference as ref
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_cuda_sources import nvrtc_or_skip, resources
from test_grouped_hopper import sass
from test_scaled_grouped_matmul import HOPPER
from test_tma import hopper_or_skip
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core, _quantize_columns, _scaled_primitive


def quantized(x, extents, starts):
    """What `x` is rounded to, in float64."""
    wide = np.zeros(x.shape)
    for _, rows in ref.groups(extents, starts, x.shape[0]):
        if rows.stop > rows.start:
            wide[rows] = np.asarray(jf.dequantize(jf.quantize(x[rows].T, "fp8_row")), np.float64).T
    return wide


def operands(m, k, n, groups, transpose, seed=0):
    rng = np.random.default_rng(seed)
    sizes = np.exp2(rng.integers(-6, 6, size=(2, max(k, n))))  # columns of very different sizes
    x, dy = (jnp.asarray(rng.normal(size=(m, c)) * s[:c], "bfloat16") for c, s in zip((k, n), sizes))
    return x, dy, jnp.zeros((groups, n, k) if transpose else (groups, k, n), "float32")


def drhs(x, dy, w, extents, starts, transpose, format="fp8_row"):
    nt = jf.NestedTensor(x, jnp.asarray(extents), None if starts is None else jnp.asarray(starts))

    def multiply(w):
        made = jf.scaled_grouped_matmul(nt, w, format=format, drhs_format="fp8_row", transpose_rhs=transpose)
        return made.data

    return jax.jit(lambda w, dy: jax.vjp(multiply, w)[1](dy)[0])(w, dy)


def check(device, extents, starts, m, k, n, transpose, dtype="float32"):
    padding = ~ref.owned_rows(extents, m, starts)
    x, dy, w = operands(m, k, n, len(extents), transpose)
    sides = (dy, x) if transpose else (x, dy)
    want = ref.contraction(*(quantized(a, extents, starts) for a in sides), extents, starts)
    with jax.default_device(device):
        got = drhs(*(jax.device_put(a, device) for a in (x.at[padding].set(jnp.nan), dy.at[padding].set(jnp.nan), w)),
                   extents, starts, transpose)  # fmt: skip
    assert (np.asarray(got)[np.asarray(extents) == 0] == 0).all()
    # Columns of very different sizes: each has its own error.
    left, right = (np.linalg.norm(quantized(a, extents, starts), axis=0) for a in sides)
    most = np.maximum(np.outer(left, right), 1e-30)
    assert_close(np.asarray(got) / most, want / most, dtype=dtype)


@pytest.mark.parametrize("edge", ["all_in_one", "below_capacity", "no_tile_fits"])
def test_ragged_edges(edge):
    check(jax.devices("cpu")[0], ref.EDGES[edge], None, ref.ROWS, 24, 16, edge < "m")


def test_gapped_rows():
    check(jax.devices("cpu")[0], [4, 2, 33], [1, 6, 11], 50, 24, 16, True)


def test_transforms():
    x, dy, w = operands(12, 16, 8, 2, True)
    extents = jnp.array([5, 4])
    one = drhs(x, dy, w, extents, None, True)
    got = jax.vmap(lambda x, dy: drhs(x, dy, w, extents, None, True))(jnp.stack([x, 2 * x]), jnp.stack([dy, dy]))
    assert_close(got, jnp.stack([one, 2 * one]))


def test_messages():
    x, _, w = operands(12, 16, 8, 2, True)
    both = {"format": "fp8_row", "drhs_format": "mxfp8"}
    for options, got in (
        ({"drhs_format": "fp8_row"}, "None; 'fp8_row' needs floats and format="),
        (both, "'fp8_row'; 'fp8_row' quantizes in 8 bits, too; None does not"),
    ):
        with pytest.raises(ValueError, match=f"drhs_format must be None, or 'fp8_row' .* beside format={got}"):
            jf.scaled_grouped_matmul(x, w, jnp.array([5, 4]), **options)


def test_programs_of_transposed_operands_are_checked():
    b = _core.Builder("bad")
    x, y = b.input("x", "f8e4m3fn", [32, 64]), b.input("y", "f8e4m3fn", [16, 64])
    sizes, ones = b.input("sizes", "s32", [2]), b.input("ones", "f32", [2, 32])
    with pytest.raises(jf.UserError, match="scales must be f32 for each row and column"):
        b.grouped_matmul(x, y, sizes, None, "contraction", False, "bf16", "", "rows", [ones, ones])
    with pytest.raises(jf.UserError, match="mode=contraction scaled_rows"):
        b.grouped_matmul(x, y, sizes, None, "contraction", False, "bf16", "", "blocks", [ones, ones])


def test_kernel_compiles_without_spills(tmp_path):
    m, k, n, groups = 33792, 2880, 768, 8
    types = (("f8e4m3fn", (k, m)), ("f8e5m2", (n, m)), ("s32", (groups,)), ("f32", (groups, k)), ("f32", (groups, n)))
    made = _scaled_primitive._program(types, "columns", "f32")
    [facts] = _core.facts(made, HOPPER)
    assert "wgmma, tile=128x192x128" in facts["parameters"]
    nvrtc_or_skip()
    [(_, _, cubin)] = _core.compile_cuda(made, HOPPER)
    [used] = resources(cubin, tmp_path / "kernel.cubin")
    assert used["LOCAL"] == 0 and used["STACK"] == 0 and used["REG"] <= 168
    text = sass(tmp_path / "kernel.cubin")
    assert "QGMMA" in text and "HGMMA" not in text and "UTMALDG" in text


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("extents", "starts", "k", "n", "transpose"),
    [
        ([130, 0, 64, 1, 200, 33], None, 264, 328, True),
        ([300, 2, 0, 90], [5, 310, 320, 340], 1040, 8, False),
        ([0, 700, 0], None, 520, 640, False),
        ([0, 0, 0], None, 64, 64, True),
    ],
)
def test_on_hopper(extents, starts, k, n, transpose, monkeypatch):
    device = hopper_or_skip()
    monkeypatch.setattr(_quantize_columns, "is_large", lambda x: True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(device, extents, starts, 720, k, n, transpose, dtype="bfloat16")
