"""Short forms of functions for results of 16 bits: their error over all of float32, with g++ for a GPU's compiler."""

import numpy as np
import pytest
from device_text import run_on_cpu

MAIN = """
#include "codegen/cuda_math.cuh"
#include <cstdio>
int main() {
  for (jf::Lanes<jf::f32, 1> x; std::fread(&x, 4, 1, stdin) == 1;) {
    const jf::Lanes<jf::f32, 1> y[] = {jf::exp<jf::Loose>(x), jf::tanh<jf::Loose>(x), jf::logistic<jf::Loose>(x)};
    std::fwrite(y, 4, 3, stdout);
  }
}
"""


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    """float32 numbers of every size, and what the functions make of them: [N], [N, 3]."""
    x = np.concatenate([np.geomspace(1e-44, 3e38, 40_001), np.geomspace(1e-3, 20, 40_001), [0, np.inf]])
    x = np.concatenate([x, -x, [np.nan]]).astype(np.float32)
    raw = run_on_cpu(MAIN, tmp_path_factory.mktemp("short"), input=x.tobytes())
    return x, np.frombuffer(raw, np.float32).reshape(-1, 3)


@pytest.mark.parametrize(("column", "name"), list(enumerate(["exp", "tanh", "logistic"])))
def test_error_of_short_forms(values, column, name):
    x, got = values[0].astype(np.float64), values[1][:, column]
    with np.errstate(over="ignore"):
        want = {"exp": np.exp(x), "tanh": np.tanh(x), "logistic": 1 / (1 + np.exp(-x))}[name]
    infinite = want > np.finfo(np.float32).max
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(got[infinite], np.float32(np.inf))
    normal = np.isfinite(want) & ~infinite & (np.abs(want) > 1e-37)
    error = np.abs(got[normal] / want[normal] - 1)
    assert error.max() < 2.0**-17
    if name == "tanh":
        np.testing.assert_array_equal(np.signbit(got[:-1]), np.signbit(x[:-1]))
        assert np.abs(got - want)[normal].max() < 2.0**-21
