"""The only way from synchronous code into an event loop: a loop in a thread of its own.

:class:`Recall` ends such waits from another thread, where nobody wants any more what they wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self, TypeVar

from streamrec.errors import ConfigError
from streamrec.flow import endings, forks
from streamrec.surroundings import has_threads, hold_standard_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Create an event loop of uvloop where it is installed, else of asyncio."""
    hold_standard_descriptors()
    try:
        import uvloop
    except ImportError:  # not on this platform
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class _BridgeThread(threading.Thread):
    """The thread of a bridge. It waits for no bridge to end, not even its own.

    The garbage collector may close any of them in any thread, and two would wait for each other.
    """


class Bridge:
    """Runs coroutines in a background thread for callers that have no event loop.

    Raises:
        ConfigError: The program has put something else in the place of threads.
    """

    def __init__(self) -> None:
        if not has_threads():
            raise ConfigError(
                "the program has replaced threads by greenlets, as gevent's patch_all does, and "
                'reading in one would never end; read with engine="process", or keep threads'
            )
        endings.hold_for_reader()
        self._runner = asyncio.Runner(loop_factory=new_event_loop)
        self._started = threading.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = _BridgeThread(target=self._serve, name="streamrec-bridge", daemon=True)
        self._thread.start()
        # The loop is made in the thread, and callers need it.
        self._started.wait()
        self.is_here = True
        """``True`` unless this process is a fork of the one that started the thread."""
        forks.watch(self, Bridge.leave_to_parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return what it returns; interrupting it cancels it.

        Raises:
            ConfigError: The thread was started before a fork and is not in this process.
        """
        if not self.is_here:
            # Else Python warns of a coroutine that nobody awaited.
            coroutine.close()
            raise ConfigError(
                "this process was forked from the one whose thread reads; start reading again "
                "in this process"
            )
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:  # the loop is closed
            coroutine.close()
            raise
        try:
            return future.result()
        except BaseException:
            # An interrupt ends the wait alone; the coroutine would go on without its caller.
            future.cancel()
            raise
        finally:
            del future  # else its error would hold this frame, and with it the caller

    def close(self) -> None:
        """Cancel what still runs and end the thread; closing again changes nothing."""
        self.end()
        if not isinstance(threading.current_thread(), _BridgeThread):
            self._thread.join()

    def end(self) -> None:
        """Cancel what still runs, and do not wait until it and the thread have ended.

        For finalizers: the collector may call one in a thread that holds a lock which the bridge's
        thread needs to end, such as that of all thread pools.
        """
        if self._thread.is_alive():
            # The loop refers to its tasks weakly: else the collector could destroy them before the
            # loop has cancelled them.
            self._tasks = asyncio.all_tasks(self._loop)
            self._loop.call_soon_threadsafe(self._end.set)

    def leave_to_parent(self) -> None:
        """Leave the loop and its tasks to the parent process, which has the thread."""
        self.is_here = False
        # Tasks that are destroyed would run their cleanups, in a loop that is the parent's.
        forks.keep_for_ever((self._runner, asyncio.all_tasks(self._loop)))

    def _serve(self) -> None:
        with self._runner as runner:
            runner.run(self._until_closed())
        self._tasks.clear()

    async def _until_closed(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(_report)
        self._end = asyncio.Event()
        self._started.set()
        await self._end.wait()


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an error of the loop, unless the interpreter is ending."""
    # An ending interpreter shuts the thread pools down first, and tasks that use them fail.
    if threading.main_thread().is_alive():
        loop.default_exception_handler(context)


class Recall:
    """Ends the waits of a piece of work, which registers them by :func:`on_recall`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._enders: list[Callable[[], object]] = []
        self._is_recalled = False

    @contextlib.contextmanager
    def covering(self) -> Iterator[None]:
        """Cover the work inside; after it there is nothing left to end."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)
            with self._lock:
                self._enders.clear()

    def recall(self) -> None:
        """End the waits of the work, and those that it would begin."""
        with self._lock:
            self._is_recalled = True
            enders = tuple(self._enders)
        for end in enders:
            end()

    def add(self, end: Callable[[], object]) -> None:
        """Register what ends a wait; where it is too late, it ends at once."""
        with self._lock:
            self._enders.append(end)
            is_late = self._is_recalled
        if is_late:
            end()


_current: ContextVar[Recall | None] = ContextVar("streamrec_recall", default=None)


def on_recall(end: Callable[[], object]) -> None:
    """Register what ends a wait of this thread; most work is never recalled."""
    if (recall := _current.get()) is not None:
        recall.add(end)
