"""The distance of ranges, above all in a lane that draws from several sublanes."""

from __future__ import annotations

from streamrec.pipeline.fetch.demand import Demand


def test_of_what_a_window_lacks_the_first_is_read_first() -> None:
    """All of it is needed at once, before what comes behind it."""
    distances = [Demand(lacks=25, share=0.5).distance(ahead) for ahead in (10, 0, 5)]
    assert sorted(distances) == [distances[1], distances[2], distances[0]]
    assert all(-1 <= distance < 0 for distance in distances)


def test_bytes_that_wait_to_be_drawn_come_before_those_ahead() -> None:
    demand = Demand(ready=7, undrawn=10, share=0.5)
    assert (demand.distance(30), demand.is_empty) == (87, False)
    assert (Demand().distance(30), Demand().is_empty) == (30, True)
