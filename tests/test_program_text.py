"""The text form: what the builder writes, what the parser refuses, and that a broken program leaves JAX usable."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_fuser import _core, _ffi

BIAS = """fusion bias(x: f32[4,8], b: f32[8]) -> (t3) {
  t2: f32[b4,8] = broadcast(b) {dims=[1]}
  t3: f32[4,8] = add(x, t2)  # add
}
"""


def build_bias() -> str:
    b = _core.Builder("bias")
    x, bias = b.input("x", "f32", [4, 8]), b.input("b", "f32", [8])
    b.output(b.pointwise("add", [x, b.broadcast(bias, [4, 8], [1])], "add"))
    return b.finish()


def test_builder_prints_the_documented_form():
    assert build_bias() == BIAS


def test_print_parses_to_the_same_text():
    assert _core.stages(BIAS, _core.host_target())["fusion"] == BIAS


def test_equal_ops_are_built_once_and_dead_ones_dropped():
    b = _core.Builder("f")
    x = b.input("x", "f32", [3])
    assert b.pointwise("exp", [x]) == b.pointwise("exp", [x])
    b.pointwise("log", [x])
    b.output(b.pointwise("neg", [x]))
    assert "log" not in b.finish()


FOLDS = """fusion folds(x: f32[4,64,1]) -> (t1, t2, t3) {
  t1: f32[4,1] = reduce_sum(x) {dims=[1]}  # sum
  t2: f32[1] = reduce_max(x) {dims=[0,1]}
  t3: f32[4,64] = squeeze(x) {dims=[2]}
}
"""
PARTS = "fusion f(x: f32[8,4]) -> (t1) {\n  t1: f32[3] = reduce_sum(x) {dims=[0,1], parts=3}\n}\n"


def test_builder_of_reductions():
    b = _core.Builder("folds")
    x = b.input("x", "f32", [4, 64, 1])
    total = b.reduce("reduce_sum", x, [1], "sum")
    assert b.reduce("reduce_sum", x, [1]) == total and b.reduce("reduce_sum", x, []) == x
    for value in (total, b.reduce("reduce_max", x, [0, 1]), b.reduce("reduce_prod", x, [2])):
        b.output(value)
    assert b.finish() == FOLDS
    with pytest.raises(_core.UserError, match=r"\[finish\] the builder is finished .*; begin with another one"):
        b.finish()
    with pytest.raises(_core.UserError, match=r"\[input\] the builder is finished"):
        b.input("y", "f32", [2])
    other = _core.Builder("other")
    with pytest.raises(_core.UserError, match=r"\[reduce\] 'add' is not a reduction"):
        other.reduce("add", other.input("y", "f32", [2]), [0])


@pytest.mark.parametrize("text", [FOLDS, PARTS], ids=["whole", "parts"])
def test_reductions_print_as_they_parse(text):
    assert str(_core.Fusion(text)) == text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0, 1e-45, 0.1, 3.0])
def test_float_constants_keep_their_bits(value):
    b = _core.Builder("f")
    x = b.input("x", "f64", [2])
    b.output(b.pointwise("add", [x, b.broadcast(b.constant("f64", value), [2], [])]))
    text = b.finish()
    assert _core.stages(text, _core.host_target())["fusion"] == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"\[parse\] line 1: expected 'fusion', got the end"),
        ("fusion f(x: f33[2]) -> (x) {}", "unknown dtype 'f33'"),
        (
            "fusion f(x: f32[2]) -> (y) {\n  y: f32[2] = nig(x)\n}",
            r"line 2: expected an op of ir/ops.def; 'nig' is none",
        ),
        (
            "fusion f(x: f32[2]) -> (y) {\n  y: f32[3] = neg(x)\n}",
            r"y = neg\(...\) has type f32\[2\], but the fusion says",
        ),
        ("fusion f(x: f32[2]) -> (y) {\n  y: f32[2] = neg(z)\n}", "'z' is not"),
        ("fusion f(x: f32[2], y: f32[3]) -> (z) {\n  z: f32[2] = add(x, y)\n}", "operands must have equal shapes"),
        ("fusion f(x: f32[2], y: bf16[2]) -> (z) {\n  z: f32[2] = add(x, y)\n}", "operands must have equal dtypes"),
        ("fusion f(x: s32[2]) -> (y) {\n  y: s32[2] = exp(x)\n}", r"\[exp\] operand 0 has unsupported dtype s32"),
        ("fusion f(x: f32[2]) -> () {}", "has no output"),
        (
            "fusion f(x: pred[8]) -> (y) {\n  y: pred[] = reduce_sum(x) {dims=[0]}\n}",
            r"\[reduce_sum\] operand 0 has unsupported dtype pred",
        ),
        ("fusion f(x: f32[8]) -> (y) {\n  y: f32[] = reduce_sum(x)\n}", r"\[reduce_sum\] needs {dims=\[...\]}"),
        (
            "fusion f(x: f32[8,2]) -> (y) {\n  y: f32[] = reduce_sum(x) {dims=[1,0]}\n}",
            r"dims must increase and stay below the rank of f32\[8,2\], got dims\[1\]=0",
        ),
        (
            "fusion f(x: f32[8]) -> (y) {\n  y: f32[9] = reduce_sum(x) {dims=[0], parts=9}\n}",
            r"expected 1 to 8 parts of axis 0 of f32\[8\], got 9",
        ),
        ("fusion f(x: f32[8]) -> (y) {\n  y: f32[] = reduce_sum(x) {dims=[0], parts=0}\n}", "at least one part"),
        ("fusion f(x: f32[-1]) -> (x) {}", "extent that is not negative"),
        (
            f"fusion f(x: f32[{2**32}], i: s32[{2**32 + 1}]) -> (y) {{\n  y: f32[{2**32 + 1}] = take(x, i) "
            f"{{axes=[0], limits=[0], dims=[0], starts=[0], strides=[{2**32}]}}\n}}",
            "do not lie inside",
        ),
    ],
)
def test_bad_text_says_where_and_what(text, message):
    with pytest.raises(_core.UserError, match=message):
        _core.validate(text)


def call(program: str, x: jax.Array, target: str | None = None, abi: int | None = None) -> jax.Array:
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    attributes = {
        "program": program,
        "target": _core.host_target() if target is None else target,
        "abi": np.int64(_core.ABI if abi is None else abi),
    }
    return jax.jit(lambda x: jax.ffi.ffi_call("jax_fuser.program", out)(x, **attributes))(x)


GOOD = "fusion f(x: f32[4]) -> (y) {\n  y: f32[4] = neg(x)\n}"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"program": "fusion f(x: f32[4]) -> (y) { y: f32[4] = nig(x) }"}, "expected an op"),
        ({"program": GOOD, "target": "gpu"}, "expected 'cpu' or 'cuda', got 'gpu'"),
        ({"program": GOOD, "target": "cpu vector_bytes=0"}, "no such machine: cpu isa=portable vector_bytes=0"),
        ({"program": GOOD, "target": "cuda sm=90"}, "no such machine: cuda sm=90 multiprocessors=0"),
        ({"program": GOOD, "abi": 999}, "written for abi 999"),
    ],
)
def test_broken_call_is_one_clear_error_and_jax_lives_on(kwargs, message):
    x = jnp.arange(4.0)
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        call(x=x, **kwargs).block_until_ready()
    np.testing.assert_array_equal(call(GOOD, x), -x)


def test_wrong_number_of_buffers_is_refused():
    out = jax.ShapeDtypeStruct((4,), jnp.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match="has 1 inputs and 1 outputs, the call has 2 and 1"):
        jax.ffi.ffi_call("jax_fuser.program", out)(
            jnp.ones(4), jnp.ones(4), program=GOOD, target=_ffi.target_text("cpu"), abi=np.int64(_core.ABI)
        ).block_until_ready()


def test_buffers_of_another_size_are_refused():
    out = jax.ShapeDtypeStruct((4,), jnp.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match="expects 16 bytes in input 0, the call brings 12"):
        jax.ffi.ffi_call("jax_fuser.program", out)(
            jnp.ones(3), program=GOOD, target=_ffi.target_text("cpu"), abi=np.int64(_core.ABI)
        ).block_until_ready()
