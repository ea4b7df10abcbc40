"""Vectors of bools and bytes on CPUs: as many lanes as a register has of the widest type that a kernel computes in."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_text import run_on_cpu

import jax_fuser as jf
from jax_fuser import _core

B, U, F = (jnp.zeros((512, 4096), dtype) for dtype in ("bool", "uint8", "float32"))
WIDTHS = [
    (lambda a, b, c: (a & b) | ~c, (B, B, B), 1),
    (lambda a: a > jnp.uint8(7), (U,), 1),
    (lambda m, x, y: jnp.where(m, x, jnp.minimum(x, y)), (B, U, U), 1),
    (lambda a: jnp.any(a, axis=1), (B,), 1),
    (lambda a: jnp.max(a, axis=0), (U,), 1),
    (lambda a, b: ((a.astype("uint16") + b + 1) >> 1).astype("uint8"), (U, U), 2),
    (lambda m, x: m & (x > 0), (B, F), 4),
]


@pytest.mark.parametrize(("target", "register"), [("avx512", 64), ("avx2", 32), ("portable", 16)])
def test_the_widest_type_decides_how_many_lanes_a_vector_has(target, register):
    for f, arguments, widest in WIDTHS:
        program = str(jf.ir.trace(f, *arguments))
        source = _core.stages(program, f"cpu isa={target} vector_bytes={register}")["source"]
        assert f"#define JF_PART {register // widest} " in source, source
        narrow_masks = "jf::Lanes<jf::pred," in source and widest < 4
        assert (f"#define JF_PRED s{8 * widest}" in source) == narrow_masks


@pytest.mark.parametrize(
    "f", [lambda a: ~a[:, ::2], lambda a: a[:, :7] + a[0, :7], lambda a: jnp.max(a[:, :40], axis=1)]
)
def test_bytes_that_are_shuffled_or_folded_soon_have_fewer_lanes(f):
    program = str(jf.ir.trace(f, U))
    assert " width=16 " in _core.stages(program, "cpu isa=avx512 vector_bytes=64")["loops"]


def bytes_alone(xp, m, n, x, y):
    larger = xp.where(m, x, y)
    return (m & n) | ~m, x > y, larger, xp.maximum(x, y), x + y, xp.any(m & n, axis=-1), xp.max(larger, axis=-1)


def with_wider(xp, m, n, x, y):
    average = ((x.astype("uint16") + y + 1) >> 1).astype("uint8")
    return average, xp.sum(m & (x > y), axis=-1, dtype="int32"), xp.all(m | n), (x.astype("int32") * 3).astype("int8")


@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (bytes_alone, (5, 17)),
        (bytes_alone, (3, 200)),
        (with_wider, (0, 5)),
        (with_wider, (3, 1)),
        (with_wider, (4, 70)),
    ],
)
def test_bools_and_bytes(f, shape):
    make = np.random.default_rng(0)
    m, n = make.random((2, *shape)) < 0.7
    x, y = make.integers(0, 256, (2, *shape), np.uint8)
    got = jax.jit(jf.fuse(lambda *a: f(jnp, *a)))(m, n, x, y)
    jax.tree.map(np.testing.assert_array_equal, tuple(got), f(np, m, n, x, y))


TYPES = ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"]
CONVERSIONS = """
#include "codegen/cpu_prelude.h"
#include <cstdio>
template <class T>
using Lanes = jf::Lanes<T, JF_PART>;
template <class To, class From>
void convert(const Lanes<From>& x) {
  const Lanes<To> y = jf::convert<To>(x);
  for (int i = 0; i < JF_PART; ++i) {
    const jf::s64 one = y.v[i];
    std::fwrite(&one, 8, 1, stdout);
  }
}
template <class From>
void from(const jf::u64 (&words)[JF_PART]) {
  Lanes<From> x;
  for (int i = 0; i < JF_PART; ++i) x.v[i] = From(words[i]);
  CONVERT
}
int main() {
  for (jf::u64 words[JF_PART]; std::fread(words, sizeof(words), 1, stdin) == 1;) {
    FROM
  }
}
"""
MACHINES = {"portable": (set(), []), "avx2": ({"avx2"}, ["-mavx2"])}
MACHINES["avx512"] = ({"avx512bw", "avx512vl"}, ["-mavx512f", "-mavx512bw", "-mavx512vl"])


@pytest.mark.parametrize(("machine", "part"), [("portable", 4), ("avx2", 8), ("avx512", 16)])
def test_integers_of_every_width_become_each_other(tmp_path, machine, part):
    needs, flags = MACHINES[machine]
    info = pathlib.Path("/proc/cpuinfo")
    if not needs <= set(info.read_text().split() if info.exists() else ()):
        pytest.skip(f"this CPU has not all of {sorted(needs)}")
    text = CONVERSIONS.replace("CONVERT", " ".join(f"convert<jf::{t}>(x);" for t in TYPES))
    text = text.replace("FROM", " ".join(f"from<jf::{t}>(words);" for t in TYPES))
    words = np.random.default_rng(0).integers(0, 2**64, 4 * part, np.uint64)
    raw = run_on_cpu(text, tmp_path, flags=["-O0", f"-DJF_PART={part}", *flags], headers=(), input=words.tobytes())
    got = np.frombuffer(raw, np.int64).reshape(4, len(TYPES), len(TYPES), part)
    dtypes = [t.replace("s", "int").replace("u", "uint") for t in TYPES]
    want = [[words.astype(a).astype(b).astype(np.int64).reshape(4, part) for b in dtypes] for a in dtypes]
    np.testing.assert_array_equal(got, np.moveaxis(np.array(want), 2, 0))
