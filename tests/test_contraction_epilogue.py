"""What follows a product that sums over the rows of groups as the end of its kernel of compute capability 9.0: what
joins it, what does not and why, that it compiles without spills, and the numbers, of groups without rows too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grouped_reference import contraction
from test_cuda_sources import assert_no_spills, nvrtc_or_skip
from test_fp8_blocks import run_blocks_on_cpu
from test_grouped_epilogue import BF16, F32, HOPPER, compiled, kernels
from test_grouped_hopper import sass
from test_tma import hopper_or_skip
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core

M, K, N = 288, 72, 264
EXTENTS = [0, 32, 61, 0, 160, 1, 32]
SUMMED = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[])


def sums(x, y, sizes, dtype=F32):
    return jf.ragged_dot_general(x, y, sizes, SUMMED, preferred_element_type=dtype)


# Functions of (before, x, y, sizes, factors, rate), what they make of the product, and the dtype of `before`.
TAILS = {
    "added": (lambda a, x, y, s, c, r: a + sums(x, y, s), lambda a, p, c, r: a + p, F32),
    "by constants": (lambda a, x, y, s, c, r: 0.5 * a + 2 * sums(x, y, s), lambda a, p, c, r: 0.5 * a + 2 * p, F32),
    "by a scalar and groups": (
        lambda a, x, y, s, c, r: a - r * sums(x, y, s) * c[:, None, None],
        lambda a, p, c, r: a - r * p * c[:, None, None],
        F32,
    ),
    "narrow sums": (lambda a, x, y, s, c, r: a + sums(x, y, s, BF16).astype(F32), lambda a, p, c, r: a + p, F32),
    "narrow": (
        lambda a, x, y, s, c, r: (a.astype(F32) - r * sums(x, y, s)).astype(BF16),
        lambda a, p, c, r: a - r * p,
        BF16,
    ),
}


def shapes(tail="added", m=M, k=K, n=N, groups=7):
    kinds = [((groups, k, n), TAILS[tail][2]), ((m, k), BF16), ((m, n), BF16), ((groups,), jnp.int32), ((groups,), F32),
             ((), F32)]  # fmt: skip
    return [jax.ShapeDtypeStruct(*kind) for kind in kinds]


def arrays(tail, extents=EXTENTS):
    rng, made = np.random.default_rng(0), shapes(tail, groups=len(extents))
    given = [jnp.asarray(rng.normal(size=s.shape), s.dtype) for s in made]
    given[3] = jnp.asarray(extents, jnp.int32)
    return given


def truth(tail, a, x, y, extents, c, r):
    product = contraction(*(np.asarray(v, np.float32) for v in (x, y)), np.asarray(extents))
    a = np.asarray(a, np.float32)
    want = TAILS[tail][1](a, product, np.asarray(c), np.asarray(r))
    return np.where(np.asarray(extents)[:, None, None] == 0, TAILS[tail][1](a, 0 * a, np.asarray(c), 0), want)


@pytest.mark.parametrize("tail", TAILS)
def test_what_follows_is_in_the_kernel(tail):
    [kernel] = kernels(jf.fuse(TAILS[tail][0]), shapes(tail))
    assert kernel["entry"] == "jf_grouped_contraction_fused"


@pytest.mark.parametrize(
    ("f", "why"),
    [
        (lambda a, p: (a + p, a * p), "it has 2 results"),
        (lambda a, p: a[..., :128] + p[..., :128], "it leaves out columns of the product"),
        (lambda a, p: a + p[:, ::-1], "it reads the product at other places than its own"),
        (lambda a, p: a[1:] + p[1:], "its result has other rows than the product"),
        (lambda a, p: a + jnp.sin(p), "sin is too long to be repeated for every sum"),
    ],
)
def test_what_stays_apart_says_why(f, why):
    def fused(a, x, y, s, *_):
        return f(a, sums(x, y, s))

    [reason] = [k["reason"] for k in kernels(jf.fuse(fused), shapes()) if k["entry"] == "jf_grouped_contraction"]
    assert why in reason


@pytest.mark.parametrize("size", [{"k": 60}, {"n": 100}])
def test_other_columns_are_calls_of_their_own(size):
    made = shapes(**size)
    report = jf.explain(lambda *a: TAILS["added"][0](*a), platform="cuda")(*made)
    [reason] = [cut.reason for cut in report.cuts if cut.own_call]
    assert "which are not both multiples of 8" in reason


def test_other_targets_store_the_product():
    [product, tail] = kernels(jf.fuse(TAILS["added"][0]), shapes(), _core.cuda_target_for(80))
    assert product["entry"] == "jf_grouped_contraction" and tail["strategy"] == "pointwise"


@pytest.mark.parametrize("tail", TAILS)
def test_it_spills_nothing_and_leaves_products_to_overlap(tail, tmp_path):
    nvrtc_or_skip()
    [program] = compiled(jf.fuse(TAILS[tail][0]), shapes(tail, m=4096, k=1024, n=2048))
    for used in assert_no_spills(program, tmp_path):
        assert used["STACK"] == 0 and used["REG"] <= 168
    text = sass(tmp_path / "kernel.cubin")
    assert "UTMALDG" in text
    assert "HGMMA" in text and text.count("WARPGROUP.DEPBAR") <= text.count("HGMMA") // 2 + 1


@pytest.mark.parametrize("extents", [EXTENTS, [0, 0, 0], [0, M, 0]])
@pytest.mark.parametrize("tail", TAILS)
def test_numbers_on_the_cpu(tail, extents):
    given = arrays(tail, extents)
    got = jax.jit(jf.fuse(TAILS[tail][0]))(*given)
    assert_close(got, truth(tail, *given), BF16 if "narrow" in tail else F32)
    empty = np.asarray(extents) == 0
    if tail != "by constants":
        np.testing.assert_array_equal(np.asarray(got, np.float32)[empty], np.asarray(given[0], np.float32)[empty])


def test_derivatives_accumulate():
    a, x, y, sizes, c, r = arrays("by a scalar and groups")

    def loss(f, a, x, y, c, r):
        return (f(a, x, y, sizes, c, r) ** 2).sum()

    f = TAILS["by a scalar and groups"][0]
    got, want = (jax.grad(lambda *v, g=g: loss(g, *v), range(5))(a, x, y, c, r) for g in (jf.fuse(f), f))
    for one, other in zip(got, want):
        assert_close(one, other, one.dtype)


MAIN = """
#include "grouped/cuda/contraction_epilogue.cuh"
%(functor)s
using namespace jf;
int main() {
  constexpr int k = %(k)d, n = %(n)d, m = %(m)d, groups = %(groups)d;
  using Out = %(out)s;
  auto lhs = read("lhs"), rhs = read("rhs"), extents = read("extents");
%(members)s
  using Kernel = %(kernel)s;
  std::vector<unsigned char> out(sizeof(Out) * groups * k * n, 255);  // NaN
  const TensorMap lhs_map = {lhs.data(), k * 2, m, 2}, rhs_map = {rhs.data(), n * 2, m, 2};
  const TensorMap out_map = {out.data(), n * int(sizeof(Out)), k, sizeof(Out)};
  const grouped::Ragged ragged = {data<int>(extents), nullptr, groups, m};
  ptx::launch(2, 1, [&](void* memory) {
    Kernel::run(memory, {lhs_map, rhs_map, out_map}, ragged, k, n, {Epilogue{%(values)s}});
  });
  std::fwrite(out.data(), 1, out.size(), stdout);
}
"""


@pytest.mark.parametrize("extents", [EXTENTS, [0, 0, 0], [0, M, 0]])
@pytest.mark.parametrize("tail", ["added", "by a scalar and groups", "narrow"])
def test_every_element_gets_its_own(tail, extents, tmp_path):
    """The printed epilogue and the kernel around it, run by CPU threads."""
    given = arrays(tail, extents)
    [program] = compiled(jf.fuse(TAILS[tail][0]), given)
    stages = _core.stages(program, HOPPER)
    source = stages["source"][stages["source"].rindex('#include "grouped/cuda/contraction_epilogue') :]
    functor = source[source.index('#include "codegen') : source.index("// tile=")]
    [kernel] = [line for line in source.splitlines() if line.startswith("using Kernel = ")]
    [call] = [line for line in stages["host"].splitlines() if "-> epilogue" in line]
    members = [int(part.split()[1]) for part in call[call.rindex("(") :].rstrip(")").split(", ")[4:]]
    types = [line.split("*")[0].split()[-1] for line in source.splitlines() if "__restrict__ e" in line]
    arguments = [given[i] for i in input_order(program, given)]
    files = {f"member{i}": np.asarray(arguments[number]) for i, number in enumerate(members)}
    lines = [f'  auto member{i} = read("member{i}");' for i in range(len(members))]
    values = ", ".join(f"data<{t}>(member{i})" for i, t in enumerate(types))
    main = MAIN % {"functor": functor, "k": K, "n": N, "m": M, "groups": len(extents), "members": "\n".join(lines),
                   "out": "bf16" if tail == "narrow" else "float", "values": values,
                   "kernel": kernel.removeprefix("using Kernel = ").removesuffix(";")}  # fmt: skip
    files |= {"lhs": np.asarray(given[1]), "rhs": np.asarray(given[2]), "extents": np.int32(extents)}
    raw = run_blocks_on_cpu(main, files, 2, tmp_path)
    out = np.frombuffer(raw, BF16 if tail == "narrow" else np.float32).reshape(len(extents), K, N)
    assert_close(out, truth(tail, *given), BF16 if tail == "narrow" else F32)
    empty = np.asarray(extents) == 0
    np.testing.assert_array_equal(out[empty].astype(np.float32), np.asarray(given[0], np.float32)[empty])


def input_order(program, given):
    """Return which of the given arrays each input of a program is, by their shapes and dtypes: no two are alike."""
    head = program[program.index("(") + 1 : program.index(")")].split(", x")
    short = {"float32": "f32", "bfloat16": "bf16", "int32": "s32"}
    kinds = [f"{short[str(a.dtype)]}[{','.join(map(str, a.shape))}]" for a in given]
    return [kinds.index(one.split(": ")[1]) for one in head]


@pytest.mark.gpu
@pytest.mark.parametrize("extents", [EXTENTS, [0, 0, 0], [0, M, 0]])
@pytest.mark.parametrize("tail", TAILS)
def test_numbers_on_hopper(tail, extents):
    device = hopper_or_skip()
    given = arrays(tail, extents)
    with jax.default_device(device):
        jax.block_until_ready(jnp.full(given[0].shape, jnp.nan, TAILS[tail][2]))  # what the result's memory may hold
        got = np.asarray(jax.jit(jf.fuse(TAILS[tail][0]))(*jax.device_put(given, device)), np.float32)
    assert_close(got, truth(tail, *given), BF16 if "narrow" in tail else F32)
    empty = np.asarray(extents) == 0
    if tail != "by constants":
        np.testing.assert_array_equal(got[empty], np.asarray(given[0], np.float32)[empty])
