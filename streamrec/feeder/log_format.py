"""The log of the daemon: JSON lines, or text for people, without secrets and without floods."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from streamrec.masking import printable

if TYPE_CHECKING:
    from streamrec.config.daemon import DaemonSettings

__all__ = ["FIELDS", "JsonFormatter", "RateLimit", "TextFormatter", "configure", "set_level"]

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
        self._periods.move_to_end(key)
        if time >= now.ends:
            now.ends, now.logged = time + self._period, 0
        if len(self._periods) > MOST_MESSAGES:
            self._periods.popitem(last=False)
        return now


def configure(
    settings: DaemonSettings.Server, stream: TextIO | None = None, *, worker: int | None = None
) -> None:
    """Let this process log as the settings say, and warnings too.

    Args:
        settings: ``log_format`` and ``log_level``.
        stream: A stream of text; by default standard error.
        worker: The number of this process among the daemon's workers, which every record has then.
    """
    stream = stream or sys.stderr
    as_text = settings.log_format == "text" or (settings.log_format == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    handler.addFilter(RateLimit())
    if worker is not None:
        handler.addFilter(partial(_of_worker, worker))
    logging.basicConfig(handlers=[handler], force=True)
    logging.captureWarnings(True)
    set_level(settings.log_level)


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
    found = ((name, getattr(record, name, None)) for name in FIELDS)
    return {
        name: printable(fact) if isinstance(fact, str) else fact
        for name, fact in found
        if fact is not None
    }
