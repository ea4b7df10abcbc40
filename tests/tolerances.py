"""One tolerance per dtype, relative to the largest reference value."""

import numpy as np

TOL = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}


def assert_close(got, want, dtype=None, scale=1.0):
    """Compare with the tolerance of `dtype` (that of `got` by default); `scale` widens it for long sums."""
    name = np.dtype(dtype if dtype is not None else got.dtype).name
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    if name not in TOL:
        np.testing.assert_array_equal(got, want)
        return
    got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.abs(want[np.isfinite(want)])
    atol = TOL[name] * scale * max(finite.max(initial=0.0), 1e-30)
    np.testing.assert_allclose(got, want, rtol=0, atol=atol)
