"""What follows a grouped product on the CPU is computed of each block of it: what joins, and the numbers."""

import re

import grouped_reference as ref
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_grouped_epilogue import EDGES, TAILS, activated, arrays, shapes, truth
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core

M = 700


def steps(f, arguments):
    """Return the steps from the product on of a function's program on the CPU, as text."""
    text = jax.jit(f).trace(*arguments).lower(lowering_platforms=("cpu",)).as_text()
    programs = [
        p.replace("\\0A", "\n").replace("\\22", '"') for p in re.findall(r'program = "((?:[^"\\]|\\.)*)"', text)
    ]
    [program] = [p for p in programs if "grouped_matmul(" in p]
    host = _core.stages(program, _core.host_target())["host"]
    return host[host.index("  grouped ") :].splitlines()


@pytest.mark.parametrize("tail", TAILS)
def test_what_follows_a_product_is_its_tail(tail):
    [product] = steps(TAILS[tail][0], shapes())
    assert "-> bf16 -> " in product


def test_what_follows_a_product_of_f32_is_its_tail_on_cpus_alone():
    given = arrays([300, 0, 400], "float32", M, 32, 64)[:3]
    f = jax.jit(activated("silu"))
    [product] = steps(f, given)
    assert "-> f32 -> " in product
    on_gpus = f.trace(*given).lower(lowering_platforms=("cuda",)).as_text()
    [alone] = re.findall(r'program = "((?:[^"\\]|\\.)*)"', on_gpus)
    assert alone.count(" = ") == 1


def test_only_exports_have_memory_for_the_product():
    """Another machine that loads them may store it between two kernels."""
    given = arrays([300, 0, 400], "bfloat16", M, 32, 64)[:3]
    f = jax.jit(activated("silu"))
    ours = jax.export.DisabledSafetyCheck.custom_call("jax_fuser.program")
    exported = jax.export.export(f, disabled_checks=[ours])(*given)
    room = [re.findall(r"tensor<(\d+)xui8>", text) for text in (f.lower(*given).as_text(), exported.mlir_module())]
    assert not room[0] and room[1] and int(room[1][0]) >= M * 64 * 2
    np.testing.assert_array_equal(exported.call(*given).astype("float32"), f(*given).astype("float32"))


def test_what_reads_other_rows_stays_apart():
    def some(x, w, e):
        return jf.grouped_matmul(x, w, e)[::2] + 1

    product, after = steps(jf.fuse(some), shapes()[:3])
    assert "-> bf16 (" in product and "launch" in after


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("tail", ["bias, swiglu and scale", "a residual beside another column"])
def test_numbers(tail, edge):
    given = arrays(EDGES[edge])
    want = truth(tail, *given)
    owned = ref.owned_rows(EDGES[edge], M)
    given[0] = jnp.where(owned[:, None], given[0], jnp.nan)  # padding is never read
    assert_close(jax.jit(TAILS[tail][0])(*given), want, jnp.bfloat16)


@pytest.mark.parametrize(
    ("k", "n", "transpose", "dtype"),
    [(7, 2, False, "bfloat16"), (33, 100, True, "float16"), (600, 450, False, "bfloat16"),
     (600, 450, True, "bfloat16"), (64, 2304, False, "float16"), (600, 450, False, "float32"),
     (33, 100, True, "float32")],
)  # fmt: skip
def test_shapes(k, n, transpose, dtype):
    """Columns that are no multiple of a piece, depths in several blocks, groups of few rows and of many."""
    extents = [300, 0, 1, 5, 9, 70, 15]
    x, w, e, b, s, _ = arrays(extents, dtype, 450, k, n)
    rhs = w.mT if transpose else w
    f = jax.jit(lambda *a: jf.grouped_matmul(*a[:3], transpose_rhs=transpose, bias=a[3], activation="geglu",
                                             row_scale=a[4]))  # fmt: skip
    product = jf.grouped_matmul(x, rhs, e, transpose_rhs=transpose).astype(jnp.float32)
    ids = np.minimum(np.searchsorted(np.cumsum(extents), np.arange(450), side="right"), 6)
    y = product + b.astype(jnp.float32)[ids]
    want = jax.nn.gelu(y[:, : n // 2]) * y[:, n // 2 :] * s[:, None]
    assert_close(f(x, rhs, e, b, s), jnp.where((jnp.arange(450) < 400)[:, None], want, 0), dtype)


def test_sums_of_64_bits_fit_their_room():
    m, k, n, extents = 1000, 128, 200, np.array([600, 400], np.int32)
    b = jf.ir.Builder("wide_sums")
    product = b.grouped_matmul(
        b.input("x", "f64", [m, k]),
        b.input("w", "f64", [2, k, n]),
        b.input("e", "s32", [2]),
        None,
        "rows",
        False,
        "f64",
    )
    b.output(b.convert(product, "f32"))
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(m, k)), rng.normal(size=(2, k, n))
    with jax.enable_x64(True):
        [got] = jf.ir.run(b.finish(), x, w, extents)
    assert_close(got, np.concatenate([x[:600] @ w[0], x[600:] @ w[1]]), "float32")


def test_gaps_between_groups():
    x, w, e, *_ = arrays([40, 0, 3, 200], m=400, k=48, n=256)
    starts = jnp.asarray([5, 50, 60, 100], jnp.int32)
    nt = jf.NestedTensor(x, e, starts)
    got = jf.grouped_matmul(nt, w, activation="silu").data
    want = jax.nn.silu(jnp.asarray(ref.rows(np.asarray(x), np.asarray(w), e, starts), jnp.float32))
    assert_close(got, want, jnp.bfloat16)


def test_a_large_result_past_the_caches():
    x, w, e, *_ = arrays([4000, 1, 95], m=4096, k=16, n=1024)
    want = jax.nn.silu(jnp.asarray(ref.rows(np.asarray(x), np.asarray(w), e), jnp.float32))
    f = jax.jit(activated("silu"))
    for _ in range(2):  # in fresh pages, and again
        assert_close(f(x, w, e), want, jnp.bfloat16)
