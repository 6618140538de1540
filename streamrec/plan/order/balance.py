"""The deal of a global batch's rows to ranks: even costs, for the same number of rows each.

Each rank keeps the rows of its own lanes, except for a few that it exchanges with others. So it
reads its lanes as without a deal, and beside them only what it gets. All is computed with integers,
by the costs and owners of the rows alone: every rank and machine comes to the same deal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

SLACK = 50
"""One part in so many of the mean cost: a rank that costs no more than the mean and this is even
enough, so that it exchanges nothing. Each exchanged row costs a request."""


class _Exchange(NamedTuple):
    """A row of the costliest rank, and one of another that costs less, by their places."""

    given: int
    taken: int


def deal(costs: Numbers, owners: Numbers, ranks: int) -> Numbers:
    """Deal the rows of a global batch.

    While the costliest rank costs more than the mean and a fiftieth, it exchanges one of its rows
    for a smaller one of the cheapest rank: the pair that brings both closest to their mean. Where
    no pair helps, it asks the rank that is the next cheapest, and so on.

    Args:
        costs: int64 ``[rows]``: the cost of each row, from 0 up; their sum is below 2^62.
        owners: int64 ``[rows]``: the rank whose lane each row is from.
        ranks: The number of ranks.

    Returns:
        int64 ``[rows]``: the rank that gets each row. Each has as many as it owns, and the
        costliest costs no more than the costliest owner.
    """
    dealt = owners.copy()
    sums = np.zeros(ranks, np.int64)
    np.add.at(sums, owners, costs)
    total = int(sums.sum())
    # The rows of each rank, in the order of their costs.
    counts = np.bincount(owners, minlength=ranks)
    rows = np.split(np.lexsort((costs, owners)), np.cumsum(counts)[:-1])
    # Each exchange helps, and no more than one a row bounds the time.
    for _ in costs:
        most = int(np.argmax(sums))
        # Compared without a division, which would round.
        is_even = SLACK * ranks * int(sums[most]) <= (SLACK + 1) * total
        found = None if is_even else _find(costs, rows, sums, most)
        if found is None:
            break
        other, (given, taken) = found
        difference = int(costs[given] - costs[taken])
        dealt[given], dealt[taken] = other, most
        sums[most] -= difference
        sums[other] += difference
        rows[most] = _replaced(costs, rows[most], given, taken)
        rows[other] = _replaced(costs, rows[other], taken, given)
    return dealt


def _replaced(costs: Numbers, rows: Numbers, old: int, new: int) -> Numbers:
    """Return a rank's rows, in the order of their costs, with one in the place of another."""
    changed = np.where(rows == old, new, rows)
    ordered: Numbers = changed[np.argsort(costs[changed], kind="stable")]
    return ordered


def _find(
    costs: Numbers, rows: list[Numbers], sums: Numbers, most: int
) -> tuple[int, _Exchange] | None:
    """Find the exchange that relieves the costliest rank; ``None``: there is none."""
    for other in np.argsort(sums, kind="stable").tolist():
        gap = int(sums[most] - sums[other])
        if gap <= 1:
            return None
        exchange = _closest(costs, rows[most], rows[other], gap)
        if exchange is not None:
            return other, exchange
    return None


def _closest(costs: Numbers, mine: Numbers, others: Numbers, gap: int) -> _Exchange | None:
    """Return the pair whose difference is closest to half the gap; ``None``: none is inside it.

    A difference above 0 and below the gap leaves both ranks below the costlier one.
    """
    wanted = costs[mine] - gap // 2
    own = costs[others]
    above = np.searchsorted(own, wanted)
    # The two neighbours of each wanted cost; where one is missing, the other stands for it.
    pairs = np.stack([np.maximum(above - 1, 0), np.minimum(above, len(own) - 1)])
    differences = costs[mine] - own[pairs]
    is_inside = (differences > 0) & (differences < gap)
    if not is_inside.any():
        return None
    distance = np.where(is_inside, np.abs(2 * differences - gap), 1 << 62)
    side, place = np.unravel_index(int(np.argmin(distance)), distance.shape)
    return _Exchange(int(mine[place]), int(others[pairs[side, place]]))
