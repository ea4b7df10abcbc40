"""Experts spread over devices, against `moe` on one device with all tokens and against a loop over choices."""

import functools
import re

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _rounds

D, F, EXPERTS, TOKENS = 8, 6, 8, 28


def random(*shape, seed=0, dtype="float32"):
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape), dtype)


SPLIT = P("ep")
# On the CPU, and on as many GPUs.
pytestmark = pytest.mark.usefixtures("device")


def on_mesh(f, devices, out_specs=SPLIT, **options):
    return jax.shard_map(f, mesh=meshes.mesh(ep=devices), in_specs=SPLIT, out_specs=out_specs, **options)


@pytest.fixture(params=["one round", "many rounds"])
def rounds(request, monkeypatch):
    """Streams as they are, where these few tokens go in one round, and rounds of few tokens."""
    if request.param == "many rounds":
        small = {"_LOOP_BYTES": 0, "_ROUND_BYTES": 0, "_NARROW_BYTES": 16, "_ROOM": 0.3, "_LOOPS_ON_CPUS": True}
        for name, value in small.items():
            monkeypatch.setattr(_rounds, name, value)
    return request.param


def choices(top_k, tokens=TOKENS, seed=0):
    """Distinct experts for each token."""
    rng = np.random.default_rng([seed, top_k, tokens])
    return np.stack([rng.permutation(EXPERTS)[:top_k] for _ in range(tokens)]).astype(np.int32)


def routings(devices, top_k):
    """Return experts `(TOKENS, top_k)` by name. Each of `devices` owns the next experts and has the next tokens."""
    any_ = choices(top_k)
    local, own = EXPERTS // devices, TOKENS // devices
    found = {"random": any_, "all to one expert": np.zeros_like(any_)}
    found["all to the last device"] = EXPERTS - 1 - any_ % local
    found["all to the second device"] = local + any_ % local
    found["nothing from the first device"], found["nothing from the last device"] = any_.copy(), any_.copy()
    found["nothing from the first device"][:own], found["nothing from the last device"][-own:] = -1, EXPERTS
    found["no choice is an expert"] = np.full_like(any_, EXPERTS)
    some = any_.copy()
    some[::3, 0], some[5] = -1, EXPERTS + 7
    found["some choices are none"] = some
    for name, empty in (("first", [0]), ("last", [EXPERTS - 1]), ("several", [1, 2, 6])):
        found[f"empty: {name}"] = np.where(np.isin(any_, empty), EXPERTS, any_)
    if top_k > 1:
        # As many as a device has experts: more of one token find no room.
        found["one expert twice"] = any_.copy()
        found["one expert twice"][:, 1] = any_[:, 0]
        return {name: e for name, e in found.items() if name != "all to one expert"}
    return found


def arguments(devices, top_k, dtype="float32"):
    x, weights = random(TOKENS, D, dtype=dtype), random(TOKENS, top_k, seed=3)
    return x, weights, random(EXPERTS, D, 2 * F, seed=1, dtype=dtype), random(EXPERTS, F, D, seed=2, dtype=dtype)


def value_and_grads(devices, rounds, activation="swiglu", wide=False, **options):
    """Return the layer with its gradients, of all tokens: on one device, or on several."""
    return _compiled(jax.config.jax_default_device, devices, rounds, activation, wide, **options)


@functools.cache
def _compiled(_, devices, rounds, activation, wide, **options):
    f = functools.partial(jf.moe.mlp, activation=activation)
    if devices > 1:
        f = on_mesh(functools.partial(jf.moe.ep_mlp, axis_name="ep", activation=activation, **options), devices)

    def both(x, weights, w13, w2, experts):
        def loss(*a):
            out = f(a[0], experts, *a[1:])
            return jnp.sum(jnp.sin(out if wide else out.astype(jnp.float32))), out

        (_, out), slopes = jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(x, weights, w13, w2)
        return out, *slopes

    return jax.jit(both)


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("top_k", [1, 2])
def test_layer_is_that_of_one_device(devices, top_k, rounds):
    args = arguments(devices, top_k)
    for name, experts in routings(devices, top_k).items():
        got = value_and_grads(devices, rounds)(*args, experts)
        for a, b in zip(got, value_and_grads(1, None)(*args, experts), strict=True):
            assert_close(a, b, scale=4)
        if name.startswith("empty"):
            loads = np.bincount(experts[experts < EXPERTS], minlength=EXPERTS)
            assert not np.asarray(got[3])[loads == 0].any() and not np.asarray(got[4])[loads == 0].any()


def test_layer_against_a_loop(rounds):
    x, weights, w13, w2 = arguments(4, 3)
    experts = choices(3)
    out = value_and_grads(4, rounds)(x, weights, w13, w2, experts)[0]
    want = np.zeros((TOKENS, D))
    for token, row in enumerate(np.asarray(x, np.float64)):
        for expert, weight in zip(experts[token], np.asarray(weights[token], np.float64)):
            gate, up = np.split(row @ np.asarray(w13[expert], np.float64), 2)
            want[token] += weight * (gate / (1 + np.exp(-gate)) * up) @ np.asarray(w2[expert], np.float64)
    assert_close(out, want, scale=4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits(dtype):
    """A token's parts are rounded between devices: no further from float32 than one device is, but for that."""
    args, experts = [a / 2 for a in arguments(4, 3, dtype)], choices(3)
    got = value_and_grads(4, None)(*args, experts)
    want = value_and_grads(1, None)(*(a.astype(jnp.float32) for a in args), experts)
    assert got[0].dtype == dtype
    for a, b, like in zip(got, want, [args[0], *args], strict=True):
        assert a.dtype == like.dtype
        assert_close(a, b, dtype, scale=2)


def _twice_tanh(h):
    return 2 * jnp.tanh(h)


@pytest.mark.parametrize("activation", ["relu", _twice_tanh])
def test_other_activations(activation, rounds):
    x, weights, w13, w2 = arguments(2, 2)
    args = x, weights, w13[..., :F], w2, choices(2)
    got, want = (value_and_grads(n, rounds, activation)(*args) for n in (2, 1))
    for a, b in zip(got, want, strict=True):
        assert_close(a, b, scale=4)


def test_leading_dimensions_and_other_meshes():
    """Tokens `(batch, length, d)`; an axis of the mesh for the data, several for the experts; explicit; unchecked."""
    x, weights, w13, w2 = arguments(4, 2)
    experts = choices(2)
    want = value_and_grads(1, None)(x, weights, w13, w2, experts)[0]
    lead = lambda a: a.reshape(4, TOKENS // 4, -1)  # noqa: E731
    layer = functools.partial(jf.moe.ep_mlp, axis_name="ep")
    out = jax.jit(on_mesh(layer, 2, check_vma=False))(lead(x), lead(experts), lead(weights), w13, w2)
    assert_close(out.reshape(want.shape), want, scale=4)

    square = meshes.mesh(data=2, ep=2)
    tokens = P(("data", "ep"))
    specs = (tokens, tokens, tokens, P("ep"), P("ep"))
    out = jax.jit(jax.shard_map(layer, mesh=square, in_specs=specs, out_specs=tokens))(x, experts, weights, w13, w2)
    assert_close(out, want, scale=4)
    both = functools.partial(jf.moe.ep_mlp, axis_name=("data", "ep"))
    out = jax.jit(jax.shard_map(both, mesh=square, in_specs=tokens, out_specs=tokens))(x, experts, weights, w13, w2)
    assert_close(out, want, scale=4)
    f = jax.shard_map(layer, mesh=square, in_specs=P("ep"), out_specs=P("ep"), axis_names={"ep"})
    args = [jax.device_put(a, jax.NamedSharding(square, tokens)) for a in (x, experts, weights, w13, w2)]
    assert_close(jax.jit(f)(*args), want, scale=4)

    explicit = meshes.mesh(AxisType.Explicit, ep=4)
    args = [jax.device_put(a, jax.NamedSharding(explicit, P("ep"))) for a in (x, experts, weights, w13, w2)]
    with jax.set_mesh(explicit):
        f = jax.shard_map(layer, in_specs=P("ep"), out_specs=P("ep"))
        assert_close(jax.jit(f)(*args), want, scale=4)
        slopes = jax.jit(jax.grad(lambda x, w13: jnp.sum(f(x, *args[1:3], w13, args[4])), (0, 1)))(args[0], args[3])
    for a, like in zip(slopes, (args[0], args[3])):
        assert a.sharding.is_equivalent_to(like.sharding, a.ndim)


# Dispatch and combine.


def parts(x, experts, rows_cotangent, weights, capacity=None):
    """Return rows, extents, what is combined of twice the rows, the gradient of `x` by rows, statistics."""
    nt, state = jf.moe.ep_dispatch(x, experts, num_experts=EXPERTS, axis_name="ep", capacity=capacity)
    out = jf.moe.ep_combine(nt * 2, state, weights)

    def rows(x):
        return jf.moe.ep_dispatch(x, experts, num_experts=EXPERTS, axis_name="ep", capacity=capacity)[0].data

    cotangent = jnp.where(nt.row_mask()[:, None], rows_cotangent[: nt.capacity], jnp.nan)
    return nt.data, nt.extents, out, jax.vjp(rows, x)[1](cotangent)[0], state.stats()


SPECS = (P("ep"), P("ep"), P("ep"), P("ep"), P())


@pytest.mark.parametrize("devices", [2, 4])
def test_rows_are_those_of_dispatch(devices, rounds):
    """Bit for bit, and their sums closely, with NaN in choices that are dropped and in cotangents of padding."""
    experts = choices(3)
    experts[3] = EXPERTS
    x = random(TOKENS, D).at[3].set(jnp.nan)
    weights, cotangent = random(TOKENS, 3, seed=3), random(4 * devices * TOKENS, D, seed=4)
    data, extents, out, slope, stats = jax.jit(on_mesh(parts, devices, SPECS))(x, experts, cotangent, weights)
    nt, state = jf.moe.dispatch(x, experts, num_experts=EXPERTS)
    np.testing.assert_array_equal(extents, nt.extents)
    assert_close(out, jf.moe.combine(nt * 2, state, weights))
    assert not np.asarray(out[3]).any() and not np.asarray(slope[3]).any()
    data, per_device = np.asarray(data).reshape(devices, -1, D), np.asarray(extents).reshape(devices, -1).sum(1)
    held = [rows[:n] for rows, n in zip(data, per_device)]
    np.testing.assert_array_equal(np.concatenate(held), np.asarray(nt.data)[: int(nt.total)])
    assert not any(rows[n:].any() for rows, n in zip(data, per_device))
    given = np.asarray(cotangent).reshape(devices, -1, D)
    whole = np.concatenate([rows[:n] for rows, n in zip(given, per_device)] + [np.zeros((3, D), np.float32)])
    back = jax.vjp(lambda x: jf.moe.dispatch(x, experts, num_experts=EXPERTS)[0].data, x)[1]
    assert_close(slope, back(jnp.asarray(whole))[0])
    assert [int(stats.dropped), int(stats.clipped)] == [3, 0]
    np.testing.assert_array_equal(stats.load, np.bincount(experts[experts < EXPERTS], minlength=EXPERTS))


def test_many_rows(rounds, monkeypatch):
    """Gathers by kernels of ours, on GPUs in every round; device 0 gets most rows."""
    monkeypatch.setattr(_rounds, "_LOOPS_ON_CPUS", False)
    tokens, columns = 2048, 512
    experts = np.where(np.arange(tokens)[:, None] % 3 > 0, choices(2, tokens) % 4, choices(2, tokens))
    x, weights, cotangent = random(tokens, columns), random(tokens, 2, seed=3), random(tokens, columns, seed=4)

    def halves(dispatch, combine, x, experts, weights):
        nt, state = dispatch(x, experts, num_experts=EXPERTS)
        return combine(nt * 2, state, weights)

    spread = functools.partial(jf.moe.ep_dispatch, axis_name="ep")
    ours = on_mesh(functools.partial(halves, spread, jf.moe.ep_combine), 2)
    got, want = (
        jax.jit(lambda x, w, f=f: jax.vjp(lambda x, w: f(x, experts, w), x, w)[1](cotangent))(x, weights)
        for f in (ours, functools.partial(halves, jf.moe.dispatch, jf.moe.combine))
    )
    for a, b in zip(got, want, strict=True):
        assert_close(a, b)


def kept_choices(experts, devices, room):
    """Return the experts without the choices that find no room."""
    kept = experts.copy()
    own = len(experts) // devices
    for source in range(devices):
        counts = np.zeros(devices, int)
        for token in range(source * own, source * own + own):
            for choice, expert in enumerate(experts[token]):
                if 0 <= expert < EXPERTS:
                    to = expert // (EXPERTS // devices)
                    if counts[to] >= room:
                        kept[token, choice] = EXPERTS
                    counts[to] += 1
    return kept


@pytest.mark.parametrize("capacity", [0.01, 1.0, 1.25, 100])
def test_capacity_drops_what_comes_last(capacity, rounds):
    devices, top_k = 4, 3
    experts = choices(top_k)
    experts[:12, 0], experts[5] = 0, -1
    room = min(int(np.ceil(capacity * (TOKENS // devices) * top_k / devices)), TOKENS // devices * 2)
    kept = kept_choices(experts, devices, room)
    x, weights = random(TOKENS, D), random(TOKENS, top_k, seed=3)
    cotangent = random(4 * devices * TOKENS, D, seed=4)
    f = functools.partial(parts, capacity=capacity)
    data, extents, out, slope, stats = jax.jit(on_mesh(f, devices, SPECS))(x, experts, cotangent, weights)
    assert data.shape[0] == devices * devices * room
    nt, state = jf.moe.dispatch(x, kept, num_experts=EXPERTS)
    np.testing.assert_array_equal(extents, nt.extents)
    assert_close(out, jf.moe.combine(nt * 2, state, weights))
    load = np.bincount(kept[(kept >= 0) & (kept < EXPERTS)], minlength=EXPERTS)
    np.testing.assert_array_equal(stats.load, load)
    asked = ((experts >= 0) & (experts < EXPERTS)).sum()
    assert int(stats.clipped) == asked - load.sum() and int(stats.dropped) == experts.size - load.sum()
    assert_close(stats.imbalance, np.float32(load.max() / load.mean()))
    assert (int(stats.max), int(stats.empty)) == (load.max(), (load == 0).sum())
    assert not np.asarray(slope)[(kept == EXPERTS).all(1)].any()
    assert int(stats.clipped) > 0 or capacity == 100


def test_layer_with_a_capacity():
    args, experts = arguments(4, 3), choices(3)
    experts[:, 0] = 1
    kept = kept_choices(experts, 4, 6)
    got, want = value_and_grads(4, None, capacity=1.0)(*args, experts), value_and_grads(1, None)(*args, kept)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b, scale=4)


def test_an_expert_named_more_often_than_a_device_has_experts():
    """There is room for as many rows of a token as the device has experts; the rest is dropped, and counted."""
    experts = np.zeros((TOKENS, 3), np.int32)

    def f(x, experts):
        nt, state = jf.moe.ep_dispatch(x, experts, num_experts=4, axis_name="ep")
        return jf.moe.ep_combine(nt, state, jnp.ones(experts.shape)), state.stats()

    out, stats = jax.jit(on_mesh(f, 2, (P("ep"), P())))(random(TOKENS, D), experts)
    assert stats.load.tolist() == [2 * TOKENS, 0, 0, 0]
    assert (int(stats.dropped), int(stats.clipped)) == (TOKENS, TOKENS)
    assert not np.isnan(out).any()


def test_padding_is_never_read(rounds):
    experts = jnp.asarray(choices(2)).at[::2, 1].set(EXPERTS)

    def f(x, experts, weights):
        nt, state = jf.moe.ep_dispatch(x, experts, num_experts=EXPERTS, axis_name="ep")
        rows = jnp.where(nt.row_mask()[:, None], nt.data, jnp.nan)
        out, back = jax.vjp(lambda r, w: jf.moe.ep_combine(nt.replace(data=r), state, w), rows, weights)
        return out, *back(jnp.ones_like(out)), nt.row_mask()

    weights = random(TOKENS, 2, seed=3)
    out, d_rows, d_weights, mask = jax.jit(on_mesh(f, 2))(random(TOKENS, D), experts, weights)
    for a in (out, d_rows, d_weights):
        assert np.isfinite(a).all()
    assert not np.asarray(d_rows)[~np.asarray(mask)].any() and not np.asarray(d_weights)[::2, 1].any()


def test_one_choice_without_an_axis_for_it_and_debug_checks():
    x, experts = random(8, D), np.arange(8, dtype=np.uint8)

    def f(x, experts):
        nt, state = jf.moe.ep_dispatch(x, experts, num_experts=EXPERTS, axis_name="ep")
        return jf.moe.ep_combine(nt, state, jnp.ones(experts.shape))

    with jf.debug_checks():
        np.testing.assert_array_equal(on_mesh(f, 2)(x, experts), x)


@pytest.mark.parametrize("check_vma", [True, False])
def test_tokens_that_all_devices_have(check_vma, rounds):
    """Each sends all of them; the mean of what comes back is the layer, with its gradients."""
    x, weights, experts = random(TOKENS, D), random(TOKENS, 2), choices(2)
    w13, w2 = random(EXPERTS, D, 2 * F), random(EXPERTS, F, D)

    def halves(x, experts, weights, w13, w2):
        nt, state = jf.moe.ep_dispatch(x, experts, num_experts=EXPERTS, axis_name="ep")
        y = jf.grouped_matmul(jf.grouped_matmul(nt, w13, activation="swiglu"), w2)
        return jf.moe.ep_combine(y, state, weights)

    def gradients(f):
        return jax.jit(jax.grad(lambda *a: jnp.sum(jnp.sin(f(a[0], experts, *a[1:]))), (0, 1, 2, 3)))(
            x, weights, w13, w2
        )

    want = gradients(jf.moe.mlp)
    for layer in (functools.partial(jf.moe.ep_mlp, axis_name="ep"), halves):
        mean = jax.shard_map(
            lambda *a, layer=layer: jax.lax.pmean(layer(*a), "ep"), mesh=meshes.mesh(ep=2), check_vma=check_vma,
            in_specs=(P(), P(), P(), SPLIT, SPLIT), out_specs=P(),
        )  # fmt: skip
        for got, exact in zip(gradients(mean), want):
            assert_close(got, exact, scale=8)


@pytest.mark.skipif(jax.__version__.startswith("0.11."), reason="JAX 0.11 crashes where a shard_map reads nothing")
def test_a_batch_of_nothing():
    layer = jax.jit(jax.vmap(on_mesh(functools.partial(jf.moe.ep_mlp, axis_name="ep"), 2), (0, 0, 0, None, None)))
    experts = jnp.zeros((0, 4, 2), jnp.int32)
    out = layer(jnp.zeros((0, 4, D)), experts, jnp.zeros((0, 4, 2)), random(EXPERTS, D, 2 * F), random(EXPERTS, F, D))
    assert out.shape == (0, 4, D)


def test_no_tokens_no_columns_no_experts():
    layer = jax.jit(on_mesh(functools.partial(jf.moe.ep_mlp, axis_name="ep"), 2))
    w13, w2 = jnp.ones((4, D, 2 * F)), jnp.ones((4, F, D))
    none = layer(jnp.ones((0, D)), jnp.ones((0, 2), jnp.int32), jnp.ones((0, 2)), w13, w2)
    assert none.shape == (0, D)
    ones = jnp.ones((4, 2), jnp.int32), jnp.ones((4, 2))
    assert_close(layer(jnp.ones((4, D)), *ones, w13[:0], w2[:0]), jnp.zeros((4, D)))
    assert_close(layer(jnp.ones((4, 0)), *ones, w13[:, :0], w2), jnp.zeros((4, D)))


def test_wide_numbers(rounds):
    with jax.enable_x64(True):
        args = [np.asarray(a, np.float64) for a in arguments(2, 3)]
        experts = choices(3).astype(np.int64)
        experts[3, 1] = 2**40
        got, want = (value_and_grads(n, rounds, wide=True)(*args, experts) for n in (2, 1))
        for a, b in zip(got, want, strict=True):
            assert a.dtype == np.float64
            assert_close(a, b, scale=4)


# Transforms.


def test_scan_over_layers_with_checkpoint(rounds):
    x, weights, w13, w2 = arguments(4, 2)
    experts = choices(2)
    stack = [jnp.stack([w, 0.5 * w]) for w in (w13, w2)]

    def model(mlp, x, experts, weights, w13, w2):
        body = jax.checkpoint(lambda h, w: (h + mlp(h, experts, weights, *w), None))
        return jax.lax.scan(body, x, (w13, w2))[0]

    layer = functools.partial(jf.moe.ep_mlp, axis_name="ep")
    specs = (P("ep"), P("ep"), P("ep"), P(None, "ep"), P(None, "ep"))
    spread = jax.shard_map(functools.partial(model, layer), mesh=meshes.mesh(ep=4), in_specs=specs, out_specs=P("ep"))
    got, want = (
        jax.jit(jax.grad(lambda x, *w, f=f: jnp.sum(f(x, experts, weights, *w) ** 2), (0, 1, 2)))(x, *stack)
        for f in (spread, functools.partial(model, jf.moe.mlp))
    )
    for a, b in zip(got, want, strict=True):
        assert_close(a, b, scale=10)


def test_vmap_forward_mode_and_second_order(rounds):
    x, weights, w13, w2 = arguments(2, 2)
    experts = choices(2)
    layer = on_mesh(functools.partial(jf.moe.ep_mlp, axis_name="ep"), 2)
    xs, many = jnp.stack([x, -2 * x]), jnp.stack([experts, experts[::-1]])
    got, want = (jax.jit(jax.vmap(f, (0, 0, None, None, None)))(xs, many, weights, w13, w2)
                 for f in (layer, jf.moe.mlp))  # fmt: skip
    assert_close(got, want, scale=4)
    args = (x, weights, w13, w2)

    def both(f):
        g = lambda x, weights, w13, w2: jnp.sum(jnp.sin(f(x, experts, weights, w13, w2)))  # noqa: E731
        moved = jax.jvp(g, args, tuple(jnp.cos(a) for a in args))[1]
        return moved, jax.grad(lambda *a: sum(jnp.vdot(s, s) for s in jax.grad(g, (0, 1))(*a)), (0, 1))(*args)

    got, want = (jax.tree.leaves(jax.jit(functools.partial(both, f))()) for f in (layer, jf.moe.mlp))
    for a, b in zip(got, want, strict=True):
        assert_close(a, b, scale=20)


def test_results_are_repeatable(rounds):
    args, experts = arguments(4, 2), choices(2)
    step = value_and_grads(4, rounds)
    for a, b in zip(step(*args, experts), step(*args, experts), strict=True):
        np.testing.assert_array_equal(a, b)


def test_rows_move_by_all_to_all_and_gathers(rounds):
    """Scatters turn a permutation of integers around, and nothing else; no rows are gathered from all devices."""
    text = value_and_grads(4, f"text of {rounds}").lower(*arguments(4, 2), choices(2)).as_text()
    assert "all_gather" not in text and "stablehlo.all_to_all" in text
    assert ("stablehlo.while" in text) == (rounds == "many rounds")
    scattered = re.findall(r'"stablehlo\.scatter"(?:.*?)\n\s*\}\) : \((tensor<[^>]*>)', text, re.DOTALL)
    assert scattered and all(a.endswith("xi32>") for a in scattered)


# What it says.


def test_repr():
    seen = []

    def f(x, experts):
        _, state = jf.moe.ep_dispatch(x, experts, num_experts=EXPERTS, axis_name="ep")
        seen.append(repr(state))
        return state.load

    jax.jit(on_mesh(f, 2, P()))(random(4, D), choices(2, 4))
    assert seen == ["EpState(tokens=2, top_k=2, axis='ep', load=?)"]


def refused(message, f, *args, error=ValueError, devices=2):
    with pytest.raises(error, match=re.escape(message)):
        jax.eval_shape(on_mesh(f, devices), *args)


def dispatched(**changes):
    options = {"num_experts": EXPERTS, "axis_name": "ep", **changes}
    return lambda x, experts: jf.moe.ep_dispatch(x, experts, **options)[0].data


def test_messages():
    x, experts, weights = jnp.ones((4, D)), jnp.ones((4, 2), jnp.int32), jnp.ones((4, 2))
    w13, w2 = jnp.ones((4, D, 2 * F)), jnp.ones((4, F, D))
    layer = functools.partial(jf.moe.ep_mlp, axis_name="ep")
    unbound = "axis 'ep' is not bound; call inside jax.shard_map over a mesh with that axis"
    with pytest.raises(NameError, match=f"^ep_dispatch: {unbound}$"):
        dispatched()(x, experts)
    with pytest.raises(NameError, match=f"^ep_dispatch: {unbound}"):
        jax.vmap(dispatched(), axis_name="ep")(x[None], experts[None])
    with pytest.raises(NameError, match=f"^ep_mlp: {unbound}$"):
        layer(x, experts, weights, w13, w2)
    refused("ep_dispatch: 7 experts not divisible by the 2 devices of axis 'ep'", dispatched(num_experts=7), x, experts)
    refused("ep_dispatch: experts must be (tokens, top_k) or (tokens,) for x", dispatched(), x, experts[:2])
    refused("ep_dispatch: experts must be integers, got float32", dispatched(), x, weights, error=TypeError)
    refused("ep_dispatch: capacity must be above 0, times the rows", dispatched(capacity=0), x, experts)
    refused("ep_dispatch: capacity must be above 0", dispatched(capacity=float("nan")), x, experts)
    for bad in (True, "all", jnp.ones(())):
        refused("ep_dispatch: capacity must be a number or None, got a", dispatched(capacity=bad), x, experts,
                error=TypeError)  # fmt: skip
    refused("ep_mlp: experts and weights must be (.., top_k) for x", layer, x, experts, weights[:2], w13, w2)
    refused("ep_mlp: w13_local must be (num_experts, d, columns) and w2_local", layer, x, experts, weights, w13[:2], w2)
    few = x, experts, weights, w13[..., 1:], w2
    refused("ep_mlp: w13_local must have 12 columns for activation 'swiglu' and w2_local (2, 6, 8) as", layer, *few)
    same = jax.shard_map(layer, mesh=meshes.mesh(ep=2), in_specs=(P("ep"),) * 3 + (P(),) * 2, out_specs=P("ep"))
    with pytest.raises(ValueError, match="ep_mlp: w13_local is the same on every device of axis 'ep', expected each"):
        jax.eval_shape(same, x, experts, weights, w13, w2)

    def combined(change):
        def f(x, experts, weights):
            nt, state = jf.moe.ep_dispatch(x, experts, num_experts=EXPERTS, axis_name="ep")
            return jf.moe.ep_combine(*change(nt, state, weights))

        return f

    refused("ep_combine: weights must be (tokens, top_k)=(2, 2), got (2, 1)",
            combined(lambda nt, state, w: (nt, state, w[:, :1])), x, experts, weights)  # fmt: skip
    refused("ep_combine: nt must have the 8 rows that ep_dispatch returned, got data (3, 8)",
            combined(lambda nt, state, w: (jf.as_nested(nt.data[:3], extents=nt.extents), state, w)),
            x, experts, weights)  # fmt: skip
    refused("ep_combine: state must be what ep_dispatch returned, got a NoneType",
            combined(lambda nt, state, w: (nt, None, w)), x, experts, weights, error=TypeError)  # fmt: skip
    local = on_mesh(lambda x, e, w13: jf.grouped_matmul(dispatched_nested(x, e), w13).data, 2)
    with pytest.raises(ValueError, match="rhs has 2 groups but lhs has 4"):
        jax.eval_shape(local, x, experts, w13)


def dispatched_nested(x, experts):
    return jf.moe.ep_dispatch(x, experts, num_experts=EXPERTS, axis_name="ep")[0]
