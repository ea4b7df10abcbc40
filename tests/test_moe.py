"""The expert layer against a dense einsum over all experts, its parts, and the transforms around it."""

import functools
import re

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tolerances import assert_close

import jax_fuser as jf

TOKENS, D, F, EXPERTS, TOP_K = 24, 8, 6, 5, 2


def random(*shape, seed=0, dtype="float32"):
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape), dtype)


route = jax.jit(functools.partial(jf.moe.route, top_k=TOP_K))
mlp = jax.jit(jf.moe.mlp)


@pytest.fixture
def layer():
    """Return x, experts, weights, w13, w2; expert 3 has no token."""
    logits = np.array(random(TOKENS, EXPERTS))
    logits[:, 3] = -50
    weights, experts, _ = route(logits)
    return random(TOKENS, D), experts, weights, random(EXPERTS, D, 2 * F, seed=1), random(EXPERTS, F, D, seed=2)


@jax.jit
def dense_mlp(x, experts, weights, w13, w2):
    """Every expert on every token, then a weighted sum; a choice outside the experts matches no column."""
    gate, up = jnp.split(jnp.einsum("td,edf->tef", x, w13, precision="highest"), 2, axis=-1)
    every = jnp.einsum("tef,efd->ted", jax.nn.silu(gate) * up, w2, precision="highest")
    chosen = jnp.sum(weights[..., None] * (experts[..., None] == jnp.arange(w13.shape[0])), axis=1)
    return jnp.einsum("ted,te->td", every, chosen, precision="highest")


def loss(f, experts):
    return lambda *a: jnp.sum(jnp.sin(f(a[0], experts, *a[1:])))


@functools.partial(jax.jit, static_argnums=0)
def value_and_grads(f, x, experts, weights, w13, w2):
    return f(x, experts, weights, w13, w2), jax.grad(loss(f, experts), (0, 1, 2, 3))(x, weights, w13, w2)


def test_mlp_and_gradients(device, layer):
    x, experts, weights, w13, w2 = layer
    assert_close(mlp(*layer), dense_mlp(*layer), scale=4)
    every = (0, 1, 2, 3)
    got = jax.jit(jax.grad(loss(jf.moe.mlp, experts), every))(x, weights, w13, w2)
    want = jax.jit(jax.grad(loss(dense_mlp, experts), every))(x, weights, w13, w2)
    for a, b in zip(got, want):
        assert_close(a, b, scale=4)
    assert (np.asarray(got[2])[3] == 0).all() and (np.asarray(got[3])[3] == 0).all()


def test_second_order_and_forward_mode(device, layer):
    x, experts, weights, w13, w2 = layer
    args, every = (x, weights, w13, w2), (0, 1, 2, 3)

    def second(f):
        return jax.jit(jax.grad(lambda *a: sum(jnp.vdot(g, g) for g in jax.grad(loss(f, experts), every)(*a)), every))

    for a, b in zip(second(jf.moe.mlp)(*args), second(dense_mlp)(*args)):
        assert_close(a, b, scale=20)
    tangents = tuple(jnp.cos(a) for a in args)
    got, want = (jax.jit(lambda *a, f=f: jax.jvp(loss(f, experts), args, a)[1])(*tangents) for f in (mlp, dense_mlp))
    assert_close(got, want, scale=20)


@pytest.mark.parametrize("case", ["one_expert", "all_in_last", "all_dropped", "some_dropped", "same_expert_twice"])
def test_extreme_routing(device, layer, case):
    x, experts, weights, w13, w2 = layer
    if case == "one_expert":
        experts, w13, w2 = jnp.zeros_like(experts), w13[:1], w2[:1]
    elif case == "all_in_last":
        experts = jnp.full_like(experts, EXPERTS - 1)
    elif case == "all_dropped":
        experts = jnp.full_like(experts, EXPERTS)
    elif case == "some_dropped":
        experts = experts.at[::3, 1].set(-1).at[5].set(EXPERTS + 7)
    else:
        experts = jnp.stack([experts[:, 0]] * 2, axis=1)
    got, want = (value_and_grads(f, x, experts, weights, w13, w2) for f in (mlp, dense_mlp))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        assert_close(a, b, scale=4)


def test_no_tokens(device, layer):
    *_, w13, w2 = layer
    out = jf.moe.mlp(jnp.ones((0, D)), jnp.ones((0, TOP_K), jnp.int32), jnp.ones((0, TOP_K)), w13, w2)
    assert out.shape == (0, D)
    no_columns = jf.moe.mlp(jnp.ones((4, 0)), jnp.ones((4, TOP_K), jnp.int32), jnp.ones((4, TOP_K)), w13[:, :0], w2)
    assert_close(no_columns, jnp.zeros((4, D)))


def test_leading_dimensions_dtype_and_plain_activation(device, layer):
    x, experts, weights, w13, w2 = layer
    out = mlp(*(a.reshape(4, 6, -1) for a in (x, experts, weights)), w13, w2)
    assert_close(out.reshape(TOKENS, D), dense_mlp(*layer), scale=4)
    low = mlp(x.astype(jnp.bfloat16), experts, weights, w13.astype(jnp.bfloat16), w2.astype(jnp.bfloat16))
    assert low.dtype == jnp.bfloat16
    assert_close(low, dense_mlp(*layer), scale=2)
    relu = jax.eval_shape(functools.partial(jf.moe.mlp, activation="relu"), x, experts, weights, w13[..., :F], w2)
    assert relu.shape == x.shape


def test_dispatch_is_stable_and_combine_inverts_it(device, layer):
    x, experts, *_ = layer
    nt, state = jf.moe.dispatch(x, experts, num_experts=EXPERTS)
    flat = np.asarray(experts).reshape(-1)
    order = np.argsort(flat, kind="stable")
    np.testing.assert_array_equal(nt.data, np.asarray(x)[order // TOP_K])
    np.testing.assert_array_equal(nt.extents, np.bincount(flat, minlength=EXPERTS))
    np.testing.assert_array_equal(state.source, order)
    np.testing.assert_array_equal(np.asarray(state.target).reshape(-1)[order], np.arange(len(order)))
    assert_close(jf.moe.combine(nt, state, jnp.full(experts.shape, 0.5)), x)


def test_dropped_rows_are_padding(device, layer):
    x, experts, *_ = layer
    nt, state = jf.moe.dispatch(x, experts.at[0].set(EXPERTS), num_experts=EXPERTS)
    assert int(nt.total) == nt.capacity - TOP_K and (np.asarray(nt.data)[-TOP_K:] == 0).all()
    poisoned = nt.replace(data=nt.data.at[-TOP_K:].set(jnp.nan))
    ones = jnp.ones(experts.shape)
    out, back = jax.vjp(lambda d, w: jf.moe.combine(nt.replace(data=d), state, w), poisoned.data, ones)
    grads = back(jnp.ones_like(out))
    assert (np.asarray(out)[0] == 0).all() and all(np.isfinite(v).all() for v in (out, *grads))
    assert (np.asarray(grads[0])[-TOP_K:] == 0).all() and (np.asarray(grads[1])[0] == 0).all()


def test_no_scatter_of_rows_in_either_direction(layer):
    x, experts, weights, w13, w2 = layer
    jaxpr = str(jax.make_jaxpr(jax.grad(loss(jf.moe.mlp, experts), (0, 1, 2, 3)))(x, weights, w13, w2))
    assert "scatter-add" not in jaxpr and "scatter_add" not in jaxpr


@pytest.mark.parametrize("top_k", [2, 17])
def test_combine_of_many_rows(device, top_k):
    """By a kernel of ours on CPUs, forward and backward; some choices are no expert."""
    tokens, d = (1 << 20) // 256 // top_k + 5, 256
    experts = np.random.default_rng(3).integers(-1, EXPERTS, (tokens, top_k))
    nt, state = jf.moe.dispatch(random(tokens, d), experts, num_experts=EXPERTS)
    rows, weights, dy = random(*nt.data.shape, seed=4), random(tokens, top_k, seed=5), random(tokens, d, seed=6)
    out, back = jax.vjp(jax.jit(lambda r, w: jf.moe.combine(nt.replace(data=r), state, w)), rows, weights)
    order = np.argsort(np.where(experts < 0, EXPERTS, experts).ravel(), kind="stable")
    held = np.flatnonzero(experts.ravel() >= 0).size
    each = np.zeros((tokens * top_k, d))
    each[order[:held]] = rows[:held]
    each = each.reshape(tokens, top_k, d)
    assert_close(out, np.einsum("tkd,tk->td", each, weights), scale=4)
    d_rows, d_weights = back(dy)
    want = (np.asarray(weights)[..., None] * np.asarray(dy)[:, None]).reshape(-1, d)[order]
    want[held:] = 0
    assert_close(d_rows[: len(want)], want)
    assert_close(d_weights, np.einsum("tkd,td->tk", each, dy), scale=16)


def test_combine_adds_in_float32(device):
    x = jnp.asarray([[256.0], [1.0]], jnp.bfloat16)
    nt, state = jf.moe.dispatch(x, jnp.array([[0, 1, 2], [0, 1, 2]]), num_experts=3)
    # 256 + 1 + 1 would stay 256 if each sum were rounded.
    rows = jnp.asarray([256.0, 1, 1, 1, 1, 1], jnp.bfloat16)[:, None]
    out = jf.moe.combine(nt.replace(data=rows), state, jnp.ones((2, 3)))
    assert out.tolist() == [[258.0], [3.0]]


def test_results_are_repeatable(device, layer):
    x, experts, weights, w13, w2 = layer
    step = jax.jit(jax.grad(loss(jf.moe.mlp, experts), (0, 1, 2, 3)))
    for a, b in zip(step(x, weights, w13, w2), step(x, weights, w13, w2)):
        np.testing.assert_array_equal(a, b)


def test_stats_and_repr(layer):
    x = layer[0]
    _, state = jf.moe.dispatch(x, jnp.full((TOKENS, 1), 2).at[:4].set(EXPERTS), num_experts=EXPERTS)
    stats = state.stats()
    assert repr(state) == "DispatchState(tokens=24, top_k=1, load=[0,0,20,0,0])"
    assert repr(stats) == "Stats(load=[0,0,20,0,0], mean=4, max=20, imbalance=5, empty=4, dropped=4, clipped=0)"
    seen = []
    jax.jit(lambda s: seen.append(repr(s)) or s.stats())(state)
    assert seen == ["DispatchState(tokens=24, top_k=1, load=?)"]
    assert "load_balance=" in repr(jf.moe.route(random(4, 3), 1)[2])
    assert repr(jax.tree.map(lambda _: 0, state)).startswith("DispatchState(source=0")
    several = jax.tree.map(lambda a: jnp.stack([a, a + 1]), state)  # of layers that `scan` ran
    for a, b in zip(jax.tree.leaves(several.stats()), jax.tree.leaves(jax.vmap(type(state).stats)(several))):
        np.testing.assert_array_equal(a, b)


# Routing.


def test_softmax_and_topk_softmax_agree_when_normalized(device):
    logits = random(7, EXPERTS)
    weights, experts, aux = jf.moe.route(logits, 2)
    other, same, _ = jf.moe.route(logits, 2, scores="topk_softmax")
    np.testing.assert_array_equal(experts, same)
    assert_close(weights, other)
    p = np.asarray(jax.nn.softmax(logits))
    want = -np.sort(-p, axis=1)[:, :2]
    assert_close(jf.moe.route(logits, 2, normalize=False)[0], want)
    assert_close(weights, want / want.sum(1, keepdims=True))
    assert_close(jf.moe.route(logits, 2, scale=2.5)[0], 2.5 * want / want.sum(1, keepdims=True))
    load = np.bincount(np.asarray(experts).reshape(-1), minlength=EXPERTS)
    np.testing.assert_array_equal(aux.load, load)
    assert_close(aux.load_balance, EXPERTS * np.sum(load / 14 * p.mean(0)))
    assert_close(aux.z_loss, np.mean(np.log(np.exp(np.asarray(logits, np.float64)).sum(1)) ** 2))


def test_sigmoid_with_selection_bias(device):
    logits, bias = random(7, EXPERTS), jnp.array([5.0, 0, 0, 0, 0])
    weights, experts, aux = jf.moe.route(logits, 2, scores="sigmoid", bias=bias)
    assert (np.asarray(experts)[:, 0] == 0).all()
    s = 1 / (1 + np.exp(-np.asarray(logits)))
    picked = np.take_along_axis(s, np.asarray(experts), 1)
    assert_close(weights, picked / picked.sum(1, keepdims=True))
    grad = jax.grad(lambda b: jnp.sum(jf.moe.route(logits, 2, scores="sigmoid", bias=b)[0][:, 0]))(bias)
    assert (np.asarray(grad) == 0).all()
    assert np.isfinite(aux.load_balance)


def test_even_load_has_balance_one(device):
    logits = 30 * np.eye(4, dtype="f")
    balance = jax.jit(lambda x: jf.moe.route(x, 1)[2].load_balance)
    assert_close(balance(logits), np.float32(1))
    assert_close(balance(np.array([[30, 0, 0, 0]] * 4, "f")), np.float32(4))


def test_masked_tokens_choose_nothing(device):
    logits = random(7, EXPERTS)
    mask = jnp.arange(7) < 5
    weights, experts, aux = jf.moe.route(logits.at[5:].set(jnp.nan), 2, mask=mask)
    want = jf.moe.route(logits[:5], 2)
    assert (np.asarray(experts)[5:] == EXPERTS).all() and (np.asarray(weights)[5:] == 0).all()
    np.testing.assert_array_equal(experts[:5], want[1])
    for got, expected in zip(jax.tree.leaves(aux), jax.tree.leaves(want[2])):
        assert_close(got, expected)

    def loss(logits):
        weights, _, aux = jf.moe.route(logits, 2, mask=mask)
        return jnp.sum(jnp.sin(weights)) + aux.load_balance + aux.z_loss

    grad = np.asarray(jax.grad(loss)(logits.at[5:].set(jnp.nan)))
    assert np.isfinite(grad).all() and (grad[:5] != 0).any() and (grad[5:] == 0).all()


def test_route_gradient(device):
    logits = random(7, EXPERTS)

    def plain(logits):
        p = jax.nn.softmax(logits)
        top, index = jax.lax.top_k(p, 2)
        f = jnp.zeros(EXPERTS).at[index.reshape(-1)].add(1 / 14)
        aux = EXPERTS * jnp.sum(f * p.mean(0)) + jnp.mean(jax.nn.logsumexp(logits, -1) ** 2)
        return jnp.sum(jnp.sin(top / top.sum(-1, keepdims=True))) + aux

    def ours(logits):
        weights, _, aux = jf.moe.route(logits, 2)
        return jnp.sum(jnp.sin(weights)) + aux.load_balance + aux.z_loss

    assert_close(jax.jit(jax.grad(ours))(logits), jax.jit(jax.grad(plain))(logits), scale=4)


# Transforms.


def test_scan_over_layers_with_checkpoint(device, layer):
    x, experts, weights, w13, w2 = layer
    stack = [jnp.stack([w, 0.5 * w]) for w in (w13, w2)]

    def model(mlp, x, w13, w2):
        body = jax.checkpoint(lambda h, w: (h + mlp(h, experts, weights, *w), None))
        return jnp.sum(jax.lax.scan(body, x, (w13, w2))[0] ** 2)

    got, want = (jax.jit(jax.grad(functools.partial(model, f), (0, 1, 2)))(x, *stack) for f in (jf.moe.mlp, dense_mlp))
    for a, b in zip(got, want):
        assert_close(a, b, scale=10)


@pytest.mark.parametrize("weights_axis", [None, 0])
def test_vmap(device, layer, weights_axis):
    x, experts, weights, w13, w2 = layer
    xs, es = jnp.stack([x, 2 * x, -x]), jnp.stack([experts, (experts + 1) % EXPERTS, experts[::-1]])
    w13s, w2s = ((jnp.stack([w, -w, 2 * w]) if weights_axis == 0 else w) for w in (w13, w2))
    axes = (0, 0, None, weights_axis, weights_axis)
    got, want = (jax.jit(jax.vmap(f, in_axes=axes))(xs, es, weights, w13s, w2s) for f in (mlp, dense_mlp))
    assert_close(got, want, scale=4)


def test_shard_map(layer):
    x, experts, weights, w13, w2 = layer
    mesh = meshes.mesh(data=4)
    spec = P("data")
    f = jax.shard_map(jf.moe.mlp, mesh=mesh, in_specs=(spec, spec, spec, P(), P()), out_specs=spec)
    assert_close(jax.jit(f)(*layer), dense_mlp(*layer), scale=4)
    every = (0, 1, 2, 3)
    got = jax.jit(jax.grad(loss(f, experts), every))(x, weights, w13, w2)
    for a, b in zip(got, jax.jit(jax.grad(loss(dense_mlp, experts), every))(x, weights, w13, w2)):
        assert_close(a, b, scale=4)


ERRORS = {
    "route: top_k must be between 1 and the number of experts, got 4 for (2, 3)": lambda: jf.moe.route(
        jnp.ones((2, 3)), 4
    ),
    "route: scores must be softmax, topk_softmax or sigmoid, got 'max'": lambda: jf.moe.route(
        jnp.ones((2, 3)), 1, scores="max"
    ),
    "dispatch: experts must be integers, got float32": lambda: jf.moe.dispatch(
        jnp.ones((2, 3)), jnp.ones(2), num_experts=2
    ),
    "dispatch: experts must be (tokens, top_k) or (tokens,) for x": lambda: jf.moe.dispatch(
        jnp.ones((2, 3)), jnp.ones(3, jnp.int32), num_experts=2
    ),
    "combine: weights must be (tokens, top_k)=(2, 1), got (3,)": lambda: jf.moe.combine(
        *jf.moe.dispatch(jnp.ones((2, 3)), jnp.array([0, 1]), num_experts=2), jnp.ones(3)
    ),
    "combine: nt must have the 2 rows that dispatch returned": lambda: jf.moe.combine(
        jf.as_nested(jnp.ones((3, 1)), extents=[1, 2]),
        jf.moe.dispatch(jnp.ones((2, 3)), jnp.array([0, 1]), num_experts=2)[1],
        jnp.ones(2),
    ),
    "mlp: experts and weights must be (.., top_k) for x": lambda: jf.moe.mlp(
        jnp.ones((2, 3)), jnp.ones((3, 1), jnp.int32), jnp.ones((3, 1)), jnp.ones((1, 3, 2)), jnp.ones((1, 1, 3))
    ),
    "for x (.., d), got (1,), (1,) and ()": lambda: jf.moe.mlp(
        jnp.ones(()), jnp.ones(1, jnp.int32), jnp.ones(1), jnp.ones((1, 3, 2)), jnp.ones((1, 1, 3))
    ),
    "mlp: w13 must be (num_experts, d, columns), got (3, 2)": lambda: jf.moe.mlp(
        jnp.ones((2, 3)), jnp.ones((2, 1), jnp.int32), jnp.ones((2, 1)), jnp.ones((3, 2)), jnp.ones((1, 1, 3))
    ),
    "for x (.., d), got (1, 4, 2), (1, 1, 3) and (2, 3)": lambda: jf.moe.mlp(
        jnp.ones((2, 3)), jnp.ones((2, 1), jnp.int32), jnp.ones((2, 1)), jnp.ones((1, 4, 2)), jnp.ones((1, 1, 3))
    ),
    "mlp: w13 must have 4 columns for activation 'swiglu' and w2 (1, 2, 3)": lambda: jf.moe.mlp(
        jnp.ones((2, 3)), jnp.ones((2, 1), jnp.int32), jnp.ones((2, 1)), jnp.ones((1, 3, 2)), jnp.ones((1, 2, 3))
    ),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        ERRORS[message]()
