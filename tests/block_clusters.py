"""Blocks of a cluster, run side by side by the loop interpreter."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

PATIENCE = 60  # seconds until a block that waits for the others gives up


class Cluster:
    """What blocks that run side by side have sent to each other."""

    def __init__(self, blocks: int):
        self.barrier, self.sent = threading.Barrier(blocks), dict[int, np.ndarray]()

    def exchange(self, rank: int, array: np.ndarray) -> list[np.ndarray]:
        """Return what every block sends; all of them have to send something."""
        self.sent[rank] = array
        self.barrier.wait(PATIENCE)
        received = [self.sent[r] for r in sorted(self.sent)]
        self.barrier.wait(PATIENCE)
        return received


def side_by_side(blocks: int, block: Callable[..., Any], place: dict[str, int]) -> None:
    """Run the blocks of one place in the grid."""
    if blocks == 1:
        block(place)
        return
    cluster = Cluster(blocks)

    def failure(rank: int) -> Exception | None:
        try:
            block({**place, "rank": rank}, cluster)
        except Exception as error:
            cluster.barrier.abort()  # the others wait no longer
            return error
        return None

    with ThreadPoolExecutor(blocks) as threads:
        failures = [error for error in threads.map(failure, range(blocks)) if error is not None]
    if failures:
        raise min(failures, key=lambda error: isinstance(error, threading.BrokenBarrierError))
