"""Cleanups that run to their end, however often the task that does them is cancelled.

A client that leaves, a time limit or the end of the loop may cancel a task during its cleanup. What
it has not closed by then would stay open until the process ends.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import threading
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from concurrent.futures import Executor, ThreadPoolExecutor

T = TypeVar("T")


async def finish(cleanup: Coroutine[Any, Any, T]) -> T:
    """Run a cleanup to its end, and return what it returns.

    Args:
        cleanup: It is never cancelled, so a time limit inside it has no effect.

    Raises:
        asyncio.CancelledError: The caller was cancelled meanwhile; the cleanup has still ended.
    """
    task = _Cleanup(cleanup, loop=asyncio.get_running_loop())
    await until_done(task)
    return task.result()


async def all_of(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of all coroutines; the first error cancels the others and is raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end(*tasks)


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until all of them have ended.

    Raises:
        asyncio.CancelledError: The caller was cancelled meanwhile; the tasks have still ended.
    """
    for task in tasks:
        task.cancel()
    try:
        await until_done(*tasks)
    finally:
        for task in tasks:  # asking for the outcome frees a task's frames and their memory
            with contextlib.suppress(asyncio.CancelledError):
                task.exception()


async def until_done(*futures: asyncio.Future[Any]) -> None:
    """Wait until all futures are done, by whatever outcome, without cancelling them.

    Raises:
        asyncio.CancelledError: The caller was cancelled meanwhile; all futures are still done.
    """
    interrupted = False  # a kept exception would keep this frame alive
    while not all(future.done() for future in futures):
        try:
            # It does not cancel the futures when it is cancelled itself, unlike gather.
            await asyncio.wait(futures)
        except asyncio.CancelledError:
            interrupted = True
    if interrupted:
        raise asyncio.CancelledError


async def wait_out(work: asyncio.Future[T] | Coroutine[Any, Any, T]) -> T:
    """Return the result of work that a thread does, and only when the thread is done.

    Unlike an ``await``, a cancelled call waits for the thread. Otherwise the thread could write
    into a buffer that the caller has already reused.

    Args:
        work: The call of an executor, or a coroutine around one, as aiofiles has them.

    Raises:
        asyncio.CancelledError: The caller was cancelled meanwhile; the thread is still done.
    """
    # A plain task would be cancelled by the end of the loop, in the middle of the thread's work.
    call = (
        work
        if isinstance(work, asyncio.Future)
        else _Cleanup(work, loop=asyncio.get_running_loop())
    )
    try:
        await until_done(call)
    finally:
        if not call.cancelled():
            call.exception()  # retrieved here, so that asyncio does not log it
    return call.result()


async def end_threads(executor: Executor, *then: Callable[[], object], cancel: bool = True) -> None:
    """Take no more work, and wait until an executor's threads have ended.

    Args:
        executor: The executor.
        *then: Calls that are made :func:`apart` afterwards.
        cancel: Whether to cancel the work that no thread has begun.

    Raises:
        asyncio.CancelledError: The caller was cancelled meanwhile; the threads have still ended.
    """
    executor.shutdown(wait=False, cancel_futures=cancel)
    await apart(executor.shutdown, *then)


async def apart(*calls: Callable[[], object]) -> None:
    """Make calls in a thread of their own, one after the other.

    They may take minutes, or unmap memory, which stops whoever does it for milliseconds. Meanwhile
    the loop turns, and the threads of the loop's own executor are free for others.

    Args:
        *calls: Calls that raise nothing.

    Raises:
        asyncio.CancelledError: The caller was cancelled meanwhile; the calls were still made.
    """
    loop = asyncio.get_running_loop()
    finished = loop.create_future()

    def make() -> None:
        try:
            for call in calls:
                call()
        finally:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(finished.set_result, None)

    thread = threading.Thread(target=make, name="apart", daemon=True)
    try:
        # ``start`` waits until the thread has a core, 17 ms on a busy machine: so another one does.
        # In that itself, whoever asks for the current thread would list one that never ends.
        _thread.start_new_thread(_start, (thread,))
    except RuntimeError:  # the system has no more threads
        make()
    await until_done(finished)


def _start(thread: threading.Thread) -> None:
    try:
        thread.start()
    except RuntimeError:  # the system has no more threads
        thread.run()


async def start_threads(executor: ThreadPoolExecutor, most: int) -> None:
    """Start all threads of an executor, which else start when the loop submits work.

    Args:
        executor: An executor without threads.
        most: The most threads that it may have.
    """
    together = threading.Barrier(most)  # a thread that is free would be taken again

    def start() -> None:
        try:
            wait([executor.submit(together.wait) for _ in range(most)])
        except RuntimeError:  # the system has no more threads: those that are there do the work
            # Else those that have started would wait at the barrier for ever.
            together.abort()

    await apart(start)


class _Cleanup(asyncio.Task[T]):
    """A task that ignores cancellation; an ending loop waits for it, as for all its tasks."""

    def cancel(self, msg: Any = None) -> bool:  # noqa: ARG002 - asyncio's signature
        """Return ``False``: the task goes on."""
        return False
