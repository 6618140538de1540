"""The distance of ranges, above all in a lane that draws from several feeds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamrec.pipeline.fetch.demand import Demand, Turns


@given(st.integers(1, 6), st.integers(0, 5), st.integers(1, 9), st.data())
def test_turns_say_what_comes_before_a_byte(
    feeds: int, away: int, size: int, data: st.DataObject
) -> None:
    """Held against a lane that takes one byte after the other."""
    away %= feeds
    turns = Turns(feeds, away, taken := data.draw(st.integers(0, size - 1)), size)
    nbytes = data.draw(st.integers(0, 50))
    before = missing = 0
    while missing <= nbytes:
        missing += (taken + before) // size % feeds == away
        before += 1
    assert turns.until(nbytes) == before - 1


@given(st.integers(1, 6), st.integers(0, 99), st.integers(0, 50))
def test_a_turn_that_took_more_than_its_size_is_over(feeds: int, taken: int, nbytes: int) -> None:
    assert all(Turns(feeds, away, taken, 7).until(nbytes) >= 0 for away in range(feeds))


def test_of_what_a_window_lacks_the_first_is_read_first() -> None:
    """All of it is needed at once, before what comes behind it."""
    demands = [Demand(lacks=25, turns=Turns(3, away, 0, 10)) for away in (2, 0, 1)]
    distances = [demand.distance(0) for demand in demands]
    assert sorted(distances) == [distances[1], distances[2], distances[0]]
    assert all(-1 <= distance < 0 for distance in distances)
    assert [demand._replace(lacks=0).distance(0) for demand in demands] == [20, 0, 10]


def test_bytes_that_wait_to_be_drawn_come_before_those_ahead() -> None:
    demand = Demand(ready=7, undrawn=10, share=0.5)
    assert (demand.distance(30), demand.is_empty) == (87, False)
    assert (Demand().distance(30), Demand().is_empty) == (30, True)
