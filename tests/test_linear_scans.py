"""Loops whose carries are linear recurrences: one kernel for all steps, and what stays a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from loop_interpreter import recurred
from tolerances import assert_close

import jax_fuser as jf


def left_to_xla(f, *args):
    return [c.primitive for c in jf.explain(f)(*args).cuts]


def values(*shape, dtype="float32", seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def average(x):
    """Exponential moving average."""

    def step(mean, x):
        mean = 0.9 * mean + 0.1 * x
        return mean, mean

    return lax.scan(step, jnp.zeros_like(x[0]), x)[1]


def returns(reward, done):
    """Discounted returns, from the last step on; `where` forgets at the end of an episode."""

    def step(after, now):
        reward, done = now
        total = reward + 0.99 * jnp.where(done > 1, 0.0, after)
        return total, total

    last, all_returns = lax.scan(step, reward[-1] * 0.5, (reward, done), reverse=True)
    return last, all_returns


def advantages(reward, value, done):
    """Generalised advantage estimates (Schulman et al. 2016, eq. 16): two carries, of which one is the next value."""

    def step(carry, now):
        advantage, next_value = carry
        reward, value, done = now
        delta = reward + 0.99 * next_value * (1 - done) - value
        advantage = delta + 0.99 * 0.95 * (1 - done) * advantage
        return (advantage, value), advantage

    return lax.scan(step, (jnp.zeros_like(value[-1]), value[-1]), (reward, value, done), reverse=True)[1]


def gated(x, gate, first):
    """A gated linear unit's recurrence (De et al. 2024, eq. 4); the result reads the state before each step, too."""

    def step(state, now):
        x, gate = now
        a = jax.nn.sigmoid(gate)
        new = a * state + jnp.sqrt(1 - a * a) * x
        return new, (new * x, jnp.tanh(state))

    return lax.scan(step, first, (x, gate))


def counted(x):
    """A carry that counts, one that stays, one that is a running sum, one that reads two others."""

    def step(carry, x):
        count, bias, total, mixed = carry
        total = total + x
        mixed = (mixed - total) / 2 + count.astype(x.dtype) * bias
        return (count + 1, bias, total, -mixed), (total, mixed, count)

    return lax.scan(step, (jnp.int32(3), x[0] * 2, x[1], x[1] * 0), x)


CASES = {
    average: lambda t, *s: (values(t, *s),),
    returns: lambda t, *s: (values(t, *s), values(t, *s, seed=1)),
    advantages: lambda t, *s: (values(t, *s), values(t, *s, seed=1), (values(t, *s, seed=2) > 1).astype("float32")),
    gated: lambda t, *s: (values(t, *s), values(t, *s, seed=1), values(*s, seed=2)),
    counted: lambda t, *s: (values(t, *s) * 0.1,),
}
SHAPES = [(2,), (7, 1), (300,), (5, 3), (33, 70), (130, 4, 33), (1000, 2), (64, 1024), (70001,), (5000, 3, 7)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("f", CASES, ids=lambda f: f.__name__)
def test_they_are_kernels_that_agree_with_the_loop(device, f, shape):
    args = CASES[f](*shape)
    assert "scan" not in left_to_xla(f, *args)
    for got, want in zip(jax.tree.leaves(jf.fuse(f)(*args)), jax.tree.leaves(f(*args))):
        assert got.dtype == want.dtype
        assert_close(got, want, scale=4)


@pytest.mark.parametrize("f", [average, advantages], ids=lambda f: f.__name__)
def test_one_kernel_reads_each_operand_once(f):
    (region,) = jf.explain(f)(*CASES[f](128, 256)).regions
    assert sum(line.startswith("segment") for line in region.kernels.splitlines()) == 1


def test_a_kernel_for_gpus_scans_by_threads_where_columns_are_few():
    for columns, text in ((1 << 19, "= scan"), (1024, "over threads_y")):
        loops = jf.fuse(average).lower(jax.ShapeDtypeStruct((64, columns), "float32")).as_text("loops", platform="cuda")
        assert text in loops and " times " in loops


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("reverse", [False, True])
def test_dtypes(device, dtype, reverse):
    with jax.enable_x64(dtype == "float64"):
        x, a = values(40, 67, dtype=dtype), jax.nn.sigmoid(values(40, 67, dtype=dtype, seed=1))

        def f(x, a):
            def step(h, now):
                h = now[1] * h + now[0]
                return h, h

            return lax.scan(step, jnp.ones_like(x[0]), (x, a), reverse=reverse)[1]

        wide, factors = (np.asarray(v).astype(np.float64).T for v in (x, a))
        turn = slice(None, None, -1 if reverse else 1)
        before, _ = recurred(wide[:, turn], factors[:, turn], 1)
        want = (wide + factors * before[:, turn]).T
        got = jf.fuse(f)(x, a)
        assert got.dtype == dtype
        assert_close(got, want, dtype, scale=4)


@pytest.mark.parametrize("f", CASES, ids=lambda f: f.__name__)
def test_derivatives(device, f):
    args = [x for x in CASES[f](33, 70)]

    def loss(f):
        return lambda *args: sum(
            jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(f(*args)) if jnp.issubdtype(x.dtype, jnp.floating)
        )

    every = tuple(range(len(args)))
    want = jax.grad(loss(f), every)(*args)
    for derivative in (jf.fuse(jax.grad(loss(f), every)), jax.grad(jf.fuse(loss(f)), every)):
        assert "scan" not in left_to_xla(derivative, *args)
        for got, expected in zip(derivative(*args), want):
            assert_close(got, expected, scale=16)
    tangents = [jnp.cos(x) for x in args]
    directional = lambda f: jax.jvp(jax.grad(loss(f)), args, tangents)[1]  # noqa: E731
    assert_close(directional(jf.fuse(f)), directional(f), scale=32)


def test_transforms(device):
    x, gate, first = values(5, 33, 20), values(33, 5, 20, seed=1), values(20, seed=2)
    call = lambda f: jax.vmap(f, (0, 1, None))(x, gate, first)  # noqa: E731
    for got, want in zip(jax.tree.leaves(call(jf.fuse(gated))), jax.tree.leaves(call(gated))):
        assert_close(got, want, scale=4)
    mapped = jf.fuse(jax.vmap(gated, (0, 1, None)))
    assert "scan" not in left_to_xla(mapped, x, gate, first)
    assert_close(mapped(x, gate, first)[0], call(gated)[0], scale=4)
    outer = lambda f: lambda x: lax.scan(lambda c, x: (c + 1, f(x)), 0, x)[1]  # noqa: E731
    assert_close(jf.fuse(outer(average))(x), outer(average)(x), scale=4)
    assert_close(jf.fuse(jax.checkpoint(average))(x), average(x), scale=4)


@pytest.mark.parametrize("length", [200, 4200])
def test_nan_infinities_and_zeros(device, length):
    x, a = np.array(values(length, 70)), np.abs(np.array(values(length, 70, seed=1)))
    x[40, 1], x[50, 2], a[60, 3], x[30, 4] = np.nan, np.inf, np.nan, -np.inf
    a[70], a[:, 5:9] = 0, 1e30  # forgets all but NaN and infinities; products of factors overflow
    x[:, 5] = np.abs(x[:, 5])  # where results overflow, infinities of unlike sign may meet
    x[:, 8] = np.abs(x[:, 8])
    x[:, 6:8] = 0
    x[100:, 7] = 1

    def f(x, a):
        def step(h, now):
            h = now[1] * h + now[0]
            return h, h

        return lax.scan(step, jnp.zeros_like(x[0]), (x, a))[1]

    got, want = np.asarray(jf.fuse(f)(x, a)), np.asarray(f(x, a))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
    finite = np.isfinite(want)
    assert_close(got[finite], want[finite], scale=16)


FORGET = {
    "kept where there is none": lambda h, x: (jnp.where(jnp.isnan(x), h, x),) * 2,
    "reset": lambda h, x: (jnp.where(x > 1, 0.0, h) + x,) * 2,
    "reset and scaled": lambda h, x: (-jnp.where(x > 1, x, 3 * jnp.where(x < -1, x, h) + 1),) * 2,
    "two of it": lambda h, x: (jnp.where(x > 1, 0.0, h) * 0.3 + jnp.where(x < 1, x, h) * 0.4,) * 2,
}


@pytest.mark.parametrize("shape", [(300, 5), (40, 1030), (70001,), (4200, 3)], ids=str)
@pytest.mark.parametrize("step", FORGET)
def test_choices_forget_nan_and_infinities(device, step, shape):
    x = np.array(values(*shape))
    x[::50], x[20::70], x[30::70] = np.nan, np.inf, -np.inf
    f = lambda x: lax.scan(FORGET[step], x[0] * 0 + 1, x)[1]  # noqa: E731
    x = jnp.asarray(x)
    assert "scan" not in left_to_xla(f, x)
    got, want = np.asarray(jf.fuse(f)(x)), np.asarray(f(x))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    same = np.isfinite(want)
    np.testing.assert_array_equal(got[~same], want[~same])
    assert_close(got[same], want[same], scale=4)


@pytest.mark.parametrize("reverse", [False, True])
def test_what_is_forgotten_has_no_derivative(device, reverse):
    x, ends = values(100, 40), values(100, 40, seed=1) > 0.5

    def f(x):
        def step(h, now):
            h = jnp.where(now[1], 0.0, h) + now[0]
            return h, h

        return lax.scan(step, x[0] * 0, (x, ends), reverse=reverse)[1]

    cotangent = jnp.where(values(100, 40, seed=2) > 2, jnp.inf, 1.0)
    derivative = lambda f: jax.vjp(f, x)[1](cotangent)[0]  # noqa: E731
    np.testing.assert_array_equal(derivative(jf.fuse(f)), derivative(f))
    fused = jf.fuse(lambda x, ct: jax.vjp(f, x)[1](ct)[0])
    np.testing.assert_array_equal(fused(x, cotangent), derivative(f))


def test_sums_begin_with_the_first_value(device):
    f = lambda first, x: lax.scan(lambda h, x: (h + x,) * 2, first, x)  # noqa: E731
    args = jnp.full(70, 1e8), jnp.tile(jnp.array([[-1e8], [0.1], [0.1]]), 70)
    for got, want in zip(jf.fuse(f)(*args), f(*args)):
        assert_close(got, want)


def test_functions_with_derivatives_of_their_own(device):
    x = values(9, 70)
    f = lambda x: lax.scan(lambda h, x: (0.5 * h + jax.nn.relu(x), straight_through(x, x)), x[0], x)[1].sum()  # noqa: E731
    assert "scan" not in left_to_xla(f, x)
    for fused in (jax.value_and_grad(jf.fuse(f)), jf.fuse(jax.value_and_grad(f))):
        for got, want in zip(fused(x), jax.value_and_grad(f)(x)):
            assert_close(got, want, scale=4)


def test_weak_types_stay_weak():
    f = lambda x: lax.scan(lambda n, x: (n + 1, x * n), 0, x)  # noqa: E731
    assert jf.fuse(f)(values(9, 70))[0].weak_type and not jf.fuse(f)(values(9, 70))[1].weak_type


def scan_of(step, carry=lambda x: x[0]):
    return lambda x: lax.scan(step, carry(x), x)[1]


@jax.custom_jvp
def straight_through(h, x):
    return 0.5 * h + x


straight_through.defjvp(lambda p, t: (straight_through(*p), t[1]))

LOOPS = {
    "not linear": scan_of(lambda h, x: (h * jnp.tanh(h) + x,) * 2),
    "its own factor": scan_of(lambda h, x: (h * h + x,) * 2),
    "a choice by the carry": scan_of(lambda h, x: (jnp.where(h > 0, x, -h),) * 2),
    "two that read each other": scan_of(lambda h, x: ((h[1] + x, h[0]), h[0]), lambda x: (x[0], x[1])),
    "a product": scan_of(lambda h, x: (h + x @ jnp.ones((70, 70)),) * 2),
    "moved": scan_of(lambda h, x: (h[::-1] + x,) * 2),
    "kept by nobody": lambda x: lax.scan(lambda h, x: (0.5 * h + x, None), x[0], x)[0],
    "rounded": scan_of(lambda h, x: (h.astype(jnp.int32) * 0.5 + x,) * 2),
    "rounded to fewer bits": scan_of(lambda h, x: (h.astype("float16").astype("float32") + x,) * 2),
    "divided by values": scan_of(lambda h, x: (h / (x + 1),) * 2),
    "divided as integers": lambda x: scan_of(lambda h, x: (lax.div(h, x),) * 2)((100 + 9 * x).astype(jnp.int32)),
    "reordered": lambda x: scan_of(lambda h, x: (lax.reshape(h, (3, 3), dimensions=(1, 0)) + x,) * 2)(
        x.reshape(70, 3, 3)
    ),
    "a custom derivative": scan_of(lambda h, x: (straight_through(h, x),) * 2),
    "complex": lambda x: scan_of(lambda h, x: (h * 0.5 + x,) * 2)(x + 1j).real,
    "bools": lambda x: scan_of(lambda h, x: (jnp.where(x, True, h),) * 2)(x > 0.1),
}


@pytest.mark.parametrize("name", LOOPS)
def test_other_loops_stay_loops(device, name):
    x = values(9, 70) * 0.1
    assert "scan" in left_to_xla(LOOPS[name], x)
    dtype = "float16" if "fewer bits" in name else "float32"
    assert_close(jf.fuse(LOOPS[name])(x), LOOPS[name](x), dtype, scale=4)


def test_equal_runs_give_equal_bits(device):
    x, gate, first = CASES[gated](2048, 96)
    runs = [np.asarray(jf.fuse(gated)(x, gate, first)[0]) for _ in range(3)]
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[0], runs[2])


def test_a_recurrence_of_another_length_or_dtype_is_refused():
    b = jf.ir.Builder("p")
    x, y, z = b.input("x", "f32", [3, 4]), b.input("y", "f32", [3, 5]), b.input("z", "s32", [3, 4])
    for other in (y, z):
        with pytest.raises(ValueError, match=r"\[scan_linear\] operands must have equal shapes and dtypes, got f32"):
            b.scan("scan_linear", x, 0, factors=other)
    with pytest.raises(ValueError, match=r"\[scan_linear\] expected 2 operands, got 1"):
        b.scan("scan_linear", x, 0)
