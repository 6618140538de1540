"""Clients that leave a feeder, each kind in another way."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import closing
from typing import TYPE_CHECKING

from streamrec.feeder.client.client import BlockingFeed

if TYPE_CHECKING:
    from collections.abc import Callable

BATCHES = 3
"""Batches that a client takes before it leaves in mid-run."""


def take_and_close(port: int) -> None:
    with closing(_feed(port)) as feed:
        _take(feed)


def take_and_be_killed(port: int) -> None:
    """Kill a process that takes batches; what it has not read resets the connection."""
    child = os.fork()
    if not child:
        _take(_feed(port))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def leave_at_once(port: int) -> None:
    """Send the subscription and its credit, and leave before the first batch."""
    _feed(port).close()


def _feed(port: int) -> BlockingFeed:
    return BlockingFeed.open(socket.create_connection(("127.0.0.1", port)))


def _take(feed: BlockingFeed) -> None:
    for _ in range(BATCHES):
        feed.receive()


KINDS: dict[str, Callable[[int], None]] = {
    "closed in mid-run": take_and_close,
    "killed in mid-run": take_and_be_killed,
    "left before the first batch": leave_at_once,
}
