"""Group sizes as they occur: even ones flatter everybody."""

from __future__ import annotations

import numpy as np

SPREADS = ("uniform", "zipf", "dirichlet", "odd", "one_group", "tenth_empty")


def group_sizes(spread: str, groups: int, total: int, seed: int = 0) -> np.ndarray:
    """Return int32 sizes that sum to `total`.

    uniform: multinomial with equal chances; zipf: chances 1/rank over three quarters of the groups, the rest empty;
    dirichlet: Dirichlet(4) chances with one group forced empty; odd: as uniform, every size odd (but the first where
    the total does not allow it); one_group: everything in the middle group; tenth_empty: equal chances but for every
    tenth group, which is empty.
    """
    rng = np.random.default_rng(seed)
    if spread == "odd":
        sizes = 2 * rng.multinomial((total - groups) // 2, np.full(groups, 1 / groups)) + 1
        sizes[0] += total - sizes.sum()
        return sizes.astype(np.int32)
    if spread == "uniform":
        chances = np.full(groups, 1 / groups)
    elif spread == "zipf":
        chances = np.zeros(groups)
        active = rng.permutation(groups)[: max(1, groups * 3 // 4)]
        chances[active] = 1 / np.arange(1, len(active) + 1)
    elif spread == "dirichlet":
        chances = rng.dirichlet(np.full(groups, 4.0))
        if groups > 1:
            chances[groups // 3] = 0
    elif spread == "one_group":
        chances = np.eye(groups)[groups // 2]
    elif spread == "tenth_empty":
        chances = np.where(np.arange(groups) % 10 == 9, 0.0, 1.0)
    else:
        raise ValueError(f"group_sizes: expected one of {SPREADS}, got {spread!r}")
    return rng.multinomial(total, chances / chances.sum()).astype(np.int32)
