"""The handle of a stream: what adapters do with it, beside what its users do.

A framework looks ahead, interrupts, and asks who reads what. These are the calls for it, so that
the stream itself shows its users the few that they need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from streamrec.plan.state.fingerprint import ENDS, RankSummary

if TYPE_CHECKING:
    from streamrec.streams.ranks import Assignment
    from streamrec.streams.state import Mark, Row
    from streamrec.streams.stream import Stream


def of(stream: Stream[Any]) -> Handle:
    """Return the handle of a stream."""
    return Handle(stream)


@dataclass(frozen=True, slots=True)
class Handle:
    """The calls on a stream that are for adapters; :func:`of` makes it."""

    stream: Stream[Any]

    @property
    def assignment(self) -> Assignment:
        """The rank that is read, and what told it."""
        # Looked for once more: a framework may have told it since the stream was made.
        self.stream._rank()
        return self.stream._assignment

    @property
    def features(self) -> dict[str, Any] | None:
        """The specs in their plain form, as in a daemon's configuration; ``None``: raw records."""
        features: dict[str, Any] | None = self.stream._open_session().settings["features"]
        return features

    @property
    def is_endless(self) -> bool:
        """True if a run repeats its records without an end; opens the stream."""
        return self.stream._open_session().settings.get("epochs", 1) is None

    def summary(self) -> RankSummary:
        """Return what this process is about to read, which adapters compare on all processes."""
        stream, session = self.stream, self.stream._open_session()
        ends = {name: session.settings.get(name) for name in ENDS}
        # Beside the order: it says who gets which row, and one rank alone would lose some.
        ends["balance"] = (session.settings.get("contents") or {}).get("balance")
        rank, world_size = stream._rank()
        return RankSummary(
            fingerprint=session.fingerprint,
            rank=rank,
            world_size=world_size,
            step=stream._cursor.step,
            ends=ends,
        )

    def mark(self) -> Mark:
        """Return the point after what was taken: in no time, unlike a state."""
        return self.stream._cursor.mark()

    def go_back(self, mark: Mark) -> None:
        """Go on where an interrupted call began: by Ctrl-C, or what a signal's handler raised.

        A batch may have left the session for nobody, and the turn may have been taken for nobody.

        Args:
            mark: Of :meth:`mark`, before the call.
        """
        self.stream._go_back(mark)

    def state_at(self, mark: Mark) -> dict[str, Any]:
        """Return the state at a point."""
        return self.stream._state_at(mark)

    def next_row(self) -> Row | bytes:
        """Take the next record of a stream of single records, as a row of a batch.

        A raw record is its bytes.

        Raises:
            StopIteration: The run has ended.
        """
        # The row itself: an adapter that makes records of its own has no use for a dict of it.
        return cast("Row | bytes", self.stream.__next__(lambda row: row))

    def take_end(self) -> bool:
        """Return whether the run has nothing more to give, and take its end if nobody has."""
        stream = self.stream
        # Peeked first: to take the next batch for this would move the state.
        return not (stream._cursor.rows or stream.peek()) and next(stream, None) is None
