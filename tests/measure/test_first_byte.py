from __future__ import annotations

import pytest

from streamrec.devstore import FaultRule
from streamrec.errors import ObjectNotFound
from streamrec.measure import first_byte
from streamrec.measure.budget import BudgetSpent
from streamrec.measure.first_byte import measure_first_byte
from tests.measure.support import limits, place
from tests.support import asynchronous

SHARDS = {f"part-{number}": bytes(64 << 10) for number in range(4)}


@asynchronous
async def test_all_requests_of_the_budget_are_measured() -> None:
    async with place(SHARDS, limits(requests=50)) as found:
        told: list[float] = []
        times = await measure_first_byte(found.store, found.shards, found.budget, told.append)
        assert times.seconds == sorted(told)
        assert len(told) == 48  # two have opened connections
        assert times.seconds[0] <= times.p50 <= times.p99 <= times.p999 <= times.seconds[-1]
        records = found.devstore.statistics.records
        assert len({(record.path, record.range) for record in records}) > 20


@asynchronous
async def test_requests_to_a_far_store_overlap() -> None:
    async with place(SHARDS, limits(requests=60), latency=0.03) as found:
        await measure_first_byte(found.store, found.shards, found.budget)
        assert 1 < found.devstore.statistics.peak_in_flight <= first_byte.MOST_AT_A_TIME


@asynchronous
async def test_there_are_no_more_than_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_byte, "MOST_TIMES", 20)
    async with place({"small": b"x"}) as found:
        times = await measure_first_byte(found.store, found.shards, found.budget)
        assert len(times.seconds) == 20


@asynchronous
async def test_failed_attempts_are_no_times() -> None:
    faults = [
        FaultRule(ranged=True, nth=5, status=503),
        FaultRule(ranged=True, nth=7, reset_after=10),
    ]
    async with place(SHARDS, limits(requests=30), faults=faults) as found:
        times = await measure_first_byte(found.store, found.shards, found.budget)
        assert len(times.seconds) < 28


@asynchronous
async def test_without_a_time_there_are_no_figures() -> None:
    async with place(SHARDS, limits(requests=1)) as found:
        with pytest.raises(BudgetSpent):
            await measure_first_byte(found.store, found.shards, found.budget)


@asynchronous
async def test_an_error_comes_alone() -> None:
    faults = [FaultRule(ranged=True, nth=20, status=404, code="NoSuchKey")]
    async with place(SHARDS, faults=faults) as found:
        with pytest.raises(ObjectNotFound):
            await measure_first_byte(found.store, found.shards, found.budget)
