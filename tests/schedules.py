"""What a schedule must do whatever it is: read back from its text, and compute what the fusion says."""

from tolerances import assert_close

import jax_fuser as jf


def check_schedule(schedule, machine, arrays, *wants):
    """Compare what a schedule computes on a `machine` with the wanted outputs, and its text with what it reads as."""
    assert jf.ir.Fusion(str(schedule.fusion)) == schedule.fusion
    assert jf.ir.Schedule(schedule.fusion, str(schedule)) == schedule
    for got, want in zip(machine.run(schedule, *arrays), wants, strict=True):
        assert_close(got, want)
