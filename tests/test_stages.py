"""`as_text` of every stage on both platforms, the same files in JAX_FUSER_DUMP, and errors that carry the program."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_fuser as jf
from jax_fuser import _core, _ffi

X = jnp.linspace(-1, 1, 33 * 20).reshape(33, 20)
STAGES = ["fusion", "segments", "schedule", "loops", "source", "host"]
SIGNS = {
    "jaxpr": "jax_fuser_fused",
    "fusion": "fusion normed(x: f32[33,20]) -> (",
    "segments": "segment 0 reduction: its reductions fold axes {1}",
    "schedule": "schedule {",
    "loops": "kernel normed_0 width=",
    "source": 'extern "C"',
    "host": "launch normed_0",
}


def normed(x):
    return jax.nn.softmax(jnp.tanh(x), axis=1)


def sass_or_skip():
    if _core.nvrtc()[0] is None:
        pytest.skip("no NVRTC here")
    try:
        return jf.fuse(normed).lower(X).as_text("sass", platform="cuda")
    except jf.UserError as error:
        assert "pip install nvidia-cuda-nvdisasm" in str(error)
        pytest.skip("no nvdisasm here")


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("stage", SIGNS)
def test_every_stage_has_its_text(stage, platform):
    assert SIGNS[stage] in jf.fuse(normed).lower(X).as_text(stage, platform=platform)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_fusion_of_ir_has_the_same_stages(stage, platform):
    fusion = jf.ir.trace(normed, X)
    text = jf.fuse(normed).lower(X).as_text(stage, platform=platform)
    assert text == f"# region 0: normed\n{jf.ir.lower(fusion, platform).as_text(stage).rstrip()}\n"


def test_instructions():
    text = sass_or_skip()
    assert "normed_0, compiled as reduction_" in text and "EXIT" in text
    assert text.split("\n", 1)[1].rstrip() == jf.ir.lower(jf.ir.trace(normed, X), "cuda").as_text("sass").rstrip()


def test_instructions_are_of_cuda():
    with pytest.raises(ValueError, match="stage 'sass' is of CUDA; pass platform='cuda', or read stage 'source'"):
        jf.fuse(normed).lower(X).as_text("sass", platform="cpu")
    with pytest.raises(jf.UserError, match=r"\[as_text\] stage sass is for platform cuda, got 'cpu"):
        jf.ir.lower(jf.ir.trace(normed, X), "cpu").as_text("sass")


def test_unknown_stages_are_refused():
    with pytest.raises(ValueError, match=r"as_text: stage must be one of jaxpr, fusion, .*sass, got 'ptx'"):
        jf.fuse(normed).lower(X).as_text("ptx")
    with pytest.raises(ValueError, match=r"as_text: stage must be one of fusion, .*got 'ptx'"):
        jf.ir.lower(jf.ir.trace(normed, X)).as_text("ptx")
    with pytest.raises(ValueError, match="as_text: platform must be 'cpu' or 'cuda', got 'tpu'"):
        jf.fuse(normed).lower(X).as_text("fusion", platform="tpu")


def test_the_dump_has_the_same_texts(device, monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_FUSER_DUMP", str(tmp_path))
    f = jf.fuse(lambda x: jax.nn.softmax(jnp.sinh(x), axis=1), name="dumped")
    f(X[:7])
    [folder] = tmp_path.iterdir()
    assert folder.name.endswith("-dumped")
    cuda = device.platform == "gpu"
    names = {stage: f"{stage}.txt" for stage in STAGES} | {"source": "kernel.cu" if cuda else "kernel.cpp"}
    lowered = f.lower(X[:7])
    for stage, file in names.items():
        want = lowered.as_text(stage, platform="cuda" if cuda else "cpu")
        assert want == f"# region 0: dumped\n{(folder / file).read_text().rstrip()}\n"
    assert {p.name for p in pathlib.Path(folder).iterdir()} - {"sass.txt"} == {*names.values()}


# Errors that are ours.

SOFTMAX = """fusion mine(x: f32[64,1000]) -> (t4) {
  t1: f32[64] = reduce_max(x) {dims=[1]}
  t2: f32[64,b1000] = broadcast(t1) {dims=[0]}
  t3: f32[64,1000] = sub(x, t2)
  t4: f32[64,1000] = exp(t3)
}
"""
NO_SHARED = "cuda sm=90 multiprocessors=132 max_shared_bytes=0 max_threads_per_block=1024"


@pytest.mark.parametrize("entry", [_core.stages, _core.facts, _core.compile_cuda, _core.sass])
def test_a_bug_report_has_the_program(entry):
    # A machine that no plan was made for: the generated kernel needs what it does not have.
    with pytest.raises(jf.InternalError) as error:
        entry(SOFTMAX, NO_SHARED)
    text = str(error.value)
    assert "jax_fuser bug at" in text and "paste this into the report" in text
    assert text.count(SOFTMAX) == 1 and "report it with the text above" not in text


def test_the_caller_s_mistakes_are_no_bugs():
    with pytest.raises(jf.UserError) as error:
        _core.stages(SOFTMAX.replace("exp(", "no_op("), _ffi.target_text("cpu"))
    assert "report" not in str(error.value)


UNUSED = """fusion f(x: f32[4,6]) -> (t1, x, t4) {
  t1: f32[4,6] = tanh(x)
  t2: f32[6] = reduce_sum(x) {dims=[0]}
  t3: f32[6] = exp(t2)
  t5: f32[] = constant() {value=3}
  t4: f32[b4,b6] = broadcast(t5) {dims=[]}
}
"""


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_what_reaches_no_output_is_not_computed(platform):
    fusion = jf.ir.Fusion(UNUSED)
    text = jf.ir.lower(fusion, platform).as_text("segments")
    assert "reduce_sum" not in text and "exp(" not in text
    assert jf.ir.find_compatible_schedulers(fusion, platform) == ["pointwise"]
    assert jf.ir.can_schedule(fusion, "reduction", platform) == (False, "[reduction] f folds no axis; use pointwise")
    x = jnp.linspace(-1, 1, 24).reshape(4, 6)
    for got, want in zip(jf.ir.run(fusion, x), (jnp.tanh(x), x, jnp.full((4, 6), 3.0))):
        np.testing.assert_allclose(got, want, rtol=1e-5)
