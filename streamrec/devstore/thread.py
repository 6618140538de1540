"""A thread that runs a store, for callers without an event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

__all__ = ["StoreThread", "new_event_loop"]


class StoreThread:
    """A thread that runs a store in an event loop of its own.

    Args:
        store: The store, as an asynchronous context manager.
    """

    def __init__(self, store: AbstractAsyncContextManager[object]) -> None:
        self._store = store
        self._thread = threading.Thread(target=self._run, name="devstore", daemon=True)
        self._begun = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    def start(self) -> None:
        """Start the thread, and wait until the store listens; raise the error if it cannot."""
        self._thread.start()
        self._begun.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error

    def stop(self) -> None:
        """Stop the store, and wait until it is closed."""
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._error = error
        finally:
            self._begun.set()

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        async with self._store:
            self._begun.set()
            await self._stopping.wait()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop if it is installed, else one of asyncio."""
    # uvloop sends buffers without joining them, and takes half the CPU time.
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
