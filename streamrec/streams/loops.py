"""The two kinds of sessions, what is read of them ahead, and their ends.

A session delivers batches from a position on (``receive``) and, after the end of a run, starts the
next one (``subscribe``). Classes in :mod:`streamrec.streams.session` and in
:mod:`streamrec.feeder.client` do, and :class:`ComingSession`, which waits for one of them.

Programs run a loop for each epoch, and test runners one for each test. A loop that is shut down
cancels its tasks, and the sessions in it close what they hold; so nothing is left to close there.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from concurrent.futures import Future
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Protocol

from streamrec.errors import ConfigError, StreamrecError
from streamrec.flow import endings, forks
from streamrec.flow.bridge import Recall
from streamrec.flow.channel import EndOfStream
from streamrec.pipeline.batch.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.plan.state.fingerprint import Fingerprint


log = logging.getLogger("streamrec")


class Blocked:
    """The seconds for which a loop waits for batches; a block of it is one wait."""

    __slots__ = ("_ended", "_since")

    def __init__(self) -> None:
        self._ended = 0.0
        self._since: float | None = None

    def __enter__(self) -> None:
        self._since = perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        since, self._since = self._since, None
        self._ended += perf_counter() - (since or 0.0)
        if kind not in (None, EndOfStream):
            endings.end_reader()

    @property
    def seconds(self) -> float:
        """The seconds until now, those of a wait that goes on among them; from any thread."""
        since = self._since
        return self._ended + (0.0 if since is None else perf_counter() - since)


class Lookahead:
    """The next batches of a run, and the error or the end that comes after them."""

    def __init__(self) -> None:
        self._came: deque[Batch | Exception] = deque()

    def receive(self, session: PlainSession) -> Batch:
        """Return the next batch, or raise what comes in its place."""
        if not self._came:
            return session.receive()
        came = self._came.popleft()
        if isinstance(came, Batch):
            return came
        try:
            raise came
        finally:
            del came  # else its traceback would hold it, and the stream

    def read(self, session: PlainSession, count: int) -> None:
        """Receive until so many batches are there, or all that the run has."""
        came = self._came
        # Nobody has seen that error or end yet: the session is not asked for what comes after it.
        while len(came) < count and not (came and isinstance(came[-1], Exception)):
            try:
                came.append(session.receive())
            except (EndOfStream, StreamrecError) as error:
                # Its traceback would hold the frames, and with them the stream.
                came.append(error.with_traceback(None))

    def batches(self, count: int) -> list[Batch]:
        """Return the next batches, as far as they are there, and leave them to be taken."""
        return [batch for batch in [*self._came][:count] if isinstance(batch, Batch)]

    def clear(self) -> None:
        """Forget what came: the session is left."""
        self._came.clear()


class Session(Protocol):
    """A reader for a stream, from a position on.

    It does not hold the stream, so a stream that is dropped can be cleaned up.
    """

    @property
    def fingerprint(self) -> Fingerprint:
        """Everything that determines the order of the batches."""

    @property
    def settings(self) -> dict[str, Any]:
        """Facts of the dataset, as WELCOME has them."""

    @property
    def position(self) -> dict[str, Any] | None:
        """The state after the last batch taken, or to begin with; ``None``: the very beginning."""

    def subscribe(self) -> None:
        """Start the next run, where the last one ended."""

    def statistics(self) -> dict[str, Any]:
        """Return the counters of the present run."""


class PlainSession(Session, Protocol):
    """A session for plain code, used by one thread at a time."""

    is_async: Literal[False]

    def receive(self) -> Batch:
        """Return the next batch.

        Raises:
            EndOfStream: The run is over; :meth:`subscribe` starts the next.
            StreamrecError: The reading has failed.
        """

    def close(self) -> None:
        """Stop, and leave nothing behind; closing again changes nothing."""


class AsyncSession(Session, Protocol):
    """A session in an event loop; who waits for a batch and is cancelled loses nothing."""

    is_async: Literal[True]

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop in which it reads."""

    @property
    def is_over(self) -> bool:
        """True once all is closed."""

    async def receive(self) -> Batch:
        """Return the next batch; errors as of :meth:`PlainSession.receive`."""

    async def aclose(self) -> None:
        """Stop, and leave nothing behind; closing again changes nothing."""


class ComingSession:
    """A session for plain code that a thread starts, while its owner does something else.

    All but ``statistics`` and ``close`` wait until it has come, and raise the error by which it has
    not.

    Args:
        start: Starts the session, in the thread.
    """

    is_async: Literal[False] = False

    def __init__(self, start: Callable[[], PlainSession]) -> None:
        self._come: Future[PlainSession] = Future()
        self._recall = Recall()
        # A daemon: a store that does not answer must not keep the interpreter from its end.
        thread = threading.Thread(
            target=_start_into,
            args=(self._come, self._recall, start),
            name="streamrec-prefetch",
            daemon=True,
        )
        forks.wait_for(self._come, thread)
        thread.start()

    @property
    def has_failed(self) -> bool:
        """True if the session has not come, and will not."""
        return self._come.done() and self._come.exception() is not None

    @property
    def is_pending(self) -> bool:
        """True until the session has come, or has failed to."""
        return not self._come.done()

    def come(self) -> PlainSession:
        """Wait for the session, and return it."""
        return self._come.result()

    @property
    def fingerprint(self) -> Fingerprint:
        """Everything that determines the order of the batches."""
        return self.come().fingerprint

    @property
    def settings(self) -> dict[str, Any]:
        """Facts of the dataset."""
        return self.come().settings

    @property
    def position(self) -> dict[str, Any] | None:
        """The state to begin with."""
        return self.come().position

    def receive(self) -> Batch:
        """Return the next batch."""
        return self.come().receive()

    def subscribe(self) -> None:
        """Start the next run."""
        self.come().subscribe()

    def statistics(self) -> dict[str, Any]:
        """Return the counters of the present run; none before the session has come."""
        come = self._come
        return come.result().statistics() if come.done() and not come.exception() else {}

    def close(self) -> None:
        """Close the session, or have it closed as soon as it has come: nobody waits for it."""
        self._come.add_done_callback(_close_come)
        # It may wait for a feeder that is away.
        self._recall.recall()


def _start_into(
    come: Future[PlainSession], recall: Recall, start: Callable[[], PlainSession]
) -> None:
    try:
        with recall.covering():
            session = start()
    except BaseException as error:  # noqa: BLE001 - whoever waits for the session raises it
        come.set_exception(error)
    else:
        come.set_result(session)


def _close_come(come: Future[PlainSession]) -> None:
    if not come.exception():
        come.result().close()


def is_left(session: PlainSession | AsyncSession) -> bool:
    """Return whether the session's event loop runs nothing: it is closed, or nobody runs it now."""
    return session.is_async and not session.loop.is_running()


def plain(session: PlainSession | AsyncSession) -> PlainSession:
    """Return a session that is for plain code.

    Raises:
        ConfigError: It is an event loop's.
    """
    if session.is_async:
        raise ConfigError(
            "the stream is open in an event loop; take from it with `async for` or `anext`, or "
            "begin a plain `for`, which goes on after the last item"
        )
    return session


def of_this_loop(session: PlainSession | AsyncSession) -> AsyncSession:
    """Return a session that is for this event loop.

    Raises:
        ConfigError: It is for plain code, or for another loop, which still runs.
    """
    if not session.is_async:
        raise ConfigError(
            "the stream is open for plain code; take from it with `for` or `next`, or begin an "
            "`async for`, which goes on after the last item"
        )
    if session.loop is not asyncio.get_running_loop():
        raise ConfigError(
            "the stream is open in another event loop, which still runs; close it there first"
        )
    return session


def close(session: PlainSession | AsyncSession) -> None:
    """Close a session from plain code; in a loop that runs, it closes there as soon as it can."""
    if not session.is_async:
        session.close()
    # A loop that runs may be that of this very thread: to wait for it would never end.
    elif session.loop.is_closed() or session.loop.is_running():
        close_in_loop(session)
    else:
        # A thread runs one loop at a time, and there may be one that calls.
        thread = threading.Thread(target=session.loop.run_until_complete, args=[session.aclose()])
        thread.start()
        thread.join()


async def close_async(session: PlainSession | AsyncSession) -> None:
    """Close a session from an event loop."""
    if session.is_async and session.loop is asyncio.get_running_loop():
        await session.aclose()
    else:
        # In a thread: to close in another loop, or for plain code, may wait.
        await asyncio.to_thread(close, session)


def close_in_loop(session: AsyncSession) -> None:
    """Have a session closed in its loop, when that runs; nobody waits for it."""
    if not session.loop.is_closed():
        # The coroutine is made in the loop: one made here would warn if the loop never runs again.
        session.loop.call_soon_threadsafe(lambda: session.loop.create_task(session.aclose()))
    elif not session.is_over:
        # If its tasks were destroyed, they would go on to close what they hold, without a loop; and
        # threads may be writing into its memory.
        forks.keep_for_ever(session)
        log.warning(
            "an event loop was closed before its tasks were cancelled, so the memory and the files "
            "of a stream in it are not released; use asyncio.run, or close the stream before"
        )
