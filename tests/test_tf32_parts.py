"""A float32 as two numbers of 11 bits, as the kernels of float32 products make them, run on the CPU."""

import numpy as np
from device_text import run_on_cpu

MAIN = """
#include "grouped/cuda/tf32_parts.cuh"
#include <cstdio>
int main() {
  unsigned word;
  while (fread(&word, 4, 1, stdin) == 1) {
    const jf::grouped::Tf32Parts parts = jf::grouped::tf32_parts(word);
    fwrite(&parts, sizeof(parts), 1, stdout);
  }
}
"""


def parts_of(words, folder):
    found = np.frombuffer(run_on_cpu(MAIN, folder, input=words.tobytes()), np.uint32).reshape(-1, 2)
    assert not (found & 0x1FFF).any()  # what tensor cores do not read
    return found.view(np.float32).astype(np.float64).T


def test_parts_add_up_to_the_number(tmp_path):
    words = np.random.default_rng(0).integers(0, 2**32, 100_000, np.uint32)
    x = words.view(np.float32)
    words = words[np.isfinite(x) & (np.abs(x) > 1e-30) & (np.abs(x) < 3.4e38)]
    words = np.concatenate([words, np.float32([1, -1, 1 + 2**-11, 1 + 2**-12, 1 - 2**-24, 2 - 2**-23]).view(np.uint32)])
    x = words.view(np.float32).astype(np.float64)
    big, small = parts_of(words, tmp_path)
    assert np.max(np.abs(big - x) / np.abs(x)) <= 2.0**-11
    assert np.max(np.abs(big + small - x) / np.abs(x)) <= 2.0**-23


def test_zeros_and_numbers_that_are_none(tmp_path):
    nans = np.uint32([0x7FFFFFFF, 0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0xFF800001])
    zeros, infinities = np.float32([0.0, -0.0]).view(np.uint32), np.float32([np.inf, -np.inf]).view(np.uint32)
    big, small = parts_of(np.concatenate([nans, zeros, infinities]), tmp_path)
    assert np.isnan(big + small)[:5].all() and np.isnan(small)[:5].all()
    np.testing.assert_array_equal([big[5:7], small[5:7]], 0)
    np.testing.assert_array_equal(big[7:], [np.inf, -np.inf])
