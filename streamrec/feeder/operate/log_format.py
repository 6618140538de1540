"""The log of the daemon: JSON lines, or text for people, without secrets and without floods."""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from streamrec.masking import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.config.server_settings import ServerSettings

FIELDS = (
    *("worker", "subscription", "dataset", "rank", "world_size", "peer", "shard", "offset"),
    *("batches", "bytes", "seconds", "left_out"),
)
"""The facts that a record may carry beside its message, in the order in which they are shown."""
MOST_ALIKE = 100
"""Records of one message that are logged in a period; a thousand clients that come back at once are
no longer than this, and a peer that is refused ten thousand times a second fills no disk."""
PERIOD = 10.0
MOST_MESSAGES = 1024
"""Messages that are counted. Ours are fewer; a library may make each of its messages anew."""


class JsonFormatter(logging.Formatter):
    """Writes a record as a JSON object in one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "message": printable(record.getMessage()),
            "logger": record.name,
            "process": record.process,
            **_facts(record),
        }
        if record.exc_info:
            entry["error"] = printable(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """Writes a record for people: the time, the level, the message and its facts."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text."""
        facts = "".join(f" {name}={fact}" for name, fact in _facts(record).items())
        # A line that a name from outside begins must not look like one of ours.
        message = f"{printable(record.getMessage())}{facts}".replace("\n", "\n    ")
        text = f"{_time(record)} {record.levelname.lower():7} {message}"
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        return f"{text}{trace and chr(10)}{printable(trace)}"


MOST_WAITING = 4096
"""Lines that wait to be written. A burst of a thousand clients has as many."""
LAST_WORDS = 2.0
"""Seconds in which the lines that wait are written when the process ends."""


@dataclass
class _Period:
    """A message's count in a period."""

    ends: float
    logged: int = 0
    left_out: int = 0


class RateLimit(logging.Filter):
    """A filter that leaves out records of a message that comes too often, and counts them.

    The next record of the message that passes carries their number as ``left_out``. Records with
    the attribute ``unlimited`` always pass.

    Args:
        most: Records of one message in a period.
        period: Seconds.
    """

    def __init__(self, most: int = MOST_ALIKE, period: float = PERIOD) -> None:
        super().__init__()
        self._most = most
        self._period = period
        self._periods: OrderedDict[tuple[str, str], _Period] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if a record is to be logged."""
        if getattr(record, "unlimited", False):
            return True
        # The message without its arguments: each client would be another one.
        now = self._now(record.name, str(record.msg), record.created)
        if now.logged >= self._most:
            now.left_out += 1
            return False
        now.logged += 1
        if now.left_out:
            record.left_out = now.left_out
            now.left_out = 0
        return True

    def _now(self, logger: str, message: str, time: float) -> _Period:
        key = logger, message
        now = self._periods.setdefault(key, _Period(time + self._period))
        # The messages that came last are at the end: the one to forget is the first.
        self._periods.move_to_end(key)
        if time >= now.ends:
            now.ends, now.logged = time + self._period, 0
        if len(self._periods) > MOST_MESSAGES:
            self._periods.popitem(last=False)
        return now


class LogThread(logging.Handler):
    """A handler that writes in a thread of its own, so that a slow reader of the log holds up none.

    Where so many lines wait that there is no room for another, that one is dropped. The next line
    that has room comes after one that says how many were dropped.

    Args:
        stream: The stream to write to.
        most: Lines that may wait.
    """

    def __init__(self, stream: TextIO, most: int = MOST_WAITING) -> None:
        super().__init__()
        self.dropped = 0
        """Lines that were dropped since the last one that was not."""
        self._put_out = _output(stream)
        self._lines: queue.Queue[str | None] = queue.Queue(most)
        threading.Thread(target=self._write, name="streamrec-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Have a record written soon."""
        try:
            if self.dropped:
                self._lines.put_nowait(self.format(_loss(self.dropped)))
                self.dropped = 0
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self.dropped += 1
        except Exception:  # noqa: BLE001 - as in logging's own handlers
            self.handleError(record)

    def flush(self) -> None:
        """Wait until all lines are written, or for as long as an ending process may take."""
        with self._lines.all_tasks_done:
            self._lines.all_tasks_done.wait_for(
                lambda: not self._lines.unfinished_tasks, LAST_WORDS
            )

    def close(self) -> None:
        """End the thread after the lines that wait."""
        super().close()
        with suppress(queue.Full):  # the thread ends with the process
            self._lines.put_nowait(None)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            with suppress(OSError, ValueError):  # nobody reads it any more
                self._put_out(f"{line}\n")
            self._lines.task_done()


def _output(stream: TextIO) -> Callable[[str], object]:
    """Return what writes a text to a stream."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # it has none
        return stream.write

    def write(text: str) -> None:
        # An interpreter that ends while a thread is inside a stream's own buffer aborts.
        left = memoryview(text.encode(errors="backslashreplace"))
        while left:
            left = left[os.write(descriptor, left) :]

    return write


def _loss(count: int) -> logging.LogRecord:
    text = "the log was read too slowly: %d lines of it were dropped"
    return logging.LogRecord("streamrec.feeder", logging.WARNING, "", 0, text, (count,), None)


def configure(
    settings: ServerSettings, stream: TextIO | None = None, *, worker: int | None = None
) -> None:
    """Let this process log as the settings say, and warnings too.

    Args:
        settings: ``log_format`` and ``log_level``.
        stream: A stream of text; by default standard error.
        worker: The number of this process among the daemon's workers, which every record has then.
    """
    stream = stream or sys.stderr
    as_text = settings.log_format == "text" or (settings.log_format == "auto" and stream.isatty())
    handler = LogThread(stream)
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    handler.addFilter(RateLimit())
    if worker is not None:
        handler.addFilter(partial(_of_worker, worker))
    logging.basicConfig(handlers=[handler], force=True)
    # A warning of a library is a line of the log, and not text between the lines.
    logging.captureWarnings(True)
    set_level(settings.log_level)


def flush() -> None:
    """Wait until all that was logged is written, for as long as an ending process may take."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def _of_worker(worker: int, record: logging.LogRecord) -> bool:
    record.worker = worker
    return True


def set_level(level: str) -> None:
    """Set the least level that is logged."""
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger("streamrec").setLevel(number)
    # Libraries write requests and their signatures at "debug".
    logging.getLogger().setLevel(max(number, logging.INFO))


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03}Z"


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    facts = ((name, getattr(record, name, None)) for name in FIELDS)
    return {
        name: printable(fact) if isinstance(fact, str) else fact
        for name, fact in facts
        if fact is not None
    }
