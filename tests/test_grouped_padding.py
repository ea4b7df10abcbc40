"""Rows of no group that a grouped product may leave as they are, since no one reads them."""

import functools

import arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_cuda_sources import nvrtc_or_skip
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core, _expert_rows, _grouped_primitive, _grouped_tail

M, K, N, EXTENTS = 200, 64, 128, [3, 0, 90, 7]


def program(mode="rows", leaves=True, tail=False):
    b = _core.Builder("product")
    lhs = b.input("lhs", "bf16", [M, K])
    rhs = b.input("rhs", "bf16", [len(EXTENTS), K, N] if mode == "rows" else [M, N])
    extents = b.input("extents", "s32", [len(EXTENTS)])
    product = b.grouped_matmul(lhs, rhs, extents, None, mode, False, "bf16", leaves_padding=leaves)
    b.output(b.pointwise("tanh", [product]) if tail else product)
    return b.finish()


def test_text():
    text = program()
    assert "{mode=rows leaves_padding}" in text and "leaves_padding" not in program(leaves=False)
    assert str(jf.ir.Fusion(text)) == text
    with pytest.raises(jf.UserError, match=r"\[grouped_matmul\] leaves_padding is for mode=rows, whose result has"):
        program("contraction")


def test_rows_of_groups_are_right(device):
    lhs, rhs = (arrays.array(*shape, dtype="bfloat16") for shape in ((M, K), (len(EXTENTS), K, N)))
    for rows in (EXTENTS, [0] * 4, [0, M, 0, 0]):
        args = lhs, rhs, jnp.array(rows, jnp.int32)
        [got], [want] = (jf.ir.run(jf.ir.Fusion(program(leaves=leaves)), *args) for leaves in (True, False))
        used = sum(rows)
        np.testing.assert_array_equal(np.asarray(got[:used]), np.asarray(want[:used]))


@pytest.mark.parametrize("tail", [False, True])
def test_sources_say_so(tail):
    nvrtc_or_skip()
    target = _core.cuda_target_for(90)
    with_zeros, without = (_core.compile_cuda(program(leaves=leaves, tail=tail), target) for leaves in (False, True))
    assert with_zeros != without


EXPERTS, TOKENS, TOP_K = 4, 128, 4


def layer(activation):
    """Return a compiled layer with its gradients, which reads most choices as none, and its arguments in bf16."""
    rng = np.random.default_rng(0)
    chosen = np.where(rng.random((TOKENS, TOP_K)) < 0.2, rng.integers(0, EXPERTS, (TOKENS, TOP_K)), -1)
    shapes = (TOKENS, K), (EXPERTS, K, N), (EXPERTS, N // (2 if activation == "swiglu" else 1), K)
    x, w13, w2 = (arrays.array(*shape, dtype="bfloat16", scale=0.2) for shape in shapes)

    @functools.partial(jax.jit, static_argnames="derive")
    def run(*args, derive=True):
        def loss(x, weights, w13, w2):
            out = jf.moe.mlp(x, chosen, weights, w13, w2, activation=activation)
            return jnp.sum(jnp.sin(out.astype(jnp.float32))), out

        return jax.grad(loss, (0, 1, 2, 3), has_aux=True)(*args) if derive else loss(*args)[1]

    return run, (x, arrays.array(TOKENS, TOP_K), w13, w2)


def check(run, args):
    got, want = (jax.tree.leaves(run(*given)) for given in (args, [a.astype(jnp.float32) for a in args]))
    for a, b in zip(got, want, strict=True):
        assert_close(a, b, "bfloat16")


@pytest.mark.parametrize("activation", ["swiglu", "relu"])
def test_layer_reads_no_such_row(device, activation):
    """Memory that is used again holds NaN."""
    run, args = layer(activation)
    run(*args)
    jax.block_until_ready([jnp.full(size, jnp.nan) for size in (1 << 22, 1 << 16, 1 << 16, 1 << 14, 1 << 14, 1 << 12)])
    check(run, args)


@pytest.mark.parametrize("activation", ["swiglu", "relu"])
def test_layer_reads_no_such_row_if_it_is_nan(device, activation, monkeypatch):
    """Products that fill such rows with NaN themselves, wherever they are left as they are."""
    filled = []

    def product(lhs, rhs, extents, *starts, mode, leaves_padding=False, **how):
        out = _grouped_primitive.product(lhs, rhs, extents, *starts, mode=mode, **how)
        if not leaves_padding:
            return out
        filled.append(out.shape)
        return jnp.where((jnp.arange(out.shape[0]) < jnp.sum(extents))[:, None], out, jnp.nan).astype(out.dtype)

    for module in (_expert_rows, _grouped_tail):
        monkeypatch.setattr(module, "product", product)
    jax.clear_caches()
    run, args = layer(activation)
    got, forward = jax.tree.leaves(run(*args)), run(*args, derive=False)
    assert len(filled) >= 6  # two forward; with derivatives two more, and two back
    monkeypatch.undo()
    jax.clear_caches()
    want = jax.tree.leaves(layer(activation)[0](*(a.astype(jnp.float32) for a in args)))
    for a, b in zip([*got, forward], [*want, want[-1]], strict=True):
        assert_close(a, b, "bfloat16")
