"""The demand of lanes, from which follows what to fetch next."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Demand(NamedTuple):
    """A lane's records that are ready, and its need of one of its sublanes."""

    ready: float = 0
    """The approximate bytes of records that wait to be merged; exactly 0 if there are none."""
    lacks: int = 0
    """Bytes that the lane must read before it has records again, if it knows; else 0."""
    undrawn: int = 0
    """Bytes of this sublane's records that wait to be drawn, if the lane has several sublanes."""
    share: float = 1.0
    """The approximate share of the lane's records that come from this sublane."""

    @property
    def is_empty(self) -> bool:
        """True if the lane has no record, ready or undrawn."""
        return not (self.ready or self.undrawn)

    def distance(self, ahead: float) -> float:
        """Estimate the bytes that the lane delivers before it needs the sublane's next range.

        Args:
            ahead: Requested bytes of the sublane whose records are still to be read.
        """
        until = (self.undrawn + ahead) / self.share
        # Bytes that complete a window are all needed at once, when the records before are used up.
        return self.ready + (until - self.lacks if until >= self.lacks else until / self.lacks - 1)


class Consumer(Protocol):
    """A lane, as far as the fetcher knows it."""

    record_size: float
    """The mean size of a record, in bytes."""

    def demand(self, number: int) -> Demand:
        """Return its demand of its sublane of that number."""
        ...
