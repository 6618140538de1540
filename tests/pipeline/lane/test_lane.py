from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import MalformedPosition, StoreUnavailable
from streamrec.pipeline.fetch.range_queue import RangeQueue, RangeRead, Shards
from streamrec.pipeline.lane.lane import Lane, WindowLane
from streamrec.pipeline.lane.record_reader import lead
from streamrec.pipeline.lane.record_span import ASKED_ALONE, RecordSpan
from streamrec.plan.order.coordinates import Coordinates
from streamrec.plan.order.shard_order import Extent
from streamrec.plan.order.window import Buckets, Windows
from streamrec.values.record_rows import RecordBlock
from tests.pipeline.received_ranges import (
    END,
    SHARD,
    STARTS,
    at,
    coordinates,
    nothing_more,
    reader_of,
    received,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


BEGINNING = Coordinates(0, 0, 0)
AT_END = Coordinates(9, 0, 0)
WINDOW = 160
LARGE = Windows(16 * WINDOW, 1, 5)
"""The first window of an epoch is a sixteenth."""
BUCKETS = Buckets(2, 3, 1, 0)


def spans(lost: frozenset[int], count: int = 8) -> Iterator[RecordSpan]:
    """Make spans of one record of 4 bytes each, some of them damaged."""
    data = np.zeros(count * 20, np.uint8)
    offset, length = np.array([12]), np.array([4])
    for n in range(count):
        frame = data[20 * n : 20 * n + 20]
        block = RecordBlock(frame, offset, length, 0, n, 20 * n, lost=n in lost)
        yield RecordSpan.of(Extent(0, 0, 0), block)


class Source:
    """A source of some records and ends of epochs."""

    component, waits_for = 0, "fetch"

    def __init__(self, *items: RecordSpan | Coordinates) -> None:
        self.items = deque(items)

    @property
    def ended(self) -> bool:
        return not self.items

    def pop(self) -> RecordSpan | Coordinates | None:
        return self.items.popleft() if self.items else None


def lane_of(
    *items: RecordSpan | Coordinates,
    start: Coordinates = BEGINNING,
    windows: Windows | None = LARGE,
    **settings: Any,
) -> Lane:
    """Make a lane that has read these records."""
    source: Any = Source(*items)
    lane = Lane(source, start)
    if windows is not None:
        lane = WindowLane(source, start, windows=windows, number=0, epoch=0, **settings)
    lane.poll(100)
    if lane.error is not None:
        raise lane.error
    return lane


def numbers_given(lane: Lane) -> list[int]:
    """Take all rows."""
    return [number for rows, _ in lane.take(lane.available) for number in rows.ordinals.tolist()]


def places(lane: Lane) -> list[Coordinates]:
    """Deliver all rows that were taken; return the lane's coordinates behind each."""
    taken = sum(segment.merged for segment in lane._segments)
    return [coordinates(lane.deliver(1)) for _ in range(taken)]


@pytest.mark.parametrize("windows", [None, Windows(10, 1, 0)])
def test_a_lane_holds_nothing_that_it_should_not(windows: Windows | None) -> None:
    assert lane_of(AT_END, windows=windows).available == 0


@pytest.mark.parametrize("row", range(9))
def test_rows_that_were_delivered_are_not_given_again(row: int) -> None:
    lane = lane_of(*spans(frozenset()), start=BEGINNING._replace(row=row), windows=None)
    assert numbers_given(lane) == list(range(row, 8))
    assert places(lane) == [Coordinates(0, 20 * n, n) for n in range(row + 1, 9)]


@given(st.lists(st.integers(0, 2 * ASKED_ALONE + 2), min_size=1, max_size=5), st.integers(0, 3))
def test_coordinates_after_rows_are_the_same_one_by_one_and_all_at_once(
    asked: list[int], first: int
) -> None:
    count = first + 2 * ASKED_ALONE + 3
    offsets = 20 * np.arange(count) + 12
    block = RecordBlock(np.zeros(20 * count, np.uint8), offsets, np.full(count, 4), 0, 7, 100)
    span = RecordSpan.of(Extent(0, 0, 0), block, np.arange(count + 1))
    end = span.ends_from(first)
    for row in asked:
        assert list(end(row)) == span.ends[first + row].tolist() == span.after(first + row).numbers


@given(st.frozensets(st.integers(0, 7)), st.booleans(), st.booleans(), st.sampled_from([0, 5]))
def test_a_window_is_the_same_whether_or_not_its_damaged_records_are_given(
    lost: frozenset[int], before: bool, after: bool, taken: int
) -> None:
    """The window begins at every position within it, with buckets and without."""
    for buckets in (None, BUCKETS):
        first = BEGINNING._replace(taken=taken)
        whole = numbers_given(lane_of(*spans(frozenset()), start=first, buckets=buckets))
        head = lane_of(*spans(lost), start=first, buckets=buckets, keeps_placeholders=before)
        given = numbers_given(head)
        for count, start in enumerate([BEGINNING, *places(head)[:-1]] if given else []):
            assert start.part == (0 if before else start.row - count)
            then = start._replace(taken=taken + count)
            tail = lane_of(*spans(lost), start=then, buckets=buckets, keeps_placeholders=after)
            rest = [n for n in whole[start.row :] if after or n not in lost]
            assert numbers_given(tail) == [~n if n in lost else n for n in rest]
            intact = [n for n in given[:count] if n >= 0]
            assert intact == [n for n in whole[: start.row] if n not in lost]


def test_what_follows_a_window_is_where_the_next_begins() -> None:
    lane = lane_of(*spans(frozenset({1})))
    assert len(numbers_given(lane)) == 7
    assert places(lane)[-1] == Coordinates(0, 160, 8, window=1)


def test_a_window_of_nothing_but_damage_gives_nothing() -> None:
    assert lane_of(*spans(frozenset(range(8)))).available == 0


def test_a_position_behind_its_window_is_refused() -> None:
    with pytest.raises(MalformedPosition, match="9 records of a window"):
        lane_of(*spans(frozenset()), start=Coordinates(0, 0, 0, row=9))


def lane_over(
    *reads: RangeRead,
    windows: Windows | None = None,
    start: Coordinates = Coordinates(0, 0, 0),
) -> Lane:
    shards = Shards([f"shard{i}" for i in range(3)], sizes=dict.fromkeys(range(3), len(SHARD)))
    queue = RangeQueue(nothing_more(), 1, deque(reads))
    reader = reader_of(queue, shards, start)
    if windows is None:
        return Lane(reader, start)
    return WindowLane(reader, start, windows=windows, number=0, epoch=0)


def numbers(lane: Lane, count: int) -> list[tuple[int, int]]:
    """Take rows, and return their (epoch, record) pairs."""
    return [number for number, _ in taken(lane, count)]


def taken(lane: Lane, count: int) -> list[tuple[tuple[int, int], Coordinates]]:
    """Take and deliver rows; return (epoch, record) and the lane's coordinates behind each."""
    return [
        ((epoch, number), coordinates(lane.deliver(1)))
        for rows, epoch in lane.take(count)
        for number in rows.ordinals.tolist()
    ]


@given(st.lists(st.integers(0, len(SHARD)), max_size=6))
def test_ranges_cut_anywhere_give_every_record_with_its_coordinates(cuts: list[int]) -> None:
    bounds = [0, *sorted(set(cuts) - {0, len(SHARD)}), len(SHARD)]
    extent = Extent(4, 0, shard=1)
    lane = lane_over(*(received(extent, a, b) for a, b in itertools.pairwise(bounds)))
    lane.poll(100)
    assert (lane.available, lane.ended) == (6, True)
    assert lane.start == Coordinates(0, 0, 0)
    for i in range(6):
        assert taken(lane, 1) == [((0, i), at(4, i + 1))]


def test_rows_of_several_blocks_in_one_take() -> None:
    one, two = Extent(0, 0, shard=0), Extent(1, 1, shard=2)
    lane = lane_over(received(one, 0, len(SHARD)), received(two, 0, len(SHARD)))
    lane.poll(100)
    given, places = zip(*taken(lane, 8), strict=True)
    assert list(given) == [(0, i) for i in range(6)] + [(1, 0), (1, 1)]
    assert places[5:] == (
        at(0, 6),
        at(1, 1),
        at(1, 2),
    )


def test_runs_refer_to_rows_and_copy_none() -> None:
    extents = [Extent(n, n, shard=n) for n in range(3)]
    lane = lane_over(*(received(extent, 0, len(SHARD)) for extent in extents))
    lane.poll(100)
    taken = [lane.take(count) for count in (4, 0, 3, 11)]
    assert [[(len(run.rows), run.epoch) for run in runs] for runs in taken] == [
        [(4, 0)],
        [],
        [(2, 0), (1, 1)],
        [(5, 1), (6, 2)],
    ]
    assert taken[0][0].rows.buffers[0] is taken[2][0].rows.buffers[0]
    assert lane.available == 0


def test_rows_that_are_delivered_together() -> None:
    """Within a range, up to its end, and past several at once."""
    extents = [Extent(n, n, shard=n) for n in range(3)]
    lane = lane_over(*(received(extent, 0, len(SHARD)) for extent in extents))
    lane.poll(100)
    lane.take(18)
    numbers = [list(lane.deliver(count)) for count in (4, 2, 10)]
    places = (
        at(0, 4),
        at(0, 6),
        at(2, 4),
    )
    assert numbers == [place.numbers for place in places]


def test_poll_scans_no_more_than_is_wanted() -> None:
    extents = [Extent(n, 0, shard=n) for n in range(3)]
    lane = lane_over(*(received(extent, 0, len(SHARD)) for extent in extents))
    lane.poll(1)
    assert lane.available == 6
    lane.poll(7)
    assert lane.available == 12


def test_a_resumed_lane_numbers_its_records() -> None:
    lane = lane_over(
        received(Extent(0, 0, shard=0), STARTS[4], len(SHARD)),
        start=Coordinates(0, STARTS[4], 4),
    )
    lane.poll(10)
    assert taken(lane, 2) == [
        ((0, 4), at(0, 5)),
        ((0, 5), at(0, 6)),
    ]


def test_what_landed_before_a_failure_comes_first() -> None:
    read = received(Extent(0, 0, shard=0), 0, len(SHARD))
    read.filled, read.done, read.error = STARTS[2] + 1, False, StoreUnavailable("gone")
    lane = lane_over(read)
    lane.poll(10)
    assert lane.available == 2
    assert lane.error is read.error
    assert not lane.ended
    lane.poll(10)
    assert lane.available == 2


class TestWindows:
    WINDOWS = Windows(total=160, lanes=1, seed=4)  # windows of 10, 20, 40, 80, 160 … bytes

    def shuffled(self, *reads: RangeRead, start: Coordinates = Coordinates(0, 0, 0)) -> Lane:
        lane = lane_over(*reads, windows=self.WINDOWS, start=start)
        lane.poll(100)
        return lane

    def test_windows_end_with_the_epoch(self) -> None:
        reads = [received(Extent(n, n, shard=0), 0, len(SHARD)) for n in range(2)]
        lane = self.shuffled(*reads)
        both, places = zip(*taken(lane, 12), strict=True)
        assert sorted(both) == [(epoch, i) for epoch in range(2) for i in range(6)]
        assert [epoch for epoch, _ in both] == [0] * 6 + [1] * 6
        assert places[5] == Coordinates(1, 0, 0)
        assert places[-1] == END

    def test_coordinates_name_the_window_and_the_row(self) -> None:
        lane = self.shuffled(received(Extent(0, 0, shard=0), 0, len(SHARD)))
        places = [place for _, place in taken(lane, 6)]
        assert places[:2] == [
            at(0, 1, window=1),
            at(0, 1, window=1, row=1),
        ]
        assert places[-1] == END

    @pytest.mark.parametrize("count", range(6))
    def test_resumes_within_a_window(self, count: int) -> None:
        extent = Extent(0, 0, shard=0)
        whole = self.shuffled(received(extent, 0, len(SHARD)))
        head = taken(whole, count)
        place = head[-1][1] if head else whole.start
        begin = place.offset - lead(extent, place)
        again = self.shuffled(received(extent, begin, len(SHARD)), start=place)
        assert again.start == place
        expected = taken(whole, 6 - count)
        assert taken(again, 6 - count) == expected
        assert sorted(number for number, _ in head + expected) == [(0, i) for i in range(6)]

    def test_resumed_at_the_end_of_an_epoch_the_next_begins_with_its_first_window(self) -> None:
        reads = [received(Extent(n, n, shard=0), 0, len(SHARD)) for n in range(2)]
        whole = numbers(self.shuffled(*reads), 12)
        end = Coordinates(0, len(SHARD), 6, window=4)
        again = self.shuffled(received(Extent(1, 1, shard=0), 0, len(SHARD)), start=end)
        assert numbers(again, 6) == whole[6:]

    def test_a_window_spans_shards(self) -> None:
        large = Windows(total=10_000, lanes=1, seed=0)
        extents = [Extent(n, 0, shard=n) for n in range(3)]
        lane = lane_over(*(received(e, 0, len(SHARD)) for e in extents), windows=large)
        lane.poll(100)
        runs = lane.take(18)
        assert len({int(s) for run in runs for s in run.rows.shards[:6]}) > 1


def test_a_lane_of_empty_shards_ends() -> None:
    queue = RangeQueue(nothing_more(), 1, deque([received(Extent(0, 0, shard=0), 0, 0, b"")]))
    start = Coordinates(0, 0, 0)
    lane = Lane(reader_of(queue, Shards(["e"], {0: 0}), start), start)
    lane.poll(5)
    assert lane.ended
    assert lane.available == 0
    assert lane.demand(0).ready == 0
