"""The log of the daemon: JSON lines, or text for people, without secrets and without floods.

And OpenTelemetry's spans of subscriptions. Where traces are off nothing of it is imported.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import sys
import threading
import time
from collections import OrderedDict
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from streamrec.errors import ConfigError, FeederDraining, FeederLost, StreamrecError
from streamrec.flow.cleanup import finish
from streamrec.masking import printable
from streamrec.suggestions import install
from streamrec.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

    from streamrec.config.server_settings import ServerSettings
    from streamrec.feeder.server.statistics import Subscription

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


ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""The standard variables that name a collector."""
TIMEOUT = 5.0
"""Seconds for one export: a collector that is down must not hold up the end of the daemon."""

log = logging.getLogger("streamrec.feeder")


class Traces:
    """The spans of subscriptions.

    Args:
        tracer: Makes the spans.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def subscribed(self, subscription: Subscription) -> Iterator[None]:
        """Make a span of a subscription, and one below it until its first batch is sent."""
        from opentelemetry.trace import set_span_in_context

        whole = self._tracer.start_span("subscription", attributes=_attributes(subscription))
        below = set_span_in_context(whole)
        # The wait for the first batch is what a slow start looks like, so it has a span of its own.
        first = self._tracer.start_span("first batch", below, attributes=_attributes(subscription))

        def end_first() -> None:
            first.set_attributes(_measures_of(subscription))
            first.end()

        subscription.on_first_batch = end_first
        try:
            yield
        except Exception as error:
            _note(whole, error)
            raise
        finally:
            if not subscription.batches:
                end_first()
            whole.set_attributes(_counts_of(subscription) | _measures_of(subscription))
            whole.end()


@asynccontextmanager
async def exporting(collector: str | None) -> AsyncIterator[Traces | None]:
    """Send spans to a collector while the block runs; ``None`` where traces are off.

    Args:
        collector: The address of a collector that speaks OTLP over HTTP; ``None``: the one that
            OpenTelemetry's own variables name, if they do.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    if collector is None and not _is_wanted(os.environ):
        yield None
        return
    try:
        provider = await asyncio.to_thread(_provider, collector)
    except ImportError:
        text = f"traces need OpenTelemetry's SDK and exporter; {install('otel')}"
        if collector is not None:
            raise ConfigError(text) from None
        log.warning("%s: the environment names a collector, but no span is sent", text)
        yield None
        return
    try:
        yield Traces(provider.get_tracer("streamrec"))
    finally:
        # In a thread: it sends what is left, and waits for the collector.
        await finish(asyncio.to_thread(provider.shutdown))


def _is_wanted(variables: Mapping[str, str]) -> bool:
    if variables.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return variables.get("OTEL_TRACES_EXPORTER") != "none" and any(map(variables.get, ENDPOINTS))


def _provider(collector: str | None) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    endpoint = None if collector is None else f"{collector.rstrip('/')}/v1/traces"
    name = os.environ.get("OTEL_SERVICE_NAME") or "streamrec-feeder"
    resource = Resource.create({"service.name": name, "service.version": __version__})
    # The daemon shuts it down itself: a handler at exit would wait for a collector once more.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=TIMEOUT)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _attributes(subscription: Subscription) -> dict[str, Any]:
    return {
        "streamrec.dataset": subscription.dataset,
        "streamrec.rank": subscription.rank,
        "streamrec.world_size": subscription.world_size,
        "client.address": subscription.peer or "local",
    }


def _counts_of(subscription: Subscription) -> dict[str, Any]:
    names = ("step", "batches", "records", "bytes")
    return {f"streamrec.{name}": getattr(subscription, name) for name in names}


def _measures_of(subscription: Subscription) -> dict[str, Any]:
    measures = subscription.measures()
    fetched = {f"streamrec.fetch.{name}": n for name, n in measures.get("fetch", {}).items()}
    waits = {f"streamrec.wait.{stage}": s for stage, s in measures.get("waits", {}).items()}
    return fetched | waits


def _note(span: Span, error: Exception) -> None:
    """Note why a subscription has failed; a client that left, or was sent away, does not count."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", type(error).__name__)
    if isinstance(error, FeederLost | FeederDraining):
        return
    # The text of another error may hold anything.
    text = str(error) if isinstance(error, StreamrecError) else type(error).__name__
    span.set_status(Status(StatusCode.ERROR, text))
