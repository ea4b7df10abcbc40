"""Grouped products of arrays with more elements than int32 counts: on a GPU for real, on the CPU the same of few. Such
arrays live inside one program; what is compared are groups that lie past the last element that int32 counts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_split_k import HOPPER
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core, _tuned

BF16, F32 = jnp.bfloat16, jnp.float32


@dataclasses.dataclass(frozen=True)
class Problem:
    """Rows of groups, which groups are compared, and of how many tokens the rows are where they are gathered."""

    m: int
    k: int
    n: int
    extents: tuple[int, ...]
    compared: tuple[int, ...]
    tokens: int | None = None

    def rows(self, group: int) -> slice:
        start = sum(self.extents[:group])
        return slice(start, start + self.extents[group])

    @functools.cached_property
    def index(self) -> np.ndarray:
        """The token of each row: near rows have tokens far apart."""
        return (np.arange(self.m) * 1_000_003 % (self.tokens or self.m)).astype(np.int32)

    def shown(self, group: int) -> np.ndarray:
        """Which rows' gradients are compared: of a group's rows, or of the tokens of a few of them."""
        rows = np.arange(self.m)[self.rows(group)]
        return rows if self.tokens is None else self.index[rows[-8:]]


# The group before the last but one begins before the element 2^31 and ends behind it.
OF_ROWS, COMPARED = (1_000_000, 0, 1_095_000, 4_000, 100_000, 990), (1, 3, 5)
OF_MATRICES = (20,) * 31 + (0, 17, 23), (30, 31, 32, 33)


def halved(extents, times):
    return tuple(extent // times for extent in extents)


LARGE = {  # by what has more than 2^31 elements: lhs and dlhs, out and its cotangent, rhs and drhs, a side of gathers
    "rows": Problem(2_200_000, 1024, 128, OF_ROWS, COMPARED),
    "results": Problem(1_100_000, 64, 2048, halved(OF_ROWS, 2), COMPARED),
    "matrices": Problem(700, 16384, 4208, *OF_MATRICES),
    "tokens": Problem(40_000, 1024, 128, halved(OF_ROWS, 55), COMPARED, tokens=2_200_000),
    "copies of tokens": Problem(2_200_000, 1024, 128, OF_ROWS, COMPARED, tokens=40_000),
}
SMALL = {
    "rows": Problem(2_200, 32, 128, halved(OF_ROWS, 1000), COMPARED),
    "results": Problem(1_100, 16, 256, halved(OF_ROWS, 2000), COMPARED),
    "matrices": Problem(700, 48, 32, *OF_MATRICES),
    "tokens": Problem(400, 32, 128, halved(OF_ROWS, 5500), COMPARED, tokens=2_200),
    "copies of tokens": Problem(2_200, 32, 128, halved(OF_ROWS, 1000), COMPARED, tokens=40),
}


def problem(array, device):
    return (SMALL if device.platform == "cpu" else LARGE)[array]


def numbers(seed, *indices):
    """Multiples of 1/8 up to 1 that depend on all indices, integers that broadcast: exact in bfloat16."""
    h = jnp.asarray(seed, jnp.uint32)
    for index in indices:
        h = (h ^ jnp.asarray(index).astype(jnp.uint32)) * np.uint32(0x9E3779B1)
        h = (h ^ (h >> 15)) * np.uint32(0x85EBCA77)
        h = h ^ (h >> 13)
    return ((h % 17).astype(F32) - 8) / 8


def rows_of(seed, rows, columns):
    return numbers(seed, rows[:, None], jnp.arange(columns)[None])


def matrices_of(seed, groups, k, n):
    return numbers(seed + 2, groups[:, None, None], jnp.arange(k)[None, :, None], jnp.arange(n)[None, None]) / 16


def scales_of(seed, rows):
    return 1.5 + numbers(seed + 3, rows)


def operands(p, seed):
    """lhs, rhs, and what a call takes besides."""
    x = rows_of(seed, jnp.arange(p.tokens or p.m), p.k).astype(BF16)
    w = matrices_of(seed, jnp.arange(len(p.extents)), p.k, p.n).astype(BF16)
    return x, w, scales_of(seed, jnp.arange(p.m))


def gelu_and_scale(x, w, sizes, scale, index, **how):
    return jf.grouped_matmul(x, w, sizes, activation="gelu", row_scale=scale, **how)


CALLS = {
    "product": lambda x, w, sizes, scale, index: jf.grouped_matmul(x, w, sizes),
    "gelu and scale": gelu_and_scale,
    "gathered": lambda x, w, sizes, scale, index: jf.grouped_matmul(x, w, sizes, row_index=index),
    "fp8_row": lambda x, w, sizes, scale, index: jf.scaled_grouped_matmul(
        x, w, sizes, format="fp8_row", transpose_rhs=False
    ),
}


def gradients(call, p):
    """A program that computes out, dlhs and drhs and returns parts: of each group to compare its rows and the last rows
    of its matrix, and the rows behind all groups."""

    def run(seed, sizes, index):
        x, w, scale = operands(p, seed)
        dy = rows_of(seed + 1, jnp.arange(p.m), p.n).astype(BF16)
        out, pull = jax.vjp(lambda x, w: CALLS[call](x, w, sizes, scale, index), x, w)
        d_x, d_w = pull(dy)

        def of_lhs(group):
            return d_x[p.rows(group)] if p.tokens is None else jnp.take(d_x, p.shown(group), axis=0)

        parts = [(out[p.rows(g)], of_lhs(g), d_w[g, -8:]) for g in p.compared]
        return parts, [a[sum(p.extents) :] for a in ((out, d_x) if p.tokens is None else (out,))]

    return run


def rounded(x, by_columns):
    """What 8 bits with a scale for each row, or for each column, make of numbers."""
    x = jf.dequantize(jf.quantize(x.T if by_columns else x, "fp8_row"))
    return x.T if by_columns else x


def wanted(call, p, group, seed):
    """The same parts of one group, in float32."""
    rows = np.arange(p.m)[p.rows(group)]
    x = rows_of(seed, rows if p.tokens is None else p.index[rows], p.k)
    dy, [w] = rows_of(seed + 1, rows, p.n), matrices_of(seed, np.array([group]), p.k, p.n)
    if call == "fp8_row":
        return rounded(x, False) @ rounded(w, True), rounded(dy, False) @ rounded(w, False).T, (x.T @ dy)[-8:]

    def f(x, w):
        return jax.nn.gelu(x @ w) * scales_of(seed, rows)[:, None] if "gelu" in call else x @ w

    out, pull = jax.vjp(f, x, w)
    d_x, d_w = pull(dy)
    return out, d_x if p.tokens is None else of_tokens(p, p.shown(group), seed), d_w[-8:]


def of_tokens(p, tokens, seed):
    """The gradient of a product in some tokens: a sum over their rows in all groups."""
    total = np.zeros((len(tokens), p.k), np.float32)
    rows = np.flatnonzero(np.isin(p.index[: sum(p.extents)], tokens))
    groups = np.searchsorted(np.cumsum(p.extents), rows, "right")
    for g in np.unique(groups):
        [w], own = matrices_of(seed, np.array([g]), p.k, p.n), rows[groups == g]
        d_x = np.asarray(rows_of(seed + 1, own, p.n) @ w.T)
        for i, token in enumerate(tokens):
            total[i] += d_x[p.index[own] == token].sum(0)
    return total


@pytest.mark.parametrize(
    ("call", "array"),
    [
        *(("product", array) for array in ("rows", "results", "matrices")),
        *(("gelu and scale", array) for array in ("rows", "results")),
        *(("gathered", array) for array in ("tokens", "copies of tokens")),
        *(("fp8_row", array) for array in ("rows", "results", "matrices")),
    ],
)
def test_products_and_gradients(call, array, device):
    """Rows, gradients of rows and of matrices of each group; nothing behind the last group."""
    p, seed = problem(array, device), np.uint32(7)
    got, padding = jax.jit(gradients(call, p))(seed, jnp.asarray(p.extents, jnp.int32), jnp.asarray(p.index))
    for group, parts in zip(p.compared, got, strict=True):
        for one, want in zip(parts, wanted(call, p, group, seed), strict=True):
            assert p.extents[group] == 0 or np.abs(want).max() > 0.1
            # Tensor cores sum 8-bit floats with 14 bits.
            assert_close(one, want, "bfloat16", scale=4 if call == "fp8_row" else 1)
    assert not any(np.asarray(rows, np.float32).any() for rows in padding)


@pytest.mark.parametrize(("how", "array"), [("quantized", "rows"), ("quantized", "results"), ("by number", "tokens")])
def test_kernels_of_their_own(how, array, device):
    """A product that quantizes its result, and one that gathers rows as it reads them."""
    p, seed, quantizes = problem(array, device), np.uint32(3), how == "quantized"
    spans = [p.rows(g) for g in p.compared]

    @jax.jit
    def parts(seed, sizes, index):
        x, w, scale = operands(p, seed)
        options = {"output_format": "fp8_block"} if quantizes else {"row_index": index}
        made = gelu_and_scale(x, w, sizes, scale, index, **options)
        arrays = (made.data, made.scales) if quantizes else (made,)
        return [[a[rows] for a in arrays] for rows in (*spans, slice(sum(p.extents), p.m))]

    *got, padding = parts(seed, jnp.asarray(p.extents, jnp.int32), jnp.asarray(p.index))
    for group, (out, *scales) in zip(p.compared, got, strict=True):
        if quantizes:
            out = jf.dequantize(jf.ScaledTensor(out, *scales, None, "fp8_block", (128,)))
        # Of the four bits of 448, the largest of a block, half the last is 1/28.
        assert_close(out, wanted("gelu and scale", p, group, seed)[0], "bfloat16", scale=2 if quantizes else 1)
    assert not np.asarray(padding[0], np.float32).any()


def facts(f, *arguments):
    """What is said of each kernel that a program takes on a GPU of compute capability 9.0."""
    with _tuned.programs_seen() as seen:
        jax.jit(f).trace(*arguments).lower(lowering_platforms=("cuda",))
    return [kernel for program in seen for kernel in _core.facts(program, HOPPER)]


@pytest.mark.parametrize("array", LARGE)
def test_kernels_of_many_elements_are_those_of_few(array):
    p = LARGE[array]
    sizes = {"lhs": (p.tokens or p.m) * p.k, "read": p.m * p.k, "out": p.m * p.n, "rhs": len(p.extents) * p.k * p.n}
    assert max(sizes.values()) > 2**31
    shapes = jax.ShapeDtypeStruct((len(p.extents),), "int32"), jax.ShapeDtypeStruct((p.m,), "int32")
    found = facts(gradients("product" if p.tokens is None else "gathered", p), jnp.uint32(7), *shapes)
    products = [kernel["parameters"] for kernel in found if "grouped" in kernel["entry"]]
    assert len(products) == 3 and all(parameters.startswith("wgmma, ") for parameters in products)


def test_gradients_of_many_rows_of_many_tokens_can_be_planned():
    """A layer of 131072 tokens with two experts each and rows of 7168."""
    p = Problem(262_144, 7168, 256, (40_000,) * 6, (5,), tokens=131_072)
    shapes = jax.ShapeDtypeStruct((len(p.extents),), "int32"), jax.ShapeDtypeStruct((p.m,), "int32")
    assert facts(gradients("gathered", p), jnp.uint32(7), *shapes)
