"""Weights quantized along either axis: the kernel's program, what it refuses, its instructions, its numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_cuda_sources import nvrtc_or_skip
from test_tma import hopper_or_skip

from jax_fuser import _core, _quantize_matrices

HOPPER = _core.cuda_target_for(90)
COLUMNS, BLOCKS, ROWS_OF_BLOCKS = ((None,), True), ((128, 128), True), ((128, 128), False)


def program(shape, dtype="bfloat16", form=COLUMNS, target=HOPPER):
    return _quantize_matrices.program_of(jax.ShapeDtypeStruct(shape, dtype), *form, target)


@pytest.mark.parametrize(
    ("shape", "dtype", "form", "parameters"),
    [
        ((32, 7168, 4096), "bfloat16", COLUMNS, "quantize rows=1792 cluster=4"),
        ((3, 1111, 200), "float32", COLUMNS, "quantize rows=1120 cluster=1"),
        ((8, 14336, 4096), "float16", COLUMNS, "quantize rows=1792 cluster=8"),
        ((3, 300, 88), "bfloat16", BLOCKS, "quantize rows=128 cluster=1"),
        ((3, 300, 208), "float32", ROWS_OF_BLOCKS, "quantize rows=128 cluster=1"),
    ],
)
def test_programs_say_which_kernel_they_are(shape, dtype, form, parameters):
    [facts] = _core.facts(program(shape, dtype, form), HOPPER)
    assert (facts["strategy"], facts["parameters"]) == ("written", parameters)


@pytest.mark.parametrize(
    ("shape", "form", "target"),
    [
        ((3, 300, 90), COLUMNS, HOPPER),  # rows of 180 bytes
        ((3, 300, 88), ROWS_OF_BLOCKS, HOPPER),  # of 88 bytes in the result
        ((3, 20000, 64), COLUMNS, HOPPER),  # more rows than a cluster holds
        ((3, 300, 96), COLUMNS, _core.cuda_target_for(80)),
        ((3, 300, 96), COLUMNS, _core.host_target()),
    ],
)
def test_what_the_kernel_does_not_take_is_left_to_others(shape, form, target):
    assert program(shape, form=form, target=target) is None


@pytest.mark.parametrize(("form", "dtype"), [(COLUMNS, "bfloat16"), (BLOCKS, "float32"), (ROWS_OF_BLOCKS, "float16")])
def test_kernels_compile_without_spills(form, dtype):
    nvrtc_or_skip()
    text = _core.sass(program((4, 2000, 512), dtype, form), HOPPER)
    assert "UTMALDG" in text and "F2FP" in text and "STL" not in text


def test_a_program_that_is_no_quantization_is_refused():
    text = program((3, 300, 96))
    for form, message in {
        "columns=0 transpose=0": r"expected elements f8e4m3fn\[3,300,96\], got",
        "columns=0 transpose=1": r"expected scales f32\[3,1,3\], got",
        "columns=1 transpose=2": "expected columns=0 or 1, then transpose=0 or 1, got quantize columns=1 transpose=2",
    }.items():
        with pytest.raises(_core.UserError, match=message):
            _core.facts(text.replace("columns=1 transpose=1", form), HOPPER)


@pytest.mark.parametrize("transpose", [False, True])
def test_batches_are_more_matrices(transpose):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, 160, 144)), "float32")
    quantize = jax.jit(lambda x: _quantize_matrices.quantize_p.bind(
        x, block=(128, 128), transpose=transpose, mesh=_quantize_matrices._split.needs_devices()))  # fmt: skip
    for got, each in zip(jax.vmap(quantize, 1)(x), zip(*(quantize(x[:, i]) for i in range(2)))):
        np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(jnp.stack(each), np.float32))


@pytest.mark.gpu
@pytest.mark.parametrize("form", [COLUMNS, BLOCKS, ROWS_OF_BLOCKS])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((3, 896, 256), "bfloat16"),
        ((2, 7168, 128), "bfloat16"),
        ((5, 300, 176), "bfloat16"),
        ((2, 1111, 208), "float32"),
        ((1, 16, 24), "float16"),
        ((2, 9000, 80), "float16"),
        ((128, 70, 16), "float32"),
    ],
)
def test_the_kernel_gives_the_bits_of_jax_numpy(shape, dtype, form):
    rng = np.random.default_rng(1)
    x = rng.normal(size=shape) * np.exp2(rng.integers(-10, 8, size=(shape[0], 1, shape[2])))
    x[0, :, 3] = 0
    x[0, 5, 4], x[-1, 9, 6], x[-1, 11, 7] = np.nan, np.inf, -np.inf
    with jax.default_device(hopper_or_skip()):
        x = jnp.asarray(x, dtype)
        options = {"block": form[0], "transpose": form[1]}
        kernel = jax.jit(lambda x: _quantize_matrices.quantize_p.bind(
            x, **options, mesh=_quantize_matrices._split.needs_devices()))  # fmt: skip
        assert ("jax_fuser.program" in kernel.lower(x).as_text()) == (program(shape, dtype, form) is not None)
        got, want = kernel(x), jax.jit(lambda x: _quantize_matrices.plain(x, fuses=False, **options))(x)
        for a, b in zip(got, want):
            a, b = np.asarray(a).astype(np.float32), np.asarray(b).astype(np.float32)
            np.testing.assert_array_equal(a.view(np.uint32)[~np.isnan(b)], b.view(np.uint32)[~np.isnan(b)])
            assert np.isnan(a[np.isnan(b)]).all()
