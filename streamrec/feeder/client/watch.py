"""The clock that notices a peer that has gone silent, and the errors that say so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from streamrec.errors import Stalled

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.feeder.client.connection import AsyncConnection


class Watch:
    """A clock that notices, in a ``with`` block, a peer whose program gives no sign of life.

    Signs are bytes that come, the answer to a PING among them, and that it takes what is sent. It
    is asked once, halfway, and not again before it has given a sign: whoever has been busy for
    hours finds one PING, and not more than it may have to answer.

    Args:
        connection: The connection to the peer.
        seconds: The time for which it may be silent.
        overdue: Called when it was silent for longer.
    """

    def __init__(
        self, connection: AsyncConnection, seconds: float, overdue: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._seconds = seconds
        self._overdue = overdue
        self._loop = asyncio.get_running_loop()
        self._unsent = connection.unsent
        self._taken_at = self._asked_at = self._loop.time()

    def __enter__(self) -> Self:
        self._timer = self._loop.call_later(self._seconds / 2, self._look)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now, alive_at = self._loop.time(), self._alive_at()
        silent = now - alive_at
        if silent >= self._seconds:
            self._overdue()
            return
        is_half_over = silent >= self._seconds / 2
        if is_half_over and self._asked_at <= alive_at:
            self._ask(now)
        # The next look is due where the silence is half over, or over. Bytes that come meanwhile
        # move no timer: they only set heard_at.
        wait = self._seconds if is_half_over else self._seconds / 2
        self._timer = self._loop.call_later(wait - silent, self._look)

    def _alive_at(self) -> float:
        """Return the time of the last sign of life that is known."""
        unsent = self._connection.unsent
        # The peer takes what is sent, though it may have nothing to say.
        if unsent < self._unsent:
            self._taken_at = self._loop.time()
        self._unsent = unsent
        return max(self._connection.heard_at, self._taken_at)

    def _ask(self, now: float) -> None:
        self._asked_at = now
        # It is sent before the bytes are counted: else those of the PING would hide that others are
        # taken.
        self._connection.ping()
        self._unsent = self._connection.unsent


def silence(seconds: float) -> str:
    """Return the text of an error for a feeder that gives no sign of life."""
    return (
        f"the feeder stalls: nothing came for {seconds:.3g} s, not even an answer to a ping; check "
        "the network, or what its machine is busy with"
    )


def stall_error(seconds: float) -> Stalled:
    """Return the error for a feeder that is there, and does not go on."""
    return Stalled(
        f"the feeder sent nothing of the stream for {seconds:.3g} s; its log and metrics tell what "
        "it waits for: go on from the position elsewhere, or raise stall_timeout",
        stage="feeder",
    )
