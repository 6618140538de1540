"""Waits in one thread that another one ends, where nobody wants any more what they wait for."""

from __future__ import annotations

import contextlib
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
