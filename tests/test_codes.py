"""Codes of four bits as results of fused functions: two to a byte, in the kernel that computes them."""

import re

import jax
import jax.numpy as jnp
import loop_interpreter
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from meshes import mesh
from test_cuda_sources import assert_no_spills, nvrtc_or_skip

import jax_fuser as jf
from jax_fuser import _core, _fp4

FORMATS = {"nvfp4": 16, "mxfp4": 32, "int4": 32}


def floats(shape, dtype="float32", seed=0):
    """Of many magnitudes, with blocks of zeros, of tiny and huge numbers, infinities and NaN."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) * np.exp2(rng.integers(-12, 12, (*shape[:-1], 1)))
    rows = x.reshape(-1, shape[-1])
    rows[0, :40] = 0
    rows[1, 3], rows[2, 5], rows[3, 7] = np.nan, np.inf, -np.inf
    rows[4] *= 2.0**-100
    rows[5] *= 2.0**90
    return jnp.asarray(np.clip(x, -6e4, 6e4) if dtype == "float16" else x, dtype)


def by_hand(x, format):
    """The definition in numpy: bytes and scales, as bytes too where they have eight bits."""
    block = FORMATS[format]
    x = np.asarray(x).astype(np.float32)
    blocks = x.reshape(*x.shape[:-1], -1, block)
    with np.errstate(all="ignore"):
        most = np.abs(blocks).max(-1)
        wanted = np.where(np.isfinite(most), most, np.nan) * np.float32(1 / (7 if format == "int4" else 6))
        if format == "mxfp4":
            wide = np.exp2(np.ceil(np.log2(wanted.astype(np.float64)))).clip(2.0**-127, 2.0**127)
            scales = wide.astype(ml_dtypes.float8_e8m0fnu)
            inverse = (1 / wide).astype(np.float32)
        else:
            narrow = ml_dtypes.bfloat16 if format == "int4" else ml_dtypes.float8_e4m3fn
            scales = (wanted if format == "int4" else np.where(wanted > 448, np.float32(448), wanted)).astype(narrow)
            wide = scales.astype(np.float32)
            inverse = np.float32(1) / np.maximum(wide, np.finfo(np.float32).tiny)
            inverse = np.where(wide == 0, np.float32(1 if format == "int4" else np.finfo(np.float32).max), inverse)
        numbers = blocks * inverse[..., None]
        if format == "int4":
            codes = np.rint(np.clip(numbers, -7, 7)).astype(np.int8).view(np.uint8) & 15
        else:
            codes = numbers.astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15
    codes = codes.reshape(x.shape)
    return codes[..., 0::2] | codes[..., 1::2] << 4, scales


def assert_same(got, want, format):
    data, scales = (np.asarray(a) for a in got)
    bad = np.isnan(want[1].astype(np.float32))
    np.testing.assert_array_equal(np.isnan(scales.astype(np.float32)), bad)
    words = f"u{want[1].dtype.itemsize}"
    np.testing.assert_array_equal(scales.view(words)[~bad], want[1].view(words)[~bad])
    of_numbers = ~np.repeat(bad, FORMATS[format] // 2, axis=-1)  # codes of a block that is NaN are of no account
    np.testing.assert_array_equal(data[of_numbers], want[0][of_numbers])


def stored(format, f=lambda x: x):
    def call(x):
        made = jf.quantize(f(x), format)
        return made.data, made.scales

    return call


@pytest.mark.parametrize("shape", [(7, 96), (3, 5, 64), (640, 160), (1030, 1056)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("format", FORMATS)
def test_bits_are_those_of_the_definition(device, format, dtype, shape):
    """In a fused function, alone, and within jit, few and many."""
    x = floats(shape, dtype)
    want = by_hand(x, format)
    for call in (jf.fuse(stored(format)), stored(format), jax.jit(stored(format))):
        assert_same(call(x), want, format)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("format", FORMATS)
def test_one_kernel_for_gpus_computes_stores_and_scales(format, dtype):
    """Its loops, run in numpy, give the bits; one thread has both codes of a byte."""
    x = floats((66, 160), dtype)
    gate = lambda x: jax.nn.relu(x) * 4  # noqa: E731
    fusion = jf.ir.trace(stored(format, gate), x)
    text = str(fusion)
    [kernel] = _core.facts(text, _core.cuda_target_for(90))
    assert re.search(r": u4\[66,(160|5,32|10,16)\] = convert", text) and kernel["strategy"] == "reduction"
    made = loop_interpreter.run(jf.ir.schedule(fusion, "reduction", "cuda"), x)
    codes, scales = (np.asarray(m).reshape(66, -1) for m in made)
    want = by_hand(gate(x), format)
    scales = scales if scales.dtype == want[1].dtype else scales.view(want[1].dtype)
    assert_same((codes[:, 0::2] & 15 | codes[:, 1::2] << 4, scales), want, format)


@pytest.mark.parametrize("format", FORMATS)
def test_sources_compile_without_spills(format, tmp_path):
    nvrtc_or_skip()
    for dtype in ("bfloat16", "float32"):
        text = str(jf.ir.trace(stored(format), jax.ShapeDtypeStruct((4096, 2048), dtype)))
        assert_no_spills(text, tmp_path)
        assert "jf::u4*" in jf.fuse(stored(format)).lower(jax.ShapeDtypeStruct((4096, 2048), dtype)).as_text(
            "source", platform="cuda"
        )


READERS = {
    "another op": lambda codes: codes ^ 1,
    "a part": lambda codes: codes[:, 8:24],
    "another shape": lambda codes: codes.reshape(-1, 4),
    "itself and another op": lambda codes: (codes, codes + 1),
    "a loop": lambda codes: jax.lax.fori_loop(0, 2, lambda i, c: c * 3, codes),
}


@pytest.mark.parametrize("reader", READERS)
def test_bytes_may_be_read_by_what_follows(device, reader):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(32, 256)), "float32")
    f = lambda x: READERS[reader](_fp4.pack(_fp4.to_e2m1(x)))  # noqa: E731
    for got, want in zip(jax.tree.leaves(jf.fuse(f)(x)), jax.tree.leaves(f(x)), strict=True):
        assert got.dtype == want.dtype == jnp.uint8
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_where_no_thread_has_both_bytes_are_computed(platform):
    """A transposed operand, single elements; CPUs have elements of pairs side by side in any case."""
    shapes = jax.ShapeDtypeStruct((4096, 514), jnp.float32)
    turned = lambda x: _fp4.pack(_fp4.to_e2m1(x).T)  # noqa: E731
    for f, packs in ((turned, None), (lambda x: _fp4.pack(_fp4.to_e2m1(x)), platform == "cuda")):
        source = jf.fuse(f).lower(shapes).as_text("source", platform=platform)
        assert packs is None or ("u4" in source) == packs
        if platform == "cuda":
            nvrtc_or_skip()
            assert _core.compile_cuda(str(jf.ir.trace(f, shapes)), _core.cuda_target_for(90))


@pytest.mark.parametrize("shape", [(33, 258), (64, 30), (5, 2)])
def test_rows_of_any_even_length(device, shape):
    x = jnp.asarray(np.random.default_rng(0).normal(size=shape) * 3, "float32")
    for f in (lambda x: _fp4.pack(_fp4.to_e2m1(x)), lambda x: _fp4.pack(_fp4.to_e2m1(x[:, ::-1]) + 3)):
        program = jf.ir.trace(f, x)
        np.testing.assert_array_equal(jf.ir.run(program, x)[0], f(x))
        np.testing.assert_array_equal(jf.ir.evaluate(program, x)[0], f(x))


def test_batches_and_meshes_have_the_bits_of_each_entry(device):
    x = floats((8, 12, 64))
    call = jf.fuse(stored("nvfp4"))
    want = by_hand(x, "nvfp4")
    assert_same(jax.vmap(call)(x), want, "nvfp4")
    moved = jax.vmap(call, in_axes=1, out_axes=1)(x)
    assert_same(moved, want, "nvfp4")


@pytest.mark.parametrize("spec", [("d", None, None), (None, "d", None), (None, None, "d")])
def test_on_several_devices(spec):
    x = floats((8, 16, 128))
    where = NamedSharding(mesh(d=4), PartitionSpec(*spec))
    made = jax.jit(jf.fuse(stored("mxfp4")))(jax.device_put(x, where))
    assert all(a.sharding.is_equivalent_to(where, 3) for a in made)
    assert_same(made, by_hand(x, "mxfp4"), "mxfp4")


def test_what_u4_are_not():
    b = _core.Builder("f")
    codes = b.convert(b.input("x", "u8", [4, 6]), "u4")
    refused = {
        r"\[convert\] cannot read u4\[4,6\], which is only stored": lambda: b.convert(codes, "u8"),
        r"\[add\] cannot read u4\[4,6\]": lambda: b.pointwise("add", [codes, codes]),
        "u4 are two to a byte along a last axis that is even": lambda: b.convert(b.input("odd", "s32", [2, 3]), "u4"),
        "u4 is made of integers by convert": lambda: b.convert(b.input("floats", "f32", [2, 2]), "u4"),
        "cannot make u4": lambda: b.iota("u4", [2, 2], 0),
    }
    for message, call in refused.items():
        with pytest.raises(jf.UserError, match=message):
            call()
    with pytest.raises(jf.UserError, match="input y is u4, which is only stored"):
        jf.ir.Fusion("fusion f(y: u4[4]) -> (t1) {\n  t1: u8[4] = convert(y)\n}\n")


def test_a_schedule_by_hand_has_both_codes_in_one_thread():
    fusion = jf.ir.trace(_fp4.pack, jnp.zeros((8, 64), "uint8"))
    scheduler = jf.ir.Scheduler(fusion)
    [codes] = fusion.outputs
    scheduler.parallelize(codes, 0, "block")
    with pytest.raises(jf.UserError, match="stores u4, two to a byte; expected vectors along their last axis"):
        jf.ir.lower(scheduler.schedule, "cuda")
    scheduler.split(codes, 1, 8)
    scheduler.parallelize(codes, 2, "vector")
    assert "jf::store<8>" in jf.ir.lower(scheduler.schedule, "cuda").as_text("source")
