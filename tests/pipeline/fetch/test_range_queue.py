"""The distance of ranges in a lane that draws from several feeds."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamrec.pipeline.fetch.range_queue import Progress, RangeQueue, Turns


@given(st.integers(1, 6), st.integers(0, 20), st.integers(1, 9), st.data())
def test_turns_say_what_comes_before_a_byte(
    feeds: int, number: int, size: int, data: st.DataObject
) -> None:
    """Held against a lane that takes one byte after the other."""
    turns = Turns(feeds, number, taken := data.draw(st.integers(0, size - 1)), size)
    feed, nbytes = data.draw(st.integers(0, feeds - 1)), data.draw(st.integers(0, 50))
    place = number * size + taken  # among all bytes; each turn has as many
    before = missing = 0
    while missing <= nbytes:
        missing += (place + before) // size % feeds == feed
        before += 1
    assert turns.until(feed, nbytes) == before - 1


@given(st.integers(1, 6), st.integers(0, 20), st.integers(0, 99), st.integers(0, 50))
def test_a_turn_that_took_more_than_its_size_is_over(
    feeds: int, number: int, taken: int, nbytes: int
) -> None:
    turns = Turns(feeds, number, taken, size=7)
    assert all(turns.until(feed, nbytes) >= 0 for feed in range(feeds))


def test_of_what_a_window_lacks_the_first_is_read_first() -> None:
    """All of it is needed at once, before what comes behind it."""
    planner: Any = None  # is not asked
    turns = Turns(3, number=1, taken=0, size=10)
    progress = Progress(ready=0, lacks=25)
    feeds = [RangeQueue(planner, 1, progress=progress) for _ in range(3)]
    for number, feed in enumerate(feeds):
        feed.until = lambda nbytes, number=number: turns.until(number, nbytes)
    distances = [feed.distance for feed in feeds]
    assert sorted(distances) == [distances[1], distances[2], distances[0]]
    assert all(-1 <= distance < 0 for distance in distances)
    progress.lacks = 0
    assert [feed.distance for feed in feeds] == [20, 0, 10]
