"""Helpers that cancel tasks in every turn of the loop, also while they clean up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine

TURNS = 20
"""The turns of the loop that a cleanup takes here."""


class SlowlyCancelled:
    """A task that takes a while to end once it is cancelled."""

    def __init__(self) -> None:
        self.ended = False
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(TURNS):
                await asyncio.sleep(0)
            self.ended = True


async def cancel_in_every_turn(work: Coroutine[Any, Any, Any], after: int = 1) -> None:
    """Cancel some work until it ends, which it does as cancelled.

    Args:
        work: The work to cancel.
        after: The turns of the loop before that; with 0 the work would not have begun.
    """
    task = asyncio.ensure_future(work)
    for _ in range(after):
        await asyncio.sleep(0)
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    assert task.cancelled()
