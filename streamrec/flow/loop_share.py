"""Turns that a task gives to others of its event loop, where what it waits for is always there."""

from __future__ import annotations

import asyncio
from time import perf_counter

LONGEST_TURN = 0.005
"""Seconds for which one task works before others of the loop get a turn: an idle turn of asyncio's
loop takes about 15 us, so that is 0.3 %."""


class LoopShare:
    """The share of the loop's time that one task takes; ``await`` alone gives no other a turn.

    ::

        if perf_counter() >= share.until:  # for single records, a call would cost more than they
            await share.give_way()
    """

    def __init__(self) -> None:
        self.until = 0.0
        """The time, of ``perf_counter``, until which this task may go on."""

    async def give_way(self) -> None:
        """Let other tasks run, if this one has run for long enough; it may be cancelled here."""
        if perf_counter() >= self.until:
            await asyncio.sleep(0)
            self.until = perf_counter() + LONGEST_TURN
