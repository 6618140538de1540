"""The shards whose bytes a run has waited for lately, to name the slowest."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


RECENT = 30.0
"""Seconds after which waits for shards are forgotten, or twice as many: there may be many shards.
"""


class AwaitedShards:
    """The seconds for which bytes of each shard were waited for lately.

    Args:
        clock: Gives the time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._turned = clock()
        self._old: dict[int, float] = {}
        self._new: dict[int, float] = {}

    def add(self, shard: int, seconds: float) -> None:
        """Add a wait that has ended."""
        self._turn()
        self._new[shard] = self._new.get(shard, 0.0) + seconds

    def longest(self, now: Mapping[int, float]) -> tuple[int, float] | None:
        """Return the shard that was waited for longest, and the seconds; ``None``: none was.

        Args:
            now: The seconds of the wait that goes on, by shard.
        """
        self._turn()
        waits: dict[int, float] = {}
        for shard, seconds in chain(self._old.items(), self._new.items(), now.items()):
            waits[shard] = waits.get(shard, 0.0) + seconds
        return max(waits.items(), key=lambda wait: wait[1], default=None)

    def _turn(self) -> None:
        now = self._clock()
        if now >= self._turned + RECENT:
            has_gap = now >= self._turned + 2 * RECENT
            self._old, self._new = {} if has_gap else self._new, {}
            self._turned = now
