"""Fused calls on four devices under plain `jit` with sharded arguments: each runs its part, nothing is gathered."""

import re

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from random_programs import Program
from tolerances import assert_close

import jax_fuser as jf

X = jnp.linspace(-1, 1, 8 * 12).reshape(8, 12)
B = jnp.arange(12.0)
COLLECTIVES = r"(all-gather|all-reduce|all-to-all|collective-permute)[^ ]*\("


ROWS, BLOCKS = meshes.mesh(d=4), meshes.mesh(a=2, b=2)


def compiled(f, placed):
    args = [jax.device_put(x, NamedSharding(m, spec)) for x, m, spec in placed]
    return jax.jit(jf.fuse(f)).lower(*args).compile(), args


CASES = {
    "rows": (lambda x: jnp.tanh(x) * 2 + x, [(X, ROWS, P("d"))], [P("d")]),
    "columns": (lambda x: jnp.tanh(x) * 2 + x, [(X, ROWS, P(None, "d"))], [P(None, "d")]),
    "blocks": (lambda x: jnp.tanh(x) * 2 + x, [(X, BLOCKS, P("a", "b"))], [P("a", "b")]),
    "one axis of two": (lambda x: jnp.tanh(x) * 2 + x, [(X, BLOCKS, P("b"))], [P("b")]),
    "both on rows": (lambda x: jnp.tanh(x) * 2 + x, [(X, BLOCKS, P(("a", "b")))], [P(("a", "b"))]),
    "bias": (lambda x, b: jnp.tanh(x) * b + 1, [(X, ROWS, P("d")), (B, ROWS, P())], [P("d")]),
    "split bias": (lambda x, b: jnp.tanh(x) * b + 1, [(X, BLOCKS, P("a", "b")), (B, BLOCKS, P("b"))], [P("a", "b")]),
    "scalar": (lambda x, s: jnp.tanh(x) * s + 1, [(X, ROWS, P("d")), (2.0, ROWS, P())], [P("d")]),
    "column": (lambda x, c: jnp.tanh(x) * c + 1, [(X, ROWS, P("d")), (X[:, :1], ROWS, P("d"))], [P("d")]),
    "transposed result": (lambda x: (jnp.tanh(x) * 2).T, [(X, ROWS, P("d"))], [P(None, "d")]),
    "several results": (
        lambda x, b: (jnp.tanh(x) + b, x * 2, (x * b).T),
        [(X, ROWS, P("d")), (B, ROWS, P())],
        [P("d"), P("d"), P(None, "d")],
    ),
    "iota beside": (lambda x: jnp.tanh(x) * jnp.arange(12.0), [(X, ROWS, P("d"))], [P("d")]),
    "around a product": (lambda x, w: jnp.tanh(jnp.sin(x) @ w) * 2, [(X, ROWS, P("d")), (X.T, ROWS, P())], [P("d")]),
    "one axis": (lambda b: jnp.tanh(b) * 2, [(B, ROWS, P("d"))], [P("d")]),
    "bf16": (lambda x: jnp.tanh(x) * 2, [(X.astype(jnp.bfloat16), ROWS, P("d"))], [P("d")]),
}


@pytest.mark.parametrize("case", CASES)
def test_each_device_runs_its_part(case):
    f, placed, specs = CASES[case]
    run, args = compiled(f, placed)
    assert re.findall(COLLECTIVES, run.as_text()) == []
    got, want = jax.tree.leaves(run(*args)), jax.tree.leaves(f(*(x for x, _, _ in placed)))
    for g, w, spec in zip(got, want, specs):
        assert g.sharding.is_equivalent_to(NamedSharding(placed[0][1], spec), g.ndim)
        assert_close(g, w)


def norm(x, b):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * b


REDUCTIONS = {
    "along rows": (jax.nn.softmax, [(X, ROWS, P("d"))], [P("d")], 0),
    "along columns": (jax.nn.softmax, [(X, ROWS, P(None, "d"))], [P(None, "d")], 2),
    "along blocks": (jax.nn.softmax, [(X, BLOCKS, P("a", "b"))], [P("a", "b")], 2),
    "over rows": (lambda x: jnp.sin(x).sum(0), [(X, ROWS, P("d"))], [P()], 1),
    "one row each": (lambda x: (jnp.sin(x).sum(0), x * 2), [(X[:4], ROWS, P("d"))], [P(), P("d")], 1),
    "bare rows": (lambda x: (x.sum(0), x.max(0)), [(X[:4], ROWS, P("d"))], [P(), P()], None),
    "to a scalar": (lambda x: jnp.mean(jnp.cos(x)), [(X, BLOCKS, P("a", "b"))], [P()], 1),
    "to a scalar over both": (lambda x: jnp.mean(jnp.cos(x)), [(X, BLOCKS, P(("a", "b")))], [P()], 1),
    "minimum": (lambda x: jnp.tanh(x.min()) * x, [(X, ROWS, P("d"))], [P("d")], 1),
    "booleans": (lambda x: (jnp.any(x > 0.5, 0), jnp.all(x > 0)), [(X, BLOCKS, P("a", "b"))], [P("b"), P()], None),
    "integers": (lambda x: (x + 1).sum(0), [((X * 100).astype(jnp.int32), ROWS, P("d"))], [P()], 1),
    "bf16": (lambda x: jax.nn.softmax(x, 0), [(X.astype(jnp.bfloat16), ROWS, P("d"))], [P("d")], 2),
    "layer norm": (norm, [(X, ROWS, P("d")), (B, ROWS, P())], [P("d")], 0),
    "its gradients": (
        lambda x, b: jax.grad(lambda x, b: (norm(x, b) ** 2).sum(), (0, 1))(x, b),
        [(X, ROWS, P("d")), (B, ROWS, P())],
        [P("d"), P()],
        1,
    ),
}


@pytest.mark.parametrize("case", REDUCTIONS)
def test_reductions_join_the_parts_of_the_devices(case):
    f, placed, specs, exchanges = REDUCTIONS[case]
    run, args = compiled(f, placed)
    text = run.as_text()
    assert "all-gather" not in text and "all-to-all" not in text and "collective-permute" not in text
    assert exchanges in (None, len(re.findall(r" all-reduce(?:-start)?\(", text)))
    got, want = jax.tree.leaves(run(*args)), jax.tree.leaves(f(*(x for x, _, _ in placed)))
    for g, w, spec in zip(got, want, specs):
        assert g.sharding.is_equivalent_to(NamedSharding(placed[0][1], spec), g.ndim)
        assert_close(g, w, scale=2)


@pytest.mark.parametrize("spec", [P("d", None), P(None, "d")], ids=str)
def test_reductions_on_an_explicit_mesh(spec):
    functions = [jax.nn.softmax, lambda x: jnp.sin(x).sum(0), lambda x: jax.grad(lambda x: jnp.cos(x).mean())(x)]
    with jax.set_mesh(meshes.mesh(AxisType.Explicit, d=4)):
        x = jax.device_put(X, spec)
        for f in functions:
            got, want = jf.fuse(f)(x), f(x)
            assert jax.typeof(got) == jax.typeof(want)
            assert_close(got, want, scale=2)


def test_a_product_over_a_split_axis_is_gathered():
    run, args = compiled(lambda x: jnp.prod(x + 1.5, 0), [(X, ROWS, P("d"))])
    assert_close(run(*args), jnp.prod(X + 1.5, 0))


def test_an_axis_that_is_counted_is_gathered():
    f = lambda x: jnp.tanh(x) * jnp.arange(12.0)  # noqa: E731
    run, args = compiled(f, [(X, ROWS, P(None, "d"))])
    assert_close(run(*args), f(X))


@pytest.mark.parametrize("spec", [P("d"), P(None, "d"), P()], ids=str)
def test_axes_that_are_cut_before_others_are_kept_whole(spec):
    f = lambda x: (x.reshape(x.shape[0] // 2, 2, -1) * 2).sum((1, 2))  # noqa: E731
    run, args = compiled(f, [(X, ROWS, spec)])
    assert_close(run(*args), f(X), scale=3)


PAIRS = {
    "distances": lambda v: jnp.abs(v[:, None] - v[None, :]).max(1),
    "all pairs": lambda v: jnp.sin(v)[:, None] * jnp.cos(v),
    "sum over all pairs": lambda v: (jnp.sin(v)[:, None] * jnp.cos(v)).sum(),
    "symmetric part": lambda v: (lambda x: (x + x.T) * 0.5)(v.reshape(4, 4) * 2),
    "products of rows": lambda v: (lambda x: jax.nn.softmax((x[:, None] * x[None]).sum(2), 1))(v.reshape(8, 2)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_elements_need_them_all(name):
    v = jnp.linspace(-1, 2, 16)
    run, args = compiled(PAIRS[name], [(v, ROWS, P("d"))])
    assert_close(run(*args), PAIRS[name](v), scale=3)


def test_a_matrix_and_its_transpose():
    x = jnp.linspace(-1, 2, 64).reshape(8, 8)
    for f in (lambda x: x * 2 + x.T, lambda x: (x * 2 + x.T).sum(1)):
        for spec in (P("d"), P(None, "d")):
            run, args = compiled(f, [(x, ROWS, spec)])
            assert_close(run(*args), f(x), scale=3)


@pytest.mark.parametrize("seed", range(2))
def test_random_programs_on_random_parts(seed):
    rng = np.random.default_rng(seed)

    def placed(x):
        dims = [dim for dim, extent in enumerate(x.shape) if extent % 4 == 0]
        spec = [None] * int(rng.choice(dims)) + ["d"] if dims else []
        return jax.device_put(x, NamedSharding(ROWS, P(*spec)))

    for i in range(15):
        program = Program([50, seed, i], sizes=[1, 2, 4, 8, 12])
        outputs = jax.jit(jf.fuse(program.run))(jax.tree.map(placed, program.arguments))
        assert not any(program.wrong(*one) for one in zip(outputs, program.outputs)), program.report()


def test_what_is_made_of_nothing_has_no_sharding():
    f = lambda x: (jnp.tril(x * 2) + 1, jnp.arange(48).reshape(8, 6) * 3 + 7)  # noqa: E731
    run, args = compiled(f, [(X, ROWS, P("d"))])
    for got, want in zip(run(*args), f(X)):
        assert_close(got, want)


def test_conflicting_shardings_are_resolved():
    f = lambda x, y: jnp.tanh(x) * y + 1  # noqa: E731
    run, args = compiled(f, [(X, ROWS, P("d")), (X, ROWS, P(None, "d"))])
    assert_close(run(*args), f(X, X))


def test_values_that_do_not_divide():
    # Inside the program the axis of 6 may be split in four; the call then takes it whole.
    def f(x):
        y = jax.lax.with_sharding_constraint(x[:6], NamedSharding(ROWS, P("d")))
        return jf.fuse(lambda y: jnp.tanh(y) * 2)(y)

    assert_close(jax.jit(f)(jax.device_put(X, NamedSharding(ROWS, P("d")))), jnp.tanh(X[:6]) * 2)


def test_gradients_stay_split():
    f = jf.fuse(lambda x, b: jax.nn.gelu(x + b) * b)
    x, b = jax.device_put(X, NamedSharding(ROWS, P("d"))), jax.device_put(B, NamedSharding(ROWS, P()))
    loss = lambda x, b: f(x, b).sum()  # noqa: E731
    run = jax.jit(jax.grad(loss, (0, 1))).lower(x, b).compile()
    # The bias's gradient is summed over the devices; nothing is gathered.
    assert "all-gather" not in run.as_text()
    want = jax.grad(lambda x, b: (jax.nn.gelu(x + b) * b).sum(), (0, 1))(X, B)
    for got, expected in zip(run(x, b), want):
        assert_close(got, expected, scale=2)


def test_two_meshes_of_one_program_shape():
    f = jf.fuse(lambda x: jnp.tanh(x) * 2)
    for m, spec in ((ROWS, P("d")), (BLOCKS, P("a", "b")), (BLOCKS, P())):
        assert_close(f(jax.device_put(X, NamedSharding(m, spec))), np.tanh(X) * 2)
    assert_close(f(X), np.tanh(X) * 2)


@pytest.mark.parametrize("manual", [True, False])
def test_export_of_a_split_program(manual):
    pytest.importorskip("flatbuffers")
    checks = [jax.export.DisabledSafetyCheck.custom_call("jax_fuser.program")]
    f = jf.fuse(lambda x: jnp.tanh(x) * 2)
    if manual:
        f = jax.shard_map(f, mesh=ROWS, in_specs=P("d"), out_specs=P("d"))
    x = jax.device_put(X, NamedSharding(ROWS, P("d")))
    exported = jax.export.export(jax.jit(f), platforms=["cpu"], disabled_checks=checks)(x)
    assert_close(jax.jit(jax.export.deserialize(exported.serialize()).call)(x), jnp.tanh(X) * 2)
