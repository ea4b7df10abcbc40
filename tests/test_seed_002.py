"""Inner and outer sums of one array that lies in memory with its first two axes exchanged.

The array is [1, N, N], stored as [N, 1, N]: its row sums are added to it, and the result is summed along its columns.
Its shared copy is allocated over its own loop axes, whatever the input's layout is.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import loop_interpreter
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from schedules import nvrtc_compiles
from tolerances import assert_close

import jax_fuser as jf

N = 4096
ORDER = (1, 0, 2)


def inner_outer(x):
    """x: [b, n, n]. Returns x plus its row sums, and the column sums of that, of the first matrix."""
    y = x + x.sum(2)[:, :, None]
    return y, jnp.squeeze(y[:1], 0).sum(0)


def seed(x):
    """The same for [1, n, n], through the squeezed matrix."""
    rows = jnp.squeeze(x, 0).sum(1)
    y = x + rows[None, :, None]
    return y, jnp.squeeze(y, 0).sum(0)


def seed_as_stored(stored):
    return seed(jnp.transpose(stored, ORDER))


def exact(x):
    x = np.asarray(x, np.float64)
    y = x + x.sum(2)[:, :, None]
    return y, y[0].sum(0)


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def check(got, x):
    for one, want in zip(got, exact(x)):
        assert_close(one, want, np.float32)


@pytest.mark.parametrize("f", [seed, seed_as_stored])
@pytest.mark.parametrize("n", [N, 100])
def test_results_are_right(device, f, n):
    stored = normal(n, 1, n)
    x = stored.transpose(ORDER)
    check(jf.fuse(f)(stored if f is seed_as_stored else x), x)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("f", [seed, seed_as_stored])
def test_it_is_two_kernels(f, platform):
    shape = (N, 1, N) if f is seed_as_stored else (1, N, N)
    args = [jax.ShapeDtypeStruct(shape, np.float32)]
    [region] = jf.explain(f, platform=platform)(*args).regions
    segments = [line for line in region.kernels.splitlines() if line.startswith("segment")]
    # Both sums of a part of the rows, then the sum of the parts: the transpose is none.
    assert len(segments) == 2 and "parts of axis 0" in segments[0] and "reads" in segments[1]
    lowered = jf.fuse(f).lower(*args)
    assert lowered.as_text("host", platform=platform).count("launch ") == 2
    stored = 4 * N * N
    assert (region.bytes_in, region.bytes_out) == (stored, stored + 4 * N)
    # The large array is read from memory once for both of its uses, in the lines of the input as it lies there.
    fusion = lowered.as_text("fusion")
    assert ("transpose(stored)" in fusion) == (f is seed_as_stored)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_layout_of_xla_is_read_as_it_is_meant(device, batch):
    x = normal(batch, 96, 96)
    format_ = Format(Layout(major_to_minor=ORDER), jax.sharding.SingleDeviceSharding(device))
    permuted = jax.device_put(x, format_)
    assert permuted.format.layout.major_to_minor == ORDER
    fused = jf.fuse(inner_outer)
    compiled = jax.jit(lambda x: fused(x), in_shardings=format_).lower(permuted).compile()
    assert compiled.input_formats[0][0].layout.major_to_minor == ORDER
    check(compiled(permuted), x)
    check(fused(permuted), x)


# One kernel by hand: every block sums a run of rows, and keeps a few of them in shared memory between their two uses.


def fusion(n: int, parts: int) -> jf.ir.Fusion:
    return jf.ir.Fusion(f"""fusion inner_outer(x: f32[{n},1,{n}]) -> (y, columns) {{
      t: f32[1,{n},{n}] = transpose(x) {{dims=[1,0,2]}}
      matrix: f32[{n},{n}] = squeeze(t) {{dims=[0]}}
      rows: f32[{n}] = reduce_sum(matrix) {{dims=[1]}}
      row: f32[b1,{n},b1] = broadcast(rows) {{dims=[1]}}
      wide: f32[b1,{n},b{n}] = broadcast(row) {{dims=[0,1,2]}}
      y: f32[1,{n},{n}] = add(t, wide)
      result: f32[{n},{n}] = squeeze(y) {{dims=[0]}}
      columns: f32[{parts},{n}] = reduce_sum(result) {{dims=[0], parts={parts}}}
    }}""")


def nothing(s, cache):
    pass


def whole_rows(s, cache):
    s.set_allocation(cache, 2)


def padded_rows(s, cache):
    s.set_allocation(cache, 2, 4)


def columns_outermost(s, cache):
    s.reorder(cache, [0, 1, 4, 2, 3])
    s.set_allocation(cache, 2)


def padded_columns(s, cache):
    s.reorder(cache, [0, 1, 4, 3, 2])
    s.set_allocation(cache, 2, 1)


def every_step(s, cache):
    s.set_allocation(cache, 1)


def pieces_of_columns(s, cache):
    s.split(cache, 4, 2)
    s.reorder(cache, [0, 1, 4, 2, 3, 5, 6, 7])
    s.set_allocation(cache, 2, 3)
    s.merge(cache, 3)


# What a block of `columns` columns stores, 4 rows in each of its `steps` steps: before the columns are split or after,
# elements, and the axes by node. Roots are 0 to 2, (part, row) 3,4, (steps, 2) 7,6 and 8, (columns, thread, lane)
# 11,12,10.
ALLOCATIONS = {
    "its loops": (nothing, nothing, lambda columns, steps: 4 * columns, "shared"),
    "rows": (whole_rows, nothing, lambda columns, steps: 4 * columns, "shared (8,6,2)"),
    "padded rows": (padded_rows, nothing, lambda columns, steps: 4 * (columns + 4), "shared (8,6,2 pad 4)"),
    "columns": (columns_outermost, nothing, lambda columns, steps: 4 * columns, "shared (2,8,6)"),
    "padded columns": (padded_columns, nothing, lambda columns, steps: 2 * columns * 3, "shared (2,6,8 pad 1)"),
    "every step": (every_step, nothing, lambda columns, steps: 4 * columns * steps, "shared (7,8,6,2)"),
    "split and reordered": (nothing, pieces_of_columns, lambda columns, steps: 7 * columns, "(13,8,6,14,12,10 pad 3)"),
}


def by_hand(n: int, parts: int, threads: int, lanes: int, case: str = "its loops") -> jf.ir.Scheduler:
    """Every value on [part: block, step, 2, 2, columns, thread, lane], the copy of x stored inside of a step."""
    early, late, *_ = ALLOCATIONS[case]
    s = jf.ir.Scheduler(fusion(n, parts))
    cache = s.cache_after("x")
    s.split("columns", 1, 2)
    s.split("columns", 1, 2)
    s.transform_like("columns")
    s.set_memory(cache, "shared")
    early(s, cache)
    s.split("columns", -1, lanes)
    s.split("columns", -2, threads)
    s.transform_like("columns")
    for axis, parallel in ((0, "block"), (-2, "thread"), (-1, "vector")):
        s.parallelize("columns", axis, parallel)
    s.parallelize_like("columns")
    s.inline_most()
    late(s, cache)
    s.inline_at(cache, 2)
    return s


def computed(n: int, parts: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    y = exact(x.transpose(ORDER))[0]
    run = -(-n // parts)
    return y, np.stack([y[0, i * run : (i + 1) * run].sum(0) for i in range(parts)])


def shared_elements(schedule: jf.ir.Schedule) -> int:
    [line] = [v for v in jf.ir.lower(schedule, "cuda").as_text("loops").splitlines() if v.startswith("  shared")]
    name, size = line.removeprefix("  shared ").removesuffix("]").split(": f32[")
    assert name == "x_cache"
    return int(size)


@pytest.mark.parametrize("case", ALLOCATIONS)
@pytest.mark.parametrize(
    ("n", "parts", "threads", "lanes"), [(32, 4, 4, 2), (32, 2, 4, 1), (30, 4, 4, 2), (31, 6, 4, 1)]
)
def test_an_allocation_does_not_change_the_result(case, n, parts, threads, lanes):
    """Also where the parts, the rows of a step and the threads do not divide what they split."""
    x = normal(n, 1, n)
    schedule = by_hand(n, parts, threads, lanes, case).schedule
    assert jf.ir.Schedule(schedule.fusion, str(schedule)) == schedule
    for got, want in zip(loop_interpreter.run(schedule, x), computed(n, parts, x)):
        assert_close(got, want, np.float32)


@pytest.mark.parametrize("case", ALLOCATIONS)
@pytest.mark.parametrize("parts", [128, 132])
def test_the_allocation_is_what_the_schedule_says(case, parts):
    """With 132 parts, as many as multiprocessors, some of the last blocks have no rows."""
    scheduler = by_hand(N, parts, 256, 4, case)
    *_, size, text = ALLOCATIONS[case]
    if case == "every step":  # more than a block has
        with pytest.raises(jf.UserError, match=r"needs 524416 bytes of shared memory; .* has 232448: inline"):
            jf.ir.lower(scheduler.schedule, "cuda")
        return
    [line] = [line for line in str(scheduler).splitlines() if line.startswith("  x_cache")]
    assert line.endswith(text) and "inline 2" in line
    assert shared_elements(scheduler.schedule) == size(N, 8)
    nvrtc_compiles(scheduler.schedule)


@pytest.mark.gpu
@pytest.mark.parametrize("case", [case for case in ALLOCATIONS if case != "every step"])
@pytest.mark.parametrize("parts", [128, 132])
def test_it_runs_on_cuda(case, parts):
    try:
        device = jax.devices("cuda")[0]
    except RuntimeError:
        pytest.skip("no cuda device on this machine")
    x = normal(N, 1, N)
    with jax.default_device(device):
        got = jf.ir.run(by_hand(N, parts, 256, 4, case).schedule, x)
    for one, want in zip(got, computed(N, parts, x)):
        assert_close(one, want, np.float32)


# What is refused.


def test_an_allocation_that_two_elements_would_share_is_refused():
    s = by_hand(32, 4, 4, 2)
    s.set_allocation("x_cache", 4)
    message = r"\[lower\] x_cache is inlined at 2 and not stored over its loop axis 2, .*call set_allocation\(2\)"
    with pytest.raises(jf.UserError, match=message):
        jf.ir.lower(s.schedule, "cuda")
    # Inside of its loops there is one row at a time.
    s.inline_at("x_cache", 4)
    x = normal(32, 1, 32)
    for got, want in zip(loop_interpreter.run(s.schedule, x), computed(32, 4, x)):
        assert_close(got, want, np.float32)


@pytest.mark.parametrize("nodes", ["(2,2)", "(2,8,6,10)"])
def test_an_allocation_that_names_an_axis_twice_is_refused(nodes):
    s = by_hand(32, 4, 4, 2)
    text = str(s).replace("inline 2 shared", f"inline 2 shared {nodes}")
    with pytest.raises(jf.UserError, match=r"\[lower\] x_cache is stored over its axis 2 .* name each element once"):
        jf.ir.lower(jf.ir.Schedule(s.fusion, text), "cuda")


def test_other_loops_do_not_change_an_allocation_silently():
    s = by_hand(32, 4, 4, 2, "padded rows")
    s.set_allocation("x_cache", 2)  # over pieces of the columns
    other = jf.ir.Scheduler(s.fusion)
    other.split("columns", 1, 4)
    s.split("y", 1, 2)
    before = s.schedule
    with pytest.raises(jf.UserError, match=r"\[transform_like\] x_cache is stored over axes that it would no longer"):
        s.transform_like("y")
    assert s.schedule == before


def test_registers_have_no_allocation():
    s = by_hand(32, 4, 4, 2, "padded rows")
    s.set_memory("x_cache", "register")
    assert "pad" not in str(s) and jf.ir.Schedule(s.fusion, str(s)) == s.schedule
