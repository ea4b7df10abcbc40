"""Bulk copies and circular buffers run as their loops say: every stage is filled, waited for, read and free again in
time, and the numbers are right. No GPU is needed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import loop_interpreter
import numpy as np
import pytest
from test_tma import COPY, NORMS, TILES, folded, in_stages, segment, stored_in_bulk, transposed
from tolerances import assert_close

import jax_fuser as jf


def rows_without_their_maximum(x):
    wide = np.float32(x)
    return wide - wide.max(axis=1, keepdims=True)


@pytest.mark.parametrize("threads", [32, 64])
@pytest.mark.parametrize("run", [1, 3, 8])
@pytest.mark.parametrize(("stages", "prefetch"), [(1, None), (2, None), (2, 1), (3, None), (3, 1), (4, 2), (12, None)])
def test_rows_come_in_stages(stages, prefetch, run, threads):
    x = np.random.default_rng(0).normal(size=(14, 128)).astype(jnp.bfloat16)
    s = in_stages(folded(14, 128), stages, prefetch, run, threads)
    assert_close(loop_interpreter.run(s.schedule, x)[0], rows_without_their_maximum(x))


@pytest.mark.parametrize(("columns", "dtype"), [(127, "bf16"), (133, "bf16"), (130, "f32"), (129, "f32")])
@pytest.mark.parametrize("stages", [1, 3])
def test_rows_of_any_length_come_in_stages(stages, columns, dtype):
    x = np.random.default_rng(0).normal(size=(14, columns)).astype(jnp.bfloat16 if dtype == "bf16" else np.float32)
    s = in_stages(folded(14, columns, dtype), stages, None, 3, 64)
    assert_close(loop_interpreter.run(s.schedule, x)[0], rows_without_their_maximum(x))


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_rows_are_stored_in_bulk(stages):
    s = stored_in_bulk(64)
    s.circular_buffer(COPY, stages)
    x = np.random.default_rng(0).normal(size=(70, 64)).astype(jnp.bfloat16)
    assert_close(loop_interpreter.run(s.schedule, x)[0], rows_without_their_maximum(x))


@pytest.mark.parametrize("case", TILES)
def test_tiles_are_read_where_the_hardware_puts_them(case):
    rows, columns, dtype, _, _ = case
    x = np.arange(rows * columns).reshape(rows, columns) % 251
    x = x.astype(jnp.bfloat16 if dtype == "bf16" else np.float32)
    np.testing.assert_array_equal(loop_interpreter.run(transposed(*case).schedule, x)[0], -x.T)


def random_arrays(fusion):
    return [
        jax.random.normal(jax.random.key(i), fusion.shape(v)).astype(
            jnp.bfloat16 if fusion.dtype(v) == "bf16" else None
        )
        for i, v in enumerate(fusion.inputs)
    ]


@pytest.mark.parametrize("columns", [264, 520, 261])
@pytest.mark.parametrize("name", NORMS)
def test_norms_in_stages(name, columns):
    """The compiler's own schedules, with fewer blocks than rows and an uneven number of rows for each."""
    fusion = segment(name, 38, columns)
    arrays = random_arrays(fusion)
    want = jf.ir.run(fusion, *arrays)
    parameters = jf.ir.compute_heuristics(fusion, "reduction", "cuda")
    for stages, store in ((2, False), (4, columns % 8 == 0)):  # odd rows cannot be stored in bulk
        edited = {**parameters, "stages": stages, "blocks": 4, "bulk_store": store}
        schedule = jf.ir.schedule(fusion, "reduction", "cuda", edited)
        for got, exact in zip(loop_interpreter.run(schedule, *map(np.asarray, arrays)), want):
            assert_close(got, np.asarray(exact), scale=2)


def test_rows_of_parts_in_turn_side_by_side():
    """Rows of a block are neighbours in shared memory only and begin anywhere; the last ones are not there."""
    fusion = segment("rms norm backward", 514, 513)
    arrays = random_arrays(fusion)
    chosen = {**jf.ir.compute_heuristics(fusion, "reduction", "cuda"), "stages": 2, "threads_y": 4}
    schedule = jf.ir.schedule(fusion, "reduction", "cuda", chosen)
    assert " before " in jf.ir.lower(schedule, "cuda").as_text("loops")
    got = loop_interpreter.run(schedule, *map(np.asarray, arrays))
    for one, exact in zip(got, jf.ir.run(fusion, *arrays), strict=True):
        assert_close(one, np.asarray(exact), scale=2)
