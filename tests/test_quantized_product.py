"""Grouped products whose results are quantized: the bits of two steps, what one kernel takes, what is said of it."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from device_text import run_on_cpu
from grouped_reference import owned_rows
from jax import export
from test_cuda_sources import assert_no_spills, nvrtc_or_skip
from test_export import ALLOWED
from test_fp8_blocks import run_blocks_on_cpu
from test_tma import hopper_or_skip

import jax_fuser as jf
from jax_fuser import _core, _ffi, _quantized_product
from jax_fuser._lowered import inner_jaxprs

HOPPER = _core.cuda_target_for(90)
M, K, N = 240, 72, 256
FORMATS = [*_quantized_product.IN_KERNEL]
# Groups of no row, one, odd ones, parts of tiles and more than one; one with all rows; none.
LAYOUTS = [[101, 0, 64, 1, 33, 0], [0, 240, 0], [0, 0], [200, 3]]
HOW = {
    "the product": {},
    "swiglu": {"activation": "swiglu"},
    "geglu, bias and scale": {"activation": "geglu", "bias": True, "row_scale": True},
    "silu, bias and scale": {"activation": "silu", "bias": True, "row_scale": True},
    "a scale": {"row_scale": True},
    "transposed": {"transpose_rhs": True, "activation": "swiglu"},
}


def operands(extents, how, m=M, k=K, n=N, dtype="bfloat16"):
    """Rows of every size with NaN behind the last, weights, extents, and what the keywords ask for."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(m, k)) * np.exp2(rng.integers(-20, 8, size=(m, 1)))
    x[~owned_rows(extents, m)] = np.nan
    if sum(extents) > 70:
        x[3] = 0
        x[7, 5], x[66, 9] = np.nan, np.inf
    w = rng.normal(size=(len(extents), k, n))
    w = jnp.asarray(w.swapaxes(1, 2) if how.get("transpose_rhs") else w, dtype)
    given = dict(how)
    if "bias" in how:
        given["bias"] = jnp.asarray(rng.normal(size=(len(extents), n)) * 2.0**-10, dtype)
    if "row_scale" in how:
        given["row_scale"] = jnp.asarray(rng.normal(size=m), "float32").at[sum(extents) :].set(jnp.nan)
    return (jnp.asarray(x, dtype), w, jnp.asarray(extents, "int32")), given


def assert_same_bits(got, want):
    """Bit for bit; the sign of a NaN is the machine's, and that of codes of four bits whose scale is one."""
    assert (got.format, got.block, got.layout) == (want.format, want.block, want.layout)
    for one, other in zip(*(jax.tree.leaves((t.data, t.scales)) for t in (got, want)), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        one, other = np.asarray(one), np.asarray(other)
        if one.dtype == np.uint8:
            of_nan = np.repeat(np.isnan(np.asarray(want.scales).astype("float32")), want.block[0] // 2, axis=-1)
            np.testing.assert_array_equal(one & ~(0x88 * of_nan), other & ~(0x88 * of_nan))
            continue
        nan = np.isnan(other.astype("float32"))
        np.testing.assert_array_equal(np.isnan(one.astype("float32")), nan)
        words = f"u{one.dtype.itemsize}"
        np.testing.assert_array_equal(one.view(words)[~nan], other.view(words)[~nan])


def both(arrays, how, format="fp8_block"):
    one = jax.jit(lambda x, w, e: jf.grouped_matmul(x, w, e, output_format=format, **how))
    return one(*arrays), jf.quantize(jf.grouped_matmul(*arrays, **how), format)


def equation(m=M, k=K, n=N, groups=3, dtype="bfloat16", format="fp8_block", **how):
    """The jaxpr of the primitive that a call is."""
    arrays, how = operands([0] * groups, how, m, k, n, dtype)
    kinds = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
    jaxpr = jax.make_jaxpr(lambda x, w, e: jf.grouped_matmul(x, w, e, output_format=format, **how))(*kinds)
    found = []

    def walk(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive is _quantized_product.quantized_p:
                found.append(eqn.params["jaxpr"])
            else:
                for inner in inner_jaxprs(eqn):
                    walk(inner)

    walk(jaxpr.jaxpr)
    [own] = found
    return own


INSTRUCTIONS = """
#include "codegen/cuda_lanes.cuh"
namespace jf::ptx {
inline unsigned e4m3x2_of_scaled(float low, float high) { return encode_pair(f8e4m3fn{}, low, high); }
// Of magnitudes, as bits: NaN is the largest.
inline unsigned max_nan_bf16x2(unsigned a, unsigned b) {
  return std::max(a & 0xffff, b & 0xffff) | std::max(a >> 16, b >> 16) << 16;
}
inline unsigned max_nan_f16x2(unsigned a, unsigned b) { return max_nan_bf16x2(a, b); }
}
"""
MAIN = """
namespace jf::ptx {
inline void st_cluster(unsigned address, float value) { store(address, value); }
}
#include "grouped/cuda/hopper_rows.cuh"
#include "grouped/cuda/hopper_quantize.cuh"
using namespace jf;
using Format = jf::%(format)s;
constexpr int m = %(m)d, k = %(k)d, groups = %(groups)d;

// Two columns of the product in one of the result.
template <int n>
struct Gate {
  static constexpr int kSums = 2, kTiles = 0;
  static int first(int sum) { return sum * n; }
  struct Group {};
  struct alignas(4) Row {
    float scale;
  };
  Group group(int) const { return {}; }
  Row row(const Group&, int row) const { return {1 + row %% 3 * 0.5f}; }
  float tile(int, int) const { return 0; }
  float at(const Group&, const Row& row, const float (&sums)[2], float, int, int) const {
    return row.scale * sums[0] * sums[1];
  }
};

template <class Tile, bool kHasStarts, int n, class Epilogue = grouped::NoEpilogue>
void run(int blocks) {
  constexpr int columns = n * std::max(Epilogue::kSums, 1);
  auto lhs = read("lhs"), rhs = read("rhs"), extents = read("extents"), starts = read("starts");
  const TensorMap lhs_map = {lhs.data(), k * 2, m, 2}, rhs_map = {rhs.data(), columns * 2, k, 2};
  for (int problem = 0; problem < %(problems)d; ++problem) {
    std::vector<unsigned char> out(2 * m * n, 255), elements(m * n * Format::kBits / 8, 255);
    std::vector<unsigned char> scales(m * n / Format::kColumns * sizeof(Format::Scale), 255);
    const TensorMap out_map = {out.data(), n * 2, m, 2, 64};
    const int first = problem * groups;
    const grouped::Ragged ragged = {data<int>(extents) + first, data<int>(starts) + first, groups, m};
    unsigned next[2] = {};
    ptx::launch(blocks, Tile::kCluster, [&](void* memory) {
      using Kernel = grouped::HopperRows<bf16, bf16, Tile, false, kHasStarts, Epilogue>;
      Kernel::run(memory, lhs_map, rhs_map, out_map, ragged, data<bf16>(out), next, k, n);
    });
    ptx::launch(blocks, Tile::kCluster, [&](void* memory) {
      using Kernel = grouped::HopperRows<bf16, bf16, Tile, false, kHasStarts, Epilogue, grouped::RowsInOrder,
                                         grouped::QuantizedRows<Format>>;
      Kernel::run(memory, lhs_map, rhs_map, rhs_map, ragged, nullptr, next + 1, k, n, {}, nullptr, {}, {},
                  {elements.data(), data<Format::Scale>(scales)});
    });
    for (const auto* result : {&out, &elements, &scales}) std::fwrite(result->data(), 1, result->size(), stdout);
  }
}
int main() { %(runs)s }
"""

# Rows of a tile, blocks of a cluster, starts, columns, whether it is gated: columns that fill no tile, that a pair of
# blocks stacks, and that a block alone has.
RUNS = {
    128: [(64, 1, False, 384, False), (192, 2, True, 384, False), (64, 2, True, 128, True), (128, 2, False, 256, True)],
    32: [(64, 1, False, 224, False), (192, 2, True, 416, False), (64, 2, True, 160, True), (128, 1, False, 96, True)],
    16: [(64, 1, False, 208, False), (192, 2, True, 272, False), (64, 2, True, 144, True), (128, 1, False, 80, True)],
}


def quantized(x, format, columns):
    """What `quantize` makes of rows, by NumPy, which neither flushes what is tiny nor loses a NaN among others."""
    four_bits = format in ("nvfp4", "mxfp4")
    parts = x.astype("float32").reshape(len(x), -1, columns)
    most = np.abs(parts).max(axis=2)
    if format != "fp8_block":
        most[np.isinf(most)] = np.nan
    wanted = most * np.float32(1 / (6 if four_bits else 448))
    with np.errstate(invalid="ignore", over="ignore"):
        if format == "fp8_block":
            scales = np.where(most == 0, np.float32(1), np.maximum(wanted, np.float32(2**-126)))
            inverse = np.float32(1) / scales
        elif format == "nvfp4":
            scales = np.minimum(wanted, np.float32(448)).astype("float8_e4m3fn")
            wide = scales.astype("float32")
            inverse = np.where(wide == 0, np.finfo("float32").max, np.float32(1) / np.where(wide == 0, 1, wide))
        else:
            fraction, exponent = np.frexp(wanted)
            exponent = np.maximum(np.where(wanted == 0, -127, exponent - (fraction == 0.5)), -127)
            scales = np.where(np.isnan(wanted), 255, exponent + 127).astype("uint8").view(jnp.float8_e8m0fnu)
            inverse = np.where(np.isnan(wanted), np.float32(np.nan), np.ldexp(np.float32(1), -exponent))
        scaled = (parts * inverse[..., None]).reshape(x.shape)
        if not four_bits:
            return scaled.astype("float8_e4m3fn"), scales
        codes = scaled.clip(-6, 6).astype(ml_dtypes.float4_e2m1fn).view("uint8")
    codes[np.isnan(scaled)] = 7
    return codes[:, ::2] | codes[:, 1::2] << 4, scales


def device_name(format):
    """The format's struct in output_formats.cuh."""
    return format.title().replace("_", "")


EIGHTS = """
#include <fstream>
#include "grouped/cuda/output_formats.cuh"
using namespace jf;
int main() {
  using Format = jf::%s;
  std::ifstream file("blocks", std::ios::binary);
  float most, x[8], inverse;
  while (file.read(reinterpret_cast<char*>(&most), 4) && file.read(reinterpret_cast<char*>(x), 32)) {
    const auto scale = Format::scale_of(most, inverse);
    for (float& value : x) value *= inverse;
    const auto made = Format::eight(x);
    std::fwrite(&made, 1, sizeof(made), stdout);
    std::fwrite(&scale, 1, sizeof(scale), stdout);
  }
}
"""


@pytest.mark.parametrize("format", FORMATS)
def test_all_magnitudes_of_bf16(format, tmp_path):
    """Scales and elements of every largest magnitude, subnormal and infinite ones and NaN, and parts of it."""
    most = np.arange(0x7F82, dtype="uint16").view(jnp.bfloat16).astype("float32")
    parts = np.random.default_rng(0).choice(np.arange(-48, 49) / 48, size=(len(most), 8))
    parts[:, :2] = 1, -0.25
    with np.errstate(invalid="ignore"):
        x = np.where(np.isfinite(most)[:, None], most[:, None] * parts, most[:, None]).astype(jnp.bfloat16)
    want, scales = quantized(x, format, 8)
    (tmp_path / "blocks").write_bytes(np.concatenate([most[:, None], x.astype("float32")], 1).tobytes())
    raw = np.frombuffer(run_on_cpu(INSTRUCTIONS + EIGHTS % device_name(format), tmp_path), "uint8")
    raw = raw.reshape(len(most), -1)
    data = np.ascontiguousarray(raw[:, : want.shape[1]]).view(want.dtype)
    scales_made = np.ascontiguousarray(raw[:, want.shape[1] :]).view(scales.dtype)
    made = (jf.ScaledTensor(*arrays, None, format, (8,)) for arrays in ((data, scales_made), (want, scales)))
    assert_same_bits(*made)


@pytest.mark.parametrize("format", FORMATS)
def test_the_kernel_gives_the_bits_of_numpy_and_quantize(format, tmp_path):
    """Blocks on a CPU: those that have the columns of a scale alone and those that tell each other."""
    (columns,) = jf.quantize(jnp.ones((1, 128)), format).block
    runs = RUNS[columns]
    rng = np.random.default_rng(0)
    m, k, last = 380, 72, 367
    extents = np.int32([[0, 1, 64, 0, 65, 237, 0], [0] * 7, [0, 0, 0, 0, 0, 0, 300]])
    starts = np.int32([[0, 0, 3, 70, 70, 140, 380], [0] * 7, [0, 0, 0, 0, 0, 0, 8]])
    lhs = rng.normal(size=(m, k)) * np.exp2(rng.integers(-60, 8, size=(m, 1)))
    lhs[last:], lhs[20], lhs[30, 3], lhs[40, 5] = np.nan, 0, np.nan, np.inf
    rhs = rng.normal(size=(7, k, 512))
    rhs[4, 9, 70], rhs[5, 3, 300] = np.nan, np.inf
    arrays = {"lhs": lhs.astype(jnp.bfloat16), "rhs": rhs.astype(jnp.bfloat16), "extents": extents, "starts": starts}
    run = "run<grouped::HopperTile<{}, 2, {}>, {}, {}{}>({});".format
    calls = [
        run(rows, cluster, str(starts).lower(), n, f", Gate<{n}>" if gated else "", 2 * cluster)
        for rows, cluster, starts, n, gated in runs
    ]
    source = MAIN % {"m": m, "k": k, "groups": 7, "problems": len(extents), "format": device_name(format),
                     "runs": "\n".join(calls)}  # fmt: skip
    raw, at = run_blocks_on_cpu(INSTRUCTIONS + source, arrays, 4, tmp_path), 0

    def take(dtype, columns):
        nonlocal at
        got = np.frombuffer(raw, dtype, m * columns, at).reshape(m, columns)
        at += got.nbytes
        return got

    for _, _, _, n, _ in runs:
        for _ in extents:
            out = take(jnp.bfloat16, n)
            want = jf.ScaledTensor(*quantized(out, format, columns), None, format, (columns,))
            data, scales = (take(a.dtype, a.shape[1]) for a in (want.data, want.scales))
            got = dataclasses.replace(want, data=data, scales=scales)
            assert_same_bits(got, want)
            plain = ~((np.abs(out) < 2**-120) & (out != 0)).any(axis=1)  # CPUs flush what becomes subnormal
            some = dataclasses.replace(got, data=data[plain], scales=scales[plain])
            assert_same_bits(some, jf.quantize(out[plain], format))
    assert at == len(raw)


@pytest.mark.parametrize("layout", LAYOUTS[:2])
@pytest.mark.parametrize("how", ["the product", "geglu, bias and scale", "transposed"])
@pytest.mark.parametrize("format", FORMATS)
def test_the_bits_are_those_of_two_steps(format, how, layout):
    assert_same_bits(*both(*operands(layout, HOW[how]), format))


@pytest.mark.parametrize("format", ["fp8_row", "fp8_tensor", "int4"])
def test_other_formats(format):
    assert_same_bits(*both(*operands(LAYOUTS[0], HOW["swiglu"], n=64), format))


@pytest.mark.parametrize("format", FORMATS)
def test_layouts_and_kinds_of_rows(format):
    """Nested and gapped rows, inner rows, gathered ones, groups of another's, float32, columns that fill no block."""
    (x, w, e), _ = operands([30, 0, 50], {}, n=100 if format in ("fp8_block", "mxfp8") else 96)
    x = jnp.nan_to_num(x)
    gapped = jf.NestedTensor(x, jnp.int32([60, 0, 90]), jnp.int32([3, 70, 100]))
    inner = jf.NestedTensor(x.reshape(80, 3, K), jnp.int32([20, 0, 50]))
    calls = [
        (gapped, w),
        (inner, w),
        (x, w, e, {"row_index": jnp.arange(240)[::-1]}),
        (x, w[1:], e, {"group_offset": jnp.int32(1)}),
        (x.astype("float32"), w.astype("float32"), e),
        (x, w, e, {"preferred_element_type": "float32"}),
    ]
    for *arguments, last in calls:
        given = last if isinstance(last, dict) else {}
        arguments = arguments if given else [*arguments, last]
        want = jf.quantize(jf.grouped_matmul(*arguments, **given), format)
        assert_same_bits(jf.grouped_matmul(*arguments, output_format=format, **given), want)


def test_the_next_product_takes_it():
    (x, w, e), _ = operands([100, 20, 90], {})
    x = jnp.nan_to_num(x)
    down = jf.quantize(jnp.ones((3, 32, 128), "bfloat16"), "fp8_block", block=(128, 128))
    made = jf.grouped_matmul(x, w, e, activation="swiglu", output_format="fp8_block")
    want = jf.quantize(jf.grouped_matmul(x, w, e, activation="swiglu"), "fp8_block")
    one, other = (jf.scaled_grouped_matmul(t, down, e).astype("float32") for t in (made, want))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("format", ["fp8_block", "mxfp4"])
def test_transforms(format):
    (x, w, e), _ = operands([100, 20, 90], {})
    x = jnp.nan_to_num(x)

    def call(x, w):
        return jf.grouped_matmul(x, w, e, activation="silu", output_format=format)

    made = jax.vmap(call, (0, None))(jnp.stack([x, 2 * x]), w)
    assert_same_bits(jax.tree.map(lambda a: a[1], made), call(2 * x, w))
    for f in (lambda x: call(x, w).scales.astype("float32").sum(), lambda x: jf.dequantize(call(x, w)).sum()):
        with pytest.raises(TypeError, match=r"grouped_matmul: output_format= has no derivative .* leave it out"):
            jax.grad(f)(x)
    stopped = jax.grad(lambda x: jf.dequantize(call(jax.lax.stop_gradient(x), w)).sum() * x[0, 0])(x)
    np.testing.assert_allclose(stopped[0, 0], jf.dequantize(call(x, w)).sum(), rtol=1e-2)
    offset = jnp.arange(256.0)
    closure = functools.partial(jf.grouped_matmul, x, w, e, activation=lambda y: y + offset)  # no part of a kernel
    assert_same_bits(closure(output_format=format), jf.quantize(closure(), format))
    with jax.disable_jit():
        assert_same_bits(call(x, w), jax.jit(call)(x, w))


def test_what_is_refused():
    (x, w, e), _ = operands([100, 20, 90], {}, n=100)
    for arguments, how, error, match in [
        ((x, w, e), {"output_format": "fp8"}, ValueError, "grouped_matmul: output_format must be None or one of"),
        ((x, w, e), {"output_format": 8}, ValueError, "grouped_matmul: output_format must be None or one of .* got 8"),
        ((x, w, e), {"output_format": "nvfp4"}, ValueError, "columns in multiples of 16, got 100; pad rhs with"),
        ((x.astype("int8"), w.astype("int8"), e), {"output_format": "fp8_block"}, TypeError,
         "quantizes floats, the result is int8; pass preferred_element_type"),
    ]:  # fmt: skip
        with pytest.raises(error, match=match):
            jf.grouped_matmul(*arguments, **how)
    own = equation(n=208, format="nvfp4")
    for format, match in [
        ("int4", r"\[quantized product\] .* one of fp8_block, mxfp8, nvfp4, mxfp4, got quantized int4"),
        ("mxfp8", r"\[quantized product\] 208 columns are no multiple of 32"),
    ]:
        with pytest.raises(_core.UserError, match=match):
            _core.facts(_quantized_product.program_of(own, format), HOPPER)


# Targets and operands, and what `explain` says of them.
PLACES = [
    ("cuda", HOPPER, {}, "one kernel multiplies and quantizes: wgmma, tile="),
    ("cuda", HOPPER, {"activation": "swiglu", "n": 512}, "one kernel multiplies and quantizes: wgmma, tile="),
    ("cuda", HOPPER, {"format": "mxfp8", "n": 96}, "one kernel multiplies and quantizes: .* quantized mxfp8"),
    ("cuda", HOPPER, {"format": "nvfp4", "n": 416, "m": 8, "activation": "geglu"}, "one kernel .* quantized nvfp4"),
    ("cuda", HOPPER, {"m": 100, "k": 4096}, "two steps, .* of few tiles k is split among blocks"),
    ("cuda", HOPPER, {"m": 8, "activation": "swiglu"}, "two steps, .* of few rows each block computes alone"),
    ("cuda", HOPPER, {"k": 70}, "two steps, .* k=70 gives rows that are not multiples of 16 bytes"),
    ("cuda", HOPPER, {"activation": jnp.sin}, "two steps, .* sin is too long to be repeated"),
    ("cuda", _core.cuda_target_for(80), {}, r"two steps, the product and then quantize: .* compute capability 8\.0"),
    ("cpu", _core.host_target(), {}, "two steps, the product and then quantize: platform cpu has no such kernel"),
]


@pytest.mark.parametrize(("platform", "target", "how", "says"), PLACES)
def test_explain_says_how_many_kernels(platform, target, how, says):
    format = how.get("format", "fp8_block")
    assert re.match(says, _quantized_product.kernels(equation(**how), format, platform, target))


def test_explain():
    (x, w, e), _ = operands([100, 20, 90], {})
    report = jf.explain(lambda x: jf.grouped_matmul(x, w, e, output_format="fp8_block"), platform="cpu")(x)
    [cut] = [c for c in report.cuts if c.primitive == "jax_fuser_quantized_product"]
    assert cut.reason.startswith("two steps, the product and then quantize: platform cpu")


@pytest.mark.parametrize("format", ["fp8_block", "mxfp4"])
def test_what_is_exported_runs_on_every_gpu(format, monkeypatch):
    """Which GPUs have the kernel depends on their number of multiprocessors, too."""
    pytest.importorskip("flatbuffers")
    own = _ffi.target_text
    monkeypatch.setattr(_ffi, "target_text", lambda platform: HOPPER if platform == "cuda" else own(platform))

    def call(x, w, e):
        return jf.grouped_matmul(x, w, e, activation="swiglu", output_format=format)

    arrays, _ = operands([100, 20, 90], {}, m=700)  # enough to be quantized by kernels of ours
    assert f"quantized {format}" in jax.jit(call).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
    exported = export.export(jax.jit(call), platforms=["cpu", "cuda"], disabled_checks=ALLOWED)(*arrays)
    assert "jax_fuser.program" in exported.mlir_module() and f"quantized {format}" not in exported.mlir_module()
    assert_same_bits(export.deserialize(bytearray(exported.serialize())).call(*arrays), call(*arrays))


@pytest.mark.parametrize(
    ("format", "elements", "scales"),
    [
        ("fp8_block", ("f8e4m3fn", [M, 128], M * 128), ("f32", [M, 1], M * 4)),
        ("mxfp8", ("f8e4m3fn", [M, 128], M * 128), ("f8e8m0fnu", [M, 4], M * 4)),
        ("nvfp4", ("u8", [M, 64], M * 64), ("f8e4m3fn", [M, 8], M * 8)),
        ("mxfp4", ("u8", [M, 64], M * 64), ("f8e8m0fnu", [M, 4], M * 4)),
    ],
)
def test_facts_of_the_kernel(format, elements, scales):
    own = equation(activation="swiglu", format=format)
    [facts] = _core.facts(_quantized_product.program_of(own, format), HOPPER)
    assert facts["entry"] == "jf_grouped_quantized_rows_fused"
    assert facts["parameters"].endswith(f" quantized {format}")
    assert [tuple(written) for _, *written in facts["writes"]] == [elements, scales]


# All of fp8_block, and of others those that differ by it.
KERNELS = [("fp8_block", how) for how in HOW]
KERNELS += [(format, how) for format in FORMATS[1:] for how in ("the product", "swiglu", "geglu, bias and scale")]
KERNELS += [("nvfp4", "a scale")]


@pytest.mark.parametrize(("format", "how"), KERNELS)
def test_kernels_compile_without_spills(format, how, tmp_path):
    nvrtc_or_skip()
    dtype = "float16" if how == "a scale" else "bfloat16"
    program = _quantized_product.program_of(equation(8192, 2048, 1536, 8, dtype, format, **HOW[how]), format)
    [used] = assert_no_spills(program, tmp_path)
    assert used["STACK"] == 0 and used["REG"] <= 168
    text = _core.sass(program, HOPPER)
    assert ("F2FP.SATFINITE.E4M3" in text) == (format != "mxfp4")
    assert all(op in text for op in ("HGMMA", "UTMALDG")) and "UTMASTG" not in text


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("format", FORMATS)
def test_on_hopper(format, how, layout):
    gated = HOW[how].get("activation") in ("swiglu", "geglu")
    with jax.default_device(hopper_or_skip()):
        # The last tile has all its columns, or some.
        for columns in {"fp8_block": (128, 384), "nvfp4": (80, 208)}.get(format, (96, 416)):
            arrays, given = operands(layout, HOW[how], n=columns * (2 if gated else 1))
            f = jax.jit(lambda x, w, e: jf.grouped_matmul(x, w, e, output_format=format, **given))  # noqa: B023
            assert f"quantized {format}" in f.lower(*arrays).as_text()
            assert_same_bits(*both(arrays, given, format))


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["the product", "swiglu", "geglu, bias and scale"])
@pytest.mark.parametrize("format", FORMATS)
def test_many_units_on_hopper(format, how):
    """Tiles of every height, and each block's many units, of one step each and more, whose barriers go round."""
    with jax.default_device(hopper_or_skip()):
        for m, k, groups, dtype in ((6000, 64, 5, "bfloat16"), (5000, 72, 40, "float16"), (3000, 200, 60, "bfloat16")):
            extents = np.random.default_rng(m).multinomial(m - 100, np.full(groups, 1 / groups))
            arrays, given = operands(list(extents), HOW[how], m, k, 4096 if m == 6000 else 1024, dtype)
            assert_same_bits(*both(arrays, given, format))


@pytest.mark.gpu
def test_gapped_groups_and_the_next_product_on_hopper():
    with jax.default_device(hopper_or_skip()):
        (x, w, _), _ = operands([200], {})
        nested = jf.NestedTensor(x, jnp.int32([60, 0, 90]), starts=jnp.int32([3, 70, 100]))
        w = jnp.concatenate([w, -w, w])
        for format in FORMATS[::-1]:
            call = functools.partial(jf.grouped_matmul, activation="swiglu", output_format=format)
            made, want = (
                jax.jit(call)(nested, w),
                jf.quantize(jf.grouped_matmul(nested, w, activation="swiglu"), format),
            )
            assert_same_bits(made, want)
        down = jf.quantize(jnp.ones((3, 256, 128), "bfloat16"), "fp8_block", block=(128, 128))
        one, other = (jf.scaled_grouped_matmul(t, down).data.astype("float32") for t in (made, want))
        np.testing.assert_array_equal(one, other)
