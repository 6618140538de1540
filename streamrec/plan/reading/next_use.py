"""The forecast of when bytes are read next, for a cache that removes what is needed last."""

from __future__ import annotations

import time
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from streamrec.plan.order.record_order import Order
    from streamrec.plan.reading.ranges import RangeRequest

LEAST_PROGRESS = 1e-6
"""Epochs that count as done at least, so that a forecast has a pace from the start."""


def places_of(urls: Sequence[str]) -> dict[str, list[int]]:
    """Return the numbers of the shards of each URL, which may be named several times."""
    places: dict[str, list[int]] = {}
    for shard, url in enumerate(urls):
        places.setdefault(url, []).append(shard)
    return places


class NextUse:
    """A forecast of when a run, and the runs after it, read a byte next.

    The order of all epochs is known, and epochs are taken to follow each other without end. Time
    is counted in epochs, and told in seconds at the pace so far.

    Args:
        order: The order of the shards or chunks.
        places: The shards' numbers by their URLs, as of :func:`places_of`.
        clock: Returns seconds, monotonic.
    """

    def __init__(
        self,
        order: Order,
        places: Mapping[str, Sequence[int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._order = order
        self._reached: dict[int, float] = {}
        self._places = places
        self._clock = clock
        self._now = self._began = -inf
        self._began_at = clock()

    def reached(self, sublane: int, request: RangeRequest, size: int | None) -> None:
        """Note that a range is being read.

        Args:
            sublane: The number of the lane, or of the part of it, that is read in order.
            request: The range.
            size: Bytes of its shard, if known.
        """
        extent = request.extent
        now = next(self._order.times(extent.epoch, extent.shard, request.start, size))
        # The pace is that since the first range, wherever in an epoch the run began.
        if not self._reached:
            self._began = now
        self._reached[sublane] = now
        # The least: bytes that are taken for read before they are would be removed just before they
        # are needed.
        self._now = min(self._reached.values())

    def wait(self, url: str, offset: int, size: int | None) -> float | None:
        """Return the seconds until a byte is needed, about; ``None`` if that is not known.

        It may be called from any thread.

        Args:
            url: The shard's URL.
            offset: The byte.
            size: Bytes of the shard, if known.
        """
        shards = self._places.get(url, ())
        if not shards or self._now == -inf:
            return None
        # Read once, since another thread may set it meanwhile.
        now = self._now
        # The last extents of an epoch may be read when others of the next one have begun.
        first = max(0, int(now) - 1)
        times = (self._order.times(first, shard, offset, size) for shard in shards)
        due = min(next(due for due in part if due > now) for part in times)
        pace = (self._clock() - self._began_at) / max(LEAST_PROGRESS, now - self._began)
        return (due - now) * pace
