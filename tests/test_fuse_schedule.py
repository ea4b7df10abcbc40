"""`jf.fuse(f, schedule=...)` runs exactly that schedule, differentiates and batches, and says what does not fit."""

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser._ir_text import compute_the_same

X = jnp.linspace(-2, 2, 6 * 16).reshape(6, 16)
B = jnp.linspace(-1, 1, 16)


def act(x, b):
    return jnp.tanh(x + b) * 2


def norm(x):
    return x / jnp.sqrt((x * x).sum(axis=1, keepdims=True) + 1)


def in_fours(s):
    """Vectors of four along the last axis; any fusion whose ops have the output's shape."""
    out = s.fusion.outputs[0]
    s.split(out, -1, 4)
    s.parallelize(out, -1, "vector")
    s.transform_like(out)
    s.parallelize_like(out)
    s.inline_most()


def sums(x):
    return (x * x).sum(axis=1)


def in_parts(s):
    """A sum by hand: runs of four first, then the runs."""
    [total] = s.fusion.outputs
    s.split(total, 1, 4, inner=False)
    made = s.rfactor(total, [2])
    s.transform_like(made, [s.fusion.values[1]])
    s.inline_most()


def serial(s):
    """Every value in loops of its own, or in those of its readers."""
    s.inline_most()


def by_text(f, schedule, *args):
    scheduler = jf.ir.Scheduler(jf.ir.trace(f, *args))
    schedule(scheduler)
    return scheduler.schedule


@pytest.fixture
def cpu():
    with jax.default_device(jax.devices("cpu")[0]):
        yield


FORMS = {
    "function": lambda schedule: schedule,
    "schedule": lambda schedule: by_text(act, schedule, X, B),
    "scheduler": lambda schedule: jf.ir.Scheduler(by_text(act, schedule, X, B)),
    "text": lambda schedule: str(by_text(act, schedule, X, B)),
    "fusion and schedule": lambda schedule: f"{by_text(act, schedule, X, B).fusion}{by_text(act, schedule, X, B)}",
    "function that returns": lambda schedule: lambda s: by_text(act, schedule, X, B),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_schedule(cpu, form):
    f = jf.fuse(act, schedule=FORMS[form](in_fours))
    assert_close(f(X, B), act(X, B))
    text = f.lower(X, B).as_text("schedule", platform="cpu")
    assert "4 vector" in text
    assert f.lower(X, B).as_text("segments", platform="cpu").count("by hand") == 1


def test_a_reduction_by_hand(cpu):
    f = jf.fuse(sums, schedule=in_parts)
    assert_close(f(X), sums(X))
    assert_close(jax.grad(lambda x: (f(x) ** 3).sum())(X), jax.grad(lambda x: (sums(x) ** 3).sum())(X), scale=5)
    assert "parts=4" in f.lower(X).as_text("segments", platform="cpu")


def test_a_schedule_of_a_strategy_with_other_parameters(device):
    platform = "cuda" if device.platform == "gpu" else "cpu"

    def with_two_lanes(s):
        parameters = jf.ir.compute_heuristics(s.fusion, "pointwise", platform)
        return jf.ir.schedule(s.fusion, "pointwise", platform, {**parameters, "lanes": 2})

    f = jf.fuse(act, schedule=with_two_lanes)
    assert_close(f(X, B), act(X, B))
    assert_close(f(X[:, :10], B[:10]), act(X[:, :10], B[:10]))  # the function is called for other shapes
    assert "2 vector" in f.lower(X, B).as_text("schedule", platform=platform)


def test_a_decorator_with_a_schedule(cpu):
    @jf.fuse(schedule=in_fours, name="named")
    def f(x):
        return {"y": x["a"] * 2 + x["b"]}

    got = f({"a": X, "b": X + 1})
    assert_close(got["y"], 3 * X + 1)
    assert "fusion named(" in f.lower({"a": X, "b": X}).as_text("fusion")


def loss(f):
    return lambda x, b: (f(x, b) ** 2).sum()


TRANSFORMS = {
    "jit": lambda f: jax.jit(f)(X, B),
    "grad": lambda f: jax.grad(loss(f), (0, 1))(X, B),
    "grad of jit": lambda f: jax.grad(loss(jax.jit(f)))(X, B),
    "hessian": lambda f: jax.hessian(loss(f), 1)(X, B),
    "jvp": lambda f: jax.jvp(f, (X, B), (X, B)),
    "linearize": lambda f: jax.linearize(f, X, B)[1](X, B),
    "vmap": lambda f: jax.vmap(f, (0, None))(jnp.stack([X, X + 1]), B),
    "vmap of grad": lambda f: jax.vmap(jax.grad(loss(f)), (0, None))(jnp.stack([X, X + 1]), B),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(loss(f)))(X, B),
    "scan": lambda f: jax.lax.scan(lambda c, _: (f(c, B), c), X, None, length=3),
    "disable_jit": lambda f: _without_jit(f),
}


def _without_jit(f):
    with jax.disable_jit():
        return f(X, B)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(cpu, name):
    got, want = (TRANSFORMS[name](f) for f in (jf.fuse(act, schedule=in_fours), act))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_close(a, b, scale=5)


def test_on_a_mesh(cpu):
    f = jf.fuse(act, schedule=in_fours)
    mesh = meshes.mesh(d=2)
    got = jax.shard_map(f, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"))(X, B)
    assert_close(got, act(X, B))
    sharded = jax.device_put(X, jax.NamedSharding(mesh, P("d")))
    assert_close(jax.jit(f)(sharded, jax.device_put(B, jax.NamedSharding(mesh, P()))), act(X, B))


def test_the_schedule_is_of_the_primal_and_the_derivative_is_planned(cpu):
    f = jf.fuse(act, schedule=in_fours)
    report = jf.explain(jax.value_and_grad(lambda x: f(x, B).sum()))(X)
    strategies = [s.strategy for region in report.regions for s in region.segments]
    assert strategies.count("by hand") == 1 and len(strategies) >= 2


def test_a_derivative_of_one_s_own_schedule(cpu):
    def slope(x):
        return jnp.cos(x) * 2

    @jax.custom_jvp
    def f(x):
        return jf.fuse(lambda x: jnp.sin(x) * 2, schedule=in_fours)(x)

    f.defjvp(lambda p, t: (f(*p), jf.fuse(slope, schedule=in_fours)(*p) * t[0]))
    assert_close(jax.grad(lambda x: f(x).sum())(X), slope(X))


def test_inside_another_fused_function_it_stays_as_it_is(cpu):
    inner = jf.fuse(act, schedule=in_fours)

    @jf.fuse
    def outer(x, b):
        return jnp.exp(inner(x * 3, b)) + 1

    assert_close(outer(X, B), jnp.exp(act(X * 3, B)) + 1)
    report = jf.explain(outer)(X, B)
    assert [s.strategy for r in report.regions for s in r.segments].count("by hand") == 1
    assert_close(jax.grad(lambda x: outer(x, B).sum())(X), jax.grad(lambda x: jnp.exp(act(x * 3, B)).sum())(X), scale=9)


@pytest.mark.parametrize("returned", ["a name", 3, None])
def test_what_a_schedule_function_returns_otherwise_is_ignored(cpu, returned):
    def edit(s):
        name = s.cache_after("x")
        in_fours(s)
        return name if returned == "a name" else returned

    assert_close(jf.fuse(act, schedule=edit)(X, B), act(X, B))


@pytest.mark.parametrize("f", [act, lambda x, b: (x * 2, b + 1), lambda x, b: (x + b).sum(1)])
def test_results_without_elements_have_no_schedule(cpu, f):
    def edit(s):
        raise AssertionError("there is nothing to schedule")

    for got, want in zip(*map(jax.tree.leaves, (jf.fuse(f, schedule=edit)(X[:0], B), f(X[:0], B))), strict=True):
        if want.size:
            assert_close(got, want)
        assert got.shape == want.shape and got.dtype == want.dtype


def test_results_that_nobody_reads(cpu):
    f = jf.fuse(lambda x: (jnp.tanh(x) * 2, jnp.cos(x) + 1), schedule=serial)
    assert_close(jax.jit(lambda x: f(x)[1])(X), jnp.cos(X) + 1)


# What does not fit.


def test_what_is_no_schedule():
    with pytest.raises(TypeError, match=r"fuse: schedule must be a function of .*Scheduler, .*got int"):
        jf.fuse(act, schedule=3)


@pytest.mark.parametrize(
    "f, message",
    [
        (lambda x: jnp.sin(x) @ x.T, r"dot_general in .* is not an op of a fusion: a matrix product; leave it outside"),
        (lambda x: jnp.sort(x * 2, axis=0) + 1, r"is not an op of a fusion"),
        (lambda x: (x, x * 2), r"a result of .* is an argument or another result; return computed values, once"),
        (lambda x: x * B, r"closes over 1 arrays; pass them as arguments"),
    ],
)
def test_functions_that_are_not_one_fusion(f, message):
    with pytest.raises(jf.UserError, match="fuse with schedule=: .*" + message):
        jf.fuse(f, schedule=serial)(X)


def test_nested_tensors_are_passed_as_their_parts():
    nt = jf.as_nested(X, extents=[2, 4])
    for call in (lambda: jf.ir.trace(lambda nt: nt * 2, nt), lambda: jf.fuse(lambda nt: nt * 2, schedule=serial)(nt)):
        with pytest.raises(jf.UserError, match=r"is an argument .*; the extents of a NestedTensor are; take"):
            call()


def test_a_schedule_for_other_shapes():
    f = jf.fuse(act, schedule=by_text(act, in_fours, X, B))
    with pytest.raises(
        jf.UserError, match=r"is for arguments \(f32\[6,16\], f32\[16\]\), got \(f32\[3,16\], f32\[16\]\)"
    ):
        f(X[:3], B)
    with pytest.raises(jf.UserError, match=r"pass a function of the scheduler"):
        f(X.astype(jnp.bfloat16), B)
    with pytest.raises(jf.UserError, match=r"does not fit these arguments: "):
        jf.fuse(act, schedule=str(by_text(act, in_fours, X, B)))(X[:3], B)


def test_a_schedule_for_another_function():
    with pytest.raises(jf.UserError, match=r"schedule given for act is for another function:\nfusion"):
        jf.fuse(act, schedule=by_text(lambda x, b: jnp.tanh(x - b) * 2, in_fours, X, B))(X, B)
    with pytest.raises(jf.UserError, match=r"another function"):
        jf.fuse(act, schedule=by_text(lambda x, b: jnp.tanh(x + b) * 3, in_fours, X, B))(X, B)


def test_text_that_is_no_schedule():
    with pytest.raises(jf.UserError, match=r"the text of a schedule begins with 'schedule \{'"):
        jf.fuse(act, schedule="vectorize, please")(X, B)


def test_a_schedule_that_cannot_be_lowered_names_the_value(cpu):
    def threads(s):
        s.parallelize(s.fusion.outputs[0], 0, "thread")

    with pytest.raises(Exception, match=r"thread"):
        jf.fuse(act, schedule=threads)(X, B)


def test_errors_of_the_caller_s_function_come_through():
    def wrong(s):
        s.split("no such value", 0, 2)

    with pytest.raises(jf.UserError, match=r"\[split\] act has no value 'no such value'"):
        jf.fuse(act, schedule=wrong)(X, B)


# What a schedule may add to the fusion that it is for.


@pytest.mark.parametrize("call", ["cache_after", "cache_before", "cache_in_the_middle"])
def test_edited_fusions_compute_the_same(cpu, call):
    fusion = jf.ir.trace(norm, X)
    scheduler = jf.ir.Scheduler(jf.ir.schedule(fusion, "reduction", "cpu", {"keep": "nothing"}))
    if call == "cache_after":
        scheduler.cache_after("x")
    elif call == "cache_before":
        scheduler.cache_before(fusion.outputs[0])
    else:
        scheduler.cache_after(next(v for v in scheduler.fusion.values if scheduler.fusion.is_reduction(v)))
    assert scheduler.fusion != fusion
    assert compute_the_same(fusion, scheduler.fusion)


def test_a_strategy_that_repeats_ops(cpu):
    def f(x):
        return jax.nn.softmax(jnp.cos(x.astype(jnp.float32)), axis=1)

    fusion = jf.ir.trace(f, X.astype(jnp.bfloat16))
    given = jf.ir.schedule(fusion, "reduction", "cpu", {"keep": "nothing"})
    assert given.fusion != fusion and compute_the_same(fusion, given.fusion)
    assert_close(jf.fuse(f, schedule=given)(X.astype(jnp.bfloat16)), f(X.astype(jnp.bfloat16)))


def test_reductions_in_several_steps_are_one():
    def fusion(body, result="t"):
        return jf.ir.Fusion(f"fusion f(x: f32[4,6,8]) -> ({result}) {{\n{body}}}\n")

    once = fusion("  t: f32[6] = reduce_sum(x) {dims=[0,2]}\n")
    twice = fusion("  s: f32[6,8] = reduce_sum(x) {dims=[0]}\n  t: f32[6] = reduce_sum(s) {dims=[1]}\n")
    other = fusion("  s: f32[4,8] = reduce_sum(x) {dims=[1]}\n  t: f32[8] = reduce_sum(s) {dims=[0]}\n")
    mixed = fusion("  s: f32[6,8] = reduce_max(x) {dims=[0]}\n  t: f32[6] = reduce_sum(s) {dims=[1]}\n")
    parts = fusion("  s: f32[3,6] = reduce_sum(x) {dims=[0,2], parts=3}\n  t: f32[6] = reduce_sum(s) {dims=[0]}\n")
    open_parts = fusion("  t: f32[3,6] = reduce_sum(x) {dims=[0,2], parts=3}\n")
    assert compute_the_same(once, twice) and compute_the_same(once, parts) and compute_the_same(twice, parts)
    for f in (other, mixed, open_parts):
        assert not compute_the_same(once, f)
    np.testing.assert_allclose(*(jf.ir.evaluate(f, jnp.arange(192.0).reshape(4, 6, 8))[0] for f in (once, parts)))
