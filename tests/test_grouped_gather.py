"""Grouped products whose rows of lhs are gathered: which kernels do it as they read them, that these compile, and on a
GPU of compute capability 9.0 the numbers at every ragged edge."""

import functools
import re

import grouped_reference as ref
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_cuda_sources import assert_no_spills, nvrtc_or_skip, resources
from test_grouped_hopper import EDGES, sass
from test_tma import hopper_or_skip
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core, _tuned

HOPPER = _core.cuda_target_for(90)


def gathered(activation=None, m=2048, tokens=512, k=520, n=256, groups=8, dtype="bfloat16", transpose=False, **options):
    S = jax.ShapeDtypeStruct
    rhs = S((groups, n, k) if transpose else (groups, k, n), dtype)

    def f(x, rhs, sizes, index):
        return jf.grouped_matmul(
            x, rhs, sizes, row_index=index, activation=activation, transpose_rhs=transpose, validate=False, **options
        )

    sizes, index = S((groups,), "int32"), S((m,), "int32")
    return str(jf.ir.trace(f, S((tokens, k), dtype), rhs, sizes, index))


@pytest.mark.parametrize("activation", ["silu", "swiglu"])
def test_few_columns_are_multiplied_with_rows_as_they_lie(activation):
    [product] = _core.facts(gathered(activation), HOPPER)
    assert product["parameters"] == "wgmma, tile=128x256x64 stages=4 cluster=1 units=shared, rows by number"
    assert "gathers its rows from x" in product["reason"]
    assert product["entry"] == "jf_grouped_gathered_rows_fused"
    assert product["reads"][0][1:] == ("bf16", [512, 520], 512 * 520 * 2)
    assert ("index", "s32", [2048], 8192) in product["reads"]
    assert not _core.copies_rows(gathered(activation), HOPPER)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"n": 2048}, "2048 columns read them again and again"),
        ({"activation": "silu", "n": 1024}, "1024 columns read them again and again, 768 at most"),
        ({"activation": None}, "nothing follows the product"),
        ({"m": 500}, "groups of few rows take longer by wide tiles"),
        ({"k": 256}, "k=256 is too short for tiles of two warpgroups"),
        ({"k": 516}, "k=516 gives rows that are not multiples of 16 bytes"),
    ],
)
def test_rows_are_copied_where_that_takes_less(options, why):
    program = gathered(**{"activation": "swiglu", **options})
    copy, product = _core.facts(program, HOPPER)[:2]
    assert f"its rows are copied first: {why}" in copy["reason"]
    assert _core.copies_rows(program, HOPPER)
    assert "rows by number" not in product["parameters"] and "gathered" not in product["entry"]


@pytest.mark.parametrize(
    ("options", "used"),
    [
        ({}, 2048 * 520 * 2),  # the rows, and what hands out units
        ({"activation": "swiglu"}, 0),
        ({"activation": "swiglu", "n": 2048}, 2048 * 520 * 2),
    ],
)
def test_what_no_kernel_of_the_target_writes_takes_no_memory(options, used):
    program = gathered(**options)
    assert f" workspace={used + 256}\n" in _core.stages(program, HOPPER)["host"]
    # An export may run on any target.
    copied = 2048 * 520 * 2 + 256
    product = 2048 * options.get("n", 256) * 2 if "activation" in options else 0
    for sm in (80, 90):
        assert _core.workspace_bytes(program, _core.cuda_target_for(sm), portable=True) == copied + product


@pytest.mark.parametrize("k", [2048, 2088])
@pytest.mark.parametrize(
    ("options", "kernels"),
    [
        ({}, 2),
        ({"activation": "swiglu"}, 1),
        ({"activation": "swiglu", "m": 64}, 2),
        ({"activation": "gelu", "n": 2048, "transpose": True}, 2),
        ({"dtype": "float16", "preferred_element_type": "float32"}, 2),
    ],
)
def test_kernels_are_the_same_for_any_number_of_tokens(options, kernels, k):
    """Neither the kernel that copies rows nor one that gathers them has the number in its text."""
    texts = set()
    for tokens in (1, 2, 3, 100, 1024, 65537, 2**24):
        program = gathered(k=k, tokens=tokens, **options)
        assert len(_core.facts(program, HOPPER)) == kernels
        texts.add(_core.stages(program, HOPPER)["source"])
    assert len(texts) == 1


def test_a_plain_product_is_a_copy_and_a_product_for_any_number_of_tokens():
    S, texts = jax.ShapeDtypeStruct, set()
    for tokens in (1, 100, 65537):
        args = S((tokens, 520), "bfloat16"), S((8, 520, 256), "bfloat16"), S((8,), "int32"), S((2048,), "int32")
        with _tuned.programs_seen() as seen:
            call = jax.jit(lambda x, w, sizes, index: jf.grouped_matmul(x, w, sizes, row_index=index))
            call.trace(*args).lower(lowering_platforms=("cuda",))
        texts.add(tuple(_core.stages(program, HOPPER)["source"] for program in seen))
    assert len(texts) == 1 and len(*texts) == 2


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_three_kernels_serve_any_number_of_rows_that_one_copies_first(activation):
    texts = set()
    for m in (1, 2, 7, 8, 9, 64, 300, 4096, 65536, 10**6):
        program = gathered(activation, k=2048, n=1024, m=m, tokens=max(1, m // 4))
        assert len(_core.facts(program, HOPPER)) == 2
        texts.add(_core.stages(program, HOPPER)["source"])
    assert len(texts) <= 3


def test_copies_of_rows_compile(tmp_path):
    nvrtc_or_skip()
    used = assert_no_spills(gathered(k=2048), tmp_path)
    assert len(used) == 2


def test_only_tiles_that_rows_by_number_have_are_tried():
    """A lane keeps the addresses of up to 128 rows, and a block copies its own."""
    program = gathered("silu")
    [(kernel, now, others)] = [found for found in _core.alternatives(program, HOPPER) if "tile_m" in found[1]]
    assert now in others and {re.search(r"cluster=1 .*tile_m=(\d+)", other)[1] for other in others} == {"64", "128"}
    for refused in ("tile_m=192 stages=3", "cluster=2"):
        with pytest.raises(jf.UserError, match="no kernel has the configuration"):
            _core.stages(program + _tuned.text_of({kernel: refused}), HOPPER)


def test_older_gpus_copy_rows():
    kernels = _core.facts(gathered("swiglu"), _core.cuda_target_for(80))
    assert all("rows by number" not in kernel["parameters"] for kernel in kernels)


def test_other_gathers_are_kernels_of_their_own():
    """Rows that are not only gathered, columns, and rows that something else reads, too."""
    S = jax.ShapeDtypeStruct
    args = S((512, 520), "bfloat16"), S((8, 520, 256), "bfloat16"), S((8,), "int32"), S((2048,), "int32")

    def program(rows, also=lambda rows, out: out):
        def f(x, w, sizes, index):
            given = rows(x, index)
            gate, up = jnp.split(jax.lax.ragged_dot(given, w, sizes), 2, axis=1)
            return also(given, jax.nn.silu(gate) * up)

        return _core.stages(str(jf.ir.trace(f, *args)), HOPPER)["host"]

    assert "by number" in program(lambda x, i: x[i])
    assert "by number" in program(lambda x, i: x.at[i // 2].get(mode="clip"))
    assert "by number" not in program(lambda x, i: x[i] * 2)
    assert "by number" not in program(lambda x, i: x.at[i].get(mode="fill", fill_value=1))
    assert "by number" not in program(lambda x, i: x[i], lambda rows, out: (rows, out))
    assert "by number" not in program(lambda x, i: x[:, i[:520]])


@pytest.mark.parametrize(
    ("activation", "options"),
    [
        ("swiglu", {}),
        ("swiglu", {"transpose": True, "dtype": "float16"}),
        ("swiglu", {"group_offset": 0}),
        ("silu", {}),
    ],
)
def test_gathering_kernels_compile(activation, options, tmp_path):
    nvrtc_or_skip()
    compiled = {entry: cubin for entry, _, cubin in _core.compile_cuda(gathered(activation, **options), HOPPER)}
    [cubin] = [cubin for entry, cubin in compiled.items() if "gathered" in entry]
    [used] = resources(cubin, tmp_path / "kernel.cubin")
    assert used["LOCAL"] == 0 and used["STACK"] == 0 and used["REG"] <= 168
    text = sass(tmp_path / "kernel.cubin")
    assert "LDGSTS" in text and "UTMALDG" in text and "HGMMA" in text
    assert 0 < text.count("WARPGROUP.DEPBAR") <= text.count("HGMMA") // 2 + 1  # products overlap


CALLS = {  # dtype, result, k, n, how; the first is copied
    "plain": ("bfloat16", None, 520, 264, {}),
    "silu": ("bfloat16", None, 392, 520, {"activation": "silu"}),
    "swiglu": ("bfloat16", None, 456, 272, {"activation": "swiglu"}),
    "float32": ("bfloat16", "float32", 584, 528, {"activation": "swiglu"}),
    "transposed": ("float16", None, 328, 80, {"activation": "swiglu", "transpose_rhs": True}),
    "scaled": ("float16", None, 320, 144, {"activation": "geglu", "row_scale": True}),
}


@pytest.mark.gpu
@pytest.mark.parametrize("edge", [e for e, (_, starts) in EDGES.items() if starts is None])
@pytest.mark.parametrize("call", CALLS)
def test_gathered_rows_on_hopper(call, edge):
    """Against the product of rows that are copied first; repeated, missing and poisoned rows."""
    device = hopper_or_skip()
    dtype, out, k, n, how = CALLS[call]
    extents, _ = EDGES[edge]
    extents, rows, tokens = np.asarray(extents, np.int32), 700, 93
    rng = np.random.default_rng(3)
    x = rng.standard_normal((tokens, k)).astype(np.float32)
    x[-1] = np.nan
    index = rng.integers(0, tokens - 1, rows).astype(np.int32)
    index[rng.choice(rows, 40)] = rng.choice(np.array([-1, tokens, 2**31 - 1, -(2**31)]), 40)
    index[min(int(extents.sum()), rows) :] = tokens - 1  # what padding names is not read
    rhs = rng.standard_normal((len(extents), n, k) if how.get("transpose_rhs") else (len(extents), k, n)) / k**0.5
    if how.get("row_scale"):
        how = {**how, "row_scale": jnp.asarray(rng.standard_normal(rows), jnp.float32)}
    f = functools.partial(jf.grouped_matmul, validate=False, preferred_element_type=out and jnp.dtype(out), **how)
    with jax.default_device(device):
        x, rhs, sizes = jnp.asarray(x, dtype), jnp.asarray(rhs, dtype), jnp.asarray(extents)
        call = jax.jit(lambda x, rhs, sizes, index: f(x, rhs, sizes, row_index=index))
        jax.block_until_ready(jnp.full((rows, n), jnp.nan, dtype))  # what the result's memory may hold
        got = np.asarray(call(x, rhs, sizes, jnp.asarray(index)).astype("float32"))
        valid = (index >= 0) & (index < tokens)
        copied = jnp.where(jnp.asarray(valid)[:, None], x[np.where(valid, index, 0)], 0)
        want = np.asarray(jax.block_until_ready(f(copied, rhs, sizes)).astype("float32"))
    assert np.isfinite(got).all()
    assert (got[~ref.owned_rows(extents, rows, None)] == 0).all()
    assert_close(jnp.asarray(got, dtype), want)


@pytest.mark.gpu
def test_layers_gather_rows_as_they_read_them():
    """`moe.mlp` against the same from its parts, each block with many tiles of uneven groups; its derivatives."""
    device = hopper_or_skip()
    tokens, d, f, experts, top_k = 3001, 392, 136, 24, 3
    keys = jax.random.split(jax.random.key(0), 5)
    with jax.default_device(device):
        x = jax.random.normal(keys[0], (tokens, d), jnp.bfloat16)
        w13 = jax.random.normal(keys[1], (experts, d, 2 * f), jnp.bfloat16) / d**0.5
        w2 = jax.random.normal(keys[2], (experts, f, d), jnp.bfloat16) / f**0.5
        some_dropped = -0.2 * jnp.arange(experts + 1.0)
        chosen = jax.random.categorical(keys[3], some_dropped, shape=(tokens, top_k))
        weights = jax.random.uniform(keys[4], (tokens, top_k))

        def parts(x, weights, w13, w2):
            nt, state = jf.moe.dispatch(x, chosen, num_experts=experts)
            h = jf.grouped_matmul(nt, w13, activation="swiglu")
            return jf.moe.combine(jf.grouped_matmul(h, w2), state, weights)

        def layer(x, weights, w13, w2):
            return jf.moe.mlp(x, chosen, weights, w13, w2)

        args = x, weights, w13, w2
        assert_close(jax.jit(layer)(*args), jax.jit(parts)(*args).astype("float32"))

        def gradients(f):
            return jax.jit(jax.grad(lambda *a: jnp.sum(f(*a).astype(jnp.float32) ** 2), argnums=range(4)))(*args)

        for got, want in zip(gradients(layer), gradients(parts)):
            error = jnp.linalg.norm((got - want).astype("float32")) / jnp.linalg.norm(want.astype("float32"))
            assert error < 0.02
