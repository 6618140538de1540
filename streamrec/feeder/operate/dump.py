"""The dump: the statistics of a feeder, and where each of its tasks and threads stands.

It has places in the source alone: no values, so no secrets.
"""

from __future__ import annotations

import asyncio
import json
import linecache
import logging
import signal
import sys
import threading
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType

    from streamrec.feeder.server.server import Feeder

MOST_NAMES = 5
"""Names of tasks that are shown, of those that stand at the same place."""

log = logging.getLogger("streamrec.feeder")


def dump(feeder: Feeder) -> list[str]:
    """Return texts about the feeder, its tasks and the process' threads.

    Tasks that stand at the same place are shown as one.
    """
    return [_state(feeder), *_tasks(), *_threads()]


def log_dump(feeder: Feeder) -> None:
    """Log the dump, a record for each of its texts."""
    for text in dump(feeder):
        log.info("%s", text, extra={"unlimited": True})


@contextmanager
def dumping(feeder: Feeder) -> Iterator[None]:
    """Log the dump on SIGUSR1 while the block runs; workers log their own."""

    def dump_all() -> None:
        log_dump(feeder)
        feeder.pass_on("dump")

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, dump_all)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)


def _state(feeder: Feeder) -> str:
    return f"{feeder!r}; statistics: {json.dumps(feeder.snapshot())}"


def _tasks() -> Iterator[str]:
    """Yield a text for each place where tasks stand, the most frequent first."""
    by_place: dict[str, list[str]] = {}
    for task in asyncio.all_tasks():
        by_place.setdefault(_stack(_awaiting(task.get_coro())), []).append(task.get_name())
    for place, names in sorted(by_place.items(), key=lambda found: -len(found[1])):
        shown = ", ".join(sorted(names)[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")
        yield f"{len(names)} tasks ({shown}) at:\n{place}"


def _awaiting(awaited: Any) -> Iterator[FrameType]:
    """Yield the frames of a coroutine and of all that it awaits, the innermost last.

    ``Task.get_stack`` ends at the first, if the task is suspended.
    """
    while awaited is not None:
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(awaited, f"{kind}_frame")), "")
        frame = getattr(awaited, f"{kind}_frame", None)
        if frame is not None:
            yield frame
        awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await", None)


def _threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for number, frame in sys._current_frames().items():  # noqa: SLF001 - its documented name
        frames = (found for found, _ in traceback.walk_stack(frame))
        yield f"thread {names.get(number, number)} at:\n{_stack(reversed(list(frames)))}"


def _stack(frames: Iterable[FrameType]) -> str:
    return "\n".join(map(_place, frames)) or "  (it has not begun, or has ended)"


def _place(frame: FrameType) -> str:
    code = frame.f_code
    line = linecache.getline(code.co_filename, frame.f_lineno).strip()
    return f"  {code.co_filename}:{frame.f_lineno} {code.co_qualname}: {line}"
