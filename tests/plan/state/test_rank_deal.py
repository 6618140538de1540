from __future__ import annotations

from itertools import accumulate, takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.config.record_choice import Balance
from streamrec.errors import ConfigError
from streamrec.plan.order.record_order import ChunkWindows, RecordOrder
from streamrec.plan.order.window import Windows
from streamrec.plan.state.rank_deal import RankDeal
from streamrec.plan.state.record_run import Delivery, RecordRun
from streamrec.values.record_rows import Chunks, RecordLengths

LENGTHS = st.lists(st.integers(0, 60), min_size=24, max_size=60)


def deals(lengths: list[int], ranks: int, *, shuffle: bool, epochs: int | None) -> list[RankDeal]:
    """Return the deals of ranks with two lanes each, over a shard with chunks of three records."""
    sizes = [16 + 3 * length for length in lengths]
    ends = [0, *accumulate(sizes)]
    firsts = list(range(0, len(lengths), 3))
    lasts = [min(len(lengths), first + 3) for first in firsts]
    table = Chunks(
        shard=np.zeros(len(firsts), np.int64),
        begin=np.array([ends[n] for n in firsts]),
        end=np.array([ends[n] for n in lasts]),
        first_record=np.array(firsts),
        records=np.array(lasts) - np.array(firsts),
    )
    order = RecordOrder(table, lanes=2 * ranks, shuffle=shuffle)
    windows = (
        ChunkWindows(order, Windows(total=2000, lanes=order.lanes, seed=0)) if shuffle else None
    )
    run = RecordRun(
        order=order,
        windows=windows,
        lanes=range(order.lanes),
        batch_size=2 * ranks,
        epoch=0,
        step=0,
        end_epoch=epochs,
        remainder="drop",
    )
    found = RecordLengths(np.array(lengths, "u4"), np.array(sizes, "u4"))
    return [RankDeal(run, rank, ranks, found, Balance("n")) for rank in range(ranks)]


@given(LENGTHS, st.integers(2, 4), st.booleans())
def test_ranks_share_each_global_batch(lengths: list[int], ranks: int, shuffle: bool) -> None:
    of_ranks = deals(lengths, ranks, shuffle=shuffle, epochs=2)
    run = of_ranks[0].run
    assert run.steps is not None
    for step in range(run.steps):
        whole = Delivery(run).of_steps(step, step + 1)
        parts = [one.of_steps(step, step + 1) for one in of_ranks]
        assert {len(part.records) for part in parts} == {2}
        pairs = sorted(zip(whole.epochs.tolist(), whole.records.tolist(), strict=True))
        dealt = [zip(p.epochs.tolist(), p.records.tolist(), strict=True) for p in parts]
        assert sorted(pair for part in dealt for pair in part) == pairs
        costs = [sum(lengths[r] for r in part.records.tolist()) for part in parts]
        owners = [
            [lengths[r] for r in whole.records[whole.lanes % ranks == n]] for n in range(ranks)
        ]
        assert max(costs) <= max(map(sum, owners))


@given(LENGTHS, st.integers(0, 5), st.booleans())
def test_an_extent_for_each_row_from_a_step_on(
    lengths: list[int], first: int, shuffle: bool
) -> None:
    one, other = deals(lengths, 2, shuffle=shuffle, epochs=2)
    assert one.run.steps is not None
    extents = list(one.extents(0, first))
    begins = [0, *accumulate(16 + 3 * length for length in lengths)]
    for extent in extents:
        record = extent.first_record
        assert (extent.begin, extent.end) == (begins[record], begins[record + 1])
        assert extent.next_record == record + 1
    taken = [one.take_step(step).taken for step in range(first, one.run.steps)]
    wanted = [record for rows in taken for record in rows.records.tolist()]
    assert [extent.first_record for extent in extents if extent.records] == wanted
    lanes = [lane for rows in taken for lane in rows.lanes.tolist()]
    assert all(lane % 2 == other.rank for lane in lanes)
    assert not one._ahead


def test_the_search_for_a_row_comes_back_without_one() -> None:
    """Each extent that is looked at tells where to search on, also in a run without an end."""
    one, _ = deals([7] * 30, 2, shuffle=True, epochs=None)
    extents = takewhile(lambda extent: extent.number < 600, one.extents(0, 0))
    numbers = [(extent.number, extent.records) for extent in extents]
    assert {count for _, count in numbers} == {0}
    assert max(np.diff([number for number, _ in numbers])) <= 1024 // 4


def test_costs_that_cannot_be_added_up_are_refused() -> None:
    one, _ = deals([7] * 30, 2, shuffle=False, epochs=1)
    with pytest.raises(ConfigError, match=f"a record of 7 values costs {7 << 60}"):
        RankDeal(one.run, 0, 2, one.lengths, Balance("n", 1 << 60, 0))


def test_factors_that_do_not_fit_are_refused_where_no_record_has_a_value() -> None:
    one, _ = deals([0] * 30, 2, shuffle=False, epochs=1)
    with pytest.raises(ConfigError, match=f"a record of 1 values costs {1 << 70}"):
        RankDeal(one.run, 0, 2, one.lengths, Balance("n", 1 << 70, 0))
