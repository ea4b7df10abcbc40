"""Every CUDA source that the compiler can emit compiles for sm_90a, without a GPU, and spills nothing."""

import glob
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import jax_fuser as jf
from jax_fuser import _core

FLOATS, INTEGERS = ("f32", "bf16", "f16", "f64"), ("s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64")
UNARY_FLOAT = [
    "floor",
    "ceil",
    "round_even",
    "round_away",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log1p",
    "logistic",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "cbrt",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "erf_inv",
    "lgamma",
    "digamma",
]
UNARY_NUMBER = ["neg", "abs", "sign", "square"]
BINARY_FLOAT = ["pow", "atan2", "nextafter", "logaddexp"]
BINARY_NUMBER = ["add", "sub", "mul", "div", "rem", "max", "min"]
BINARY_INTEGER = ["and_", "or_", "xor_", "shift_left", "shift_right_logical", "shift_right_arithmetic"]
COMPARE = ["eq", "ne", "lt", "le", "gt", "ge"]
TARGETS = {"sm_80": 80, "sm_90a": 90}


def nvrtc_or_skip() -> None:
    if _core.nvrtc()[0] is None:
        pytest.skip(f"no NVRTC here: {_core.nvrtc()[1]}")


def tool(name: str) -> str | None:
    found = [p for root in sys.path for p in glob.glob(os.path.join(root, "nvidia", "*", "bin", name))]
    return found[0] if found else None


def resources(cubin: bytes, path) -> list[dict[str, int]]:
    """Return what each kernel of a cubin needs: registers, stack and local bytes."""
    path.write_bytes(cubin)
    dump = tool("cuobjdump")
    if dump is None:
        pytest.skip("no cuobjdump: install nvidia-cuda-cuobjdump")
    text = subprocess.run([dump, "--dump-resource-usage", str(path)], capture_output=True, text=True, check=True).stdout
    return [
        {k: int(v) for k, v in re.findall(r"(REG|STACK|LOCAL):(\d+)", line)}
        for line in text.splitlines()
        if "REG:" in line
    ]


def assert_no_spills(program: str, tmp_path, sm: int = 90) -> list[dict[str, int]]:
    compiled = _core.compile_cuda(program, _core.cuda_target_for(sm))
    assert compiled
    used = [r for _, _, cubin in compiled for r in resources(cubin, tmp_path / "kernel.cubin")]
    assert used
    for r in used:
        assert r["LOCAL"] == 0, program
    return used


def all_ops(dtype: str, rows: int, columns: int) -> str:
    """One program with every op that the dtype allows: each its own output."""
    b = _core.Builder(f"ops_{dtype}")
    shape = [rows, columns]
    x, y = b.input("x", dtype, shape), b.input("y", dtype, shape)
    bias = b.broadcast(b.input("b", dtype, [columns]), shape, [1])
    is_float, is_integer = dtype in FLOATS, dtype in INTEGERS
    unary = UNARY_NUMBER + (UNARY_FLOAT if is_float else ["population_count", "count_leading_zeros", "not_"])
    binary = BINARY_NUMBER + (BINARY_FLOAT if is_float else BINARY_INTEGER)
    for op in unary:
        b.output(b.pointwise(op, [x]))
    for op in binary:
        b.output(b.pointwise(op, [x, bias]))
    flags = [b.pointwise(op, [x, y]) for op in COMPARE] + ([b.pointwise("is_finite", [x])] if is_float else [])
    any_flag = flags[0]
    for flag in flags[1:]:
        any_flag = b.pointwise("xor_", [any_flag, flag])
    b.output(b.pointwise("select", [any_flag, x, y]))
    b.output(b.pointwise("clamp", [bias, x, y]))
    assert is_float or is_integer
    return b.finish()


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize("columns", [512, 77])
def test_every_pointwise_op_compiles(dtype, columns):
    nvrtc_or_skip()
    assert _core.compile_cuda(all_ops(dtype, 64, columns), _core.cuda_target_for(90))


@pytest.mark.parametrize("source", FLOATS + INTEGERS + ("pred",))
def test_every_conversion_compiles(source):
    nvrtc_or_skip()
    b = _core.Builder("convert")
    x = b.input("x", source, [1024])
    for to in FLOATS + INTEGERS + ("pred",):
        if to != source:
            b.output(b.convert(x, to))
    assert _core.compile_cuda(b.finish(), _core.cuda_target_for(90))


def gelu(dtype: str, rows: int, columns: int) -> str:
    b = _core.Builder("gelu")
    shape = [rows, columns]
    x, bias = b.input("x", dtype, shape), b.input("b", dtype, [columns])

    def constant(v: float) -> int:
        return b.broadcast(b.constant(dtype, v), shape, [])

    z = b.pointwise("add", [x, b.broadcast(bias, shape, [1])])
    inner = b.pointwise("mul", [z, constant(0.7978845608)])
    b.output(b.pointwise("mul", [z, b.pointwise("tanh", [inner])]))
    return b.finish()


@pytest.mark.parametrize("sm", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("columns", [8192, 1001])
def test_pointwise_kernels_spill_nothing(dtype, columns, sm, tmp_path):
    nvrtc_or_skip()
    for r in assert_no_spills(gelu(dtype, 4096, columns), tmp_path, sm):
        assert r["STACK"] == 0 and r["REG"] <= 128


def layer_norm(x, g, b):
    y = x.astype("float32")
    y = y - y.mean(-1, keepdims=True)
    return (y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6) * g + b).astype(x.dtype)


FUSIONS = {
    "softmax": lambda x, g, b: jax.nn.softmax(x.astype("float32"), -1).astype(x.dtype),
    "softmax backward": lambda x, g, b: jax.vjp(lambda x: jax.nn.softmax(x, -1), x)[1](x)[0],
    "layer norm": layer_norm,
    "layer norm backward": lambda x, g, b: jax.vjp(layer_norm, x, g, b)[1](x),
    "column sum": lambda x, g, b: x.astype("float32").sum(0),
    "full sum": lambda x, g, b: x.astype("float32").sum(),
    "transpose": lambda x, g, b: x.T * 2,
    "scan": lambda x, g, b: jnp.cumsum(x * 2, 1) * x,
    "scan of columns": lambda x, g, b: jax.lax.cumsum(x * g, 0, reverse=True),
    "argmax": lambda x, g, b: jnp.argmax(x * g, -1),
    "halves": lambda x, g, b: jnp.concatenate([x[:, 1:301] * 2, jnp.tanh(x[:, :300])], axis=1),
}


@pytest.mark.parametrize("sm", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("rows", "columns"), [(16384, 8192), (65536, 768), (8191, 5003), (3, 100000)])
@pytest.mark.parametrize("name", FUSIONS)
def test_fusions_with_reductions_spill_nothing(name, rows, columns, dtype, sm, tmp_path):
    nvrtc_or_skip()
    if sm == 80 and rows != 16384:
        pytest.skip("one size is enough for the older instructions")
    args = [jax.ShapeDtypeStruct(s, dtype) for s in ((rows, columns), (columns,), (columns,))]
    for r in assert_no_spills(str(jf.ir.trace(FUSIONS[name], *args)), tmp_path, sm):
        assert r["STACK"] == 0


SCANS = ["scan_sum", "scan_prod", "scan_max", "scan_min"]
# Every dtype in one shape; of each width of integers one in shapes that differ by how their rows are cut.
EVERY_SCAN = [((1000, 77), dtype) for dtype in FLOATS + INTEGERS] + [
    (shape, dtype) for shape in ((300, 4096), (5000, 8)) for dtype in (*FLOATS, "s8", "u16", "s32", "u64")
]


@pytest.mark.parametrize(("shape", "dtype"), EVERY_SCAN, ids=str)
def test_every_scan_compiles(shape, dtype):
    nvrtc_or_skip()
    b = _core.Builder("scans")
    x = b.input("x", dtype, shape)
    first = EVERY_SCAN.index((shape, dtype))
    for number, op in enumerate([*SCANS, *(["scan_logsumexp"] if dtype in FLOATS else [])]):
        # In the shapes after the first, each op along one axis: dtypes take turns.
        for axis in range(2) if shape == (1000, 77) else ((number + first) % 2,):
            # Which way is the same for every dtype.
            for reverse in (False, True) if dtype in ("f32", "s32") else ((number + axis) % 2 == 1,):
                b.output(b.scan(op, x, axis, reverse))
                if op == "scan_sum":
                    factors = b.pointwise("abs", [x])
                    b.output(b.scan("scan_linear", x, axis, reverse, factors=factors))
                    if dtype not in INTEGERS:
                        b.output(b.scan("scan_linear_resets", x, axis, reverse, factors=factors))
    assert _core.compile_cuda(b.finish(), _core.cuda_target_for(90))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("rows", "columns", "k"), [(65536, 128, 8), (4096, 4096, 4), (5, 37, 16)])
def test_top_k_spills_nothing(rows, columns, k, dtype, tmp_path):
    nvrtc_or_skip()
    fusion = jf.ir.trace(lambda x: jax.lax.top_k(x, k), jax.ShapeDtypeStruct((rows, columns), dtype))
    assert_no_spills(str(fusion), tmp_path)


GROUPED = [
    (mode, transpose, starts)
    for mode in ("rows", "contraction", "batch")
    for transpose in (False, True)
    for starts in (False, True)
    if not (mode == "contraction" and transpose)
]


def grouped(mode: str, transpose: bool, starts: bool, dtype: str, out: str, k: int, n: int, m: int = 4096) -> str:
    b = _core.Builder("grouped")
    groups = 8
    matrix = [n, k] if transpose else [k, n]
    shapes = {"rows": ([m, k], [groups, *matrix]), "contraction": ([m, k], [m, n]), "batch": ([m, 16, k], [m, *matrix])}
    lhs, rhs = (b.input(name, dtype, shape) for name, shape in zip(("lhs", "rhs"), shapes[mode]))
    extents = b.input("extents", "s32", [groups])
    first = b.input("starts", "s32", [groups]) if starts else None
    b.output(b.grouped_matmul(lhs, rhs, extents, first, mode, transpose, out))
    return b.finish()


@pytest.mark.parametrize("sm", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize(("dtype", "out"), [("bf16", "bf16"), ("f16", "f16"), ("bf16", "f32"), ("f32", "f32")])
@pytest.mark.parametrize(("mode", "transpose", "starts"), GROUPED)
def test_grouped_kernels_use_tensor_cores_and_spill_nothing(mode, transpose, starts, dtype, out, sm, tmp_path):
    nvrtc_or_skip()
    warpgroups = sm == 90 and dtype != "f32" and mode != "batch"
    if warpgroups and mode == "rows" and (transpose or starts) and (dtype, out) != ("bf16", "bf16"):
        pytest.skip("one layout is enough for the other types: these kernels take seconds to compile")
    program = grouped(mode, transpose, starts, dtype, out, 1024, 2048)
    for r in assert_no_spills(program, tmp_path, sm):
        assert r["STACK"] == 0 and r["REG"] <= 255
    if starts or transpose:
        return  # brings the same tiles from elsewhere; to print the instructions takes as long as to compile them
    sass = subprocess.run(
        [tool("cuobjdump") or "cuobjdump", "-sass", str(tmp_path / "kernel.cubin")],
        capture_output=True,
        text=True,
        check=True,
    )
    for instruction in ("HGMMA", "UTMALDG", "UTMASTG") if warpgroups else ("HMMA", "LDGSTS"):
        assert instruction in sass.stdout


@pytest.mark.parametrize("dtype", ["f64", "s8", "s32", "u16"])
@pytest.mark.parametrize(("mode", "transpose", "starts"), GROUPED)
def test_grouped_kernels_of_other_dtypes_compile(mode, transpose, starts, dtype, tmp_path):
    nvrtc_or_skip()
    assert_no_spills(grouped(mode, transpose, starts, dtype, dtype, 100, 36), tmp_path)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(("k", "n"), [(7, 5), (1, 1), (2880, 768), (100, 4096)])
def test_grouped_kernels_of_odd_sizes_compile(dtype, k, n, tmp_path):
    nvrtc_or_skip()
    for mode in ("rows", "contraction", "batch"):
        assert_no_spills(grouped(mode, False, False, dtype, dtype, k, n), tmp_path)


def test_old_devices_are_refused():
    with pytest.raises(_core.UserError, match=r"compute capability 8\.0"):
        _core.cuda_target_for(70)


@pytest.mark.parametrize("f", [jnp.exp, jnp.tanh, jax.nn.sigmoid], ids=["exp", "tanh", "sigmoid"])
def test_functions_that_may_lose_bits_compile(f):
    nvrtc_or_skip()
    x = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16)
    program = str(jf.ir.trace(lambda x: (f(x.astype(jnp.float32)) * 3).astype(jnp.bfloat16), x))
    assert "<jf::Loose>" in _core.stages(program, _core.cuda_target_for(90))["source"]
    assert _core.compile_cuda(program, _core.cuda_target_for(90))
