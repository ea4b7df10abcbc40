"""Grouped products that run at once, in one program or from several threads, give the bits that they give alone: what
counts tiles and what a product keeps meanwhile is its own."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest
from kinds_of_products import COLUMNS, KINDS, assert_same_bits, make
from test_tma import hopper_or_skip

from jax_fuser import _core, _ffi, _tuned

HOPPER = _core.cuda_target_for(90)
TIMES = {"cpu": 2, "gpu": 100}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_kernel(kind, monkeypatch):
    own = _ffi.target_text
    monkeypatch.setattr(_ffi, "target_text", lambda platform: HOPPER if platform == "cuda" else own(platform))
    f, arrays, sizes = make(kind, jax.devices("cpu")[0], n=COLUMNS)
    with _tuned.programs_seen() as seen:
        jax.jit(f).trace(arrays, sizes[0]).lower(lowering_platforms=("cuda",))
    product = [facts for program in seen for facts in _core.facts(program, HOPPER)][-1]
    assert re.match(f"jf_grouped_{KINDS[kind][2]}", f"{product['entry']}: {product['parameters']}")


def alone(device):
    """Of each kind twice, with other numbers and sizes: function, arrays, sizes, and what it gives by itself."""
    if device.platform != "cpu":
        hopper_or_skip()
    made = []
    for kind in KINDS:
        for seed in (0, 1):
            f, arrays, sizes = make(kind, device, seed)
            made.append((f, arrays, sizes[seed], jax.block_until_ready(jax.jit(f)(arrays, sizes[seed]))))
    return made


def test_products_of_one_program(device):
    """None waits for the result of another."""
    made = alone(device)
    functions, arrays, sizes, want = zip(*made, strict=True)

    @jax.jit
    def together(arrays, sizes):
        return [f(a, s) for f, a, s in zip(functions, arrays, sizes, strict=True)]

    for _ in range(TIMES[device.platform]):
        got = together(arrays, sizes)
    assert_same_bits(got, want)


def test_products_of_several_threads(device):
    """Each with its own jitted function, which all compile and run at the same time."""
    made = alone(device)
    begin = threading.Barrier(len(made))

    def call(f, arrays, sizes, want):
        run = jax.jit(lambda arrays, sizes: f(arrays, sizes))
        begin.wait(60)
        for _ in range(TIMES[device.platform]):
            got = run(arrays, sizes)
            jax.block_until_ready(got)
        assert_same_bits(got, want)

    with ThreadPoolExecutor(len(made)) as threads:
        for done in [threads.submit(call, *one) for one in made]:
            done.result()
