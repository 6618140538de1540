"""The log of one connection: who it is, what it reads, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import os
from itertools import count
from typing import TYPE_CHECKING, Any

from streamrec.errors import FeederDraining, FeederLost, StreamrecError

if TYPE_CHECKING:
    from streamrec.wire.messages import Hello

log = logging.getLogger("streamrec.feeder")
MOST_NAME = 200
"""Characters of a dataset's name that are logged: whoever asks may not be known."""
_numbers = count(1)


class SessionLog:
    """The log of one connection; each of its records says which, in the field ``subscription``.

    Args:
        peer: The other end, as text.
    """

    def __init__(self, peer: str) -> None:
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._batches = self._bytes = 0
        self._is_welcome = False
        self._facts: dict[str, Any] = {
            "subscription": f"{os.getpid()}-{next(_numbers)}",
            "peer": peer,
        }

    def hello(self, hello: Hello) -> None:
        """Note what a client asks for."""
        self._facts.update(dataset=hello.dataset[:MOST_NAME], world_size=hello.world_size)

    def welcomed(self) -> None:
        """Say that a client is welcome."""
        self._is_welcome = True
        self._say(logging.INFO, "a client is welcome")

    def subscribed(self, rank: int, step: int) -> None:
        """Say which rank a client reads, and from which step."""
        self._facts["rank"] = rank
        self._say(logging.INFO, "a client reads from step %d", step)

    def sent(self, size: int) -> None:
        """Count a batch that was sent."""
        self._batches += 1
        self._bytes += size

    def failed(self, error: Exception) -> None:
        """Say what a client was told: why it is refused, sent elsewhere, or cannot go on."""
        if not isinstance(error, StreamrecError):
            self._say(logging.ERROR, "serving a client failed", error=error)
        elif isinstance(error, FeederDraining):
            self._say(logging.INFO, "a client is sent elsewhere: %s", error)
        elif not self._is_welcome:
            self._say(logging.WARNING, "a client is refused: %s", error)
        else:
            self._say(logging.WARNING, "a client's stream fails: %s", error)

    def ended(self, broken: Exception | None) -> None:
        """Say that the connection is closed, and what was sent."""
        if not self._is_welcome:
            self._say(logging.DEBUG, "a connection ends before anybody was welcome: %s", broken)
            return
        why = broken if isinstance(broken, FeederLost) else "it was told why"
        totals: dict[str, Any] = {
            "batches": self._batches,
            "bytes": self._bytes,
            "seconds": round(self._clock() - self._began, 3),
        }
        self._say(logging.INFO, "a client has gone: %s", why, **totals)

    def _say(
        self, level: int, message: str, *arguments: Any, error: Exception | None = None, **more: Any
    ) -> None:
        facts = {**self._facts, **more}
        if arguments and isinstance(arguments[0], StreamrecError):
            place = arguments[0].fields()
            facts.update(shard=place.get("url"), offset=place.get("offset"))
        log.log(level, message, *arguments, exc_info=error, extra=facts)
