"""The order in which a window's records leave it, and where a lane stands between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import MalformedPosition
from streamrec.pipeline.lane.ordering_stages import (
    BEGINNING,
    InOrder,
    WindowShuffle,
)
from streamrec.pipeline.lane.record_span import RecordSpan
from streamrec.plan.buckets import Buckets
from streamrec.plan.coordinates import Coordinates
from streamrec.plan.order import Extent
from streamrec.plan.window import Windows
from streamrec.values.records import RecordBlock
from tests.pipeline.received_ranges import coordinates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrec.pipeline.lane.ordering_stages import Segment, Stage

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


def segments(stage: Stage, lost: frozenset[int] = frozenset()) -> list[Segment]:
    """Return the segments that a stage makes of one window of eight records."""
    return [segment for span in spans(lost) for segment in stage.add(span)]


def numbers(given: list[Segment]) -> list[int]:
    return [number for segment in given for number in segment.rows.ordinals.tolist()]


def places(segment: Segment) -> list[Coordinates]:
    """Return the lane's coordinates behind each row."""
    return [coordinates(segment.end(row)) for row in range(len(segment.rows))]


def test_stages_hold_nothing_they_should_not() -> None:
    def segments() -> Iterator[object]:
        yield from InOrder().end_epoch(END)
        yield from WindowShuffle(Windows(10, 1, 0), 0).end_epoch(END)

    assert list(segments()) == []


@pytest.mark.parametrize("row", range(9))
def test_rows_that_were_delivered_are_not_given_again(row: int) -> None:
    given = segments(InOrder(row))
    assert numbers(given) == list(range(row, 8))
    if given:
        assert places(given[0])[0] == Coordinates(0, 20 * (row + 1), row + 1)


@given(st.frozensets(st.integers(0, 7)), st.booleans(), st.booleans(), st.sampled_from([0, 5]))
def test_a_window_is_the_same_whether_or_not_its_damaged_records_are_given(
    lost: frozenset[int], before: bool, after: bool, taken: int
) -> None:
    """The window begins at every position within it, with buckets and without."""
    for buckets in (None, BUCKETS):
        first = BEGINNING._replace(taken=taken)
        whole = numbers(segments(WindowShuffle(LARGE, 0, 0, first, buckets)))
        head = WindowShuffle(LARGE, 0, 0, first, buckets, keeps_placeholders=before)
        for segment in segments(head, lost):
            for count, start in enumerate([BEGINNING, *places(segment)[:-1]]):
                assert start.part == (0 if before else start.row - count)
                then = start._replace(taken=taken + count)
                tail = WindowShuffle(LARGE, 0, 0, then, buckets, keeps_placeholders=after)
                given = segments(tail, lost)
                rest = [n for n in whole[start.row :] if after or n not in lost]
                assert numbers(given) == [~n if n in lost else n for n in rest]
                intact = [n for n in segment.rows.ordinals.tolist()[:count] if n >= 0]
                assert intact == [n for n in whole[: start.row] if n not in lost]


def test_what_follows_a_window_is_where_the_next_begins() -> None:
    (given,) = segments(WindowShuffle(LARGE, 0), frozenset({1}))
    assert len(given.rows) == 7
    assert places(given)[-1] == Coordinates(0, 160, 8, window=1)


def test_a_window_of_nothing_but_damage_gives_nothing() -> None:
    assert segments(WindowShuffle(LARGE, 0), frozenset(range(8))) == []


def test_a_position_behind_its_window_is_refused() -> None:
    with pytest.raises(MalformedPosition, match="9 records of a window"):
        segments(WindowShuffle(LARGE, 0, start=Coordinates(0, 0, 0, row=9)))
