from __future__ import annotations

from itertools import islice, takewhile
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import MalformedPosition
from streamrec.plan.order.coordinates import POINT
from streamrec.plan.order.record_order import ChunkWindows, RecordOrder
from streamrec.plan.order.window import Windows
from tests.plan.oracle import RecordOracle
from tests.plan.record_orders import index_of, oracles, order_of, windows_of

if TYPE_CHECKING:
    from streamrec.plan.order.shard_order import Extent

EPOCHS = st.integers(0, 7)


def extents_of_epoch(order: RecordOrder, lane: int, epoch: int) -> list[Extent]:
    extents = order.extents(lane, order.first(lane, epoch))
    return list(takewhile(lambda extent: extent.epoch == epoch, extents))


def records_of(extent: Extent) -> list[tuple[int, int]]:
    assert extent.records is not None
    first = extent.first_record + extent.skip
    return [(extent.shard, number) for number in range(first, first + extent.records)]


@given(oracles(), EPOCHS)
def test_every_record_once_an_epoch(oracle: RecordOracle, epoch: int) -> None:
    order = order_of(oracle)
    extents = [e for lane in range(order.lanes) for e in extents_of_epoch(order, lane, epoch)]
    found = sorted(record for extent in extents for record in records_of(extent))
    every = [(s, i) for s, lengths in enumerate(oracle.shards) for i in range(len(lengths))]
    assert found == every
    assert order.records == len(every)


@given(oracles(), EPOCHS)
def test_extents_are_the_oracles(oracle: RecordOracle, epoch: int) -> None:
    order = order_of(oracle)
    for lane in range(order.lanes):
        extents = extents_of_epoch(order, lane, epoch)
        found = [record for extent in extents for record in records_of(extent)]
        assert found == [r for part, _ in oracle.lane_epoch(lane, epoch) for r in part]


@given(oracles(), EPOCHS)
def test_chunks_that_are_not_joined_are_the_same_records_in_the_same_order(
    oracle: RecordOracle, epoch: int
) -> None:
    joined = order_of(oracle)
    order = RecordOrder(joined.table, joined.lanes, joined.shuffle, joined.seed, joins=False)
    chunks = [set(chunk) for chunk in oracle.chunks()]
    for lane in range(order.lanes):
        extents = extents_of_epoch(order, lane, epoch)
        found = [record for extent in extents for record in records_of(extent)]
        same = [r for extent in extents_of_epoch(joined, lane, epoch) for r in records_of(extent)]
        assert found == same
        assert all(any(set(records_of(e)) <= chunk for chunk in chunks) for e in extents)


@given(oracles(), st.data())
def test_only_places_inside_of_their_extents_are_believed(
    oracle: RecordOracle, data: st.DataObject
) -> None:
    order = RecordOrder(order_of(oracle).table, oracle.lanes, oracle.shuffle, joins=False)
    lane = data.draw(st.integers(0, order.lanes - 1))
    extent = order.extent(lane, data.draw(st.integers(0, 2 * order.stride)))
    assert extent.end is not None
    assert extent.records is not None
    last = extent.first_record + extent.skip + extent.records

    def check(offset: int, record: int) -> None:
        order.check([lane], np.array([(extent.number, offset, record, 0)], POINT))

    check(0, 0)
    for offset in {extent.begin, extent.end}:
        for record in {extent.first_record, last}:
            check(offset, record)
    for offset, record in [(extent.end + 1, last), (extent.end, last + 1), (1 << 60, 0)]:
        with pytest.raises(MalformedPosition, match=f"lane {lane} stands at byte {offset}"):
            check(offset, record)


@given(oracles(), EPOCHS)
def test_an_extent_is_whole_chunks_around_its_records(oracle: RecordOracle, epoch: int) -> None:
    order = order_of(oracle)
    for lane in range(order.lanes):
        for extent in extents_of_epoch(order, lane, epoch):
            starts = np.cumsum([0, *(n + 16 for n in oracle.shards[extent.shard])]).tolist()
            records = records_of(extent)
            assert extent.begin == starts[extent.first_record]
            assert extent.end in starts
            assert extent.end >= starts[records[-1][1] + 1]
            slack = records[0][1] - extent.first_record
            assert slack == extent.skip
            assert slack == 0 or extent.begin + oracle.chunk_bytes > starts[records[0][1] - 1]


@given(oracles(), st.integers(1, 9))
def test_lanes_differ_by_one_record_after_any_number_of_epochs(
    oracle: RecordOracle, epochs: int
) -> None:
    order = order_of(oracle)
    counts = [order.before(lane, epochs) for lane in range(order.lanes)]
    assert counts == [len(oracle.lane(lane, range(epochs))) for lane in range(order.lanes)]
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)


@given(oracles(), st.integers(0, 8), st.integers(0, 40))
def test_the_extent_of_a_number_is_the_first_that_is_left(
    oracle: RecordOracle, lane: int, number: int
) -> None:
    order = order_of(oracle)
    lane %= order.lanes
    few = list(islice(order.extents(lane, 0), 60))
    numbers = [extent.number for extent in few]
    assert numbers == sorted(set(numbers))
    left = [extent for extent in few if extent.number >= number]
    assert order.extent(lane, number) == (left[0] if left else order.extent(lane, number))
    assert order.reach(lane) == order.stride


@given(oracles(), st.data())
def test_a_lane_starts_where_any_record_needs_it(oracle: RecordOracle, data: st.DataObject) -> None:
    """Dropping ``row`` records of what is read from there gives the record, and those after it."""
    order = order_of(oracle)
    windows = windows_of(oracle, order)
    lane = data.draw(st.integers(0, order.lanes - 1))
    every = oracle.lane(lane, range(4))
    if not every:
        return
    number = data.draw(st.integers(0, len(every) - 1))
    assert order.epoch_of(lane, number) == every[number][0]
    start = order.start(lane, number, windows)
    extents = order.extents(lane, start.extent)
    first = next(extents)
    assert first.number == start.extent
    assert first.begin <= start.offset
    own = [record for record in records_of(first) if record[1] >= start.record]
    read = [(first.epoch, *record) for record in own]
    for extent in takewhile(lambda e: e.epoch == first.epoch, extents):
        read += [(extent.epoch, *record) for record in records_of(extent)]
    if windows is not None:
        size = windows.opens(lane, first.epoch, start.window)
        shards = np.zeros(size, np.int32)
        shuffled = windows.permutation(lane, first.epoch, start.window, shards)
        assert sorted(shuffled.tolist()) == list(range(size))
        assert start.row < size
        read = [read[i] for i in shuffled.tolist()] + read[size:]
    assert read[start.row] == every[number]


@given(oracles(), EPOCHS)
def test_parts_of_windows_are_what_they_have_of_each_extent(
    oracle: RecordOracle, epoch: int
) -> None:
    order = RecordOrder(order_of(oracle).table, oracle.lanes, oracle.shuffle, joins=False)
    windows = ChunkWindows(order, Windows(2000, order.lanes, 0))
    for lane in range(order.lanes):
        begin, found = 0, list[int]()
        for number in range(len(extents := extents_of_epoch(order, lane, epoch))):
            end = begin + windows.opens(lane, epoch, number)
            found += order.parts(lane, epoch, begin, end).tolist() if end > begin else []
            begin = end
        assert found == [extent.records for extent in extents]


@given(oracles(), EPOCHS)
def test_windows_draw_from_their_chunks_evenly(oracle: RecordOracle, epoch: int) -> None:
    order = order_of(oracle)
    windows = windows_of(oracle, order)
    for lane in range(order.lanes) if windows else ():
        assert windows is not None
        records = [r for window in oracle.windowed(lane, epoch) for r in window]
        found: list[tuple[int, int]] = []
        for number, window in enumerate(oracle.windowed(lane, epoch)):
            shards = np.array([shard for shard, _ in window], np.int32)
            drawn = windows.permutation(lane, epoch, number, shards)
            found += [records[len(found) + i] for i in drawn.tolist()]
        assert [(epoch, *record) for record in found] == oracle.lane(lane, range(epoch, epoch + 1))


@given(oracles(), EPOCHS)
def test_windows_are_the_oracles(oracle: RecordOracle, epoch: int) -> None:
    order = order_of(oracle)
    windows = windows_of(oracle, order)
    for lane in range(order.lanes) if windows else ():
        assert windows is not None
        sizes = [len(window) for window in oracle.windowed(lane, epoch)]
        assert [windows.opens(lane, epoch, number) for number in range(len(sizes))] == sizes
        assert windows.opens(lane, epoch, len(sizes)) == 0


def test_a_window_holds_no_more_than_its_bytes() -> None:
    oracle = RecordOracle(((84,) * 400,), 500, 2, True, 3, Windows(8000, 2, 3))
    order = order_of(oracle)
    windows = windows_of(oracle, order)
    assert windows is not None
    sizes = [windows.opens(0, 0, number) * 100 for number in range(6)]
    assert sizes == [2000, 2000, 4000, 4000, 4000, 4000]
    assert windows.lacks(3) == 300
    assert windows.takes(np.array([1, 2, 3]), 2) == (2, 2)


def test_without_shuffle_an_extent_is_all_of_a_shard_that_is_the_lanes() -> None:
    oracle = RecordOracle(((4,) * 100, (), (4,) * 20), 30, 2)
    order = order_of(oracle)
    assert [(e.shard, e.records) for e in extents_of_epoch(order, 0, 0)] == [(0, 60)]
    assert [(e.shard, e.records) for e in extents_of_epoch(order, 1, 0)] == [(0, 40), (2, 20)]


def test_the_surplus_goes_to_the_lanes_in_turn() -> None:
    order = order_of(RecordOracle(((4,) * 10,), 30, 4))
    counts = [
        [order.before(lane, e + 1) - order.before(lane, e) for lane in range(4)] for e in (0, 1)
    ]
    assert counts == [[3, 3, 2, 2], [2, 2, 3, 3]]


def test_sixteen_shards_feed_4096_ranks() -> None:
    order = order_of(RecordOracle(((84,) * 2000,) * 16, 10_000, 4096, shuffle=True, seed=3))
    counts = [order.before(lane, 1) for lane in range(4096)]
    assert set(counts) == {7, 8}
    parts = [order.records_at(lane, 0, np.arange(count)) for lane, count in enumerate(counts)]
    assert np.sort(np.concatenate(parts)).tolist() == list(range(32_000))
    step = np.array([part[0] for part in parts])  # the first records of all ranks
    assert set((step // 2000).tolist()) == set(range(16))


def test_epochs_differ_and_are_reproducible() -> None:
    oracle = RecordOracle(((4,) * 200,), 30, 1, True, 3)
    order = order_of(oracle)

    def epoch(number: int) -> list[int]:
        return [extent.begin for extent in extents_of_epoch(order, 0, number)]

    first = epoch(0)
    assert first != epoch(1)
    for number in range(1, 9):
        assert epoch(number) != first
    assert epoch(0) == first


def test_of_no_record_there_is_no_extent() -> None:
    order = RecordOrder(index_of(((),), 9).chunks(), 2)
    assert list(order.extents(0, 0)) == []
    assert order.largest == 0


@given(oracles(), st.integers(0, 3))
def test_lanes_have_the_same_records_again_after_a_period(oracle: RecordOracle, times: int) -> None:
    order = RecordOrder(order_of(oracle).table, oracle.lanes)
    epoch = times * order.period
    for lane in range(order.lanes):
        begin = order.first(lane, 0), order.first(lane, epoch)
        first, later = (extents_of_epoch(order, lane, number) for number in (0, epoch))
        assert [records_of(e) for e in later] == [records_of(e) for e in first]
        assert [e.number - begin[1] for e in later] == [e.number - begin[0] for e in first]


@pytest.mark.parametrize(("more", "begins"), [(0, [0, 2, 3]), (1, [0, 1, 2, 3])])
def test_a_window_takes_chunks_up_to_its_very_size(more: int, begins: list[int]) -> None:
    """The first two windows have room for 50 bytes; a frame takes 16 besides its record."""
    order = RecordOrder(index_of(((9, 9 + more, 9),), 1).chunks(), 1, False, 0, joins=False)
    windows = ChunkWindows(order, Windows(100, 1, 0))
    opened = [windows.opens(0, 0, number) for number in range(len(begins) - 1)]
    assert opened == np.diff(begins).tolist()
