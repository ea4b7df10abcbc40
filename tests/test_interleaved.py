"""CPU: elements that each lane has side by side are loaded and stored in whole vectors, and sorted in registers."""

import pathlib

import jax
import jax.numpy as jnp
import loop_interpreter
import numpy as np
import pytest
from device_text import run_on_cpu
from test_short_rows import check, loops, values
from tolerances import assert_close

import jax_fuser as jf


def library(x):
    return np if isinstance(x, np.ndarray) else jnp


def rotated(x, cos, sin):
    """Rotate pairs of neighbours."""
    a, b = x[..., ::2], x[..., 1::2]
    return library(x).stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)


def rotated_pairs(x, cos, sin):
    pairs = x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    return library(x).stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)


@pytest.mark.parametrize("f", [rotated, rotated_pairs])
def test_lanes_go_along_pairs_whatever_repeats_across_them(f):
    """Not along the heads, for which the angles are the same: these lie far apart."""
    table = values((128, 64))
    for x, angles in [((4, 16, 128, 128), table), ((4, 128, 16, 128), table[:, None])]:
        text = loops(f, values(x), angles, angles)
        steps = [line.split(" lane * ")[1].split()[0] for line in text.splitlines() if " lane * " in line]
        assert steps == ["2", "2", "1", "1", "2"]
        assert text.count(" interleaved") == 2 and text.count("store (") == 1


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "float64", "int8", "uint8", "int16", "int32", "uint32", "int64"]
)
@pytest.mark.parametrize("shape", [(2, 3, 1), (3, 5, 7), (3, 2, 17), (1, 3, 40), (5, 64), (0, 4)])
def test_pairs_of_any_dtype_and_number(dtype, shape):
    with jax.enable_x64(True):
        x = values((*shape[:-1], 2 * shape[-1]), "float32") / 16
        x, cos, sin = (a.astype(dtype) for a in (x, values(shape[-2:]) / 16, values(shape[-2:]) / 8))
        for f in (rotated, rotated_pairs):
            got = jf.fuse(f)(x, cos, sin)
            exact = jnp.issubdtype(dtype, jnp.integer)
            wide = [np.asarray(a, dtype if exact else np.float64) for a in (x, cos, sin)]
            assert_close(got, f(*wide))


@pytest.mark.parametrize("f", [rotated, rotated_pairs])
def test_loops_reach_every_element_once(f):
    """And none outside, which a machine would not tell."""
    x, angles = values((6, 5, 34)), values((5, 17))
    [schedule] = jf.ir.propose(jf.ir.trace(f, x, angles, angles), "cpu")
    shapes = [schedule.fusion.shape(name) for name in schedule.fusion.inputs]
    given = [np.asarray(a).reshape(shape) for a, shape in zip((x, angles, angles), shapes)]
    assert "store (" in jf.ir.lower(schedule, "cpu").as_text("loops")
    [got] = loop_interpreter.run(schedule, *given, platform="cpu")
    assert_close(np.asarray(got).reshape(x.shape), f(x, angles, angles))


def stacked(*parts):
    return library(parts[0]).stack([p * (k + 1) for k, p in enumerate(parts)], -1)


def weighed(*parts):
    return [sum(p[..., k] * (k + 1) for k in range(p.shape[-1])) for p in parts]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8", "bool"])
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_several_side_by_side(dtype, n):
    for size in (1, 15, 16, 33, 100):
        if dtype == "bool":
            parts = [values((size, k + 1))[:, 0] > 25 for k in range(n)]
            f = lambda *p: jnp.stack([p[0] ^ q for q in p], -1)  # noqa: E731
            np.testing.assert_array_equal(jf.fuse(f)(*parts), f(*parts))
            continue
        parts = [(values((size, k + 1))[:, 0] / 7).astype("uint8").astype(dtype) for k in range(n)]
        check(stacked, *parts)
        together = jnp.stack(parts, -1)
        check(weighed, together, together[::-1])


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
def test_planes_become_pixels(dtype):
    """The loop over colors is in the vector, also where a vector has few more lanes than a pixel has colors."""
    f = lambda x: x.transpose(0, 2, 3, 1) * 2  # noqa: E731
    with jax.enable_x64(True):
        for n in (2, 3, 4):
            x = values((2, n, 9, 37), dtype)
            assert loops(f, x).count("store (") == 1
            check(f, x)


def test_what_is_the_same_for_all_colors_is_computed_once():
    f = lambda x, t: x + jnp.stack([jnp.sin(t), jnp.cos(t)], -1).reshape(x.shape[1:])  # noqa: E731
    x, t = values((5, 3, 38)), values((3, 19))
    assert loops(f, x, t).count("sin ") == 1
    assert_close(jf.fuse(f)(x, t), f(x, t))


def test_windows_over_pairs():
    """What lies between the first and the last element is read, and no more."""
    f = lambda x: x[..., :-2:2] + x[..., 1:-1:2] * 2 + x[..., 2::2] * 3  # noqa: E731
    for n in (3, 33, 35, 77):
        check(f, values((3, n)))


def test_parts_of_two_arrays_are_not_one():
    """A kernel stores the first elements of one array and the second ones of another."""

    def f(x, y):
        total = library(y).cumsum(y, 0)
        return library(x).stack([x + 1, total], -1), library(x).stack([total, x - 1], -1)

    for n in (16, 37, 64):
        x, y = values((3, n)), values((3, n))
        assert "store (" in loops(f, x, y)
        check(f, x, y)


ROUND_TRIP = """
#include "codegen/cpu_interleave.h"
#include <cstdio>
#include <cstring>
int bad = 0;
template <class M, class T, int n, int W, class On, int... k>
void test(int count, On on, jf::Numbers<k...>) {
  using L = jf::Lanes<T, W>;
  M from[n * W + 8], to[n * W + 8];
  for (int i = 0; i < n * W + 8; ++i) {
    jf::Stored<M> x = jf::Stored<M>(i % 100 + 1);
    std::memcpy(&from[i], &x, sizeof(M));
  }
  std::memset(to, 0, sizeof(to));
  const L x[] = {jf::load_interleaved<L, n, k>(from, k, on)...};
  M* const same[] = {(k, to)...};
  jf::store_interleaved(same, 0, x, on);
  bad += std::memcmp(to, from, n * count * sizeof(M)) != 0;
  M zeros[n * W + 8];
  std::memset(zeros, 0, sizeof(zeros));
  bad += std::memcmp(to + n * count, zeros, sizeof(zeros) - n * count * sizeof(M)) != 0;
  // Arrays apart.
  M apart[n][n * W];
  std::memset(apart, 0, sizeof(apart));
  M* const each[] = {apart[k]...};
  jf::store_interleaved(each, 0, x, on);
  for (int i = 0; i < n * count; ++i) bad += std::memcmp(&apart[i % n][i], &from[i], sizeof(M)) != 0;
}
template <class M, class T, int n, int W>
void all() {
  test<M, T, n, W>(W, jf::All{}, typename jf::NumbersBelow<n>::Type{});
  for (int count = 0; count <= W; ++count) {
    test<M, T, n, W>(count, jf::First{count}, typename jf::NumbersBelow<n>::Type{});
  }
}
template <class M, class T>
void type() {
  all<M, T, 2, JF_PART>(), all<M, T, 3, JF_PART>(), all<M, T, 4, JF_PART>();
  all<M, T, 2, 2 * JF_PART>(), all<M, T, 3, 2 * JF_PART>();
}
int main() {
  type<jf::f32, jf::f32>(), type<jf::bf16, jf::f32>(), type<jf::f16, jf::f32>(), type<jf::s8, jf::s8>();
  type<jf::u8, jf::u8>(), type<jf::s16, jf::s16>(), type<jf::u32, jf::u32>(), type<jf::s64, jf::s64>();
  std::printf("%d wrong", bad);
}
"""
MACHINES = {"portable": (set(), []), "avx2": ({"avx2", "f16c"}, ["-mavx2", "-mf16c"])}
MACHINES["avx512"] = ({"avx512bw", "avx512vl"}, ["-mavx512f", "-mavx512bw", "-mavx512vl"])


@pytest.mark.parametrize(("machine", "part"), [("portable", 4), ("avx2", 8), ("avx512", 8), ("avx512", 16)])
def test_stored_as_loaded_on_every_machine(tmp_path, machine, part):
    needs, flags = MACHINES[machine]
    info = pathlib.Path("/proc/cpuinfo")
    if not needs <= set(info.read_text().split() if info.exists() else ()):
        pytest.skip(f"this CPU has not all of {sorted(needs)}")
    assert run_on_cpu(ROUND_TRIP, tmp_path, flags=["-O1", f"-DJF_PART={part}", *flags], headers=()) == b"0 wrong"
