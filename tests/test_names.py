"""What people read has their names of arguments and results; what is compiled has none of them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core, _ffi, _lowered, _names

X, W = jnp.linspace(-1, 1, 48 * 40).reshape(48, 40), jnp.linspace(1, 2, 40)


def rms_norm(hidden, weight):
    var = jnp.mean(hidden**2, -1, keepdims=True)
    return {"out": hidden * jax.lax.rsqrt(var + 1e-6) * weight, "var": var}


def values(source):
    """The arrays that a kernel takes, and the variables that it defines."""
    return re.findall(r"__restrict__ (\w+)", source), re.findall(r"const \w+ ([a-z]\d+) = ", source)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("stage", ["fusion", "segments", "schedule", "loops", "source"])
def test_stages_have_the_names_of_arguments_and_results(stage, platform):
    text = jf.fuse(rms_norm).lower(X, W).as_text(stage, platform=platform)
    words = {*re.findall(r"\w+", text)}
    assert {"hidden", "weight", "out", "var"} <= words


def test_fusions_and_schedulers_have_them():
    fusion = jf.ir.trace(rms_norm, X, W)
    assert (fusion.inputs, fusion.outputs) == (["hidden", "weight"], ["out", "var"])
    scheduler = jf.ir.Scheduler(fusion)
    assert scheduler.cache_after("hidden") == "hidden_cache"
    out, var = jf.ir.run(jf.ir.schedule(scheduler.fusion, "reduction"), X, W)
    assert_close(out, rms_norm(X, W)["out"])
    assert_close(var, rms_norm(X, W)["var"])


def test_schedules_by_hand_go_by_them():
    def schedule(s):
        assert s.fusion.inputs == ["hidden", "weight"]
        s.transform_like("out")
        s.inline_most()
        assert s.loops("out") == [(48, "serial"), (40, "serial")]

    assert_close(jf.fuse(lambda hidden, weight: {"out": hidden * weight}, schedule=schedule)(X, W)["out"], X * W)


def test_leaves_have_the_names_of_their_paths():
    def f(params, *rest, double):
        return {"a": {"b": params["w1"] * rest[0]}, "l": [params["layers"][1] + 1]}, double * 2

    fusion = jf.ir.trace(lambda p, r, double: f(p, r, double=double), {"w1": X, "layers": [X, X]}, X, X)
    assert fusion.inputs == ["p_layers_0", "p_layers_1", "p_w1", "r", "double"]
    assert fusion.outputs[2][0] == "t"  # [1] is no name
    source = jf.fuse(f).lower({"w1": X, "layers": [X, X]}, X, double=X).as_text("source", platform="cuda")
    assert {"params_layers_1", "params_w1", "rest_0"} <= {*re.findall(r"\w+", source)}
    assert re.search(r"f32\* __restrict__ buffer\d_double", source)  # a word of C++


@pytest.mark.parametrize(
    ("path", "name"),
    [("['out']", "out"), ("['a'][1]", "a_1"), (".data", "data"), ("[0]", ""), ("[1]['out']", ""), ("", ""), (None, "")]
    + [("['two words']", ""), ("[<flat index 0>]", "")],
)
def test_paths_that_are_names(path, name):
    assert _names.of_path(path) == name


def test_names_of_numbers_stay_apart():
    def f(t3, x0, t4):
        return {"t3": t3 * x0, "x0": x0 + t4, "t9": t4 * t3}

    fusion = jf.ir.trace(f, X, X, X)
    assert len({*fusion.values}) == len(fusion.values)
    for got, want in zip(jf.ir.run(fusion, X, X + 1, X + 2), jax.tree.leaves(f(X, X + 1, X + 2))):
        assert_close(got, want)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_no_variable_has_the_name_of_another_value(platform):
    def f(x, b):
        e = jnp.exp(x.reshape(48, 4, 10) - 1)
        return jnp.concatenate([x * 2, x + b], 1), e / e.sum(-1, keepdims=True), jax.nn.softmax(x, 0)

    for g, args in [(rms_norm, (X, W)), (f, (X, W)), (jax.grad(lambda x: (rms_norm(x, W)["out"] ** 2).sum()), (X,))]:
        lowered = jf.fuse(g).lower(*args)
        for source in lowered.as_text("source", platform=platform).split("extern ")[1:]:
            arrays, variables = values(source)
            assert not {*arrays} & {*variables}
            assert not [v for v in variables if v[0] not in "iv"]


def test_the_plan_is_the_same_with_names():
    def f(x, b):
        y = jnp.concatenate([x * 2, x + b], 1)
        return {"y": y, "s": jax.nn.softmax(x.reshape(12, 4, 40), -1), "sum": x.sum(0), "top": x.max(1)}

    [eqn] = _lowered.fused_equations(jf.fuse(f).lower(X, W)._traced.jaxpr)
    plain, named = _lowered.program_of(eqn), _lowered.program_of(eqn, _lowered.names_of(eqn))
    assert plain != named
    for platform in ("cpu", "cuda"):
        target = _ffi.target_text(platform)
        facts = [_core.facts(program, target) for program in (plain, named)]
        for a, b in zip(*facts, strict=True):
            same = ("strategy", "parameters", "launch", "entry", "operations")
            assert [a[key] for key in same] == [b[key] for key in same]


def test_other_names_are_the_same_kernel_and_the_same_program(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_FUSER_CACHE_DIR", str(tmp_path / "cache"))

    def one(hidden, weight):
        return {"out": jnp.tanh(hidden) * weight, "half": hidden / 2}

    def other(x, scale):
        return {"out": jnp.tanh(x) * scale, "lower": x / 2}

    names, hlo = [], []
    for f, expected in ((one, 1), (other, 0)):
        before = jf.counters()
        fused = jf.fuse(f, name="f")
        jax.block_until_ready(fused(X[:31], W))
        after = jf.counters()
        assert sum(after[k] - before[k] for k in ("compiled_host", "compiled_cuda", "disk_hits")) == expected
        names.append(jf.ir.trace(f, X, W).inputs)
        hlo.append(re.findall(r'program = "[^"]*"', jax.jit(fused).lower(X[:31], W).as_text()))
    assert names == [["hidden", "weight"], ["x", "scale"]]
    assert hlo[0] == hlo[1] and len(hlo[0]) == 1 and "hidden" not in hlo[0][0]


def test_a_fusion_with_names_compiles_once(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_FUSER_CACHE_DIR", str(tmp_path / "cache"))
    x = X[:29]
    compiled = []
    for f in (lambda a: {"p": jnp.sinh(a) * 3}, lambda b: {"q": jnp.sinh(b) * 3}):
        before = jf.counters()
        np.testing.assert_allclose(jf.ir.run(jf.ir.trace(f, x, name="f"), x)[0], jnp.sinh(x) * 3, rtol=1e-5)
        after = jf.counters()
        compiled.append(sum(after[k] - before[k] for k in ("compiled_host", "compiled_cuda", "disk_hits")))
    assert compiled == [1, 0]


def test_dumps_have_names(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_FUSER_DUMP", str(tmp_path))
    jax.block_until_ready(jf.fuse(rms_norm, name="dumped")(X[:27], W))
    [folder] = tmp_path.iterdir()
    assert (folder / "fusion.txt").read_text().startswith("fusion dumped(hidden: f32[27,40], weight: f32[40]) -> (")
    assert " hidden" in next(p for p in folder.iterdir() if p.name.startswith("kernel")).read_text()


def test_explain_says_which_result_and_which_argument():
    def f(p, *rest):
        y = jnp.concatenate([p["a"], p["b"] * 2], -1)
        return {"y": y, "z": jnp.tanh(p["a"].reshape(8, 6, 40))}, rest[0] + 1

    text = str(jf.explain(f)({"a": X, "b": X}, X))
    assert "p_a f32[48,40] 7.5 KiB, from argument p['a']" in text
    assert text.count("to result [0]['y']") == 1 and " f32[48,80] 15.0 KiB, to result [0]['y']" in text
    assert "to result [0]['z']" in text and "to result [1]" in text
    assert "to the result" in str(jf.explain(jnp.tanh)(X))


def test_explain_names_arguments_of_derivatives_and_of_callers():
    def loss(hidden, weight):
        return (rms_norm(hidden, weight)["out"] ** 2).sum()

    assert "  hidden f32[48,40]" in str(jf.explain(jax.grad(jf.fuse(loss)))(X, W))
    inner = jf.fuse(lambda x: jnp.tanh(x) * 2)
    assert "  outer f32[48,40]" in str(jf.explain(jax.jit(lambda outer: inner(outer)))(X))


def test_vmap_keeps_names():
    batched = jf.fuse(jax.vmap(jf.fuse(rms_norm), in_axes=(0, None)))
    assert "hidden" in batched.lower(X[None], W).as_text("fusion")
