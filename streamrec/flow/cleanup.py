"""Cleanups that run to their end, however often the task that does them is cancelled.

A client that leaves, a time limit or the end of the loop may cancel a task that is cleaning up
already. What it has not closed by then would stay open for as long as the process lives.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["end", "finish", "until_done"]

T = TypeVar("T")


async def finish(cleanup: Coroutine[Any, Any, T]) -> T:
    """Run a cleanup to its end, and return what it returns.

    Args:
        cleanup: Nothing cancels it, so no time limit in it has an effect.

    Raises:
        asyncio.CancelledError: The caller was cancelled meanwhile; the cleanup has ended.
    """
    task = _Cleanup(cleanup, loop=asyncio.get_running_loop())
    await until_done(task)
    return task.result()


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and return when all of them have ended: nothing of theirs runs any more.

    Raises:
        asyncio.CancelledError: The caller was cancelled meanwhile; the tasks have ended.
    """
    for task in tasks:
        task.cancel()
    try:
        await until_done(*tasks)
    finally:
        for task in tasks:  # asking for the outcome lets a task's frames, and their memory, go
            with contextlib.suppress(asyncio.CancelledError):
                task.exception()


async def until_done(*futures: asyncio.Future[Any]) -> None:
    """Wait until all futures are done, whatever becomes of them; they are not cancelled.

    Raises:
        asyncio.CancelledError: The caller was cancelled meanwhile; all of them are done.
    """
    interrupted = False  # no exception is kept: it would keep this frame, and what that refers to
    while not all(future.done() for future in futures):
        try:
            await asyncio.wait(futures)
        except asyncio.CancelledError:
            interrupted = True
    if interrupted:
        raise asyncio.CancelledError


class _Cleanup(asyncio.Task[T]):
    """A task that is not cancelled; a loop that ends waits for it, as for all its tasks."""

    def cancel(self, msg: Any = None) -> bool:  # noqa: ARG002 - asyncio's signature
        """Refuse."""
        return False
