"""Column sums in strips of whole columns: which sums are planned so, and that they are right."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import numbers as array
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core


def total(x):
    return jnp.sum(x, 0, dtype=jnp.float32)


def kernels(f, *operands):
    """What each kernel on a GPU of compute capability 9.0 is planned with."""
    fusion = jf.ir.trace(f, *operands)
    found = _core.alternatives(str(fusion), _core.cuda_target_for(90))
    return [dict(word.split("=") for word in now.split()) for _, now, _ in found]


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "threads"),
    [
        (2048, 1408, "bfloat16", 4),  # two thirds of the multiprocessors idle
        (2048, 2048, "bfloat16", 4),
        (2048, 3072, "bfloat16", 4),
        (2048, 8192, "bfloat16", 8),
        (16384, 8192, "bfloat16", 8),  # whole lines: of any number of rows
        (65536, 16384, "bfloat16", 8),
        (2048, 8192, "float32", 8),
        (2048, 768, "bfloat16", None),  # too few strips
        (16384, 2048, "bfloat16", None),  # too many rows for so few strips
        (2048, 8190, "bfloat16", None),  # rows begin anywhere
        (512, 8192, "bfloat16", None),  # too few rows
    ],
)
def test_which_sums_are_in_strips(rows, columns, dtype, threads):
    first, *more = kernels(total, jax.ShapeDtypeStruct((rows, columns), dtype))
    strips = int(first["lanes"]) * jnp.dtype(dtype).itemsize == 16 and first["at_once"] == "2"
    assert strips == (threads is not None)
    if strips:
        assert not more and (first["along"], int(first["threads"])) == ("columns", threads)


def test_sums_of_two_arrays_are_not():
    x = jax.ShapeDtypeStruct((2048, 8192), "bfloat16")
    assert kernels(lambda x, y: total(x * y), x, x)[0]["at_once"] == "1"
    assert kernels(lambda x: (total(x), x + 1), x)[0]["at_once"] == "1"


@pytest.mark.parametrize(("rows", "columns"), [(2048, 1408), (1027, 2048), (1030, 6144)])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float32])
def test_strips_sum_what_there_is(device, rows, columns, dtype):
    x = array(rows, columns).astype(dtype)
    assert_close(jf.fuse(total)(x), np.float64(x).sum(0), scale=4)
