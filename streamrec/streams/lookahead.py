"""Batches that came from a session before their turn: what ``Stream.peek`` looks at."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from streamrec.errors import StreamrecError
from streamrec.flow.channel import EndOfStream
from streamrec.pipeline.batch.batch import Batch

if TYPE_CHECKING:
    from streamrec.streams.loops import PlainSession


class Lookahead:
    """The next batches of a run, and the error or the end that comes behind them."""

    def __init__(self) -> None:
        self._came: deque[Batch | Exception] = deque()

    def receive(self, session: PlainSession) -> Batch:
        """Return the next batch, or raise what comes in its place."""
        if not self._came:
            return session.receive()
        came = self._came.popleft()
        if isinstance(came, Batch):
            return came
        try:
            raise came
        finally:
            del came  # else its traceback would hold it, and the stream

    def read(self, session: PlainSession, count: int) -> None:
        """Receive until so many batches are there, or all that the run has."""
        came = self._came
        while len(came) < count and not (came and isinstance(came[-1], Exception)):
            try:
                came.append(session.receive())
            except (EndOfStream, StreamrecError) as error:
                came.append(error.with_traceback(None))

    def batches(self, count: int) -> list[Batch]:
        """Return the next batches, as far as they are there, and leave them to be taken."""
        return [batch for batch in [*self._came][:count] if isinstance(batch, Batch)]

    def clear(self) -> None:
        """Forget what came: the session is left."""
        self._came.clear()
