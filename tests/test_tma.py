"""Bulk copies and circular buffers as schedule choices: the same numbers on Hopper GPUs, refused by name elsewhere."""

from __future__ import annotations

import re
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_cuda_sources import assert_no_spills, nvrtc_or_skip, tool
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core

HOPPER = _core.cuda_target_for(90)


def hopper_or_skip() -> jax.Device:
    try:
        device = jax.devices("cuda")[0]
    except RuntimeError:
        pytest.skip("no cuda device on this machine")
    if float(device.compute_capability) < 9:
        pytest.skip(f"bulk copies need compute capability 9.0, the device has {device.compute_capability}")
    return device


def program(schedule: jf.ir.Schedule) -> str:
    return f"{schedule.fusion}{schedule}"


def loops(schedule: jf.ir.Schedule) -> str:
    return jf.ir.lower(schedule, "cuda").as_text("loops")


def sass(schedule: jf.ir.Schedule, path) -> str:
    nvrtc_or_skip()
    dump = tool("cuobjdump")
    if dump is None:
        pytest.skip("no cuobjdump: install nvidia-cuda-cuobjdump")
    [(_, _, cubin)] = _core.compile_cuda(program(schedule), HOPPER)
    path.write_bytes(cubin)
    return subprocess.run([dump, "-sass", str(path)], capture_output=True, text=True, check=True).stdout


# By hand: rows of a block one after the other, the next ones on their way.


def folded(rows: int = 70, columns: int = 512, dtype: str = "bf16") -> jf.ir.Fusion:
    """y = x - max(x) along rows, in float32."""
    b = jf.ir.Builder("folded")
    x = b.convert(b.input("x", dtype, [rows, columns]), "f32")
    most = b.broadcast(b.reduce("reduce_max", x, [1]), [rows, columns], [0])
    b.output(b.pointwise("sub", [x, most]))
    return b.finish()


def in_stages(
    fusion: jf.ir.Fusion, stages: int = 3, prefetch: int | None = None, run: int = 8, threads: int = 64
) -> jf.ir.Scheduler:
    """Blocks of `run` rows; the rows of `x` come in bulk."""
    s = jf.ir.Scheduler(fusion)
    copy = s.cache_after("x")
    [fold] = [v for v in s.fusion.values if s.fusion.is_reduction(v)]
    s.split(fold, 0, run)
    s.transform_like(fold, [copy])
    s.split(fold, 2, threads)
    s.parallelize(fold, 0, "block")
    s.parallelize(fold, 3, "thread")
    others = [v for v in s.fusion.values if v not in (*s.fusion.inputs, fold, copy)]
    s.transform_like(fold, others)
    s.parallelize_like(fold, others)
    s.parallelize(copy, 0, "block")
    s.parallelize(copy, 2, "bulk")
    s.set_memory(copy, "shared")
    s.circular_buffer(copy, stages, prefetch)
    s.inline_most()
    return s


COPY = "x_cache"


def test_stages_are_part_of_the_schedule():
    s = in_stages(folded())
    assert "[9 block, 8, 512 bulk] inline 2 shared circular 3 prefetch 2" in str(s)
    assert jf.ir.Schedule(s.fusion, str(s)) == s.schedule
    assert s.schedule != in_stages(folded(), 3, 1).schedule != in_stages(folded(), 2).schedule
    assert s.loops(COPY)[-1] == (512, "bulk")
    s.circular_buffer(COPY, 1)
    assert "circular" not in str(s) and jf.ir.Schedule(s.fusion, str(s)) == s.schedule


def test_copies_run_ahead_and_never_past_the_end():
    text = loops(in_stages(folded()).schedule)
    assert "ring x_cache: 3 stages of 512" in text and "shared x_cache: bf16[1536]" in text
    first, rest = text.split(" serial\n", 1)
    assert first.count("fill x_cache") == 1 and "< 2 unroll" in first  # the first two rows
    ahead, work = rest.split("await x_cache", 1)
    # The row after the next, where there is one in this run and in the array.
    assert re.search(r"if \(i0 \* 8\) \+ \(i1 \+ 2\) < 70 and i1 \+ 2 < 8\n +fill x_cache", ahead)
    # A stage is read before it is filled again: the threads meet in the fold, or, of one warp, once more.
    assert "sync" not in work and work.rindex("load x_cache") < work.index("combine")
    assert "sync" in loops(in_stages(folded(), threads=32).schedule).split("await x_cache")[1]


def test_without_stages_a_copy_is_waited_for_where_it_is_read():
    text = loops(in_stages(folded(), 1).schedule)
    assert "ring x_cache: 1 stages" in text
    assert text.index("fill") < text.index("commit") < text.index("await") < text.index("load x_cache")
    assert text.count("fill") == 1


def test_one_bulk_copy_is_one_instruction(tmp_path):
    text = sass(in_stages(folded(columns=4096)).schedule, tmp_path / "kernel.cubin")
    assert "UBLKCP" in text and "SYNCS" in text


def test_a_bulk_copy_may_have_axes_and_end_early():
    b = jf.ir.Builder("whole")
    b.output(b.pointwise("neg", [b.input("x", "f32", [30, 8])]))
    s = jf.ir.Scheduler(b.finish())
    copy, [out] = s.cache_after("x"), s.fusion.outputs
    s.split(out, 0, 16)
    s.transform_like(out)
    s.parallelize(out, 0, "block")
    s.parallelize(out, 2, "thread")
    s.parallelize(copy, 0, "block")
    s.parallelize(copy, 2, "bulk")
    s.parallelize(copy, 1, "bulk")
    s.set_memory(copy, "shared")
    s.inline_most()
    # 16 rows, or the 14 that are left.
    assert "* 128 by 8 while i0 * 16 + run < 30" in loops(s.schedule)
    nvrtc_or_skip()
    assert _core.compile_cuda(program(s.schedule), HOPPER)


@pytest.mark.gpu
@pytest.mark.parametrize(("stages", "prefetch"), [(1, None), (2, 1), (3, 2), (3, 1), (9, 8), (20, 10)])
@pytest.mark.parametrize("columns", [512, 1000, 1001])
def test_stages_do_not_change_the_result(stages, prefetch, columns):
    device = hopper_or_skip()
    fusion = folded(columns=columns)
    x = jax.random.normal(jax.random.key(0), (70, columns)).astype(jnp.bfloat16)
    wide = np.asarray(x.astype(jnp.float32))
    with jax.default_device(device):
        schedule = in_stages(fusion, stages, prefetch).schedule
        for _ in range(3):
            [y] = jf.ir.run(schedule, jax.device_put(x, device))
            assert_close(y, wide - wide.max(axis=1, keepdims=True))


# What cannot be.


def edited(edit) -> jf.ir.Scheduler:
    s = in_stages(folded())
    edit(s)
    return s


def by_threads(s):
    s.parallelize(COPY, 2, "serial")


def over_threads(s):
    s.parallelize(COPY, 1, "thread")
    s.inline_at(COPY, 1)


def in_registers(s):
    s.circular_buffer(COPY, 1)
    s.set_memory(COPY, "register")


def outside(s):
    s.inline_at(COPY, 1)


REFUSED = {
    "stages by threads": (by_threads, r"x_cache has 3 stages, but no bulk axes.*parallelize\(bulk\)"),
    "over threads": (over_threads, r"loop axis 1 of x_cache is thread, but one thread begins"),
    "in registers": (in_registers, r"x_cache has bulk axes, which copy to shared memory; call set_memory\(shared\)"),
    "stages in a block": (outside, r"x_cache has 3 stages, but its innermost inlined axis 0 is block; inline it in"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_lowered_is_named(case):
    edit, message = REFUSED[case]
    with pytest.raises(_core.UserError, match=message):
        jf.ir.lower(edited(edit).schedule, "cuda")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.circular_buffer(COPY, 0), r"\[circular_buffer\] x_cache: expected 1 to 64 stages, got 0"),
        (lambda s: s.circular_buffer(COPY, 3, 3), r"with 3 stages expected a prefetch of 1 to 2 iterations, got 3"),
        (lambda s: s.circular_buffer("t1", 2), r"t1 is kept in registers; call set_memory\(shared\) first"),
        (lambda s: s.set_memory(COPY, "register"), r"has 3 stages, .* call circular_buffer\(1, 0\) first"),
        (lambda s: s.parallelize(COPY, 0, "bulk"), r"axis 1 of x_cache is inside of a bulk axis.*reorder first"),
    ],
)
def test_a_wrong_call_changes_nothing(call, message):
    s = in_stages(folded())
    assert s.fusion.values[2] == "t1"
    before = str(s)
    with pytest.raises(_core.UserError, match=message):
        call(s)
    assert str(s) == before


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("circular 3", r"expected 'prefetch', got"),
        ("circular 3 prefetch 3", r"with 3 stages expected a prefetch of 1 to 2 iterations, got 3"),
        ("circular 99 prefetch 2", r"expected 1 to 64 stages, got 99"),
    ],
)
def test_a_wrong_text_is_refused(stages, message):
    s = in_stages(folded())
    text = str(s).replace("circular 3 prefetch 2", stages)
    with pytest.raises(_core.UserError, match=message):
        jf.ir.Schedule(s.fusion, text)


@pytest.mark.parametrize(
    ("columns", "dtype", "message"),
    [
        (1001, "bf16", r"copy 1001 elements of 2 bytes; expected a multiple of 16 bytes"),
        (1004, "bf16", r"copy 1004 elements of 2 bytes; expected a multiple of 16 bytes"),
        (6, "f32", r"copy 6 elements of 4 bytes; expected a multiple of 16 bytes"),
    ],
)
def test_rows_side_by_side_must_be_multiples_of_16_bytes(columns, dtype, message):
    s = in_stages(folded(columns=columns, dtype=dtype), stages=1)
    s.inline_at(COPY, 1)
    with pytest.raises(_core.UserError, match=message):
        jf.ir.lower(s.schedule, "cuda")


def test_rows_of_any_length_lie_as_far_into_16_bytes_as_in_memory():
    text = loops(in_stages(folded(columns=1001)).schedule)
    assert "ring x_cache: 3 stages of 1024" in text
    assert re.search(r"fill x_cache\[.*% 8\)?\] = bulk x\[.+\] \* 1001 anywhere", text)
    assert re.search(r"load x_cache\[.*% 8\)?\]", text)


def columns_of(first: int, pad: int = 0) -> str:
    """The loops of blocks of 32 columns of [64, 96], whose axes from `first` on are bulk."""
    b = jf.ir.Builder("columns")
    b.output(b.pointwise("neg", [b.input("x", "f32", [64, 96])]))
    s = jf.ir.Scheduler(b.finish())
    copy, [out] = s.cache_after("x"), s.fusion.outputs
    s.split(out, 1, 32)
    s.reorder(out, [1, 0, 2])
    s.transform_like(out)
    s.parallelize(out, 0, "block")
    s.parallelize(out, 2, "thread")
    s.parallelize(copy, 0, "block")
    s.set_memory(copy, "shared")
    for axis in range(2, first - 1, -1):
        s.parallelize(copy, axis, "bulk")
    s.set_allocation(copy, 1, pad)
    s.inline_at(copy, 1)
    return loops(s.schedule)


def test_runs_or_boxes():
    assert "= bulk x[" in columns_of(2) and "* 32\n" in columns_of(2)  # 64 copies of 32 elements
    assert "x_cache: f32[2304]" in columns_of(2, 4)  # rows of 32 + 4
    assert "box (32,64) swizzle 0" in columns_of(1)  # one copy
    with pytest.raises(_core.UserError, match=r"begin at multiples of 33 elements of 4 bytes in shared memory"):
        columns_of(2, 1)
    with pytest.raises(_core.UserError, match=r"bulk axes of x_cache lie in shared memory in another order.*swizzle"):
        columns_of(1, 4)


def test_only_copies_of_inputs_come_in_bulk():
    s = in_stages(folded())
    s.parallelize("t1", -1, "bulk")
    s.parallelize("t1", -2, "serial")
    with pytest.raises(_core.UserError, match=r"t1 has bulk axes, but is neither the copy of an input nor"):
        jf.ir.lower(s.schedule, "cuda")


def test_other_machines_refuse():
    schedule = in_stages(folded()).schedule
    for target in (_core.cuda_target_for(80), _core.cuda_target_for(89)):
        with pytest.raises(_core.UserError, match=r"need a CUDA device of compute capability 9.0"):
            _core.stages(program(schedule), target)
    with pytest.raises(_core.UserError, match=r"lower\] x_cache"):
        jf.ir.lower(schedule, "cpu")


def test_shared_memory_has_an_end():
    with pytest.raises(_core.UserError, match=r"needs \d+ bytes of shared memory; .* in fewer stages"):
        jf.ir.lower(in_stages(folded(columns=32768), 4).schedule, "cuda")


# Stores.


def stored_in_bulk(columns: int = 512) -> jf.ir.Scheduler:
    s = in_stages(folded(columns=columns))
    [out] = s.fusion.outputs
    row = s.cache_before(out)
    for axis in (3, 2):
        s.parallelize(out, axis, "serial")
    s.merge(out, 2)
    s.parallelize(out, 2, "bulk")
    s.set_memory(row, "shared")
    s.inline_at(row, 2)
    return s


def test_results_are_stored_in_bulk(tmp_path):
    schedule = stored_in_bulk().schedule
    assert jf.ir.Schedule(schedule.fusion, str(schedule)) == schedule
    work = loops(schedule).split(" serial\n", 1)[1]
    # The last row has been read before this one is written, and this one is written before it is copied.
    order = ["drain bulk", "combine t2", "store t4_cache", "fence bulk", "sync", "bulk t4[", "drain bulk"]
    places = [work.index(order[0])]
    for statement in order[1:]:
        places.append(work.index(statement, places[-1] + 1))
    assert "UBLKCP.G.S" in sass(schedule, tmp_path / "kernel.cubin")


@pytest.mark.gpu
def test_bulk_stores_do_not_change_the_result():
    device = hopper_or_skip()
    schedule = stored_in_bulk().schedule
    x = jax.random.normal(jax.random.key(0), (70, 512)).astype(jnp.bfloat16)
    wide = np.asarray(x.astype(jnp.float32))
    with jax.default_device(device):
        [y] = jf.ir.run(schedule, jax.device_put(x, device))
        assert_close(y, wide - wide.max(axis=1, keepdims=True))


def from_registers(s):
    s.set_memory("t4_cache", "register")


def computed(s):
    s.inline_at("t3", 2)
    s.parallelize("t4_cache", 3, "bulk")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (from_registers, r"t4 has bulk axes, which copy from shared memory.*t4_cache; call set_memory\(shared\)"),
        (computed, r"t4_cache has bulk axes, but is neither the copy of an input nor an output that is a copy"),
    ],
)
def test_what_cannot_be_stored_in_bulk_is_named(edit, message):
    s = stored_in_bulk()
    edit(s)
    with pytest.raises(_core.UserError, match=message):
        jf.ir.lower(s.schedule, "cuda")


# Tiles.


def transposed(rows: int, columns: int, dtype: str, tile: tuple[int, int], swizzle: int) -> jf.ir.Scheduler:
    """y = -x.T by tiles, whose 16-byte chunks trade places in rows of `swizzle` bytes."""
    b = jf.ir.Builder("transposed")
    b.output(b.pointwise("neg", [b.transpose(b.input("x", dtype, [rows, columns]), [1, 0])]))
    s = jf.ir.Scheduler(b.finish())
    copy, [out] = s.cache_after("x"), s.fusion.outputs
    s.split(out, 1, tile[0])
    s.split(out, 0, tile[1])
    s.reorder(out, [0, 2, 1, 3])
    s.merge(out, 0)
    s.transform_like(out)
    s.reorder(copy, [0, 2, 1])
    s.set_memory(copy, "shared")
    if swizzle:
        # [tile, .., number of 128 bytes modulo the chunks, rows of 128 bytes, chunk, elements]
        s.split(copy, 2, 16 // {"f32": 4, "bf16": 2}[dtype])
        if swizzle < 128:
            s.split(copy, 1, 128 // swizzle)
        s.split(copy, 1, swizzle // 16)
        s.swizzle(copy, 2, -2)
    s.set_allocation(copy, 1)
    s.parallelize(copy, 0, "block")
    for axis in range(len(s.loops(copy)) - 1, 0, -1):
        s.parallelize(copy, axis, "bulk")
    for value in s.fusion.values:
        if value not in ("x", copy):
            s.merge(value, 1)
            s.split(value, 1, 128)
            s.parallelize(value, 0, "block")
            s.parallelize(value, 2, "thread")
    s.inline_most()
    return s


TILES = [
    (64, 96, "f32", (32, 32), 0),
    (100, 84, "f32", (32, 32), 128),
    (64, 96, "f32", (64, 16), 64),
    (100, 88, "bf16", (64, 64), 128),
    (100, 88, "bf16", (64, 32), 64),
    (100, 88, "bf16", (64, 16), 32),
]


@pytest.mark.parametrize("case", TILES)
def test_a_tile_is_one_instruction(case, tmp_path):
    rows, columns, _, tile, swizzle = case
    schedule = transposed(*case).schedule
    assert jf.ir.Schedule(schedule.fusion, str(schedule)) == schedule
    text = loops(schedule)
    assert f"x ({columns},{rows}) strides (1,{columns}) box ({tile[1]},{tile[0]}) swizzle {swizzle}\n" in text
    assert text.count("fill") == text.count("commit") == text.count("await") == 1
    source = jf.ir.lower(schedule, "cuda").as_text("source")
    assert "const __grid_constant__ jf::TensorMap x_map" in source
    assert f"__align__({1024 if swizzle else 128}) jf::{case[2]} x_cache" in source
    assert "UTMALDG" in sass(schedule, tmp_path / "kernel.cubin")


@pytest.mark.gpu
@pytest.mark.parametrize("case", TILES)
def test_tiles_do_not_change_the_result(case):
    device = hopper_or_skip()
    rows, columns, dtype, _, _ = case
    x = jnp.arange(rows * columns, dtype=jnp.float32).reshape(rows, columns) % 251
    x = x.astype(jnp.bfloat16 if dtype == "bf16" else jnp.float32)
    schedule = transposed(*case).schedule
    run = jax.jit(lambda x: jf.ir.run(schedule, x)[0])
    with jax.default_device(device):
        for scale in (1, 2, 3):  # other buffers: the array's description is made for each call
            y = jax.device_put(x * scale, device)
            np.testing.assert_array_equal(np.asarray(run(y)), np.asarray(-y.T))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ((64, 96, "f32", (32, 30), 0), r"copy rows of 120 bytes; expected a multiple of 16"),
        ((64, 94, "f32", (32, 32), 0), r"copy from rows 376 bytes apart; expected a multiple of 16"),
        (
            (2**32, 64, "f32", (32, 32), 0),
            r"copy from an array with 4294967296 elements along an axis, .* at most 2147483647 and",
        ),
        ((600, 96, "f32", (512, 32), 0), r"copy 512 elements along an axis; at most 256: split it, the outer serial"),
    ],
)
def test_what_no_tile_can_be_is_named(case, message):
    with pytest.raises(_core.UserError, match=rf"the bulk axes of x_cache {message}"):
        jf.ir.lower(transposed(*case).schedule, "cuda")


# The reduction strategy.


def layer_norm(x, g, b):
    y = x.astype(jnp.float32)
    y = y - y.mean(-1, keepdims=True)
    return (y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6) * g + b).astype(x.dtype)


def rms_norm(x, g):
    y = x.astype(jnp.float32)
    return (y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6) * g).astype(x.dtype)


NORMS = {
    "softmax": (lambda x, g: jax.nn.softmax(x.astype(jnp.float32), -1).astype(x.dtype), 1),
    "softmax backward": (lambda y, dy: y * (dy - (y * dy).sum(-1, keepdims=True)), 2),
    "layer norm": (lambda x, g: layer_norm(x, g, g), 1),
    "rms norm backward": (lambda x, dy, g: jax.vjp(rms_norm, x, g)[1](dy), 2),
    "layer norm backward": (lambda x, dy, g: jax.vjp(layer_norm, x, g, g)[1](dy), 2),
}


def segment(name: str, rows: int, columns: int) -> jf.ir.Fusion:
    """The first kernel of a norm: with sums across the rows, their parts."""
    f, operands = NORMS[name]
    x, g = jax.ShapeDtypeStruct((rows, columns), jnp.bfloat16), jax.ShapeDtypeStruct((columns,), jnp.float32)
    arguments = [x] * operands + ([g] if f.__code__.co_argcount > operands else [])
    text = jf.ir.lower(jf.ir.trace(f, *arguments, name="norm"), "cuda").as_text("segments")
    return jf.ir.Fusion(re.search(r"fusion .*?\n}\n", text, re.DOTALL).group())


@pytest.mark.parametrize("columns", [768, 4096, 8192])
@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_rows_come_in_stages(name, store, columns, tmp_path):
    fusion = segment(name, 16384, columns)
    parameters = jf.ir.compute_heuristics(fusion, "reduction", "cuda")
    schedule = jf.ir.schedule(fusion, "reduction", "cuda", {**parameters, "stages": 3, "bulk_store": store})
    assert jf.ir.Schedule(schedule.fusion, str(schedule)) == schedule
    text = loops(schedule)
    assert text.count(": 3 stages of") == NORMS[name][1]
    assert not re.search(r"bf16 = load (x|y|dy)\[", text)  # only copies read the rows
    assert len(re.findall(r"fence bulk\n +sync\n +bulk ", text)) == store
    assert text.count("drain bulk") == 2 * store  # before the row is written again, and at the end
    nvrtc_or_skip()
    for used in assert_no_spills(program(schedule), tmp_path):
        assert used["STACK"] <= 8  # two words for rms norm backward of 768, the fastest of those timed


@pytest.mark.parametrize("name", ["rms norm backward", "layer norm backward"])
def test_rows_side_by_side_of_parts_in_turn_are_copies_of_their_own(name):
    """Parts have rows p, p + parts, ..., so that those of a block are no box of the array."""
    fusion = segment(name, 1030, 264)
    parameters = {**jf.ir.compute_heuristics(fusion, "reduction", "cuda"), "threads_y": 4, "bulk_store": True}
    text = loops(jf.ir.schedule(fusion, "reduction", "cuda", {**parameters, "stages": 3}))
    assert len(re.findall(r"for \w+ < 4 serial\n +if .*\n +fill ", text)) == 4
    assert len(re.findall(r"for \w+ < 4 serial\n(?:.*\n){,4} +bulk ", text)) == 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"stages": 65}, r"stages: expected at most 64, got 65"),
        ({"stages": 2, "along": "rows"}, r"stages: rows come in 2 stages where the threads are along a row"),
        ({"stages": 0}, r"stages: expected an integer from 1"),
    ],
)
def test_wrong_stages_are_named(parameters, message):
    with pytest.raises(_core.UserError, match=message):
        jf.ir.schedule(segment("softmax", 4096, 512), "reduction", "cuda", parameters)


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [264, 1024, 8192])
@pytest.mark.parametrize("rows", [1030, 4096])
@pytest.mark.parametrize("name", NORMS)
def test_stages_of_norms_do_not_change_the_result(name, rows, columns):
    device = hopper_or_skip()
    fusion = segment(name, rows, columns)
    arrays = [
        jax.random.normal(jax.random.key(i), fusion.shape(v)).astype(
            jnp.bfloat16 if fusion.dtype(v) == "bf16" else jnp.float32
        )
        for i, v in enumerate(fusion.inputs)
    ]
    want = jf.ir.run(fusion, *arrays)
    parameters = jf.ir.compute_heuristics(fusion, "reduction", "cuda")
    with jax.default_device(device):
        for stages, blocks, store in ((2, parameters["blocks"], False), (3, 100, True), (4, 2000, True)):
            edited = {**parameters, "stages": stages, "blocks": blocks, "bulk_store": store}
            schedule = jf.ir.schedule(fusion, "reduction", "cuda", edited)
            got = jf.ir.run(schedule, *jax.device_put(arrays, device))
            for a, b in zip(got, want):
                assert_close(a, b)
