"""Rows of groups quantized and transposed in one kernel: its program, what it refuses, instructions, numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_text import run_on_cpu
from grouped_reference import owned_rows
from test_cuda_sources import assert_no_spills, nvrtc_or_skip
from test_tma import hopper_or_skip

from jax_fuser import _core, _quantize_columns, _quantize_groups, _quantize_matrices

HOPPER = _core.cuda_target_for(90)
# Groups of no row, one, odd ones, whole tiles; one with all rows; none; in any order with gaps. 240 rows.
LAYOUTS = [
    ([101, 0, 64, 1, 33, 0], None),
    ([0, 240, 0], None),
    ([0, 0], None),
    ([128, 2, 0, 90], [112, 5, 7, 10]),
]
M = 240


def operands(extents, starts, k, dtype):
    """What quantize_columns hands over, with NaN in rows of no group and numbers of every size."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(M, k)) * np.exp2(rng.integers(-10, 8, size=k))
    x[~owned_rows(extents, M, starts)] = np.nan
    x[:, 3] = 0
    if sum(extents):
        first = np.flatnonzero(owned_rows(extents, M, starts))
        x[first[0], 4], x[first[-1], 6], x[first[-1], 7] = np.nan, np.inf, -np.inf
    return (
        jnp.asarray(x, dtype),
        jnp.asarray(extents, "int32"),
        None if starts is None else jnp.asarray(starts, "int32"),
    )


def handed_over(x, extents, starts, monkeypatch):
    """The operands of the last pass, and what JAX makes of them."""
    monkeypatch.setattr(_quantize_columns, "is_large", lambda x: False)

    def run(*operands):
        seen = []
        monkeypatch.setattr(_quantize_columns, "plain", lambda *a: seen.append(a) or _quantize_groups.plain(*a))
        data, _, _ = _quantize_columns.quantize_columns(*operands)
        return seen[0], data

    arrays, data = jax.jit(run)(x, extents, starts)
    return [np.asarray(a) for a in arrays], np.asarray(data)


def assert_same_bits(got, want):
    """Bit for bit; the sign of a NaN is the machine's."""
    got, want = (np.asarray(a).view(np.uint8) for a in (got, want))
    nan = want & 0x7F == 0x7F
    np.testing.assert_array_equal(got[~nan], want[~nan])
    assert (got[nan] & 0x7F == 0x7F).all()


MAIN = """
#include "codegen/cuda_lanes.cuh"
namespace jf::ptx {
inline unsigned e4m3x2_of_scaled(float low, float high) { return encode_pair(f8e4m3fn{}, low, high); }
}
#include "grouped/cuda/quantize_groups.cuh"
using namespace jf;

template <class T>
void run(std::string case_number, int m, int k, int places) {
  using Kernel = GroupQuantizer<T>;
  const auto array = [&](std::string name) { return read((name + case_number).c_str()); };
  auto x = array("x"), row = array("row"), group = array("group"), inverses = array("inverses");
  std::vector<unsigned char> out(k * places, 0xee);
  const typename Kernel::Args args = {data<T>(x), data<int>(row), data<int>(group), data<float>(inverses),
                                      out.data(), m, k, places};
  const int across = (k + Kernel::kColumns - 1) / Kernel::kColumns;
  ptx::launch(places / Kernel::kPlaces * across, 1,
              [&](void* memory) { Kernel::run(static_cast<char*>(memory), args); });
  std::fwrite(out.data(), 1, out.size(), stdout);
}
int main() { %s }
"""
CASES = [(LAYOUTS[0], 72, "bfloat16"), (LAYOUTS[3], 40, "float32")]


def test_the_kernel_gives_the_bits_of_jax_numpy(tmp_path, monkeypatch):
    types = {"bfloat16": "bf16", "float16": "f16", "float32": "float"}
    calls, wanted, blocks = "", [], 0
    for i, (layout, k, dtype) in enumerate(CASES):
        arrays, want = handed_over(*operands(*layout, k, dtype), monkeypatch)
        for name, array in zip(("x", "row", "group", "inverses"), arrays, strict=True):
            (tmp_path / f"{name}{i}").write_bytes(np.ascontiguousarray(array).tobytes())
        places = len(arrays[1])
        blocks = max(blocks, places // 128 * -(-k // 64))
        calls += f'run<{types[dtype]}>("{i}", {M}, {k}, {places});'
        wanted.append(want)
    flags = ("-O1", f"-DJF_BLOCKS={blocks}", f"-DJF_WARPS={8 * blocks}")
    raw = run_on_cpu(MAIN % calls, tmp_path, flags, headers=("warpgroup.h", "hopper_block.h"))
    for want in wanted:
        assert_same_bits(np.frombuffer(raw[: want.size], np.uint8).reshape(want.shape), want)
        raw = raw[want.size :]
    assert raw == b""


def avals(m=300, k=96, groups=3, dtype="bfloat16"):
    places = _quantize_columns.padded_rows(m, groups)
    kinds = [((m, k), dtype), ((places,), "int32"), ((places,), "int32"), ((groups, k), "float32")]
    return [jax.ShapeDtypeStruct(*kind) for kind in kinds]


def test_programs_say_which_kernel_they_are():
    [facts] = _core.facts(_quantize_groups.program_of(avals(), HOPPER), HOPPER)
    assert (facts["strategy"], facts["parameters"]) == ("written", "quantize groups tile=128x64")


@pytest.mark.parametrize(
    ("sizes", "target"), [({"k": 90}, HOPPER), ({}, _core.cuda_target_for(80)), ({}, _core.host_target())]
)
def test_what_the_kernel_does_not_take_is_left_to_others(sizes, target):
    assert _quantize_groups.program_of(avals(**sizes), target) is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_kernels_compile_without_spills(dtype, tmp_path):
    nvrtc_or_skip()
    program = _quantize_groups.program_of(avals(40000, 7168, 32, dtype), HOPPER)
    [used] = assert_no_spills(program, tmp_path)
    assert used["STACK"] == 0 and used["REG"] <= (64 if dtype == "float32" else 48)
    text = _core.sass(program, HOPPER)
    assert text.count("LDG.E.128") >= 6 and "STG.E.128" in text and "F2FP" in text


def test_other_programs_are_refused():
    text = _quantize_groups.program_of(avals(), HOPPER)
    with pytest.raises(_core.UserError, match=r"\[kernel\] expected quantize, .* or add_rows, got quantize_rows"):
        _core.facts(text.replace("kernel quantize_groups", "kernel quantize_rows"), HOPPER)
    x = jax.ShapeDtypeStruct((3, 300, 96), "bfloat16")
    other = _quantize_matrices.program_of(x, (None,), True, HOPPER)
    with pytest.raises(_core.UserError, match=r"\[quantize_groups\] expected rows, s32 row and group of each place"):
        _core.facts(other.replace("kernel quantize ", "kernel quantize_groups "), HOPPER)


def test_transforms(monkeypatch):
    """Large arrays go another way than small ones, with the same numbers: under jit, vmap and shard_map too."""
    x, extents, _ = operands(*LAYOUTS[0], 24, "float32")

    def quantize(x, extents):
        return _quantize_columns.quantize_columns(x, extents, None)[0]

    want = quantize(x, extents)
    monkeypatch.setattr(_quantize_columns, "is_large", lambda x: True)
    assert_same_bits(quantize(x, extents), want)
    text = str(jax.make_jaxpr(quantize)(x, extents))
    assert "jax_fuser_quantize_groups" in text
    both = jax.jit(jax.vmap(quantize, (0, None)))(jnp.stack([x, 2 * x]), extents)
    assert_same_bits(both[0], want)
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:1]), "d")
    spread = jax.jit(jax.shard_map(quantize, mesh=mesh, in_specs=(jax.P("d"), jax.P()), out_specs=jax.P(None, "d")))
    assert_same_bits(spread(x, extents), want)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("k", "dtype"), [(136, "bfloat16"), (72, "float32"), (8, "float16"), (90, "bfloat16")])
def test_on_hopper(layout, k, dtype, monkeypatch):
    device = hopper_or_skip()
    x, extents, starts = operands(*layout, k, dtype)
    arrays, want = handed_over(x, extents, starts, monkeypatch)
    with jax.default_device(device):
        arrays = [jax.device_put(a, device) for a in arrays]
        kernel = jax.jit(_quantize_groups.quantize_groups)
        assert ("kernel quantize_groups" in kernel.lower(*arrays).as_text()) == (k % 8 == 0)
        assert_same_bits(kernel(*arrays), want)
