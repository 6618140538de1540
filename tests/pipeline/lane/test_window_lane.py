"""The order in which a window's records leave it, and where a lane stands between them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import MalformedPosition
from streamrec.pipeline.lane.lane import Lane
from streamrec.pipeline.lane.record_span import RecordSpan
from streamrec.pipeline.lane.window_lane import WindowLane
from streamrec.plan.order.buckets import Buckets
from streamrec.plan.order.coordinates import Coordinates
from streamrec.plan.order.shard_order import Extent
from streamrec.plan.order.window import Windows
from streamrec.values.record_rows import RecordBlock
from tests.pipeline.received_ranges import coordinates

if TYPE_CHECKING:
    from collections.abc import Iterator

BEGINNING = Coordinates(0, 0, 0)
END = Coordinates(9, 0, 0)
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


def numbers(lane: Lane) -> list[int]:
    """Take all rows."""
    return [number for rows, _ in lane.take(lane.available) for number in rows.ordinals.tolist()]


def places(lane: Lane) -> list[Coordinates]:
    """Deliver all rows that were taken; return the lane's coordinates behind each."""
    taken = sum(segment.merged for segment in lane._segments)
    return [coordinates(lane.deliver(1)) for _ in range(taken)]


@pytest.mark.parametrize("windows", [None, Windows(10, 1, 0)])
def test_a_lane_holds_nothing_that_it_should_not(windows: Windows | None) -> None:
    assert lane_of(END, windows=windows).available == 0


@pytest.mark.parametrize("row", range(9))
def test_rows_that_were_delivered_are_not_given_again(row: int) -> None:
    lane = lane_of(*spans(frozenset()), start=BEGINNING._replace(row=row), windows=None)
    assert numbers(lane) == list(range(row, 8))
    assert places(lane) == [Coordinates(0, 20 * n, n) for n in range(row + 1, 9)]


@given(st.frozensets(st.integers(0, 7)), st.booleans(), st.booleans(), st.sampled_from([0, 5]))
def test_a_window_is_the_same_whether_or_not_its_damaged_records_are_given(
    lost: frozenset[int], before: bool, after: bool, taken: int
) -> None:
    """The window begins at every position within it, with buckets and without."""
    for buckets in (None, BUCKETS):
        first = BEGINNING._replace(taken=taken)
        whole = numbers(lane_of(*spans(frozenset()), start=first, buckets=buckets))
        head = lane_of(*spans(lost), start=first, buckets=buckets, keeps_placeholders=before)
        given = numbers(head)
        for count, start in enumerate([BEGINNING, *places(head)[:-1]] if given else []):
            assert start.part == (0 if before else start.row - count)
            then = start._replace(taken=taken + count)
            tail = lane_of(*spans(lost), start=then, buckets=buckets, keeps_placeholders=after)
            rest = [n for n in whole[start.row :] if after or n not in lost]
            assert numbers(tail) == [~n if n in lost else n for n in rest]
            intact = [n for n in given[:count] if n >= 0]
            assert intact == [n for n in whole[: start.row] if n not in lost]


def test_what_follows_a_window_is_where_the_next_begins() -> None:
    lane = lane_of(*spans(frozenset({1})))
    assert len(numbers(lane)) == 7
    assert places(lane)[-1] == Coordinates(0, 160, 8, window=1)


def test_a_window_of_nothing_but_damage_gives_nothing() -> None:
    assert lane_of(*spans(frozenset(range(8)))).available == 0


def test_a_position_behind_its_window_is_refused() -> None:
    with pytest.raises(MalformedPosition, match="9 records of a window"):
        lane_of(*spans(frozenset()), start=Coordinates(0, 0, 0, row=9))
