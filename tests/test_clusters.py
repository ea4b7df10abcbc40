"""Rows of several blocks: the blocks of a cluster fold together what each of them has folded."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import loop_interpreter
import numpy as np
import pytest
from test_cuda_sources import assert_no_spills, nvrtc_or_skip
from test_tma import hopper_or_skip
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core


def softmax(x):
    return jax.nn.softmax(x.astype(jnp.float32), axis=-1).astype(x.dtype)


def layer_norm(x, g, b):
    y = x - x.mean(-1, keepdims=True)
    return y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6) * g + b


def kinds(x):
    """Folds of each kind, of integers and of numbers of 64 bits."""
    n = (x * 8).astype(jnp.int32)
    return n.sum(-1), n.min(-1), x.max(-1), (x > 2).any(-1), jnp.argmax(n, -1)


def in_cluster(f, arrays, blocks, **parameters):
    """Return the first kernel of a function, with rows of so many blocks."""
    segments = jf.ir.lower(jf.ir.trace(f, *arrays), "cuda").as_text("segments")
    first = jf.ir.Fusion("fusion" + segments.split("\nfusion", 1)[1].split("\n}", 1)[0] + "\n}\n")
    given = {"threads": 32, "threads_y": 1, "stages": 1, "cluster": blocks, **parameters}
    return jf.ir.schedule(first, "reduction", "cuda", parameters=given)


def numbers(*shape, dtype="float32"):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


@pytest.fixture(params=["loops", pytest.param("cuda", marks=pytest.mark.gpu)])
def run(request):
    """Run a schedule as its loops say, in numpy, and on a device that has clusters where there is one."""
    if request.param == "loops":
        yield loop_interpreter.run
        return
    with jax.default_device(hopper_or_skip()):
        yield jf.ir.run


@pytest.mark.parametrize("columns", [96, 520, 1000, 1001])
@pytest.mark.parametrize("blocks", [2, 3, 8])
@pytest.mark.parametrize("keep", ["rows", "nothing"])
def test_rows_of_several_blocks(run, keep, blocks, columns):
    x = numbers(3, columns, dtype=jnp.bfloat16)
    [got] = run(in_cluster(softmax, [x], blocks, keep=keep), x)
    assert_close(got, jax.nn.softmax(np.float32(x)), "bfloat16")


@pytest.mark.parametrize("threads", [16, 64])
def test_folds_that_follow_each_other(run, threads):
    x, g, b = numbers(5, 777), numbers(777), numbers(777)
    [got] = run(in_cluster(layer_norm, [x, g, b], 4, threads=threads), x, g, b)
    assert_close(got, layer_norm(x, g, b))


@pytest.mark.parametrize("stages", [1, 3])
def test_sums_across_rows_of_several_blocks(run, stages):
    """Each block folds its own columns; rows come one after the other, so slots and stages are used again."""
    b = jf.ir.Builder("centred")
    x = b.input("x", "f32", [258, 264])
    y = b.pointwise("sub", [x, b.broadcast(b.reduce("reduce_sum", x, [1]), [258, 264], [0])])
    b.output(y)
    b.output(b.reduce("reduce_sum", y, [0], parts=128))
    more = {"lanes": 4, "keep": "rows", "unroll": 2, "stages": stages, "threads": 32, "threads_y": 1, "cluster": 2}
    schedule = jf.ir.schedule(b.finish(), "reduction", "cuda", parameters=more)
    x = numbers(258, 264)
    rows, sums = map(np.asarray, run(schedule, x))
    want = x - x.sum(1, keepdims=True)
    assert_close(rows, want)
    assert_close(sums.sum(0), want.sum(0))


def test_folds_of_each_kind(run):
    x = numbers(4, 1000)
    fusion = jf.ir.trace(kinds, x)
    parameters = {"threads": 64, "threads_y": 1, "cluster": 4, "keep": "rows"}
    schedule = jf.ir.schedule(fusion, "reduction", "cuda", parameters=parameters)
    for got, exact in zip(run(schedule, x), kinds(x), strict=True):
        np.testing.assert_array_equal(got, exact)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threads_y": 2}, r"cluster: blocks that share a row have one row at a time.*expected threads_y=1"),
        ({"stages": 2, "bulk_store": True}, r"cluster: .*expected threads_y=1 and bulk_store=False"),
        ({"cluster": 16}, r"has 16 iterations of cluster; at most 8: split the axis"),
        ({"along": "columns", "lane_loop": 0}, r"cluster: rows of 2 blocks need the threads along a row"),
    ],
)
def test_what_cannot_be(change, message):
    with pytest.raises(jf.UserError, match=message):
        jf.ir.lower(in_cluster(softmax, [numbers(64, 512)], 2, **change), "cuda")


def test_clusters_need_a_device_that_has_them():
    b = jf.ir.Builder("sums")
    b.output(b.reduce("reduce_sum", b.input("x", "f32", [8, 64]), [1]))
    s = jf.ir.Scheduler(b.finish())
    s.parallelize(s.fusion.outputs[0], 1, "cluster")
    with pytest.raises(jf.UserError, match=r"has a cluster axis, which target 'cpu.*' does not have; use task"):
        jf.ir.lower(s.schedule, "cpu")


def test_long_rows_are_read_once():
    """As planned: rows that one block cannot keep are several blocks'."""
    for columns, dtype in ((131072, "float32"), (131072, "bfloat16"), (65536, "float32")):
        fusion = jf.ir.trace(softmax, jax.ShapeDtypeStruct((2048, columns), dtype))
        assert jf.ir.compute_heuristics(fusion, "reduction", "cuda")["cluster"] > 1
        source = jf.ir.lower(fusion, "cuda").as_text("source")
        assert source.count("jf::load_lasting<") == 1 and "__cluster_dims__" in source
    only_read = jf.ir.trace(lambda x: jax.nn.logsumexp(x, -1), jax.ShapeDtypeStruct((2048, 16384), "float32"))
    assert jf.ir.compute_heuristics(only_read, "reduction", "cuda")["cluster"] == 1


@pytest.mark.parametrize(
    ("columns", "dtype", "blocks", "parts"),
    [(131072, "bfloat16", 8, 15), (65536, "bfloat16", 4, 30), (16384, "float32", 2, 66)],
)
def test_long_rows_beside_sums_across_them(columns, dtype, blocks, parts, tmp_path):
    """As planned: all blocks of a cluster fold their own columns, and all clusters run at once."""
    nvrtc_or_skip()
    x, g = jax.ShapeDtypeStruct((1024, columns), dtype), jax.ShapeDtypeStruct((columns,), dtype)
    fusion = jf.ir.trace(lambda x, dy, g, b: jax.vjp(layer_norm, x, g, b)[1](dy), x, x, g, g)
    first, second = jf.ir.propose(fusion, "cuda")
    text = str(first.fusion)
    assert text.count(f"parts={parts}, in_turn") == 2 and len(second.fusion.outputs) == 2
    assert f" {blocks} cluster" in str(first)
    assert_no_spills(f"{first.fusion}{first}", tmp_path)


def test_long_rows_need_as_much_memory_where_blocks_do_not_share_them():
    """There the sums are kernels of their own, but who asks for the memory need not know that."""
    x, g = jax.ShapeDtypeStruct((600, 65536), "bfloat16"), jax.ShapeDtypeStruct((65536,), "bfloat16")
    fusion = jf.ir.trace(lambda x, dy, g, b: jax.vjp(layer_norm, x, g, b)[1](dy), x, x, g, g)
    targets = [_core.cuda_target_for(90), _core.cuda_target_for(80)]
    assert len({_core.workspace_bytes(str(fusion), target, portable=True) for target in targets}) == 1
    launches = [_core.stages(str(fusion), target)["host"].count("launch") for target in targets]
    assert launches == [2, 3]


@pytest.mark.parametrize(("columns", "launches", "parts"), [(16384, 2, 2), (16388, 2, 0), (65536, 2, 0)])
def test_long_rows_on_the_cpu(columns, launches, parts):
    """A task has whole rows: beside longer ones the sums are a kernel of their own, in one stage."""
    x, g = jax.ShapeDtypeStruct((600, columns), "float32"), jax.ShapeDtypeStruct((columns,), "float32")
    fusion = jf.ir.trace(lambda x, dy, g, b: jax.vjp(layer_norm, x, g, b)[1](dy), x, x, g, g)
    program = jf.ir.lower(fusion, "cpu")
    assert program.as_text("host").count("launch") == launches
    assert program.as_text("segments").count("parts=") == parts


@pytest.mark.parametrize("columns", [128, 131])
def test_tasks_on_the_cpu_have_equally_many_rows(columns):
    x, g = jax.ShapeDtypeStruct((600, columns), "bfloat16"), jax.ShapeDtypeStruct((columns,), "bfloat16")
    fusion = jf.ir.trace(lambda x, dy, g, b: jax.vjp(layer_norm, x, g, b)[1](dy), x, x, g, g)
    assert jf.ir.lower(fusion, "cpu").as_text("segments").count("parts=15}") == 2


def test_scans_stay_in_one_block():
    def f(x):
        return jnp.cumsum(jax.nn.softmax(x, -1), -1)

    fusion = jf.ir.trace(f, jax.ShapeDtypeStruct((2048, 131072), "float32"))
    assert "__cluster_dims__" not in jf.ir.lower(fusion, "cuda").as_text("source")
