"""Where `fuse` cuts, and how it says so."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _ffi, _fused_primitive, _regions

X = jnp.linspace(-1, 1, 48).reshape(6, 8)
W = jnp.eye(8)


def regions(f, *args):
    """Return the primitives of each region."""
    jaxpr = jf.fuse(f).lower(*args)._traced.jaxpr
    return [[e.primitive.name for e in eqn.params["jaxpr"].jaxpr.eqns] for eqn in fused_equations(jaxpr)]


def fused_equations(jaxpr):
    return [eqn for eqn in jaxpr.eqns if eqn.primitive is _fused_primitive.fused_p]


def cuts(f, *args):
    return {c.primitive: c.reason for c in jf.explain(f)(*args).cuts}


def test_one_region_reaches_across_calls():
    @jax.jit
    def inner(x):
        return jax.nn.silu(x) + 1

    got = regions(lambda x: jnp.tanh(inner(x)) * jax.jit(inner)(x), X)
    assert len(got) == 1 and "tanh" in got[0] and "logistic" in got[0]


def test_cut_in_the_middle():
    assert regions(lambda x: jnp.tanh(jnp.sin(x) @ W), X) == [["sin"], ["tanh"]]
    assert cuts(lambda x: jnp.tanh(jnp.sin(x) @ W), X) == {"dot_general": "a matrix product"}


def test_both_sides_of_a_cut_are_one_region_each():
    # Two chains that each pass a product: not four regions.
    def f(x, y):
        return jnp.sin(jnp.cos(x) @ W) + jnp.exp(jnp.tanh(y) @ W)

    assert [sorted(r) for r in regions(f, X, X)] == [["cos", "tanh"], ["add", "exp", "sin"]]


def test_what_is_read_later_is_computed_later():
    # cos(x) is not stored before the product: its reader reads x itself.
    assert [sorted(r) for r in regions(lambda x: jnp.sin(x) @ W * jnp.cos(x), X)] == [["sin"], ["cos", "mul"]]


def test_casts_and_broadcasts_are_made_where_they_are_read():
    def f(x, b):
        wide = x.astype(jnp.float32)
        return jnp.sin(wide + b) @ W + wide * b

    got = fused_equations(jf.fuse(f).lower(X.astype(jnp.bfloat16), W[0])._traced.jaxpr)
    assert [[v.aval.dtype.name for v in eqn.invars[:1]] for eqn in got] == [["bfloat16"], ["bfloat16"]]


def test_views_of_a_cut_stay_with_xla():
    # XLA folds the transpose into the product.
    assert regions(lambda x, w: x @ w.T + 1, X, W) == [["add"]]
    assert set(cuts(lambda x, w: x @ w.T + 1, X, W)) == {"transpose", "dot_general"}


def test_returned_views_are_written_by_their_region():
    assert regions(lambda x: jnp.sin(x).T[None], X) == [["sin", "transpose", "broadcast_in_dim"]]


def test_a_long_chain_of_views_is_no_deep_recursion():
    def f(x):
        y = jnp.exp(x)
        for i in range(1500):
            y = y.reshape((8, 4) if i % 2 == 0 else (4, 8))
        return y, 2 * jnp.exp(x)

    x = jnp.linspace(0, 1, 32, dtype=jnp.float32).reshape(4, 8)
    one, two = jf.fuse(f)(x)
    assert_close(one, np.exp(x))
    assert_close(two, 2 * np.exp(x))


def test_what_feeds_only_reductions_of_xla_stays_there():
    def fold(x, axis):
        return lax.reduce(x, 1.0, lambda a, b: a + b * a, (axis,))

    f = lambda x: fold(jnp.sin(x) * 2, 1)  # noqa: E731
    assert regions(f, X) == []
    assert cuts(f, X)["sin"] == "feeds only reductions, which compute it"
    assert_close(jf.fuse(f)(X), f(X))
    # What is returned as well is made once, and the reduction reads it.
    assert regions(lambda x: ((y := jnp.sin(x)), fold(y * 2, 1)), X) == [["sin"]]
    # Sums are made by a region, whoever reads them.
    assert regions(lambda x: fold(jnp.sum(jnp.sin(x), 1) * 2, 0), X) == [["sin", "reduce_sum"]]


def test_reductions_and_what_reads_them_are_one_region():
    def f(x):
        scaled = x / jnp.sum(jnp.sin(x), 1, keepdims=True)
        return scaled * jnp.max(scaled), jnp.mean(scaled)

    assert len(regions(f, X)) == 1 and cuts(f, X) == {}
    # Scalars of constants alone, as in jnp.var, are made where they are read.
    assert len(regions(lambda x: x.var(), X)) == 1
    # They are folded, and so is the choice of NaN for no element.
    text = jf.fuse(lambda x: x.var()).lower(X).as_text()
    assert "nan" not in text and "select" not in text and "gt" not in text


def test_reductions_move_down_only_with_what_feeds_them():
    # x is read by the last region anyway: its sum is made there.
    assert regions(lambda x: x * jnp.sum(jnp.sin(x)) * (x @ W), X) == [["sin", "reduce_sum", "mul", "mul"]]
    # Nothing else is read below the product: the sum is stored, not x read again.
    got = regions(lambda x: jnp.sum(x, 1, keepdims=True) * (jnp.sin(x) @ W), X)
    assert sorted(map(sorted, got)) == [["broadcast_in_dim", "mul"], ["reduce_sum", "sin"]]
    # sin(x) is stored for the product: the sum reads it while it is made.
    got = regions(lambda x: jnp.sum(jnp.tanh(y := jnp.sin(x)), 0) * (y @ W), X)
    assert got[0] == ["sin", "tanh", "reduce_sum"]


def test_regions_without_arithmetic_stay_with_xla():
    for f in (lambda x: x.T, lambda x: x.astype(jnp.bfloat16), lambda x: x[None] + jnp.zeros(0)[:, None, None]):
        assert regions(f, X) == []


def test_unrelated_parts_of_other_shapes_are_other_programs():
    assert len(regions(lambda x, y: (jnp.sin(x), jnp.cos(y)), X, W)) == 2
    assert len(regions(lambda x, y: (jnp.sin(x), jnp.cos(y)), X, X)) == 1


def test_programs_are_bounded(monkeypatch):
    xs = [X + i for i in range(100)]
    f = lambda xs: [jnp.sin(x) for x in xs]  # noqa: E731
    got = jf.fuse(f).lower(xs)._traced.jaxpr
    assert all(len(e.invars) + len(e.outvars) <= _regions.MAX_BUFFERS for e in fused_equations(got))
    assert len(fused_equations(got)) == 4

    # One value needed by many: the part itself must be cut.
    def g(xs):
        total = functools.reduce(jnp.add, xs)
        return [jnp.sin(x) + total for x in xs]

    got = jf.fuse(g).lower(xs)._traced.jaxpr
    assert all(len(e.invars) + len(e.outvars) <= _regions.MAX_BUFFERS for e in fused_equations(got))
    monkeypatch.setattr(_regions, "MAX_BUFFERS", 6)
    few = xs[:9]
    for a, b in zip(jf.fuse(g)(few), g(few)):
        assert_close(a, b)
    grads, want = (jax.grad(lambda xs, h=h: sum(y.sum() for y in h(xs)))(few) for h in (jf.fuse(g), g))
    for a, b in zip(grads, want):
        assert_close(a, b)


def test_effects_keep_their_order(capfd):
    def f(x):
        jax.debug.print("first {}", (x @ W)[0, 0], ordered=True)
        y = jnp.sin(x)
        jax.debug.print("second {}", y[0, 0], ordered=True)
        return jnp.cos(y @ W)

    assert_close(jf.fuse(f)(X), jnp.cos(jnp.sin(X) @ W))
    jax.effects_barrier()
    out = capfd.readouterr().out
    assert out.index("first") < out.index("second")


REASONS = {
    "control flow; what is inside fuses by itself": lambda x: (
        lax.scan(lambda c, _: (c + 1, None), x, None, length=2)[0] * 2
    ),
    "folds by a function of its own": lambda x: lax.reduce(x * 2, 1.0, lambda a, b: a + b * a, (0,)),
    "folds no element": lambda x: x * 2 + x[:0].argmax(1).sum(),
    "moves data between positions": lambda x: jnp.sort(x, 0) * 2,
    "carries a value along an axis": lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 1), "SAME") * 2,
    "works on complex64": lambda x: (x * 1j).real * 2,
    "has a derivative rule of its own, for the whole call": lambda x: custom(x) * 2,
    "marks what may be recomputed; what is inside fuses by itself": lambda x: jax.checkpoint(jnp.sin)(x) * 2,
    "asked for by name, as a barrier": lambda x: lax.optimization_barrier(x * 2),
    "a value that a checkpoint policy may save": lambda x: checkpoint_name(x * 2, "x"),
    "has no op of its own": lambda x: jax.scipy.special.i0e(x) * 2,
    "cuts axes unevenly, (6, 8) to (16, 3)": lambda x: (x * 2).reshape(16, 3) * 3,
    "a jit that donates its arguments": lambda x: jax.jit(jnp.sin, donate_argnums=0)(x * 2) * 2,
    "rounds to no mantissa bit, which leaves no NaN": lambda x: lax.reduce_precision(x, 5, 0) * 2,
    "asks for a tolerance": lambda x: lax.exp(x, accuracy=lax.Tolerance(ulps=2)) * 2,
}


@jax.custom_vjp
def custom(x):
    return jnp.sin(x)


custom.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (jnp.cos(x) * ct,))


@pytest.mark.parametrize("reason", REASONS)
def test_reasons(reason):
    f = REASONS[reason]
    assert reason in cuts(f, X).values()
    assert_close(jf.fuse(f)(X), f(X))


def test_explanation_fits_a_screen():
    f = jf.fuse(lambda x: [jnp.sin(x @ W + i) for i in range(40)])
    report = jf.explain(f)(X)
    text = repr(report)
    assert len(text.splitlines()) <= 40
    assert text.startswith("<lambda> on ")
    assert "dot_general x40  a matrix product" in text or "more lines" in text
    assert repr(jf.explain(lambda x: jnp.sin(x) @ W)(X)).count("\n") < 12


def test_explanation_names_reductions():
    report = jf.explain(jax.nn.standardize)(X)
    assert report.regions[0].reductions == ("reduce_sum", "reduce_sum")
    assert "writes 192 B (reduce_sum x2)" in repr(report)
    assert jf.explain(jnp.sin)(X).regions[0].reductions == ()


def test_explanation_counts_equal_programs():
    def f(x):
        for _ in range(3):
            x = jnp.sin(x) @ W
        return x

    report = jf.explain(f)(X)
    assert [r.count for r in report.regions] == [3]
    assert (report.regions[0].bytes_in, report.regions[0].bytes_out) == (6 * 8 * 4, 6 * 8 * 4)
    assert report.cuts[0].count == 3


@pytest.mark.parametrize("stage", ["jaxpr", "fusion", "segments", "schedule", "loops", "source", "host"])
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_stages_are_text(stage, platform):
    text = jf.fuse(lambda x: jnp.tanh(x @ W) * 2, name="gate").lower(X).as_text(stage, platform=platform)
    assert "gate" in text
    assert stage == "jaxpr" or text.startswith("# region 0: gate\n")
    assert stage != "source" or ("__global__" in text) == (platform == "cuda")


def test_labels_carry_the_scope():
    def f(x):
        with jax.named_scope("attention"):
            return jnp.tanh(x) + jax.nn.silu(x)

    text = jf.fuse(f).lower(X).as_text("fusion")
    assert "# attention/tanh" in text and "# silu/logistic" in text
    assert ".py" not in text


def test_names():
    assert jf.fuse(functools.partial(jnp.multiply, 2.0)).name == "multiply"
    assert jf.fuse(name="gate")(jnp.sin).name == "gate"
    assert "kernel gate" in jf.fuse(jnp.sin, name="gate").lower(X).as_text("loops")


def test_equal_traces_give_equal_text():
    f = lambda x: jnp.tanh(x) * 2 + X  # noqa: E731
    assert jf.fuse(f, name="a").lower(X).as_text() == jf.fuse(f, name="a").lower(X).as_text()


def test_compile():
    compiled = jf.fuse(jnp.sin).lower(jax.ShapeDtypeStruct((6, 8), jnp.float32)).compile()
    assert_close(compiled(X), jnp.sin(X))


def test_one_compile_for_each_shape():
    f = jf.fuse(lambda x: jnp.tanh(x) * 1.2345)
    before = jf.counters()
    for n in (10, 11, 10, 11, 10):
        f(jnp.ones(n))
    after = jf.counters()
    assert after["instantiated"] - before["instantiated"] == 2


def test_without_a_compiler(monkeypatch):
    monkeypatch.setattr(_ffi, "can_compile", lambda platform: "no C++ compiler for this test")
    f = jf.fuse(lambda x: jnp.tanh(x) * 2.5)
    with pytest.warns(RuntimeWarning, match="run as plain XLA ops on .*no C\\+\\+ compiler for this test; ") as caught:
        assert_close(f(X), jnp.tanh(X) * 2.5)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_close(f(X[:3]), jnp.tanh(X[:3]) * 2.5)
    assert "run as plain XLA ops here: no C++ compiler for this test" in repr(jf.explain(f)(X))


def test_static_arguments():
    class Scaled:
        by = 3.0

        @jf.fuse(static_argnums=0)
        def __call__(self, x):
            return jnp.tanh(x) * self.by

    @jf.fuse(static_argnums=1, static_argnames=("power", "plus"))
    def f(x, mode, power=2, *, plus=0.0):
        return (jnp.tanh(x) if mode == "tanh" else x) ** power + plus

    assert_close(Scaled()(X), 3 * jnp.tanh(X))
    assert_close(f(X, "tanh"), jnp.tanh(X) ** 2)
    assert_close(f(X, mode="no", power=3, plus=1.5), X**3 + 1.5)
    assert_close(jax.grad(lambda x: jax.vmap(lambda row: f(row, "no"))(x).sum())(X), 2 * X)
    assert repr(f) == "<fused function f>" and "tanh" in f.lower(X, "tanh").as_text()
    assert "1 fused call" in repr(jf.explain(f)(X, "tanh"))


def test_wrong_use():
    with pytest.raises(TypeError, match=r"fuse: expected a function, got .*; write jf.fuse\(f\)\(x\)"):
        jf.fuse(X)
    with pytest.raises(TypeError, match="fuse: name must be a string, got int"):
        jf.fuse(jnp.sin, name=3)
    with pytest.raises(TypeError, match=r"fuse: f got a str at argument \[1\]\['mode'\]; arguments must be arrays"):
        jf.fuse(lambda x, options: x, name="f")(X, {"mode": "fast"})
    with pytest.raises(TypeError, match=r"fuse: f got an array of <U1 at argument \[0\]; arguments must be arrays"):
        jf.fuse(lambda x: x, name="f")(np.array(["a"]))
    with pytest.raises(TypeError, match=r"fuse: static got a str at argument \[0\]; .* name it in static_argnames="):
        jf.explain(jf.fuse(lambda x: x, name="static"))("x")
    with pytest.raises(ValueError, match="fuse: static_argnames has 'mode'; the function's arguments are x, n"):
        jf.fuse(lambda x, n: x, static_argnames="mode")
    with pytest.raises(ValueError, match="fuse: static_argnums has 2, but the function has 2 positional arguments"):
        jf.fuse(lambda x, n: x, static_argnums=2)
    with pytest.raises(TypeError, match="explain: expected a function, got ArrayImpl"):
        jf.explain(X)
    with pytest.raises(ValueError, match=r"as_text: stage must be one of jaxpr, fusion, .*, got 'ptx'"):
        jf.fuse(jnp.sin).lower(X).as_text("ptx")
    with pytest.raises(ValueError, match="explain: platform must be 'cpu' or 'cuda', got 'tpu'"):
        jf.explain(jnp.sin, platform="tpu")(X)
    with pytest.raises(TypeError, match="got a generator or coroutine"):
        jf.fuse(lambda x: (yield x))
    # The function's own errors pass through.
    with pytest.raises(ValueError, match="Incompatible shapes for broadcasting"):
        jf.fuse(lambda x: x + jnp.ones(5))(X)


def test_attributes_of_a_callable_object_hide_nothing():
    class Clip:
        def __init__(self):
            self.lower, self.check, self.traced = 0.0, True, 1

        def __call__(self, x):
            return jnp.clip(x, self.lower, 1.0) * 2

    f = jf.fuse(Clip())
    assert f(jnp.full(3, 5.0)).tolist() == [2.0] * 3
    assert "fusion" in f.lower(jnp.ones(3)).as_text("fusion")
    with pytest.raises(TypeError, match="fuse: Clip got a str at argument"):
        f("a")


def test_functions_without_a_signature_take_static_arguments():
    assert jf.fuse(max, static_argnums=(0, 1))(2, 3) == 3
