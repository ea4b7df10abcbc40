"""Routing as fused kernels: values and derivatives against plain JAX, transforms, kernels, and where nothing fuses."""

import functools

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from test_cuda_sources import nvrtc_or_skip
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core, _ffi, _route

TOKENS, EXPERTS = 37, 24


def random(*shape, seed=0, dtype="float32"):
    return jnp.asarray(2 * np.random.default_rng([seed, *shape]).normal(size=shape), dtype)


def plain(logits, top_k, scores="softmax", normalize=True, bias=None, scale=1.0, mask=None):
    """The definition in `route`'s docstring, by indexing; masked tokens are cut out and put back."""
    if mask is not None:
        kept = np.flatnonzero(mask)
        weights, experts, aux = plain(logits[kept], top_k, scores, normalize, bias, scale)
        whole = jnp.zeros((*mask.shape, top_k))
        return whole.at[kept].set(weights), whole.astype(int).at[:].set(logits.shape[-1]).at[kept].set(experts), aux
    s = jax.nn.sigmoid(logits) if scores == "sigmoid" else jax.nn.softmax(logits)
    made_of = logits if scores == "topk_softmax" else s
    experts = jax.lax.top_k(made_of if bias is None else made_of + bias, top_k)[1]
    weights = jnp.take_along_axis(made_of, experts, -1)
    if scores == "topk_softmax":
        weights = jax.nn.softmax(weights)
    elif normalize:
        weights = weights / weights.sum(-1, keepdims=True)
    load = jnp.bincount(experts.reshape(-1), length=logits.shape[-1])
    f, p = load / experts.size, (s / s.sum(-1, keepdims=True)).mean(0)
    z = (jax.nn.logsumexp(logits, -1) ** 2).mean()
    return weights * scale, experts, (logits.shape[-1] * (f * p).sum(), z, load)


BIAS = np.linspace(-1, 1, EXPERTS, dtype="f")
MASK = np.arange(TOKENS) % 5 != 2
CASES = {
    "softmax": {},
    "one choice, not normalized, scaled": {"top_k": 1, "normalize": False, "scale": 2.5},
    "topk_softmax, bias": {"scores": "topk_softmax", "bias": BIAS},
    "sigmoid, bias, mask": {"scores": "sigmoid", "bias": BIAS, "mask": MASK},
    "mask": {"mask": MASK},
    "more choices than fuse": {"top_k": 17, "mask": MASK},
}


def results(f, given):
    weights, experts, aux = f(given.pop("logits"), given.pop("top_k", 3), **given)
    return weights, experts, *jax.tree.leaves(aux)


def loss(f, given):
    def of(logits):
        weights, _, balance, z, _ = results(f, {"logits": logits, **given})
        return jnp.sum(jnp.sin(weights)) + 3 * balance + z

    return of


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradient(device, name):
    logits = random(TOKENS, EXPERTS)
    bad = logits if "mask" not in CASES[name] else logits.at[~MASK].set(jnp.nan)
    got = results(jf.moe.route, {"logits": bad, **CASES[name]})
    for a, b in zip(got, jax.jit(lambda x: results(plain, {"logits": x, **CASES[name]}))(logits)):
        assert_close(a, b, "float32")
    got = jax.jit(jax.grad(loss(jf.moe.route, CASES[name])))(bad)
    assert_close(got, jax.jit(jax.grad(loss(plain, CASES[name])))(logits), "float32", scale=4)


def test_ties_choose_the_first_and_scores_of_any_float(device):
    for dtype in ("bfloat16", "float16", "float32"):
        logits = jnp.round(random(TOKENS, EXPERTS)).astype(dtype)
        got, want = (results(f, {"logits": x}) for f, x in ((jf.moe.route, logits), (plain, logits.astype("float32"))))
        assert got[0].dtype == jnp.float32
        for a, b in zip(got, want):
            assert_close(a, b, "float32")
        grad = jax.grad(loss(jf.moe.route, {}))(logits)
        assert grad.dtype == dtype
        assert_close(grad, jax.jit(jax.grad(loss(plain, {})))(logits.astype("float32")), dtype, scale=4)


def test_forward_mode_second_order_and_the_gradient_of_the_scale(device):
    logits, tangent = random(TOKENS, EXPERTS), random(TOKENS, EXPERTS, seed=1)
    scaled = {f: lambda s, f=f: jnp.sum(jnp.sin(f(logits, 3, scale=s)[0])) for f in (jf.moe.route, plain)}
    first = {f: loss(f, {}) for f in scaled}
    for of in (first, {f: jax.grad(first[f]) for f in first}):
        got, want = (jax.jit(lambda x, f=of[f]: jax.jvp(f, (x,), (tangent,))[1])(logits) for f in of)
        assert_close(got, want, "float32", scale=10)
    got, want = (jax.grad(f)(2.0) for f in scaled.values())
    assert_close(got, want, "float32")


def test_vmap_and_leading_dimensions(device):
    logits = random(4, TOKENS, EXPERTS)
    mask = jnp.stack([MASK, ~MASK, MASK, MASK | True])
    got = jax.vmap(lambda x, m: jf.moe.route(x, 3, mask=m))(logits, mask)
    grads = jax.vmap(lambda x, m: jax.grad(loss(jf.moe.route, {"mask": m}))(x))(logits, mask)
    for i in range(4):
        want = jf.moe.route(logits[i], 3, mask=mask[i])
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
            assert_close(a[i], b)
        assert_close(grads[i], jax.grad(loss(jf.moe.route, {"mask": mask[i]}))(logits[i]), scale=4)
    got, want = (jf.moe.route(x, 3) for x in (logits, logits.reshape(-1, EXPERTS)))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        assert_close(a.reshape(b.shape), b)
    assert jf.moe.route(logits[0, 0], 3)[1].tolist() == got[1][0, 0].tolist()
    weights, _, aux = jf.moe.route(logits[0, :0], 3)
    assert weights.shape == (0, 3) and aux.load.tolist() == [0] * EXPERTS and aux.z_loss == 0


def test_scan_and_checkpoint(device):
    logits = random(3, TOKENS, EXPERTS)

    def total(f):
        def step(carry, x):
            return carry + jax.checkpoint(loss(f, {}))(x), None

        return lambda x: jax.lax.scan(step, jnp.float32(0), x)[0]

    got, want = (jax.jit(jax.value_and_grad(total(f)))(logits) for f in (jf.moe.route, plain))
    for a, b in zip(got, want):
        assert_close(a, b, "float32", scale=4)


@pytest.mark.parametrize("scores", ["softmax", "topk_softmax", "sigmoid"])
def test_derivatives_of_derivatives_in_scan(scores):
    """Also where the first derivative does not go by the router: its values are known then, not how they change."""
    x, ws = random(5, 6), random(2, 6, 6)

    def run(route, loop, step):
        if loop:
            return jax.lax.scan(lambda c, w: (step(route, c, w), None), x, ws)[0].sum()
        return functools.reduce(functools.partial(step, route), ws, x).sum()

    def curved(route, loop):
        def f(x):
            step = lambda route, c, w: c * route(x @ w)[:, :1]  # noqa: E731
            return run(route, loop, step)

        return jax.jvp(jax.grad(f), (x,), (x,))[1]

    def through_a_gradient(route, loop):
        def inner(a, v):
            step = lambda route, c, w: c + jnp.sin(c * a) * route(x @ (w * v))[:, :1]  # noqa: E731
            return run(route, loop, step)

        return jax.grad(lambda v: jax.grad(inner)(1.0, v) ** 2)(0.5)

    ours = lambda logits: jf.moe.route(logits, 2, scores=scores)[0]  # noqa: E731
    for f in (curved, through_a_gradient):
        assert_close(f(ours, True), f(lambda logits: plain(logits, 2, scores)[0], False), "float32", scale=20)


def test_shard_map():
    mesh = meshes.mesh(data=4)
    logits, spec = random(4 * TOKENS, EXPERTS), P("data")

    def losses(f, x, bias):
        weights, _, balance, z, load = results(f, {"logits": x, "bias": bias})
        return jnp.sum(jnp.sin(weights), axis=1), jnp.full(len(x), balance + z), load

    def split(x, bias):
        *out, load = losses(jf.moe.route, x, bias)
        return *out, jax.lax.psum(load, "data")

    f = jax.shard_map(split, mesh=mesh, in_specs=(spec, P()), out_specs=(spec, spec, P()))
    got = jax.jit(f)(logits, BIAS)
    want = [losses(plain, x, BIAS) for x in jnp.split(logits, 4)]
    for k in (0, 1):
        assert_close(got[k], jnp.concatenate([w[k] for w in want]))
    assert got[2].tolist() == sum(w[2] for w in want).tolist()
    grads = jax.jit(jax.grad(lambda x: sum(jnp.sum(v) for v in f(x, BIAS)[:2])))(logits)
    wanted = jax.grad(lambda x: sum(jnp.sum(v) for p in jnp.split(x, 4) for v in losses(plain, p, BIAS)[:2]))
    assert_close(grads, jax.jit(wanted)(logits), scale=10)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_one_kernel_reads_the_logits_each_way(platform):
    logits = random(4096, EXPERTS)

    def reads(given):
        found = jf.explain(jax.grad(loss(jf.moe.route, given)), platform=platform)(logits)
        assert not [cut for cut in found.cuts if cut.primitive in ("top_k", "sort", "scatter-add", "gather")]
        flows = (flow for region in found.regions for kernel in region.segments for flow in kernel.reads)
        return [flow.shape for flow in flows].count(logits.shape)

    assert reads({}) == 2
    # What a bias chose has to be picked from the scores.
    assert reads({"scores": "sigmoid", "bias": BIAS}) == 3


@pytest.mark.parametrize("scores", ["softmax", "topk_softmax", "sigmoid"])
@pytest.mark.parametrize("biased", [False, True])
def test_cuda_sources_compile(scores, biased):
    nvrtc_or_skip()
    how = _route._How(3, scores, True)
    arguments = [random(4096, EXPERTS), jnp.float32(1), *[jnp.asarray(BIAS)] * biased]
    fusion = jf.ir.trace(lambda x, s, bias=None: _route._choose(how, x, s, bias, None), *arguments)
    assert _core.compile_cuda(str(fusion), _core.cuda_target_for(90))


def test_without_a_compiler(monkeypatch):
    monkeypatch.setattr(_ffi, "can_compile", lambda platform: "no C++ compiler for this test of routing")
    logits = random(TOKENS + 1, EXPERTS)
    with pytest.warns(RuntimeWarning, match="no C\\+\\+ compiler for this test of routing") as caught:
        got = jax.jit(jax.grad(loss(jf.moe.route, {})))(logits)
    assert len(caught) == 1
    assert_close(got, jax.jit(jax.grad(loss(plain, {})))(logits), "float32", scale=4)
    with jax.disable_jit():
        got = jf.moe.route(logits, 3)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(functools.partial(plain, top_k=3)(logits))):
        assert_close(a, b, "float32")
