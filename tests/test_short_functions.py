"""Short forms of functions for results of 16 bits: their error over all of float32, on CPUs, and for GPUs with g++."""

import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_text import run_on_cpu

import jax_fuser as jf

GPU = """
#include "codegen/cuda_math.cuh"
#include <cstdio>
int main() {
  for (jf::Lanes<jf::f32, 1> x; std::fread(&x, 4, 1, stdin) == 1;) {
    const jf::Lanes<jf::f32, 1> y[] = {jf::exp<jf::Loose>(x), jf::tanh<jf::Loose>(x), jf::logistic<jf::Loose>(x),
                                       jf::erf<jf::bf16>(x), jf::erfc<jf::bf16>(x),   jf::erf<jf::Loose>(x),
                                       jf::erfc<jf::Loose>(x),                        jf::log1p<jf::Loose>(x)};
    std::fwrite(y, 4, 8, stdout);
  }
}
"""
CPU = """
#include "codegen/cpu_prelude.h"
#include "codegen/cpu_math.h"
#include <cstdio>
using M = jf::MODEL;
int main() {
  using Lanes = jf::Lanes<jf::f32, JF_PART>;
  for (Lanes x; std::fread(&x, sizeof(x), 1, stdin) == 1;) {
    const Lanes y[] = {jf::exp<M>(x), jf::tanh<M>(x), jf::logistic<M>(x), jf::sin(x),    jf::cos(x),
                       jf::erf<M>(x), jf::erfc<M>(x), jf::tanh(x),        jf::logistic(x), jf::log1p<M>(x)};
    for (int i = 0; i < JF_PART; ++i) {
      for (const Lanes& of : y) std::fwrite((const float*)&of + i, 4, 1, stdout);
    }
  }
}
"""
FLAGS = ["-O2", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]
# What a CPU must have, the lanes of a part, and what tells the compiler.
MACHINES = {
    "portable": (set(), 4, []),
    "avx2": ({"avx2", "fma"}, 8, ["-mavx2", "-mfma"]),
    "avx512": ({"avx512bw", "avx512dq", "avx512vl"}, 16, ["-mfma", *(f"-mavx512{s}" for s in ("f", "bw", "dq", "vl"))]),
}
# The error of exp and logistic, apart from |x| / 2 units, of tanh, and of tanh not relative to its value.
ERRORS = {"bf16": (2.0**-18, 2.0**-13, 2.0**-13), "Loose": (2.0**-21, 2.0**-20, 2.0**-21)}


def numbers():
    """float32 numbers of every size, a multiple of 16: [N]."""
    x = np.concatenate([np.geomspace(1e-44, 3e38, 40_001), np.geomspace(1e-3, 20, 40_001), [0, np.inf]])
    return np.concatenate([x, -x, np.full(8, np.nan)]).astype(np.float32)


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    """Numbers, and what a GPU's functions make of them: [N], [N, 8]."""
    x = numbers()
    raw = run_on_cpu(GPU, tmp_path_factory.mktemp("short"), input=x.tobytes())
    return x, np.frombuffer(raw, np.float32).reshape(-1, 8)


@pytest.fixture(scope="module", params=[(m, d) for m in MACHINES for d in ERRORS], ids="-".join)
def cpu_values(request, tmp_path_factory):
    """Numbers, what a CPU's functions make of them, and for which dtype: [N], [N, 10]."""
    machine, dtype = request.param
    needs, part, flags = MACHINES[machine]
    info = pathlib.Path("/proc/cpuinfo")
    if not needs <= set(info.read_text().split() if info.exists() else ()):
        pytest.skip(f"this CPU has not all of {sorted(needs)}")
    x = numbers()
    defined = [*FLAGS, *flags, f"-DJF_PART={part}", f"-DMODEL={dtype}"]
    raw = run_on_cpu(CPU, tmp_path_factory.mktemp("cpu"), flags=defined, headers=(), input=x.tobytes())
    return x, np.frombuffer(raw, np.float32).reshape(-1, 10), dtype


def truth(name, x):
    with np.errstate(over="ignore"):
        return {
            "exp": np.exp,
            "tanh": np.tanh,
            "logistic": lambda x: 1 / (1 + np.exp(-x)),
            "erf": np.vectorize(math.erf),
            "erfc": np.vectorize(math.erfc),
        }[name](x)


def relative_error(got, want):
    """Return where `want` is a normal number, and the error there. NaN and infinities must be the same."""
    infinite = want > np.finfo(np.float32).max
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(got[infinite], np.float32(np.inf))
    normal = np.isfinite(want) & ~infinite & (np.abs(want) > 1e-37)
    return normal, np.abs(got[normal] / want[normal] - 1)


@pytest.mark.parametrize(("column", "name"), list(enumerate(["exp", "tanh", "logistic"])))
def test_error_of_short_forms(values, column, name):
    x, got = values[0].astype(np.float64), values[1][:, column]
    want = truth(name, x)
    normal, error = relative_error(got, want)
    assert error.max() < 2.0**-17
    if name == "tanh":
        numbers = ~np.isnan(x)
        np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(x[numbers]))
        assert np.abs(got - want)[normal].max() < 2.0**-21


@pytest.mark.parametrize(("column", "name"), list(enumerate(["exp", "tanh", "logistic"])))
def test_error_of_short_forms_on_cpus(cpu_values, column, name):
    x, got = cpu_values[0].astype(np.float64), cpu_values[1][:, column]
    of_power, of_tanh, absolute = ERRORS[cpu_values[2]]
    want = truth(name, x)
    normal, error = relative_error(got, want)
    if name != "tanh":
        assert (error < of_power + np.abs(x[normal]) * 2.0**-23).all()
        np.testing.assert_array_equal(got[x == 0], want[x == 0].astype(np.float32))
        assert (got >= 0)[~np.isnan(x)].all()
        assert (got[x < -150] == 0).all()  # or their products with x would be something
        return
    numbers, large = ~np.isnan(x), np.abs(x) > 10
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(x[numbers]))
    np.testing.assert_array_equal(got[large], np.sign(x[large]))
    assert np.abs(got)[numbers].max() <= 1
    assert error.max() < of_tanh
    assert np.abs(got - want)[normal].max() < absolute


def check_error_functions(x, erf, erfc, most, by_size=0):
    """`by_size`: what the error grows with x^2, by the exponent that is rounded."""
    for name, got in (("erf", erf), ("erfc", erfc)):
        want = truth(name, x)
        normal, error = relative_error(got, want)
        assert (error < most + by_size * np.minimum(x[normal] ** 2, 1e4)).all()
        np.testing.assert_array_equal(got[np.isinf(x)], want[np.isinf(x)].astype(np.float32))
    numbers = ~np.isnan(x)
    np.testing.assert_array_equal(np.signbit(erf[numbers]), np.signbit(x[numbers]))


def test_error_of_short_error_functions(values):
    x, got = values[0].astype(np.float64), values[1]
    check_error_functions(x, got[:, 3], got[:, 4], 2.0**-13)
    check_error_functions(x, got[:, 5], got[:, 6], 2.0**-21, 2.0**-23)


def test_error_of_error_functions_on_cpus(cpu_values):
    x, got, dtype = cpu_values
    check_error_functions(x.astype(np.float64), got[:, 5], got[:, 6], {"bf16": 2.0**-13, "Loose": 2.0**-21}[dtype])


def check_log1p(x, got):
    with np.errstate(invalid="ignore", divide="ignore"):
        want = np.log1p(x)
    _, error = relative_error(got, want)
    assert error.max() < 2.0**-20
    np.testing.assert_array_equal(np.signbit(got[x == 0]), np.signbit(x[x == 0]))
    assert (got[x == -1] == -np.inf).all()


def test_error_of_short_logarithms(values):
    check_log1p(values[0].astype(np.float64), values[1][:, 7])


def test_error_of_short_logarithms_on_cpus(cpu_values):
    check_log1p(cpu_values[0].astype(np.float64), cpu_values[1][:, 9])


@pytest.mark.parametrize(("column", "name"), [(7, "tanh"), (8, "logistic")])
def test_error_of_long_forms_on_cpus(cpu_values, column, name):
    _, error = relative_error(cpu_values[1][:, column], truth(name, cpu_values[0].astype(np.float64)))
    assert error.max() < 2.0**-20


@pytest.mark.parametrize(("column", "name"), [(3, "sin"), (4, "cos")])
def test_sines_are_as_exact_as_float32(cpu_values, column, name):
    # Near multiples of pi / 2, too, where few digits are left.
    x, got = cpu_values[0].astype(np.float64), cpu_values[1][:, column]
    np.testing.assert_array_equal(np.isnan(got), ~np.isfinite(x))
    finite = np.abs(x) < 1e6  # NumPy's own of more are no truth everywhere
    want = {"sin": np.sin, "cos": np.cos}[name](x[finite])
    np.testing.assert_allclose(got[finite], want, rtol=4e-7, atol=1e-37)
    np.testing.assert_array_equal(np.signbit(got[x == 0]), np.signbit(want[x[finite] == 0]))


def softplus(x):
    return jax.nn.softplus(x.astype("float32"))


@pytest.mark.parametrize(
    ("f", "name", "short"),
    [
        (lambda x: softplus(x).astype("bfloat16"), "log1p", True),
        (lambda x: (x * jnp.tanh(softplus(x))).astype("bfloat16"), "tanh", True),
        (lambda x: softplus(x), "log1p", False),  # float32 is kept
        (lambda x: (softplus(x) - x).astype("bfloat16"), "log1p", False),  # what is left may be small
        (lambda x: softplus(x).sum(), "log1p", True),
        (lambda x: (jnp.exp(x.astype("float32")) + x).astype("bfloat16"), "exp", False),
    ],
)
def test_where_few_bits_are_enough(f, name, short):
    lowered = jf.fuse(f).lower(jax.ShapeDtypeStruct((512, 512), "bfloat16"))
    for platform in ("cpu", "cuda"):
        assert (f"jf::{name}<jf::Loose>" in lowered.as_text("source", platform=platform)) == short
