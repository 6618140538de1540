from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.pipeline.stages import Coordinates, InOrder, WindowShuffle
from streamrec.plan.window import Windows

if TYPE_CHECKING:
    from collections.abc import Iterator

END = Coordinates(9, 0, 0)


def test_stages_hold_nothing_they_should_not() -> None:
    def segments() -> Iterator[object]:
        yield from InOrder().end_epoch(END)
        yield from WindowShuffle(Windows(10, 1, 0), 0).end_epoch(END)

    assert list(segments()) == []
