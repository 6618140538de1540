from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.plan.order.balance import deal

if TYPE_CHECKING:
    from streamrec.plan.order.balance import Numbers

COSTS = st.integers(0, 5) | st.integers(0, 1 << 40)


def largest(costs: Numbers, owners: Numbers) -> int:
    sums: list[int] = [sum(costs[owners == rank].tolist()) for rank in set(owners.tolist())]
    return max(sums)


@given(st.data(), st.integers(1, 5), st.integers(1, 6))
def test_each_rank_has_as_many_rows_for_no_higher_cost(
    data: st.DataObject, ranks: int, rows: int
) -> None:
    count = ranks * rows
    costs = np.array(data.draw(st.lists(COSTS, min_size=count, max_size=count)))
    owners = np.array(data.draw(st.permutations([*range(ranks)] * rows)))
    dealt = deal(costs, owners, ranks)
    assert np.bincount(dealt, minlength=ranks).tolist() == [rows] * ranks
    assert largest(costs, dealt) <= largest(costs, owners)
    assert (deal(costs.copy(), owners.copy(), ranks) == dealt).all()
    # The costs alone decide, and not their unit.
    assert (deal(costs * 64, owners, ranks) == dealt).all()


@given(st.integers(2, 8), st.integers(1, 8), st.integers(0, 9))
def test_equal_costs_stay_where_they_are(ranks: int, rows: int, cost: int) -> None:
    owners = np.arange(ranks * rows) % ranks
    assert (deal(np.full(len(owners), cost), owners, ranks) == owners).all()


@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_lognormal_costs_become_even(sigma: float) -> None:
    """Few rows move for it: each costs a request."""
    rng, owners = np.random.default_rng(1), np.arange(8 * 32) % 8
    before, after, moved = [], [], []
    for _ in range(20):
        costs = rng.lognormal(6, sigma, len(owners)).astype(np.int64)
        dealt = deal(costs, owners, 8)
        mean = costs.sum() / 8
        before.append(largest(costs, owners) / mean)
        # No deal is better than the costliest row beside the cheapest.
        least = (costs.max() + np.sort(costs)[:31].sum()) / mean
        after.append(largest(costs, dealt) / max(mean, mean * least / 1.02))
        moved.append(np.mean(dealt != owners))
    assert max(after) <= 1.021
    assert np.mean(before) >= (1.3 if sigma == 1 else 1.1)
    assert np.median(moved) <= 0.06


def test_a_row_that_costs_more_than_all_is_alone_with_the_cheapest() -> None:
    costs = np.array([1000, 5, 9, 1, 2, 8])
    dealt = deal(costs, np.array([0, 1, 0, 1, 1, 0]), 2)
    assert sorted(costs[dealt == dealt[0]].tolist()) == [1, 2, 1000]
