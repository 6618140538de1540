"""Clients that come, leave or are killed: ``python -m bench.crowding.visitors ADDRESS COUNT MOST``.

Each is a process of its own, at the lowest priority, and at most ``MOST`` are there at a time. The
program prints how many batches they have received, all together.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress

from bench.crowding.clients import PATIENCE
from streamrec.errors import FeedError
from streamrec.feeder.client.client import AsyncFeed
from streamrec.flow.channel import EndOfStream

HABITS = ("leaves", "is killed", "leaves", "takes a batch")
"""In turn. The first two go while their next batch is decoded."""
SHORTEST, STEP = 0.2, 0.1
"""Seconds of the shortest visit, and by how much others are longer."""


async def visit(address: str, seconds: float | None) -> int:
    """Be a client; return the number of batches that have come.

    Args:
        address: The dataset's.
        seconds: How long to stay; ``None``: until a batch has come.
    """
    came = 0
    with suppress(FeedError, EndOfStream):
        feed = await AsyncFeed.open(address, patience=PATIENCE, connect_timeout=PATIENCE)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while seconds is not None or not came:
                        await feed.receive()
                        came += 1
        finally:
            await feed.aclose()
    return came


def _fork(address: str, number: int) -> tuple[int, float | None]:
    """Start a client; return its process, and the time at which it is to be killed."""
    habit = HABITS[number % len(HABITS)]
    seconds = SHORTEST + STEP * (number % 5)
    pid = os.fork()
    if not pid:
        stays = {"leaves": seconds, "is killed": 2 * PATIENCE, "takes a batch": None}[habit]
        os._exit(min(255, asyncio.run(visit(address, stays))))
    return pid, time.monotonic() + seconds if habit == "is killed" else None


def _came(here: dict[int, float | None]) -> int:
    """Kill those whose time it is, and forget those who have gone; return the batches they had."""
    came = 0
    for pid, ends in list(here.items()):
        if ends is not None and time.monotonic() > ends:
            os.kill(pid, signal.SIGKILL)
        gone, status = os.waitpid(pid, os.WNOHANG)
        if gone:
            del here[pid]
            came += max(0, os.waitstatus_to_exitcode(status))
    return came


def main() -> None:
    address, count, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    os.nice(19)
    here: dict[int, float | None] = {}
    number = batches = 0
    while number < count or here:
        if number < count and len(here) < most:
            pid, ends = _fork(address, number)
            here[pid] = ends
            number += 1
        batches += _came(here)
        time.sleep(0.01)
    print(batches)


if __name__ == "__main__":
    main()
