"""CPU: lanes go on from row to row where rows are shorter than a vector, whatever repeats along them or across them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf

GOES_ROUND = "in turns of "


def values(shape, dtype="float32"):
    return jnp.asarray(np.random.default_rng(sum(shape)).integers(1, 50, shape)).astype(dtype)


def loops(f, *args):
    return jf.fuse(f).lower(*args).as_text("loops", platform="cpu")


def check(f, *args):
    wide = [np.asarray(x, np.float64) for x in args]
    for got, want in zip(jax.tree.leaves(jf.fuse(f)(*args)), jax.tree.leaves(f(*wide))):
        assert got.shape == want.shape
        assert_close(got, want)


def normalized(q, mean, scale):
    return (q.astype(jnp.float32) / 255 - mean) / scale


def test_an_image_is_normalized_in_whole_vectors():
    image, mean, scale = values((2, 7, 5, 3), "uint8"), values((3,)), values((3,))
    text = loops(normalized, image, mean, scale)
    assert text.count(GOES_ROUND + "3 by 0") == 2 and text.count("for ") == 1
    wide = (np.asarray(image, np.float64) / 255 - np.asarray(mean)) / np.asarray(scale)
    assert_close(jf.fuse(normalized)(image, mean, scale), wide)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_rows_of_any_length(dtype):
    f = lambda *a: [jnp.minimum(jnp.maximum(x, y), z) for x, y, z in zip(a[::3], a[1::3], a[2::3])]  # noqa: E731
    shapes = [(1, 3), (37, 3), (101, 5), (23, 15), (5, 17), (0, 3)]
    with jax.enable_x64(True):
        check(f, *(values(s, dtype) for n, k in shapes for s in ((n, k), (k,), (n, 1))))


def test_what_repeats_beyond_the_rows_has_loops():
    f = lambda x, row, image, pixel: jnp.where(x > row, x * image, pixel)  # noqa: E731
    args = values((3, 5, 7, 3)), values((3,)), values((3, 1, 1, 3)), values((3, 5, 7, 1))
    text = loops(f, *args)
    assert GOES_ROUND + "3 by 0" in text and GOES_ROUND + "3 by 1" in text
    check(f, *args)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, row: x * row + jnp.arange(3.0),
        lambda x, row: jnp.pad(x * row, ((1, 1), (0, 2))),
        lambda x, row: jnp.concatenate([x * row, x + row], 1),
        lambda x, row: (x * row).T,
        lambda x, row: x.reshape(3, -1).T * row,
        lambda x, row: x[:, 1:] * row[:2],
    ],
)
def test_rows_that_do_not_follow_each_other_keep_their_loops(f):
    x, row = values((37, 3)), values((3,))
    assert_close(jf.fuse(f)(x, row), f(*(np.asarray(a, np.float64) for a in (x, row))))


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_planes_of_short_rows(dtype):
    """Lanes a few elements apart, the last of them at the end of the array."""
    f = lambda *a: [x.T + x.T for x in a] + [x.reshape(-1)[:: x.shape[1]] * 2 for x in a]  # noqa: E731
    check(f, *(values((n, k), dtype) for n, k in [(17, 2), (33, 3), (64, 4)]))
