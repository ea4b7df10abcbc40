"""What follows a grouped product of rows as the end of its kernel of compute capability 9.0: what joins it, what does
not and why, that the text compiles, and the numbers."""

import dataclasses
import functools
import gc
import re
import types
import weakref

import grouped_reference as ref
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_cuda_sources import assert_no_spills, nvrtc_or_skip
from test_grouped_hopper import sass
from test_tma import hopper_or_skip
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _activations, _core

HOPPER = _core.cuda_target_for(90)
BF16, F32 = jnp.bfloat16, jnp.float32
M, K, N, GROUPS = 700, 136, 256, 7


def swish(x):
    return x * jax.nn.sigmoid(1.5 * x) + 1


def exact_gelu(x):
    return jax.nn.gelu(x, approximate=False)


def activated(activation):
    return lambda x, w, e, *_: jf.grouped_matmul(x, w, e, activation=activation)


# Functions of (x, w, extents, bias, scale, residual) and their truth, of the exact product.
TAILS = {
    "silu": (activated("silu"), lambda y, *_: jax.nn.silu(y)),
    "gelu": (activated("gelu"), lambda y, *_: jax.nn.gelu(y)),
    "exact gelu": (activated(exact_gelu), lambda y, *_: exact_gelu(y)),
    "fuse exact gelu of bf16": (
        jf.fuse(lambda x, w, e, *_: exact_gelu(jf.grouped_matmul(x, w, e))), lambda y, *_: exact_gelu(y),
    ),
    "relu": (activated("relu"), lambda y, *_: jax.nn.relu(y)),
    "swiglu": (activated("swiglu"), lambda y, *_: jax.nn.silu(y[:, : N // 2]) * y[:, N // 2 :]),
    "geglu": (activated("geglu"), lambda y, *_: jax.nn.gelu(y[:, : N // 2]) * y[:, N // 2 :]),
    "a callable": (activated(swish), lambda y, *_: swish(y)),
    "bias": (lambda x, w, e, b, *_: jf.grouped_matmul(x, w, e, bias=b), lambda y, b, *_: y + b),
    "scale": (lambda x, w, e, b, s, _: jf.grouped_matmul(x, w, e, row_scale=s), lambda y, b, s, _: y * s[:, None]),
    "bias, swiglu and scale": (
        lambda x, w, e, b, s, _: jf.grouped_matmul(x, w, e, bias=b, activation="swiglu", row_scale=s),
        lambda y, b, s, _: jax.nn.silu((y + b)[:, : N // 2]) * (y + b)[:, N // 2 :] * s[:, None],
    ),
    "fuse around it": (
        jf.fuse(lambda x, w, e, b, s, r: jax.nn.silu(jf.grouped_matmul(x, w, e).astype(F32)) * s[:, None] + r),
        lambda y, b, s, r: jax.nn.silu(y) * s[:, None] + r,
    ),
    "residual": (jf.fuse(lambda x, w, e, b, s, r: jf.ragged_dot(x, w, e) + r), lambda y, b, s, r: y + r),
    "a residual of a gated product": (
        jf.fuse(lambda x, w, e, b, s, r: (
            (jf.grouped_matmul(x, w, e, activation="swiglu") * s[:, None]).astype(BF16) + r[:, 64 : 64 + N // 2]
        )),
        lambda y, b, s, r: jax.nn.silu(y[:, : N // 2]) * y[:, N // 2 :] * s[:, None] + r[:, 64 : 64 + N // 2],
    ),
    "a residual beside another column": (
        jf.fuse(lambda x, w, e, b, s, r: (jf.grouped_matmul(x, w, e)[:, 64:192] + r[:, :128]).astype(BF16)
                * jf.grouped_matmul(x, w, e)[:, :128]),
        lambda y, b, s, r: (y[:, 64:192] + r[:, :128]) * y[:, :128],
    ),
}  # fmt: skip


def shapes(m=M, k=K, n=N, groups=GROUPS, dtype=BF16):
    kinds = [((m, k), dtype), ((groups, k, n), dtype), ((groups,), jnp.int32), ((groups, n), dtype), ((m,), F32),
             ((m, n), dtype)]  # fmt: skip
    return [jax.ShapeDtypeStruct(*kind) for kind in kinds]


def programs(f, arguments):
    """Return the programs that a function is on CUDA."""
    text = jax.jit(f).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    return [p.replace("\\0A", "\n").replace("\\22", '"') for p in re.findall(r'program = "((?:[^"\\]|\\.)*)"', text)]


def kernels(f, arguments=None, target=HOPPER):
    return [facts for p in programs(f, arguments or shapes()) for facts in _core.facts(p, target)]


@pytest.mark.parametrize("tail", TAILS)
def test_what_follows_a_product_is_in_its_kernel(tail):
    entries = [facts["entry"] for facts in kernels(TAILS[tail][0])]
    assert [entry for entry in entries if "grouped" in entry] == ["jf_grouped_rows_fused"]
    # `fuse` brings the sizes into their range by a kernel of its own.
    assert len(entries) <= 1 + tail.startswith(("fuse", "a residual"))


@pytest.mark.parametrize("groups", [1, GROUPS])
@pytest.mark.parametrize("tail", TAILS)
def test_what_follows_a_product_of_one_row_is_in_its_kernel(tail, groups):
    [kernel] = kernels(TAILS[tail][0], shapes(m=1, groups=groups))
    assert kernel["entry"] == "jf_grouped_rows_fused"


def test_fuse_and_an_activation_give_the_same_kernel():
    def source(f):
        [program] = programs(f, shapes()[:3])
        text = _core.stages(program, HOPPER)["source"]
        return re.sub(r" *//.*", "", text[text.index("struct Epilogue") :])

    def around(x, w, e):
        return jax.nn.silu(jf.grouped_matmul(x, w, e).astype(F32)).astype(BF16)

    expected = source(activated("silu"))
    assert "jf_grouped_rows_fused" in expected
    assert source(jf.fuse(activated("silu"))) == source(jf.fuse(around)) == expected


@pytest.mark.parametrize(
    ("f", "why"),
    [
        (lambda y: (y.astype(jnp.int32) % y.astype(jnp.int32)).astype(BF16), "rem is too long to be repeated"),
        (lambda y: jnp.sin(y), "sin is too long to be repeated for every sum"),
        (lambda y: jax.lax.erfc(y.astype(jnp.float32)), "erfc is too long to be repeated for every sum"),
        (lambda y: jnp.arccosh(y + 2), "acosh is too long to be repeated for every sum"),
        (lambda y: y[:, ::2] + 1, "it reads the product at other places than its own"),
        (lambda y: y[:, :64] + y[:, 64:128] * y[:, 128:192], "made of 3 columns of the product"),
        (lambda y: y[:, :128] + 1, "it leaves out columns of the product"),
        (lambda y: (y * 2).astype(jnp.int32), "its result is s32"),
        (lambda y: (y + 1, y * 2), "it has 2 results"),
        (lambda y: y[::2] + 1, "its result has other rows than the product"),
        (lambda y: jnp.concatenate([y * 2, y * 2 * y]), "its results are not side by side"),
        (lambda y: ((y + 1).astype(jnp.float16), (y * 2).astype(jnp.float16)), "are not all bf16, or all f16"),
    ],
)
def test_what_stays_apart_says_why(f, why):
    given = jf.fuse(lambda x, w, e: f(jf.grouped_matmul(x, w, e)))
    [reason] = [k["reason"] for k in kernels(given, shapes()[:3]) if k["entry"] == "jf_grouped_rows"]
    assert why in reason


# Short where 16 bits are kept of them, but not of f16.
SHORT_FORMS = [jax.lax.erf, jax.lax.erfc, exact_gelu, jax.nn.softplus, jax.nn.mish]


@pytest.mark.parametrize("dtype", [BF16, jnp.float16, F32])
@pytest.mark.parametrize(
    "f",
    [jnp.cbrt, jnp.arctan, jnp.arcsin, jnp.sinh, jnp.cosh, *SHORT_FORMS,
     lambda y: (y * 9).astype(jnp.int32) // 7, lambda y: (y * 9).astype(jnp.int32) % 7],
)  # fmt: skip
def test_functions_that_are_short_enough(f, dtype):
    if f in SHORT_FORMS and dtype == jnp.float16:
        pytest.skip("erfc and log1p of float16 have no short form")

    def around(y, dtype):
        return f((y / 8).astype(dtype)).astype(BF16)

    def fused(x, w, e):
        return around(jf.grouped_matmul(x, w, e), dtype)

    assert "jf_grouped_rows_fused" in [facts["entry"] for facts in kernels(jf.fuse(fused), shapes()[:3])]
    given = arrays([30, 0, 33], k=24, n=64, m=64)[:3]
    # Of the product in bf16, not of a wider one: integers would be others.
    want = around(jf.grouped_matmul(*given), F32)
    assert_close(jf.fuse(fused)(*given), want, dtype if dtype == jnp.float16 else BF16)


def test_other_targets_store_the_product():
    [product, tail] = kernels(TAILS["silu"][0], target=_core.cuda_target_for(80))
    assert product["entry"] == "jf_grouped_rows" and tail["strategy"] == "pointwise"
    assert "is a kernel of its own: compute capability 8.0, it has that of 9.0" in product["reason"]
    [program] = programs(TAILS["silu"][0], shapes())
    hopper, ampere = (_core.workspace_bytes(program, _core.cuda_target_for(sm), portable=True) for sm in (90, 80))
    assert hopper == ampere


def test_a_product_that_a_reduction_reads_has_no_epilogue():
    given = jf.fuse(lambda x, w, e: jax.nn.softmax(jf.grouped_matmul(x, w, e)))
    assert "jf_grouped_rows_fused" not in [k["entry"] for k in kernels(given, shapes()[:3])]


def test_a_product_that_is_a_result_is_stored_beside_what_follows():
    def f(x, w, e):
        y = jf.grouped_matmul(x, w, e)
        return y, y + 1

    *_, kernel = kernels(jf.fuse(f), shapes()[:3])
    assert kernel["entry"] == "jf_grouped_rows_fused" and len(kernel["writes"]) == 2


def test_derivatives_keep_the_product():
    """Forward for a derivative is the product, kept, and its tail; no product is computed twice."""
    for f in (activated("silu"), jf.fuse(activated("silu"))):
        grad = jax.grad(lambda x, w, e, f=f: f(x, w, e).astype(F32).sum(), (0, 1))
        entries = [k["entry"] for k in kernels(grad, shapes()[:3])]
        assert sorted(e for e in entries if "grouped" in e) == [
            "jf_grouped_contraction", "jf_grouped_rows", "jf_grouped_rows"]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_functions_that_are_new_for_each_call_do_not_fill_memory(dtype, monkeypatch):
    monkeypatch.setattr(_activations, "MOST_GIVEN", 3)
    x, w, sizes, alive = jnp.ones((4, 8), dtype), jnp.ones((2, 8, 128), dtype), jnp.array([3, 1]), []

    def times(i):
        def f(y):
            return y * i

        alive.append(weakref.ref(f))
        return f

    for i in range(6):
        assert jf.grouped_matmul(x, w, sizes, activation=times(i))[0, 0] == 8 * i
        jax.grad(lambda x, i=i: jf.grouped_matmul(x, w, sizes, activation=times(i)).sum().astype("float32"))(x)
        if dtype == "bfloat16":
            made = jf.grouped_matmul(x, w, sizes, activation=times(i), output_format="fp8_block")
            assert round(float(jf.dequantize(made)[0, 0])) == 8 * i
    gc.collect()
    # Three in each of the functions that are jitted.
    assert sum(f() is not None for f in alive) <= 9 < len(alive)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("format", [None, "fp8_block"])
def test_functions_that_hold_arrays_are_not_kept(dtype, format):
    x, w, sizes = jnp.ones((4, 8), dtype), jnp.ones((2, 8, 128), dtype), jnp.array([3, 1])

    def out(by):
        return jf.grouped_matmul(x, w, sizes, activation=lambda y: jnp.tanh(y * by), output_format=format)

    with jax.checking_leaks():
        jax.jit(out)(2.0)
        if format is None:
            jax.jit(jax.grad(lambda by: out(by).sum().astype("float32")))(2.0)
            jax.vmap(out)(jnp.arange(2.0))
    by = jnp.full((), 3.0)
    alive = weakref.ref(by)
    out(by)
    del by
    gc.collect()
    assert alive() is None


def test_an_activation_need_not_be_hashable():
    @dataclasses.dataclass
    class Scaled:
        by: jax.Array

        def __call__(self, y):
            return y * self.by

    def out(by):
        return jf.grouped_matmul(jnp.ones((4, 8)), jnp.ones((2, 8, 8)), [3, 1], activation=Scaled(by))

    assert out(jnp.ones(()) * 2)[3, 7] == 16
    assert jax.grad(lambda by: out(by).sum())(jnp.ones(())) == 4 * 8 * 8


def test_effects_of_an_activation_are_kept():
    seen = []

    def watched(y):
        jax.debug.callback(lambda top: seen.append(float(top)), y.max(), ordered=True)
        return y

    y = jax.jit(activated(watched))(*arrays(EDGES["odd"])[:3])
    jax.effects_barrier()
    assert seen == [float(jnp.maximum(y.max(), 1))]  # a function sees ones in padding rows


def compiled(f, arguments):
    return [p for p in programs(f, arguments) if "grouped_matmul(" in p]


@pytest.mark.parametrize(
    ("f", "size"),
    [
        (TAILS["bias, swiglu and scale"][0], {"m": 16384, "k": 2048, "n": 4096}),
        (lambda x, w, e, b, s, r: jf.grouped_matmul(x, w.mT, e, transpose_rhs=True, activation="geglu"), {"n": 2048}),
        (TAILS["fuse around it"][0], {"dtype": jnp.float16}),
        (TAILS["fuse exact gelu of bf16"][0], {"m": 16384, "k": 2048, "n": 4096}),
        (TAILS["a residual of a gated product"][0], {}),
    ],
    ids=["bias, swiglu and scale", "K-major geglu", "a wide residual", "exact gelu", "residual"],
)
def test_epilogues_spill_nothing_and_leave_products_to_overlap(f, size, tmp_path):
    nvrtc_or_skip()
    [program] = compiled(f, shapes(**size))
    for used in assert_no_spills(program, tmp_path):
        assert used["STACK"] == 0 and used["REG"] <= 168
    text = sass(tmp_path / "kernel.cubin")
    assert "UTMALDG" in text
    assert "HGMMA" in text and text.count("WARPGROUP.DEPBAR") <= text.count("HGMMA") // 2 + 1


def arrays(extents, dtype=BF16, m=M, k=K, n=N):
    rng = np.random.default_rng(3)
    x, w = ref.make("rows", extents, m, k, n)
    w *= k**-0.5
    b, s, r = rng.normal(size=(len(extents), n)), rng.uniform(0.5, 2, m), rng.normal(size=(m, n))
    return [jnp.asarray(x, dtype), jnp.asarray(w, dtype), jnp.asarray(extents, jnp.int32), jnp.asarray(b, dtype),
            jnp.asarray(s, F32), jnp.asarray(r, dtype)]  # fmt: skip


def truth(tail, x, w, extents, b, s, r):
    """Rows of no group are what the tail makes of zeros under `fuse`, and zero from `grouped_matmul` itself."""
    y = jnp.asarray(ref.rows(*(np.asarray(a, np.float32) for a in (x, w)), np.asarray(extents)), F32)
    ids = np.searchsorted(np.cumsum(extents), np.arange(len(x)), side="right")
    bias = np.concatenate([np.asarray(b, np.float32), np.zeros((1, b.shape[1]))])[np.minimum(ids, len(b))]
    want = np.array(TAILS[tail][1](y, jnp.asarray(bias, F32), s, jnp.asarray(r, F32)))
    if not tail.startswith(("fuse", "residual", "a residual")):
        want[ids >= len(b)] = 0
    return want


EDGES = {
    "odd": [1, 63, 65, 127, 129, 255, 13],
    "empty groups": [0, 333, 1, 0, 300, 0, 0],
    "all empty": [0] * 7,
    "all in one": [0, 700, 0, 0, 0, 0, 0],
}


@pytest.mark.parametrize("tail", ["bias, swiglu and scale", "fuse around it", "exact gelu", "fuse exact gelu of bf16"])
def test_numbers_on_the_cpu(tail):
    given = arrays(EDGES["odd"], k=24)
    assert_close(jax.jit(TAILS[tail][0])(*given), truth(tail, *given), BF16)


@pytest.mark.parametrize("extents", [[1], [0], [0, 1, 0], [0, 0, 0]])
@pytest.mark.parametrize("tail", TAILS)
def test_one_row_on_the_cpu(tail, extents):
    given = arrays(extents, m=1, k=24)
    assert_close(jax.jit(TAILS[tail][0])(*given), truth(tail, *given), BF16)


@pytest.mark.parametrize("fused", [False, True])
def test_derivatives_and_batches_of_narrow_products(fused):
    given = arrays([3, 0, 9, 4], m=20, k=8, n=16)
    alpha = jnp.float32(0.5)

    def loss(f, x, w, b, s, alpha):
        out = f(x, w, b, s, alpha)
        return (out.astype(F32) ** 2).sum()

    def multiply(x, w, b, s, alpha):
        # The activation closes over an array that has a derivative.
        out = jf.grouped_matmul(x, w, given[2], bias=b, activation="swiglu", row_scale=s)
        return out + jf.grouped_matmul(x, w, given[2], activation=lambda y: y * alpha)[:, :8]

    def wide(x, w, b, s, alpha):
        return multiply(*(a.astype(F32) for a in (x, w, b)), s, alpha)

    f = jf.fuse(multiply) if fused else multiply
    operands = (given[0], given[1], given[3], given[4], alpha)
    got, want = (jax.jit(jax.grad(functools.partial(loss, g), range(5)))(*operands) for g in (f, wide))
    for a, b in zip(got, want):
        assert a.dtype == b.dtype
        assert_close(a, b, BF16, scale=3)
    many = jax.jit(jax.vmap(f, (0, None, None, None, None)))(jnp.stack([given[0], -given[0]]), *operands[1:])
    assert_close(many[1], jax.jit(f)(-given[0], *operands[1:]), BF16)


@pytest.mark.gpu
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("tail", TAILS)
def test_numbers_on_hopper(tail, edge):
    device = hopper_or_skip()
    given = arrays(EDGES[edge])
    want = truth(tail, *given)
    owned = ref.owned_rows(EDGES[edge], M)
    given[0] = jnp.where(owned[:, None], given[0], jnp.nan)  # padding is never read
    with jax.default_device(device):
        jax.block_until_ready(jnp.full(want.shape, jnp.nan, BF16))  # what the result's memory may hold
        got = jax.jit(TAILS[tail][0])(*jax.device_put(given, device))
    assert_close(got, want, BF16)


@pytest.mark.gpu
@pytest.mark.parametrize("extents", [[1], [0], [0, 1, 0], [0, 0, 0]])
@pytest.mark.parametrize("tail", TAILS)
def test_one_row_on_hopper(tail, extents):
    device = hopper_or_skip()
    given = arrays(extents, m=1, k=2048)
    with jax.default_device(device):
        got = jax.jit(TAILS[tail][0])(*jax.device_put(given, device))
    assert_close(got, truth(tail, *given), BF16)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("transpose", [False, True])
def test_many_groups_and_gaps_on_hopper(transpose, dtype):
    """Every block takes several tiles; with gaps between groups each row searches for its group."""
    device = hopper_or_skip()
    rng = np.random.default_rng(0)
    extents = rng.multinomial(5000, rng.dirichlet(np.full(130, 0.3))).astype(np.int32)
    gaps = rng.integers(0, 9, 130)
    starts = np.cumsum(extents + gaps) - extents
    x, w, e, b, s, _ = arrays(extents, dtype, 6500, 320, 1152)
    nt = jf.NestedTensor(x, e, jnp.asarray(starts, jnp.int32))

    def f(nt, w, b, s):
        return jf.grouped_matmul(nt, w, transpose_rhs=transpose, bias=b, activation="swiglu", row_scale=s).data

    with jax.default_device(device):
        operands = jax.device_put((nt, w.mT if transpose else w, b, s), device)
        got = jax.jit(f)(*operands)
    want = np.zeros((6500, 576))
    y = ref.rows(np.asarray(x, np.float32), np.asarray(w, np.float32), extents, starts)
    for g, span in ref.groups(extents, starts, 6500):
        z = jnp.asarray(y[span] + np.asarray(b[g], np.float32), F32)
        want[span] = jax.nn.silu(z[:, :576]) * z[:, 576:] * s[span, None]
    assert_close(got, want, dtype)


class Slope:
    """A module whose parameter is another at each call."""

    slope = 1.0

    def __call__(self, x):
        return x * self.slope

    def method(self, x):
        return x * self.slope


FACTOR = 2.0


def times_factor(x):
    return x * FACTOR


def times_factor_inside(x):
    return (lambda y: sum(y * FACTOR for _ in range(2)) / 2)(x)


def times_slope_of_class(x):
    return x * Slope.slope


library = types.ModuleType("library")
library.FACTOR = 2.0


def times_factor_of_module(x):
    return x * library.FACTOR


def closure():
    slope = 1.0

    def f(x):
        return x * slope

    def change(to):
        nonlocal slope
        slope = to
        return f

    return change


@pytest.mark.parametrize("kind", ["object", "method", "closure", "global", "inside", "class", "module"])
def test_what_an_activation_reads_may_change(kind, monkeypatch):
    """By value, and as a tracer of one trace or of the next."""
    (x, w), sizes, module, change = (jnp.ones((6, 8)), jnp.ones((3, 8, 4))), jnp.array([1, 2, 3]), Slope(), closure()

    def f(slope):
        if kind == "closure":
            activation = change(slope)
        elif kind in ("global", "inside"):
            monkeypatch.setitem(globals(), "FACTOR", slope)
            activation = times_factor if kind == "global" else times_factor_inside
        elif kind == "class":
            monkeypatch.setattr(Slope, "slope", slope)
            activation = times_slope_of_class
        elif kind == "module":
            monkeypatch.setattr(library, "FACTOR", slope)
            activation = times_factor_of_module
        else:
            module.slope = slope
            activation = module if kind == "object" else module.method
        return jnp.sum(jf.grouped_matmul(x, w, sizes, activation=activation))

    one = f(1.0)
    assert_close(f(3.0), 3 * one, scale=2)
    for _ in range(2):
        assert_close(jax.grad(f)(2.0), one, scale=2)
        assert_close(jax.jit(f)(2.0), 2 * one, scale=2)


def test_layers_with_a_function_compile_once():
    def act(h):
        return jnp.sin(h)

    x, weights, experts = jnp.ones((8, 6)), jnp.ones((8, 2)), jnp.zeros((8, 2), jnp.int32)
    w13, w2 = jnp.ones((4, 6, 4)), jnp.ones((4, 4, 6))
    events = []

    def listen(event, *_, **__):
        events.append(event)

    jf.moe.mlp(x, experts, weights, w13, w2, activation=act)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jf.moe.mlp(x, experts, weights, w13, w2, activation=act)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert not [event for event in events if "compile" in event]
