"""Functions of nested tensors under `fuse`: few kernels, and the values of a loop over groups in numpy."""

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from test_cuda_sources import nvrtc_or_skip
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core

# Rows of storage, rows of each group, first rows where storage has gaps.
LAYOUTS = {
    "first empty": (29, [0, 7, 3, 11], None),
    "last empty": (29, [7, 3, 11, 0], None),
    "several empty": (31, [0, 0, 9, 0, 0, 22, 0], None),
    "all empty": (13, [0, 0, 0], None),
    "all rows in one": (67, [0, 67, 0], None),
    "one group": (19, [17], None),
    "groups of one row": (40, [1] * 37, None),
    "gaps": (19, [3, 0, 4, 1], [9, 2, 1, 17]),
    "gaps, an empty group inside": (23, [5, 0, 6], [2, 4, 11]),
}


def silu(x):
    return x / (1 + np.exp(-x))


def normed(x, centre=False):
    x = x - x.mean(-1, keepdims=True) if centre else x
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gated(x, split=jnp.split, activation=jax.nn.silu):
    gate, up = split(x, 2, -1)
    return activation(gate) * up


# What is computed of rows, per-group matrices b and s [groups, 1, h], a per-group number n [groups, 1, 1] and a vector
# v [h]; and the same of one group's rows.
PROGRAMS = {
    "bias": (lambda x, b, s, n, v: x + b, lambda x, b, s, n, v: x + b),
    "affine and silu": (
        lambda x, b, s, n, v: jf.nested.map(lambda x, s, b: jax.nn.silu(x * s + b), x, s, b),
        lambda x, b, s, n, v: silu(x * s + b),
    ),
    "operators": (
        lambda x, b, s, n, v: (x * 2 - v) / (s * s + 1) * n,
        lambda x, b, s, n, v: (x * 2 - v) / (s * s + 1) * n,
    ),
    "a number for each group": (lambda x, b, s, n, v: -x * n, lambda x, b, s, n, v: -x * n),
    "no group is asked for": (lambda x, b, s, n, v: abs(x) * v, lambda x, b, s, n, v: abs(x) * v),
    "rms_norm": (lambda x, b, s, n, v: jf.nested.rms_norm(x) * s, lambda x, b, s, n, v: normed(x) * s),
    "layer_norm": (
        lambda x, b, s, n, v: jf.nested.layer_norm(x + b) * v + b,
        lambda x, b, s, n, v: normed(x + b, True) * v + b,
    ),
    "softmax": (lambda x, b, s, n, v: jf.nested.softmax(x * n, axis=-1), lambda x, b, s, n, v: softmax(x * n)),
    "mean of rows": (
        lambda x, b, s, n, v: jf.nested.mean(x * s, axis=-1),
        lambda x, b, s, n, v: (x * s).mean(-1),
    ),
    "comparison": (
        lambda x, b, s, n, v: jf.nested.map(lambda x, b: jnp.where(x > b, x, b), x, b),
        lambda x, b, s, n, v: np.where(x > b, x, b),
    ),
    "halves": (
        lambda x, b, s, n, v: jf.nested.map(gated, x * s),
        lambda x, b, s, n, v: gated(x * s, np.split, silu),
    ),
}  # fmt: skip


def slices(layout):
    _, extents, starts = LAYOUTS[layout]
    starts = np.cumsum([0, *extents[:-1]]) if starts is None else starts
    return [slice(s, s + n) for s, n in zip(starts, extents)]


def make(layout, h, dtype=np.float32, seed=0):
    """Return a nested tensor with NaN padding, and per-group operands."""
    rng = np.random.default_rng(seed)
    rows, extents, starts = LAYOUTS[layout]
    data = np.full((rows, h), np.nan)
    for part in slices(layout):
        data[part] = rng.uniform(-2, 2, data[part].shape)
    groups = len(extents)
    operands = [rng.uniform(-2, 2, shape) for shape in ((groups, 1, h), (groups, 1, h), (groups, 1, 1), (h,))]
    starts = None if starts is None else jnp.array(starts, jnp.int32)
    nt = jf.NestedTensor(jnp.asarray(data, dtype), jnp.array(extents, jnp.int32), starts)
    return nt, [jnp.asarray(x, dtype) for x in operands]


def by_group(layout, f, nt, operands):
    data, (b, s, n, v) = np.asarray(nt.data, np.float64), [np.asarray(x, np.float64) for x in operands]
    result = None
    for g, part in enumerate(slices(layout)):
        here = f(data[part], b[g], s[g], n[g], v)
        result = np.zeros((data.shape[0], *here.shape[1:])) if result is None else result
        result[part] = here
    return result


def kernels(f, *args, platform="cpu"):
    """Return the strategy of each kernel, and how many parts are left to XLA."""
    report = jf.explain(f, platform=platform)(*args)
    return [s.strategy for region in report.regions for s in region.segments], [c.primitive for c in report.cuts]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(device, name, layout):
    f, truth = PROGRAMS[name]
    nt, operands = make(layout, 24)
    got = jf.fuse(f)(nt, *operands)
    assert got.extents.tolist() == nt.extents.tolist()
    assert_close(got.data, by_group(layout, truth, nt, operands), scale=4)


@pytest.mark.parametrize("h", [1, 2, 7, 65, 640])
@pytest.mark.parametrize("name", ["bias", "affine and silu", "rms_norm", "mean of rows"])
def test_widths(device, name, h):
    f, truth = PROGRAMS[name]
    nt, operands = make("several empty", h)
    assert_close(jf.fuse(f)(nt, *operands).data, by_group("several empty", truth, nt, operands), scale=4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["affine and silu", "rms_norm", "softmax"])
def test_narrow_floats(device, name, dtype):
    f, truth = PROGRAMS[name]
    nt, operands = make("first empty", 40, dtype)
    got = jf.fuse(f)(nt, *operands)
    assert got.dtype == dtype
    assert_close(got.data, by_group("first empty", truth, nt, operands), dtype, scale=2)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_kernel_and_a_small_one(name, platform):
    nt, operands = make("first empty", 64)
    found, left = kernels(PROGRAMS[name][0], nt, *operands, platform=platform)
    assert left == [] and len(found) <= 2, found


def test_gaps_sort_their_starts_with_xla():
    nt, operands = make("gaps", 64)
    found, left = kernels(PROGRAMS["affine and silu"][0], nt, *operands)
    assert "sort" in left and {*left} <= {"sort", "iota"} and len(found) <= 3


def test_row_ids_and_masks(device):
    for layout in LAYOUTS:
        nt, _ = make(layout, 3)
        ids = np.full(nt.capacity, nt.num_groups)
        for g, part in enumerate(slices(layout)):
            ids[part] = g
        got = jf.fuse(lambda nt: (nt.row_ids() * 2, ~nt.row_mask()))(nt)
        np.testing.assert_array_equal(got[0], ids * 2)
        np.testing.assert_array_equal(got[1], ids == nt.num_groups)


def test_extents_that_lie_stay_in_bounds(device):
    """Traced extents are not checked: rows that they do not reach are padding, nothing is read outside."""
    x, f = jnp.ones((9, 4)), jf.fuse(lambda nt, b: nt + b)
    for extents in ([20, 20], [-3, 5], [2**31 - 1, 2**31 - 1], [-(2**31), 4]):
        got = f(jf.NestedTensor(x, jnp.array(extents, jnp.int32)), jnp.ones((2, 1, 4))).data
        assert np.isin(np.asarray(got), [0, 1, 2]).all()


def nested_extents(positional):
    """Two outer indices with layouts of their own, or one for both."""
    extents = np.array([[3, 0, 4, 1], [0, 7, 0, 2]] if positional else [3, 0, 4, 1])
    rng = np.random.default_rng(1)
    data, want = np.full((2, 11, 6), np.nan), np.zeros((2, 11, 6))
    b = rng.uniform(-2, 2, (2, 4, 1, 6) if positional else (4, 1, 6))
    for d in range(2):
        own = extents[d] if positional else extents
        for g, (start, n) in enumerate(zip(np.cumsum([0, *own[:-1]]), own)):
            data[d, start : start + n] = rng.uniform(-2, 2, (n, 6))
            want[d, start : start + n] = silu(data[d, start : start + n] + (b[d, g] if positional else b[g]))
    nt = jf.NestedTensor(jnp.asarray(data, jnp.float32), jnp.asarray(extents, jnp.int32), ragged_dim=1)
    return nt, jnp.asarray(b, jnp.float32), want


def biased(nt, b):
    return jf.nested.map(lambda x, b: jax.nn.silu(x + b), nt, b)


@pytest.mark.parametrize("positional", [False, True])
def test_outer_dimensions(device, positional):
    nt, b, want = nested_extents(positional)
    assert_close(jf.fuse(biased)(nt, b).data, want)
    found, left = kernels(biased, nt, b)
    assert left == [] and len(found) <= 2


@pytest.mark.parametrize("shared", [False, True])
def test_vmap(device, shared):
    nt, b, want = nested_extents(True)
    got = jax.vmap(jf.fuse(biased), in_axes=(0, None if shared else 0))(nt, b[0] if shared else b)
    if shared:
        want = jax.vmap(biased, in_axes=(0, None))(nt, b[0]).data
    assert_close(got.data, want)


def test_vmap_repeats_no_shared_operand():
    nt, b, _ = nested_extents(True)
    found, left = kernels(jax.vmap(jf.fuse(biased), in_axes=(0, None)), nt, b[0])
    assert left == [] and len(found) <= 2


def loss(nt, b, s):
    y = jf.nested.map(lambda x, s, b: jnp.tanh(x * s + b), nt, s, b)
    return (jf.nested.rms_norm(y) * b).data.sum()


def group_loss(data, groups, b, s):
    """The same by a loop over groups, of which starts and extents are known."""
    total = 0.0
    for g, (start, n) in enumerate(groups):
        x = data[start : start + n]
        y = jnp.tanh(x * s[g] + b[g])
        y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6)
        total = total + (y * b[g]).sum()
    return total


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients(device, layout):
    nt, (b, s, *_) = make(layout, 10)
    got = jax.grad(jf.fuse(lambda x, b, s: loss(nt.replace(data=x), b, s)), argnums=(0, 1, 2))(nt.data, b, s)
    groups = list(zip(nt.starts.tolist(), nt.extents.tolist()))
    want = jax.jit(jax.grad(lambda x, b, s: group_loss(x, groups, b, s), argnums=(0, 1, 2)))(nt.data, b, s)
    # Padding has no gradient; in a loop over groups it is read by none.
    jax.tree.map(lambda a, b: assert_close(a, b, scale=8), got, want)


def test_forward_mode_and_second_derivatives(device):
    nt, (b, s, *_) = make("several empty", 6)

    def f(b, s):
        return loss(nt, b, s)

    fused = jf.fuse(f)
    assert_close(jax.jvp(fused, (b, s), (s, b))[1], jax.jvp(jax.jit(f), (b, s), (s, b))[1], scale=8)
    got = jax.jvp(jax.grad(fused), (b, s), (s, b))[1]
    assert_close(got, jax.jvp(jax.jit(jax.grad(f)), (b, s), (s, b))[1], scale=16)


def test_jit_scan_and_checkpoint(device):
    nt, (b, *_) = make("first empty", 6)

    def steps(f):
        def run(b):
            body = jax.checkpoint(lambda x, _: (f(x, b), None))
            return jax.lax.scan(body, nt, length=3)[0].data.sum()

        return jax.jit(jax.value_and_grad(run))(b)

    got, want = steps(jf.fuse(biased)), steps(biased)
    jax.tree.map(lambda a, b: assert_close(a, b, scale=8), got, want)


def test_shard_map(device):
    nt, (b, *_) = make("first empty", 6)
    both = jf.NestedTensor(jnp.concatenate([nt.data, nt.data]), jnp.concatenate([nt.extents, nt.extents[::-1]]))
    mesh = meshes.mesh(ep=2)

    def run(f):
        local = jax.shard_map(f, mesh=mesh, in_specs=(P("ep"), P()), out_specs=P("ep"))
        return jax.jit(jax.value_and_grad(lambda b: jnp.sin(local(both, b).data).sum()))(b)

    got, want = run(jf.fuse(biased)), run(biased)
    jax.tree.map(lambda a, b: assert_close(a, b, scale=8), got, want)


@pytest.mark.parametrize("name", ["affine and silu", "rms_norm", "mean of rows"])
@pytest.mark.parametrize("h", [1, 7, 640])
def test_cuda_sources(name, h):
    nvrtc_or_skip()
    nt, operands = make("first empty", h, "bfloat16")
    lowered = jf.fuse(PROGRAMS[name][0]).lower(nt, *operands)
    assert "search" in lowered.as_text("fusion")
    for program in lowered.as_text("fusion").split("# region")[1:]:
        assert _core.compile_cuda(program.split("\n", 1)[1], _core.cuda_target_for(90))
