"""The end of the program, while threads of it still read.

When the main thread has ended, the interpreter first ends all executors, and reading needs them.
Only then it waits for the other threads, and not at all for daemon threads.
"""

from __future__ import annotations

import threading
from concurrent.futures import thread as executors  # whose end is registered before ours
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Callable

_readers: WeakSet[threading.Thread] = WeakSet()
_after: list[Callable[[], object]] = []


def hold_for_reader() -> None:
    """Let executors end after this thread, which reads, unless it is a daemon or one of theirs."""
    _readers.add(threading.current_thread())


def after_readers(work: Callable[[], object]) -> None:
    """Call a function when the program ends: after the threads that read, before the executors."""
    _after.append(work)


def end_reader() -> None:
    """End this thread without a word if it is a daemon and the program ends.

    It cannot read any more, and nobody waits for it.

    Raises:
        SystemExit: So it is. Python prints nothing of it in a thread.
    """
    if threading.current_thread().daemon and not threading.main_thread().is_alive():
        raise SystemExit


def _end() -> None:
    # The threads of an executor end with it, and not before.
    others = {threading.current_thread(), *executors._threads_queues}  # noqa: SLF001
    for reader in [one for one in _readers if one not in others and not one.daemon]:
        reader.join()
    for work in _after:
        work()


threading._register_atexit(_end)  # type: ignore[attr-defined] # noqa: SLF001
