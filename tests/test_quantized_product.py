"""Grouped products whose results are quantized: the bits of two steps, what one kernel takes, what is said of it."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
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
    """Bit for bit; the sign of a NaN is the machine's."""
    assert (got.format, got.block, got.layout) == (want.format, want.block, want.layout)
    for one, other in zip(*(jax.tree.leaves((t.data, t.scales)) for t in (got, want)), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        one, other = np.asarray(one), np.asarray(other)
        nan = np.isnan(other.astype("float32"))
        np.testing.assert_array_equal(np.isnan(one.astype("float32")), nan)
        words = f"u{one.dtype.itemsize}"
        np.testing.assert_array_equal(one.view(words)[~nan], other.view(words)[~nan])


def both(arrays, how, format="fp8_block"):
    one = jax.jit(lambda x, w, e: jf.grouped_matmul(x, w, e, output_format=format, **how))
    return one(*arrays), jf.quantize(jf.grouped_matmul(*arrays, **how), format)


def equation(m=M, k=K, n=N, groups=3, dtype="bfloat16", **how):
    """The jaxpr of the primitive that a call is."""
    arrays, how = operands([0] * groups, how, m, k, n, dtype)
    kinds = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
    jaxpr = jax.make_jaxpr(lambda x, w, e: jf.grouped_matmul(x, w, e, output_format="fp8_block", **how))(*kinds)
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


MAIN = """
#include "codegen/cuda_lanes.cuh"
namespace jf::ptx {
inline unsigned e4m3x2_of_scaled(float low, float high) { return encode_pair(f8e4m3fn{}, low, high); }
// Of magnitudes, as bits: NaN is the largest.
inline unsigned max_nan_bf16x2(unsigned a, unsigned b) {
  return std::max(a & 0xffff, b & 0xffff) | std::max(a >> 16, b >> 16) << 16;
}
inline unsigned max_nan_f16x2(unsigned a, unsigned b) { return max_nan_bf16x2(a, b); }
inline void st_cluster(unsigned address, float value) { store(address, value); }
}
#include "grouped/cuda/hopper_rows.cuh"
#include "grouped/cuda/hopper_quantize.cuh"
using namespace jf;
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
    std::vector<unsigned char> out(2 * m * n, 255), elements(m * n, 255), scales(m * n / 128 * 4, 255);
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
                                         grouped::QuantizedRows>;
      Kernel::run(memory, lhs_map, rhs_map, rhs_map, ragged, nullptr, next + 1, k, n, {}, nullptr, {}, {},
                  {elements.data(), data<float>(scales)});
    });
    for (const auto* result : {&out, &elements, &scales}) std::fwrite(result->data(), 1, result->size(), stdout);
  }
}
int main() {
  run<grouped::HopperTile<64, 2, 1>, false, 384>(2);
  run<grouped::HopperTile<192, 2, 2>, true, 384>(4);
  run<grouped::HopperTile<64, 2, 2>, true, 128, Gate<128>>(4);
  run<grouped::HopperTile<128, 2, 2>, false, 256, Gate<256>>(4);
}
"""


def quantized(x):
    """What `quantize` makes of rows, by NumPy, whose largest number of a NaN and others is NaN on every machine."""
    parts = x.astype("float32").reshape(len(x), -1, 128)
    most = np.abs(parts).max(axis=2)
    scales = np.where(most == 0, np.float32(1), np.maximum(most * np.float32(1 / 448), np.float32(2**-126)))
    with np.errstate(invalid="ignore"):
        made = (parts * (np.float32(1) / scales)[..., None]).astype("float8_e4m3fn")
    return made.reshape(x.shape), scales


def test_the_kernel_gives_the_bits_of_numpy(tmp_path):
    """Blocks on a CPU: those that have the columns of a scale alone and those that tell each other."""
    rng = np.random.default_rng(0)
    m, k, last = 380, 72, 367
    extents = np.int32([[0, 1, 64, 0, 65, 237, 0], [0] * 7, [0, 0, 0, 0, 0, 0, 300]])
    starts = np.int32([[0, 0, 3, 70, 70, 140, 380], [0] * 7, [0, 0, 0, 0, 0, 0, 8]])
    lhs = rng.normal(size=(m, k)) * np.exp2(rng.integers(-60, 8, size=(m, 1)))
    lhs[last:], lhs[20], lhs[30, 3], lhs[40, 5] = np.nan, 0, np.nan, np.inf
    arrays = {"lhs": lhs.astype(jnp.bfloat16), "rhs": rng.normal(size=(7, k, 512)).astype(jnp.bfloat16),
              "extents": extents, "starts": starts}  # fmt: skip
    source = MAIN % {"m": m, "k": k, "groups": 7, "problems": len(extents)}
    raw, at = run_blocks_on_cpu(source, arrays, 4, tmp_path), 0

    def take(dtype, columns):
        nonlocal at
        got = np.frombuffer(raw, dtype, m * columns, at).reshape(m, columns)
        at += got.nbytes
        return got

    for n in (384, 384, 128, 256):
        for _ in extents:
            out, data, scales = take(jnp.bfloat16, n), take("float8_e4m3fn", n), take("float32", n // 128)
            assert_same_bits(
                *(jf.ScaledTensor(*t, None, "fp8_block", (128,)) for t in ((data, scales), quantized(out)))
            )
    assert at == len(raw)


@pytest.mark.parametrize("layout", LAYOUTS[:2])
@pytest.mark.parametrize("how", ["the product", "geglu, bias and scale", "transposed"])
def test_the_bits_are_those_of_two_steps(how, layout):
    assert_same_bits(*both(*operands(layout, HOW[how])))


@pytest.mark.parametrize("format", ["fp8_row", "fp8_tensor", "mxfp8", "nvfp4", "mxfp4", "int4"])
def test_other_formats(format):
    assert_same_bits(*both(*operands(LAYOUTS[0], HOW["swiglu"], n=64), format))


def test_layouts_and_kinds_of_rows():
    """Nested and gapped rows, inner rows, gathered ones, groups of another's, float32, columns that fill no block."""
    (x, w, e), _ = operands([30, 0, 50], {}, n=100)
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
        want = jf.quantize(jf.grouped_matmul(*arguments, **given), "fp8_block")
        assert_same_bits(jf.grouped_matmul(*arguments, output_format="fp8_block", **given), want)


def test_the_next_product_takes_it():
    (x, w, e), _ = operands([100, 20, 90], {})
    x = jnp.nan_to_num(x)
    down = jf.quantize(jnp.ones((3, 32, 128), "bfloat16"), "fp8_block", block=(128, 128))
    made = jf.grouped_matmul(x, w, e, activation="swiglu", output_format="fp8_block")
    want = jf.quantize(jf.grouped_matmul(x, w, e, activation="swiglu"), "fp8_block")
    one, other = (jf.scaled_grouped_matmul(t, down, e).astype("float32") for t in (made, want))
    np.testing.assert_array_equal(one, other)


def test_transforms():
    (x, w, e), _ = operands([100, 20, 90], {})
    x = jnp.nan_to_num(x)

    def call(x, w):
        return jf.grouped_matmul(x, w, e, activation="silu", output_format="fp8_block")

    made = jax.vmap(call, (0, None))(jnp.stack([x, 2 * x]), w)
    assert_same_bits(jax.tree.map(lambda a: a[1], made), call(2 * x, w))
    for f in (lambda x: call(x, w).scales.sum(), lambda x: jf.dequantize(call(x, w)).sum()):
        with pytest.raises(TypeError, match=r"grouped_matmul: output_format= has no derivative .* leave it out"):
            jax.grad(f)(x)
    stopped = jax.grad(lambda x: call(jax.lax.stop_gradient(x), w).scales.sum() * x[0, 0])(x)
    np.testing.assert_allclose(stopped[0, 0], call(x, w).scales.sum(), rtol=1e-2)
    offset = jnp.arange(256.0)
    closure = functools.partial(jf.grouped_matmul, x, w, e, activation=lambda y: y + offset)  # no part of a kernel
    assert_same_bits(closure(output_format="fp8_block"), jf.quantize(closure(), "fp8_block"))
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


# Targets and operands, and what `explain` says of them.
PLACES = [
    ("cuda", HOPPER, {}, "one kernel multiplies and quantizes: wgmma, tile="),
    ("cuda", HOPPER, {"activation": "swiglu", "n": 512}, "one kernel multiplies and quantizes: wgmma, tile="),
    ("cuda", HOPPER, {"m": 100, "k": 4096}, "two steps, .* of few tiles k is split among blocks"),
    ("cuda", HOPPER, {"m": 8, "activation": "swiglu"}, "two steps, .* of few rows each block computes alone"),
    ("cuda", HOPPER, {"k": 70}, "two steps, .* k=70 gives rows that are not multiples of 16 bytes"),
    ("cuda", HOPPER, {"activation": jnp.sin}, "two steps, .* sin is too long to be repeated"),
    ("cuda", _core.cuda_target_for(80), {}, r"two steps, the product and then quantize: .* compute capability 8\.0"),
    ("cpu", _core.host_target(), {}, "two steps, the product and then quantize: platform cpu has no such kernel"),
]


@pytest.mark.parametrize(("platform", "target", "how", "says"), PLACES)
def test_explain_says_how_many_kernels(platform, target, how, says):
    assert re.match(says, _quantized_product.kernels(equation(**how), platform, target))


def test_explain():
    (x, w, e), _ = operands([100, 20, 90], {})
    report = jf.explain(lambda x: jf.grouped_matmul(x, w, e, output_format="fp8_block"), platform="cpu")(x)
    [cut] = [c for c in report.cuts if c.primitive == "jax_fuser_quantized_product"]
    assert cut.reason.startswith("two steps, the product and then quantize: platform cpu")


def test_what_is_exported_runs_on_every_gpu(monkeypatch):
    """Which GPUs have the kernel depends on their number of multiprocessors, too."""
    pytest.importorskip("flatbuffers")
    own = _ffi.target_text
    monkeypatch.setattr(_ffi, "target_text", lambda platform: HOPPER if platform == "cuda" else own(platform))

    def call(x, w, e):
        return jf.grouped_matmul(x, w, e, activation="swiglu", output_format="fp8_block")

    arrays, _ = operands([100, 20, 90], {}, m=700)  # enough to be quantized by kernels of ours
    assert "quantized fp8_block" in jax.jit(call).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
    exported = export.export(jax.jit(call), platforms=["cpu", "cuda"], disabled_checks=ALLOWED)(*arrays)
    assert "jax_fuser.program" in exported.mlir_module() and "quantized fp8_block" not in exported.mlir_module()
    assert_same_bits(export.deserialize(bytearray(exported.serialize())).call(*arrays), call(*arrays))


def test_facts_of_the_kernel():
    [facts] = _core.facts(_quantized_product.program_of(equation(activation="swiglu")), HOPPER)
    assert facts["entry"] == "jf_grouped_quantized_rows_fused" and facts["parameters"].endswith(" quantized")
    assert [(t, shape, n) for _, t, shape, n in facts["writes"]] == [
        ("f8e4m3fn", [M, N // 2], M * N // 2),
        ("f32", [M, N // 256], M * N // 256 * 4),
    ]


@pytest.mark.parametrize("how", HOW)
def test_kernels_compile_without_spills(how, tmp_path):
    nvrtc_or_skip()
    dtype = "float16" if how == "a scale" else "bfloat16"
    program = _quantized_product.program_of(equation(8192, 2048, 1536, 8, dtype, **HOW[how]))
    [used] = assert_no_spills(program, tmp_path)
    assert used["STACK"] == 0 and used["REG"] <= 168
    text = _core.sass(program, HOPPER)
    assert all(op in text for op in ("F2FP.SATFINITE.E4M3", "HGMMA", "UTMALDG")) and "UTMASTG" not in text


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", HOW)
def test_on_hopper(how, layout):
    with jax.default_device(hopper_or_skip()):
        for n in (N, 3 * N if how != "the product" else 3 * 128):
            arrays, given = operands(layout, HOW[how], n=n)
            f = jax.jit(lambda x, w, e: jf.grouped_matmul(x, w, e, output_format="fp8_block", **given))  # noqa: B023
            assert "quantized fp8_block" in f.lower(*arrays).as_text()
            assert_same_bits(*both(arrays, given))


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["the product", "swiglu", "geglu, bias and scale"])
def test_many_units_on_hopper(how):
    """Tiles of every height, and each block's many units, of one step each and more, whose barriers go round."""
    with jax.default_device(hopper_or_skip()):
        for m, k, groups, dtype in ((6000, 64, 5, "bfloat16"), (5000, 72, 40, "float16"), (3000, 200, 60, "bfloat16")):
            extents = np.random.default_rng(m).multinomial(m - 100, np.full(groups, 1 / groups))
            arrays, given = operands(list(extents), HOW[how], m, k, 4096 if m == 6000 else 1024, dtype)
            assert_same_bits(*both(arrays, given))


@pytest.mark.gpu
def test_gapped_groups_and_the_next_product_on_hopper():
    with jax.default_device(hopper_or_skip()):
        (x, w, _), _ = operands([200], {})
        nested = jf.NestedTensor(x, jnp.int32([60, 0, 90]), starts=jnp.int32([3, 70, 100]))
        w = jnp.concatenate([w, -w, w])
        made = jax.jit(lambda x, w: jf.grouped_matmul(x, w, activation="swiglu", output_format="fp8_block"))(nested, w)
        want = jf.quantize(jf.grouped_matmul(nested, w, activation="swiglu"), "fp8_block")
        assert_same_bits(made, want)
        down = jf.quantize(jnp.ones((3, 256, 128), "bfloat16"), "fp8_block", block=(128, 128))
        one, other = (jf.scaled_grouped_matmul(t, down).data.astype("float32") for t in (made, want))
        np.testing.assert_array_equal(one, other)
