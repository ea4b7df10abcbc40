"""Fusions and schedules are copied and pickled as their text; a copied Scheduler goes on by itself."""

import copy
import pickle

import jax
import jax.numpy as jnp
import pytest

import jax_fuser as jf

FUSION = jf.ir.trace(lambda x: jnp.tanh(x).sum(axis=1), jax.ShapeDtypeStruct((6, 8), "float32"), name="sums")


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("made", [FUSION, jf.ir.Schedule(FUSION), jf.ir.propose(FUSION, "cuda")[0]], ids=range(3))
def test_equal(copied, made):
    assert copied(made) == made


def test_a_copied_scheduler_is_another_one():
    first = jf.ir.Scheduler(FUSION)
    first.split("t2", 0, 2)
    second = copy.deepcopy(first)
    second.split("t2", 2, 4)
    assert (len(first.loops("t2")), len(second.loops("t2"))) == (3, 4)


def test_what_is_lowered_says_so():
    assert "source" in repr(jf.ir.lower(FUSION, "cpu"))
    assert repr(jf.fuse(jnp.tanh).lower(jnp.ones(3))).startswith("<1 fused region; as_text(stage) shows jaxpr,")
