"""The thread that writes the objects of an audit log."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from streamrec.errors import AuditFailed, StreamrecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.streams.audit_part import Part

MOST_WAITING = 8
"""Objects that wait to be written: a store that hangs ends the stream, not its memory."""
DELAYS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds to wait before each further attempt, where the store may answer later."""
PATIENCE = 60.0
"""Seconds that the end of a stream waits until the log is written."""


class Waiting(NamedTuple):
    """An object that waits to be written."""

    url: str
    part: Part


class PartWriter:
    """A thread that writes the objects of a log one after the other; a failed one stays the next.

    Args:
        write: Writes the bytes of an object under a URL; it may block.
        on_end: Called when the thread has ended.
    """

    def __init__(self, write: Callable[[str, bytes], None], on_end: Callable[[], None]) -> None:
        self._write = write
        self._on_end = on_end
        self._waiting: deque[Waiting] = deque()
        self._wishes: SimpleQueue[bool] = SimpleQueue()
        """True: write what waits; False: end."""
        self._is_ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: AuditFailed | None = None

    def add(self, waiting: Waiting) -> None:
        """Have an object written; nobody waits for it."""
        self._waiting.append(waiting)
        if self._thread is None:
            self._is_ending.clear()
            # A daemon: a store that does not answer must not keep the interpreter from its end.
            self._thread = threading.Thread(target=self._run, name="streamrec-audit", daemon=True)
            self._thread.start()
        self._wishes.put(True)

    def check(self) -> None:
        """Raise the error by which an object could not be written, and have it tried again.

        Raises:
            AuditFailed: It could not be written, or too many wait.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            self._wishes.put(True)
            raise failure
        if len(self._waiting) > MOST_WAITING:
            raise _failed("the store does not answer", self._waiting[0].url)

    def end(self) -> None:
        """Have the thread end when all is written, and do not wait for it."""
        self._is_ending.set()
        self._wishes.put(False)

    def close(self) -> None:
        """Write what waits; an object that could not be written is tried again.

        Raises:
            AuditFailed: It is not written.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._wishes.put(True)
        self.end()
        thread.join(PATIENCE)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if thread.is_alive():
            raise _failed("the store does not answer", self._waiting[0].url)

    def _run(self) -> None:
        while self._wishes.get():
            with suppress(AuditFailed):
                self._write_all()
        self._on_end()

    def _write_all(self) -> None:
        self._failure = None
        while self._waiting:
            url, part = self._waiting[0]
            try:
                self._attempt(url, part.encode())
            except Exception as error:  # noqa: BLE001 - of any store; the stream raises it
                # Without the URL that an error of a store begins with: it is told anyway.
                why = error.message if isinstance(error, StreamrecError) else str(error)
                self._failure = _failed(f"{type(error).__name__}: {why}", url)
                raise self._failure from None
            self._waiting.popleft()

    def _attempt(self, url: str, data: bytes) -> None:
        for delay in DELAYS:
            try:
                return self._write(url, data)
            except StreamrecError as error:
                if not error.retryable:
                    raise
            self._is_ending.wait(delay)
        return self._write(url, data)


def _failed(why: str, url: str) -> AuditFailed:
    return AuditFailed(
        f"the audit log cannot be written, so the stream delivers nothing more ({why}); mend that, "
        "and iterate again: the log of what was delivered is kept, and is written then",
        url=url,
    )
