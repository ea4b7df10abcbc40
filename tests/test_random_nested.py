"""Random fusions of nested values against a loop over components in numpy, on every machine.

`Program(seed)` makes a failing one again.
"""

import numpy as np
import pytest
from random_nested import Program
from test_cuda_sources import nvrtc_or_skip
from test_ragged_plans import interpreted
from tolerances import TOL

import jax_fuser as jf
from jax_fuser import _core


def check(program, got):
    for one, want in zip(got, program.want, strict=True):
        np.testing.assert_array_equal(np.isinf(one), np.isinf(want))
        one, finite = np.asarray(one), np.isfinite(want)
        np.testing.assert_allclose(one[finite], want[finite], rtol=0, atol=4 * TOL["float32"] * program.size)


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(device, seed):
    program = Program(seed)
    check(program, jf.ir.run(program.fusion, *program.operands()))


@pytest.mark.parametrize("seed", range(12, 36))
def test_random_programs_as_loops_for_cuda(seed):
    program = Program(seed)
    check(program, interpreted(program.fusion, *program.operands()))


@pytest.mark.parametrize("seed", range(36, 38))
def test_random_programs_op_by_op(seed):
    program = Program(seed)
    check(program, jf.ir.evaluate(program.fusion, *program.operands()))


@pytest.mark.parametrize("run", [jf.ir.run, interpreted], ids=["kernels", "loops for cuda"])
def test_products(run):
    programs = [Program(seed, products=True) for seed in range(48)]
    programs = [p for p in programs if "reduce_prod" in str(p.fusion)]
    assert len(programs) >= 6
    for program in programs[:10]:
        check(program, run(program.fusion, *program.operands()))


# A dense axis folded that its consumer has another way round; x with its dense axes in both orders; x less x, summed;
# a fold of values without their last axis, of one element; folds of both of two axes of one extent, which their
# operand is read with; a mask for values in both orders.
@pytest.mark.parametrize("seed", [92000025, 97754150, 93929273, 968, 3648, 2721, 4353])
@pytest.mark.parametrize("run", [jf.ir.run, interpreted], ids=["kernels", "loops for cuda"])
def test_turned_values(run, seed):
    program = Program(seed)
    check(program, run(program.fusion, *program.operands()))


@pytest.mark.parametrize("target", [_core.host_target(), _core.cuda_target_for(90)], ids=["cpu", "cuda"])
def test_loops_of_many_programs_go_together(target):
    for seed in range(2700, 3300):
        with np.errstate(over="ignore"):  # of values that are only made to say how large they are
            program = Program(seed)
        _core.stages(str(program.fusion), target)


def test_cuda_sources_compile():
    nvrtc_or_skip()
    for seed in (38, 39, 40, 427, 92000025, 97754150):
        for _, _, cubin in _core.compile_cuda(str(Program(seed).fusion), _core.cuda_target_for(90)):
            assert cubin
