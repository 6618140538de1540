from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.devstore import FaultRule
from streamrec.errors import ObjectNotFound
from streamrec.measure.budget import BudgetSpent
from streamrec.measure.cell import Transfer, measure_cell
from tests.measure.support import limits, place
from tests.support import asynchronous

SHARDS = {f"part-{number}": bytes(256 << 10) for number in range(4)}
MEMORY = np.empty(1 << 20, np.uint8)


@given(
    times=st.lists(st.floats(0.01, 10), min_size=1, max_size=20),
    window=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_transfers_that_follow_each_other_fill_the_window(
    times: list[float], window: tuple[float, float]
) -> None:
    ends = np.cumsum(times)
    begin, stop = (edge * float(ends[-1]) for edge in sorted(window))
    transfers = [Transfer(end - time, end=end) for time, end in zip(times, ends, strict=True)]
    inside = sum(
        transfer.part(begin, stop) * (transfer.end - transfer.begin) for transfer in transfers
    )
    assert inside == pytest.approx(stop - begin, abs=1e-9)


@asynchronous
async def test_a_cell() -> None:
    async with place(SHARDS, latency=0.01) as found:
        cell, range_seconds, rate = await measure_cell(
            found.store, found.shards, 64 << 10, 4, 0.05, MEMORY
        )
        assert (cell.range_bytes, cell.concurrency, cell.throttled) == (64 << 10, 4, 0)
        assert cell.seconds > 0.0499  # a timer may ring early by the resolution of its clock
        assert cell.bytes == pytest.approx(cell.requests * cell.range_bytes, abs=cell.range_bytes)
        assert 0 < cell.bytes < found.devstore.statistics.bytes_sent
        assert 0 < cell.loop_busy <= 1
        assert range_seconds > 0
        assert rate is None or rate > 0
        assert found.devstore.statistics.peak_in_flight == 4


@asynchronous
async def test_ranges_are_as_large_as_the_largest_shard_and_share_memory() -> None:
    async with place(SHARDS) as found:
        memory = np.empty(300 << 10, np.uint8)
        measured = await measure_cell(found.store, found.shards, 1 << 30, 3, 0.0, memory)
        assert measured.cell.range_bytes == 256 << 10


@asynchronous
async def test_requests_that_stall_do_not_hold_it_up() -> None:
    faults = [FaultRule(ranged=True, probability=0.05, stall_after=1000, stall=3600.0)]
    async with place(SHARDS, faults=faults) as found:
        measured = await measure_cell(found.store, found.shards, 64 << 10, 16, 0.05, MEMORY)
        assert measured.cell.bytes > 0


@asynchronous
async def test_answers_that_ask_to_slow_down_are_counted() -> None:
    faults = [FaultRule(ranged=True, probability=0.2, status=503)]
    async with place(SHARDS, faults=faults) as found:
        measured = await measure_cell(found.store, found.shards, 64 << 10, 8, 0.1, MEMORY)
        assert 0 < measured.cell.throttled <= found.devstore.statistics.by_status[503]


@asynchronous
async def test_an_error_for_good_comes_alone() -> None:
    faults = [FaultRule(ranged=True, nth=9, status=404, code="NoSuchKey")]
    async with place(SHARDS, faults=faults) as found:
        with pytest.raises(ObjectNotFound):
            await measure_cell(found.store, found.shards, 64 << 10, 4, 60.0, MEMORY)


@asynchronous
async def test_many_failures_in_a_row_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrec.measure.cell.FAILURES", 1)
    async with place(SHARDS, faults=[FaultRule(ranged=True, status=503)]) as found:
        with pytest.raises(ConnectionError):
            await measure_cell(found.store, found.shards, 64 << 10, 2, 60.0, MEMORY)


@asynchronous
async def test_it_ends_with_the_budget() -> None:
    async with place(SHARDS, limits(requests=20)) as found:
        with pytest.raises(BudgetSpent):
            await measure_cell(found.store, found.shards, 64 << 10, 4, 60.0, MEMORY)
        assert found.budget.spent.requests == 20
