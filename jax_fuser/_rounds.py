"""Parts that streams of rows from device to device travel in, inside `shard_map`.

Each pair of devices has a stream, whose length the devices know. A dense `all_to_all`, which is fast on every platform,
moves the next rows of every stream; devices agree on how many of them it takes: what the longest stream needs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# The first round has room for this part more than streams of equal length need, further ones for a part of the first.
_ROOM, _FURTHER = 1.25, 0.25
# A loop costs a read by the host, 0.3 ms and more on an H100: none for these bytes, which take 0.15 ms there.
_LOOP_BYTES = 32 << 20
# A round of fewer bytes takes no longer than a smaller one.
_ROUND_BYTES = 4 << 20
# Rows of so few bytes travel in one round: numbers of experts, weights.
_NARROW_BYTES = 128
# For tests: see `Rounds`.
_LOOPS_ON_CPUS = False


@dataclasses.dataclass(frozen=True)
class Rounds:
    """Static lengths of a stream's parts: of the first, and of further ones while something is left.

    On CPUs a stream is one part, but for tests: XLA may run what follows such a loop beside it, and takes the one's
    collectives for the other's.
    """

    first: int
    further: int  # not more than `first`
    most_further: int
    on_cpus: bool = False

    @property
    def length(self) -> int:
        """Rows of the block that a stream lands in."""
        return self.first + self.further * self.most_further

    def at_once(self, a: jax.Array) -> bool:
        """Return whether rows of `a` travel in one part."""
        return not self.most_further or math.prod(a.shape[1:]) * a.dtype.itemsize <= _NARROW_BYTES

    def of_cpus(self) -> Rounds:
        """Return the parts on CPUs."""
        return self if self.on_cpus else Rounds(self.length, 0, 0)


def rounds_of(width: int, balanced: float, row_bytes: int) -> Rounds:
    """Return the parts of streams of at most `width` rows, `balanced` on average, of so many bytes in all streams."""
    first = min(max(math.ceil(_ROOM * balanced), 1), max(width, 1))
    if (width - first) * row_bytes <= _LOOP_BYTES:
        return Rounds(max(width, 1), 0, 0)
    least = max(_ROUND_BYTES // row_bytes, 1)
    first = min(width, max(first, least))
    further = min(max(math.ceil(_FURTHER * first), least), width - first)
    return Rounds(first, further, -(-(width - first) // further) if further else 0, _LOOPS_ON_CPUS)


def further_rounds(run: Callable[..., Any], out: Any, longest: Any, rounds: Rounds) -> Any:
    """Return `out` after `run(begin, size, out)` for each further round that the longest stream needs."""

    def step(state: Any) -> Any:
        begin, out = state
        return begin + rounds.further, run(begin, rounds.further, out)

    return jax.lax.while_loop(lambda state: state[0] < longest, step, (jnp.int32(rounds.first), out))[1]
