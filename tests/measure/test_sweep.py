from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.devstore import FaultRule
from streamrec.errors import ConfigError, ObjectNotFound
from streamrec.measure import sweep
from streamrec.measure.budget import Budget, BudgetSpent
from streamrec.measure.figures import Cell, Limits
from streamrec.measure.sweep import (
    MeasuredCell,
    Places,
    Transfer,
    _Share,
    largest_of,
    measure_cell,
    measure_sweep,
    plateau_of,
)
from streamrec.stores import ObjectInfo
from tests.measure.support import limits, place
from tests.support import asynchronous


@given(
    sizes=st.lists(st.none() | st.integers(0, 100), min_size=1).filter(any),
    size=st.integers(1, 120),
    seed=st.integers(0, 1000),
)
def test_places_are_whole_ranges_of_a_shard(sizes: list[int | None], size: int, seed: int) -> None:
    shards = [ObjectInfo(f"s3://b/{n}", size, f'"{n}"') for n, size in enumerate(sizes)]
    places = Places(shards, size, seed)
    assert places.size == min(size, largest_of(shards))
    for _ in range(20):
        url, start, stop, etag = places.next()
        shard = next(one for one in shards if one.url == url)
        assert stop - start == places.size
        assert start % places.size == 0
        assert stop <= (shard.size or 0)
        assert etag == shard.etag


def test_every_place_is_found() -> None:
    shards = [ObjectInfo("a", 25), ObjectInfo("b", 9), ObjectInfo("c", 10), ObjectInfo("d")]
    places = Places(shards, 10)
    found = {places.next()[:3] for _ in range(100)}
    assert found == {("a", 0, 10), ("a", 10, 20), ("c", 0, 10)}


def test_empty_shards_are_no_place() -> None:
    with pytest.raises(ConfigError, match="empty"):
        Places([ObjectInfo("a", 0), ObjectInfo("b")], 10)


CELL_SHARDS = {f"part-{number}": bytes(256 << 10) for number in range(4)}
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
    async with place(CELL_SHARDS, latency=0.01) as found:
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
    async with place(CELL_SHARDS) as found:
        memory = np.empty(300 << 10, np.uint8)
        measured = await measure_cell(found.store, found.shards, 1 << 30, 3, 0.0, memory)
        assert measured.cell.range_bytes == 256 << 10


@asynchronous
async def test_requests_that_stall_do_not_hold_it_up() -> None:
    faults = [FaultRule(ranged=True, probability=0.05, stall_after=1000, stall=3600.0)]
    async with place(CELL_SHARDS, faults=faults) as found:
        measured = await measure_cell(found.store, found.shards, 64 << 10, 16, 0.05, MEMORY)
        assert measured.cell.bytes > 0


@asynchronous
async def test_answers_that_ask_to_slow_down_are_counted() -> None:
    faults = [FaultRule(ranged=True, probability=0.2, status=503)]
    async with place(CELL_SHARDS, faults=faults) as found:
        measured = await measure_cell(found.store, found.shards, 64 << 10, 8, 0.1, MEMORY)
        assert 0 < measured.cell.throttled <= found.devstore.statistics.by_status[503]


@asynchronous
async def test_an_error_for_good_comes_alone() -> None:
    faults = [FaultRule(ranged=True, nth=9, status=404, code="NoSuchKey")]
    async with place(CELL_SHARDS, faults=faults) as found:
        with pytest.raises(ObjectNotFound):
            await measure_cell(found.store, found.shards, 64 << 10, 4, 60.0, MEMORY)


@asynchronous
async def test_many_failures_in_a_row_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrec.measure.sweep.FAILURES", 1)
    async with place(CELL_SHARDS, faults=[FaultRule(ranged=True, status=503)]) as found:
        with pytest.raises(ConnectionError):
            await measure_cell(found.store, found.shards, 64 << 10, 2, 60.0, MEMORY)


@asynchronous
async def test_it_ends_with_the_budget() -> None:
    async with place(CELL_SHARDS, limits(requests=20)) as found:
        with pytest.raises(BudgetSpent):
            await measure_cell(found.store, found.shards, 64 << 10, 4, 60.0, MEMORY)
        assert found.budget.spent.requests == 20


SHARDS = {f"part-{number}": bytes(512 << 10) for number in range(4)}


def cells(size: int, *rates: int) -> list[Cell]:
    return [
        Cell(range_bytes=size, concurrency=2**n, seconds=1.0, bytes=rate, requests=1)
        for n, rate in enumerate(rates)
    ]


@pytest.mark.parametrize(
    ("found", "flat", "plateau"),
    [
        (cells(4, 10, 20, 40, 41, 42), {4}, 2),
        (cells(4, 10, 20, 40), set(), None),
        (cells(4, 10, 20, 40, 38), set(), 2),
        (cells(4, 10, 20, 40, 41, 41) + cells(1, 5, 10, 20, 40), {4}, 2),
        (cells(4, 10, 20, 40, 41, 41) + cells(16, 20, 40, 41, 40), {4, 16}, 6),
        (cells(4, 10, 20, 40, 41, 41) + cells(16, 20, 40, 80), {4}, None),
        (cells(4, 10), {4}, 0),
    ],
)
def test_the_plateau(found: list[Cell], flat: set[int], plateau: int | None) -> None:
    assert plateau_of(found, flat) == plateau


@pytest.mark.parametrize(
    ("seconds", "ranges", "window"),
    [(10.0, 5, 0.5), (10.0, 4, None), (0.0, 5, None)],
)
def test_the_first_cell_of_a_row(seconds: float, ranges: int, window: float | None) -> None:
    for allowed in (
        Limits(seconds=seconds, bytes=8 * ranges, requests=1000),
        Limits(seconds=seconds, bytes=8000, requests=2 * ranges),
    ):
        share = _Share(Budget(allowed, lambda: 0.0), 0.5)
        assert share.seconds_for(4, 1, None) == window


@pytest.mark.parametrize(
    ("seconds", "ranges", "each", "window"),
    [
        (10.0, 1000, 0.01, 0.48),  # a tenth of the row's five seconds, with two ranges around it
        (20.0, 1000, 0.01, 0.98),
        (40.0, 1000, 0.01, 1.0),
        (4.0, 1000, 0.01, 0.25),
        (30.0, 36, 0.1, 0.4),  # six rounds in a third of the ranges, two of them around it
        (30.0, 30, 0.1, 0.3),
        (30.0, 24, 0.1, None),
        (7.0, 1000, 1.0, 1.0),  # one range before the window, one in it and one behind it
        (6.0, 1000, 1.0, 1.0),
        (5.8, 1000, 1.0, None),
    ],
)
def test_a_cell_behind_another(
    seconds: float, ranges: int, each: float, window: float | None
) -> None:
    last = MeasuredCell(cells(4, 10)[0], each, None)
    for allowed in (
        Limits(seconds=seconds, bytes=8 * ranges, requests=10_000),
        Limits(seconds=seconds, bytes=80_000, requests=2 * ranges),
    ):
        share = _Share(Budget(allowed, lambda: 0.0), 0.5)
        assert share.seconds_for(4, 2, last) == (window and pytest.approx(window))


def test_a_row_leaves_the_rest_to_the_others() -> None:
    budget = Budget(Limits(seconds=10, bytes=400, requests=100), lambda: 0.0)
    share = _Share(budget, 0.25)
    assert share.seconds_for(4, 1, None) == 0.5
    budget.take(20, 80)
    assert share.seconds_for(4, 1, None) == 0.5
    budget.take(1, 4)
    assert share.seconds_for(4, 1, None) is None, "four of its 25 ranges are left"


def test_the_first_row_has_half_of_the_budget_and_the_others_share_the_rest() -> None:
    left, parts = 1.0, list[float]()
    for part in sweep.PARTS:
        parts.append(left * part)
        left -= left * part
    assert parts == pytest.approx([1 / 2, 1 / 6, 1 / 6, 1 / 6])
    assert [size >> 10 for size in sweep.SIZES] == [4096, 1024, 16384, 256]


@pytest.mark.parametrize(("files", "most"), [(1, 1), (3, 1), (100, 50), (1024, 512), (9999, 512)])
def test_half_of_the_files_may_be_connections(
    files: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (files, files))
    assert sweep.most_requests() == most


@asynchronous
async def test_a_sweep_stops_where_the_rate_does(monkeypatch: pytest.MonkeyPatch) -> None:
    quicken(monkeypatch)
    monkeypatch.setattr(sweep, "GAIN", 1e9)
    async with place(SHARDS) as found:
        told: list[Cell] = []
        result = await measure_sweep(found.store, found.shards, found.budget, told.append)
        assert result.cells == told
        places = [(cell.range_bytes >> 10, cell.concurrency) for cell in told]
        assert places == [(256, 1), (256, 2), (256, 4), (64, 1), (64, 2), (64, 4)]
        assert result.plateau is not None
        assert result.connection_bytes_per_second is None or result.connection_bytes_per_second > 0


@asynchronous
async def test_requests_at_a_time_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    quicken(monkeypatch)
    monkeypatch.setattr(sweep, "FLAT", 100)
    monkeypatch.setattr(sweep, "MOST_REQUESTS", 4)
    async with place(SHARDS) as found:
        result = await measure_sweep(found.store, found.shards, found.budget)
        assert [cell.concurrency for cell in result.cells] == [1, 2, 4] * 2


@pytest.mark.parametrize(
    "allowed",
    [limits(requests=60), limits(size=20 << 20), limits(seconds=0.3), limits(requests=7)],
)
@asynchronous
async def test_a_small_budget_gives_few_cells(
    allowed: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    quicken(monkeypatch)
    async with place(SHARDS, allowed) as found:
        try:
            result = await measure_sweep(found.store, found.shards, found.budget)
        except BudgetSpent:
            return  # an eager window may spend a small budget before it has ended
        assert 0 < len(result.cells) < 16


@asynchronous
async def test_a_budget_for_no_cell_is_refused() -> None:
    async with place(SHARDS, limits(requests=3)) as found:
        with pytest.raises(BudgetSpent, match="do not suffice"):
            await measure_sweep(found.store, found.shards, found.budget)
        assert found.devstore.statistics.requests == 0


@asynchronous
async def test_shards_smaller_than_all_ranges_are_read_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quicken(monkeypatch, sizes=(4 << 20,))
    monkeypatch.setattr(sweep, "GAIN", 1e9)
    async with place({"small": bytes(1000)}) as found:
        result = await measure_sweep(found.store, found.shards, found.budget)
        assert {cell.range_bytes for cell in result.cells} == {1000}


def quicken(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...] = (256 << 10, 1 << 30, 64 << 10)
) -> None:
    monkeypatch.setattr(sweep, "SIZES", sizes)
    monkeypatch.setattr(sweep, "SHORTEST", 0.01)
    monkeypatch.setattr(sweep, "LONGEST", 0.02)
