"""Grouped products of few tiles, whose k the blocks of a cluster split: when they do, and that sums are right and the
same each time however rows are spread."""

import functools

import grouped_reference as ref
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_cuda_sources import assert_no_spills
from test_scaled_grouped_matmul import operands as scaled_operands
from test_scaled_grouped_matmul import truth as scaled_truth
from test_tma import hopper_or_skip
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core, _tuned

HOPPER = _core.cuda_target_for(90)


def program_of(call, *operands):
    with _tuned.programs_seen() as seen:
        jax.jit(call).trace(*operands).lower(lowering_platforms=("cuda",))
    return seen[0]


def shapes(m, groups, k, n, dtype="bfloat16"):
    return (
        jax.ShapeDtypeStruct((m, k), dtype),
        jax.ShapeDtypeStruct((groups, k, n), dtype),
        jax.ShapeDtypeStruct((groups,), "int32"),
    )


def forced(program, split):
    """What chooses `split` for the product of a program; 1: each block computes tiles of its own."""
    found = _core.alternatives(program, HOPPER)
    (kernel, _, others) = next(one for one in found if any("split=" in other for other in one[2]))
    wanted = [o for o in others if f"split={split}" in o.split() and {"tile_m=64", "cluster=1"} <= {*o.split()}]
    return {kernel: wanted[0]}


def shares_a_kernel(texts):
    """Whether programs of one product each have one source."""
    return len({_core.stages(text, HOPPER)["source"] for text in texts}) == 1


@pytest.mark.parametrize(
    ("m", "groups", "k", "n", "split"),
    [
        (1, 1, 4096, 1024, 8),  # 8 tiles
        (1, 1, 4096, 2048, 4),  # 16, and 15 clusters of 8 run at once
        (16, 1, 4096, 4096, 2),  # 32
        (64, 2, 8192, 4096, 2),  # 64
        (2, 64, 4096, 2048, 2),  # no more groups than rows have any
        (16, 8, 4096, 2048, 1),  # 128 tiles fill the multiprocessors
        (16, 1, 128, 4096, 1),  # two stages
        (512, 1, 4096, 2048, 1),  # many rows
    ],
)
def test_k_is_split_where_tiles_are_few(m, groups, k, n, split):
    program = program_of(jf.grouped_matmul, *shapes(m, groups, k, n))
    [facts] = _core.facts(program, HOPPER)
    assert (f"split={split}" in facts["parameters"]) == (split > 1) and ("split" in facts["parameters"]) == (split > 1)


@pytest.mark.parametrize("activation", [None, "swiglu"])
@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize(
    ("k", "n", "groups"),
    [
        (4096, 14336, 8),
        (7168, 4096, 32),
        (4096, 1536, 128),
        (7168, 2048, 256),
        (2880, 2880, 32),
        (16384, 1024, 8),
    ],
)
def test_three_kernels_serve_any_number_of_rows(k, n, groups, starts, activation):
    def call(x, w, sizes, starts):
        nested = jf.NestedTensor(x, sizes, starts)
        return jf.grouped_matmul(nested, w, activation=activation, validate=False)

    texts = set()
    for m in (*range(1, 68), *range(96, 2048, 96), *range(2048, 65536, 3072), 65536):
        x, w, sizes = shapes(m, groups, k, 2 * n if activation else n)
        program = program_of(call, x, w, sizes, sizes if starts else None)
        texts.add(_core.stages(program, HOPPER)["source"])
    assert len(texts) <= 3


FOLLOWING = {  # given the product's operands, bias of groups, scale of rows, array at the product's places
    "bias": lambda x, w, sizes, b, s, r: jf.grouped_matmul(x, w, sizes, bias=b, validate=False),
    "gelu and scale": lambda x, w, sizes, b, s, r: jf.grouped_matmul(
        x, w, sizes, activation="gelu", row_scale=s, validate=False
    ),
    "bias, gelu and scale": lambda x, w, sizes, b, s, r: jf.grouped_matmul(
        x, w, sizes, bias=b, activation="gelu", row_scale=s, validate=False
    ),
    "array": jf.fuse(lambda x, w, sizes, b, s, r: jf.grouped_matmul(x, w, sizes, validate=False) + r),
    "two results": jf.fuse(
        lambda x, w, sizes, b, s, r: TAILS["two results"](jf.grouped_matmul(x, w, sizes, validate=False), r)
    ),
}


@pytest.mark.parametrize("groups", [1, 8, 32])
@pytest.mark.parametrize("following", FOLLOWING)
def test_three_kernels_serve_any_number_of_rows_with_what_follows(following, groups):
    texts = set()
    rows = {1, 2, 16, 17, groups - 1, groups, groups + 1, 333, 4096, 65536, 2**24, 2**27, 2 * 10**9} - {0}
    for m in sorted(rows):
        x, w, sizes = shapes(m, groups, 2048, 1024)
        rest = ((groups, 1024), "bfloat16"), ((m,), "float32"), ((m, 1024), "bfloat16")
        program = program_of(FOLLOWING[following], x, w, sizes, *(jax.ShapeDtypeStruct(*kind) for kind in rest))
        assert len(_core.facts(program, HOPPER)) == 1
        texts.add(_core.stages(program, HOPPER)["source"])
    assert len(texts) <= 3


@pytest.mark.parametrize("activation", [None, "swiglu"])
def test_one_kernel_has_all_splits_and_spills_nothing(activation, tmp_path):
    call = functools.partial(jf.grouped_matmul, activation=activation)
    program = program_of(call, *shapes(8, 1, 4096, 4096))
    chosen = {split: program + _tuned.text_of(forced(program, split)) for split in (1, 2, 4, 8)}
    for split, text in chosen.items():
        launch = _core.facts(text, HOPPER)[0]["launch"]
        assert (f" in clusters of {split}, " in launch) == (split > 1) and ("clusters" in launch) == (split > 1)
    assert shares_a_kernel(chosen.values())
    before = jf.counters()
    for text in chosen.values():
        assert_no_spills(text, tmp_path)
    assert sum(jf.counters()[what] - before[what] for what in ("compiled_cuda", "disk_hits")) <= 1


def test_a_short_k_has_room_for_sums_where_it_is_split_alone():
    program = program_of(jf.grouped_matmul, *shapes(8, 1, 2048, 4096))
    whole, *split = (program + _tuned.text_of(forced(program, s)) for s in (1, 2, 4, 8))
    assert shares_a_kernel(split) and not shares_a_kernel([whole, split[0]])
    assert "stages=8 cluster=1\n" in _core.stages(whole, HOPPER)["source"]
    assert "stages=8 cluster=1, k split as launched\n" in _core.stages(split[0], HOPPER)["source"]


SPREADS = {  # of 64 rows in 5 groups, and behind them NaN
    "all in one": [0, 0, 64, 0, 0],
    "none": [0] * 5,
    "few": [1, 0, 8, 3, 0],
    "odd": [17, 0, 9, 33, 1],
}


@pytest.mark.gpu
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("split", [1, 2, 4, 8])
@pytest.mark.parametrize(("dtype", "out"), [("bfloat16", "bfloat16"), ("float16", "float32")])
@pytest.mark.parametrize("transpose_rhs", [False, True])
def test_split_products_on_hopper(dtype, out, split, spread, transpose_rhs):
    device, (k, n) = hopper_or_skip(), (2088, 328)
    sizes = np.int32(SPREADS[spread])
    x, w = ref.make("rows", sizes, 64, k, n)
    x, w = (np.array(jnp.asarray(a, dtype).astype("float32")) for a in (x, w))
    want = ref.truth("rows", x, w, sizes)
    x[sizes.sum() :] = np.nan
    w = w.swapaxes(1, 2) if transpose_rhs else w
    call = functools.partial(
        jf.grouped_matmul, transpose_rhs=transpose_rhs, preferred_element_type=jnp.dtype(out), validate=False
    )
    with jax.default_device(device):
        operands = jnp.asarray(x, dtype), jnp.asarray(w, dtype), jnp.asarray(sizes)
        program = program_of(call, *operands)
        with _tuned.trial(program, forced(program, split)):
            run = jax.jit(lambda *a: call(*a)).lower(*operands).compile()
        first, again = np.asarray(run(*operands)), np.asarray(run(*operands))
    np.testing.assert_array_equal(first.view(np.uint8), again.view(np.uint8))
    assert_close(first, want, dtype=out)
    assert (first[sizes.sum() :] == 0).all()


@pytest.mark.gpu
def test_units_of_kernels_that_could_split_come_from_a_queue_on_hopper():
    device, (m, k, n), sizes = hopper_or_skip(), (1000, 2120, 4104), np.int32([700, 0, 3, 280])
    x, w = ref.make("rows", sizes, m, k, n)
    x, w = (np.array(jnp.asarray(a, "bfloat16").astype("float32")) for a in (x, w))
    want = ref.truth("rows", x, w, sizes)
    call = functools.partial(jf.grouped_matmul, validate=False)
    with jax.default_device(device):
        operands = jnp.asarray(x, "bfloat16"), jnp.asarray(w, "bfloat16"), jnp.asarray(sizes)
        program = program_of(call, *operands)
        choice = forced(program, 1)
        assert "units=queued" in _core.facts(program + _tuned.text_of(choice), HOPPER)[0]["parameters"]
        with _tuned.trial(program, choice):
            run = jax.jit(lambda *a: call(*a)).lower(*operands).compile()
        for _ in range(3):
            assert_close(run(*operands), want, dtype="bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("split", [1, 2, 8])
def test_what_follows_split_products_on_hopper(split, spread):
    """Bias, gate and row scale are computed once, from sums of all of k."""
    device, (k, n) = hopper_or_skip(), (2080, 320)
    rng = np.random.default_rng(0)
    sizes = np.int32(SPREADS[spread])
    used = int(sizes.sum())
    make = lambda *shape: np.array(jnp.asarray(rng.normal(size=shape), "bfloat16").astype("float32"))  # noqa: E731
    x, w, bias, scale = make(64, k), make(5, k, 2 * n) / 40, make(5, 2 * n), make(64)
    sums = ref.truth("rows", x, w, sizes) + np.repeat(np.vstack([bias, 0 * bias[:1]]), [*sizes, 64 - used], 0)
    gate, up = sums[:, :n].astype("float64"), sums[:, n:]
    want = gate / (1 + np.exp(-gate)) * up * scale[:, None]
    x[used:] = np.nan
    call = functools.partial(jf.grouped_matmul, activation="swiglu", validate=False)
    with jax.default_device(device):
        operands = [jnp.asarray(a, "bfloat16") for a in (x, w)] + [jnp.asarray(sizes)]
        more = {"bias": jnp.asarray(bias, "bfloat16"), "row_scale": jnp.asarray(scale)}
        f = lambda x, w, sizes, more: call(x, w, sizes, **more)  # noqa: E731
        program = program_of(f, *operands, more)
        with _tuned.trial(program, forced(program, split)):
            run = jax.jit(lambda *a: f(*a)).lower(*operands, more).compile()
        first, again = (np.asarray(run(*operands, more)) for _ in range(2))
    np.testing.assert_array_equal(first.view(np.uint8), again.view(np.uint8))
    assert_close(first[:used], want[:used], dtype="bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("split", [1, 4, 8])
@pytest.mark.parametrize("out", ["bfloat16", "float32"])
def test_split_products_of_8_bits_on_hopper(out, split, spread):
    device, sizes = hopper_or_skip(), np.int32(SPREADS[spread])
    with jax.default_device(device):
        lhs, rhs = scaled_operands("rows", 64, 4112, 328, 5)
        want = scaled_truth(lhs, rhs, sizes)
        call = functools.partial(jf.scaled_grouped_matmul, preferred_element_type=out, validate=False)
        program = program_of(call, lhs, rhs, jnp.asarray(sizes))
        with _tuned.trial(program, forced(program, split)):
            run = jax.jit(lambda *a: call(*a)).lower(lhs, rhs, jnp.asarray(sizes)).compile()
        first, again = (np.asarray(run(lhs, rhs, jnp.asarray(sizes))) for _ in range(2))
    np.testing.assert_array_equal(first.view(np.uint8), again.view(np.uint8))
    assert_close(first, want, dtype="bfloat16")  # tensor cores sum with 14 bits
    assert (first[sizes.sum() :] == 0).all()


TAILS = {  # of a product and an array at its places
    "array": lambda y, r: y + r,
    "two results": lambda y, r: (y + r, y * r),
}


@pytest.mark.gpu
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("split", [1, 2, 8])
@pytest.mark.parametrize("tail", TAILS)
def test_arrays_beside_split_products_on_hopper(tail, split, spread):
    device, (k, n), sizes = hopper_or_skip(), (2056, 328), np.int32(SPREADS[spread])
    used = int(sizes.sum())
    x, w = ref.make("rows", sizes, 64, k, n)
    x, w, r = (np.array(jnp.asarray(a, "bfloat16").astype("float32")) for a in (x, w / 40, np.sin(x[:, :n])))
    want = jax.tree.leaves(TAILS[tail](ref.truth("rows", x, w, sizes), r.astype("float64")))
    x[used:] = np.nan
    f = jf.fuse(lambda x, w, sizes, r: TAILS[tail](jf.grouped_matmul(x, w, sizes, validate=False), r))
    with jax.default_device(device):
        operands = *(jnp.asarray(a, "bfloat16") for a in (x, w)), jnp.asarray(sizes), jnp.asarray(r, "bfloat16")
        program = program_of(f, *operands)
        with _tuned.trial(program, forced(program, split)):
            run = jax.jit(lambda *a: f(*a)).lower(*operands).compile()
        first, again = (jax.tree.leaves(run(*operands)) for _ in range(2))
    for one, other, truth in zip(first, again, want):
        np.testing.assert_array_equal(np.asarray(one).view(np.uint8), np.asarray(other).view(np.uint8))
        assert_close(one, truth, dtype="bfloat16")
