from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import sys
import threading
import warnings
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.errors import ConfigError, CorruptRecord
from streamrec.feeder.client.client import AsyncFeed
from streamrec.feeder.operate import log_format
from streamrec.feeder.operate.log_format import (
    MOST_MESSAGES,
    JsonFormatter,
    LogThread,
    RateLimit,
    TextFormatter,
    configure,
    exporting,
    set_level,
)
from streamrec.feeder.server.server import Feeder
from tests.feeder.collector import collector
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.support import eventually, server_settings
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECRET = "https://user:swordfish@host/a?signature=swordfish"


def record(message: str = "it is %s", *arguments: Any, **facts: Any) -> logging.LogRecord:
    made = logging.LogRecord("streamrec.feeder", logging.INFO, "", 0, message, arguments, None)
    made.created, made.msecs, made.process = 0.25, 250.0, 7
    vars(made).update(facts)
    return made


def failed(message: str) -> logging.LogRecord:
    """Return the record of an error that quotes the message."""
    try:
        int(message)
    except ValueError as error:
        return record("a failure", exc_info=(ValueError, error, error.__traceback__))
    raise AssertionError


class TestJson:
    def test_a_record_is_one_line(self) -> None:
        line = JsonFormatter().format(record("it is %s", "so\nand so", rank=0, dataset="train"))
        assert "\n" not in line
        assert json.loads(line) == {
            "time": "1970-01-01T00:00:00.250Z",
            "level": "info",
            "message": "it is so\nand so",
            "logger": "streamrec.feeder",
            "process": 7,
            "dataset": "train",
            "rank": 0,
        }

    def test_an_error_has_its_traceback(self) -> None:
        entry = json.loads(JsonFormatter().format(failed("deep")))
        assert entry["error"].endswith(": 'deep'")

    def test_secrets_are_masked(self) -> None:
        lines = [record("%s", SECRET), record("x", shard=SECRET), failed(SECRET)]
        assert "swordfish" not in "".join(map(JsonFormatter().format, lines))


class TestText:
    def test_a_record(self) -> None:
        text = TextFormatter().format(record("it is %s", "so", rank=0, dataset="train"))
        assert text == "1970-01-01T00:00:00.250Z info    it is so dataset=train rank=0"

    def test_an_error_has_its_traceback(self) -> None:
        assert TextFormatter().format(failed("deep")).endswith(": 'deep'")

    def test_secrets_and_control_characters_are_masked(self) -> None:
        lines = [record("%s", SECRET), record("\x1b[31m", shard=SECRET), failed(SECRET)]
        text = "".join(map(TextFormatter().format, lines))
        assert "swordfish" not in text
        assert "\x1b" not in text

    def test_a_name_begins_no_line(self) -> None:
        forged = "x\n1970-01-01T00:00:00.250Z info    forged"
        text = TextFormatter().format(record("no dataset %s", forged, dataset=forged))
        assert [line[:4] for line in text.splitlines()] == ["1970", "    ", "    "]


class TestRateLimit:
    def test_a_message_that_comes_too_often_is_left_out_and_counted(self) -> None:
        limit = RateLimit(most=2, period=10)
        records = [record("%s came", number, created=0.1 * number) for number in range(5)]
        assert list(map(limit.filter, records)) == [True, True, False, False, False]
        assert limit.filter(record("another", created=1.0))
        later = record("%s came", 9, created=10.0)
        assert limit.filter(later)
        assert vars(later)["left_out"] == 3
        after = record("%s came", 10, created=10.1)
        assert limit.filter(after)
        assert "left_out" not in vars(after)

    def test_a_dump_is_never_cut(self) -> None:
        limit = RateLimit(most=1)
        assert all(limit.filter(record("place", unlimited=True)) for _ in range(10))

    def test_it_remembers_so_many_messages(self) -> None:
        limit = RateLimit()
        for number in range(2 * MOST_MESSAGES):
            limit.filter(record(f"message {number}"))
        assert len(limit._periods) == MOST_MESSAGES


class Stuck(io.StringIO):
    """A stream that nobody reads until it is told that somebody does."""

    def __init__(self) -> None:
        super().__init__()
        self.is_written, self.is_read = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.is_written.set()
        self.is_read.wait(60)
        return super().write(text)


class TestLogThread:
    def test_a_reader_that_is_stuck_holds_up_nobody(self) -> None:
        stream = Stuck()
        handler = LogThread(stream, most=2)
        handler.handle(record("line 0"))
        stream.is_written.wait(60)
        for number in range(1, 6):
            handler.handle(record(f"line {number}"))
        assert (handler.dropped, stream.getvalue()) == (3, "")
        stream.is_read.set()
        handler.flush()
        handler.handle(record("line 6"))
        handler.flush()
        assert stream.getvalue().splitlines() == [
            *("line 0", "line 1", "line 2"),
            "the log was read too slowly: 3 lines of it were dropped",
            "line 6",
        ]
        handler.close()

    def test_a_pipe_without_a_reader_is_no_error(self) -> None:
        reading, writing = os.pipe()
        with os.fdopen(writing, "w") as stream:
            handler = LogThread(stream)
            handler.handle(record("it is %s", "\udc80"))
            handler.flush()
            assert os.read(reading, 100) == b"it is \\udc80\n"
            os.close(reading)
            handler.handle(record())
            handler.flush()
            handler.close()

    def test_its_thread_ends(self) -> None:
        before = set(threading.enumerate())
        handler = LogThread(io.StringIO())
        [thread] = set(threading.enumerate()) - before
        handler.close()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, which is given back as it was."""
    root, ours = logging.getLogger(), logging.getLogger("streamrec")
    before = root.handlers[:], root.level, ours.level
    root.handlers[:] = []
    try:
        yield root
    finally:
        logging.captureWarnings(False)
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        ours.setLevel(before[2])


def logged() -> None:
    """Wait until all that was logged is written."""
    for handler in logging.getLogger().handlers:
        handler.flush()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("root")
class TestConfigure:
    @pytest.mark.parametrize(
        ("log_format", "stream", "is_json"),
        [
            ("auto", Terminal(), False),
            ("auto", io.StringIO(), True),
            ("json", Terminal(), True),
            ("text", io.StringIO(), False),
        ],
    )
    def test_the_format(self, log_format: str, stream: io.StringIO, is_json: bool) -> None:
        configure(server_settings(log_format=log_format), stream)
        logging.getLogger("streamrec.feeder").info("hello", extra={"rank": 1})
        logged()
        assert stream.getvalue().startswith("{") == is_json

    def test_a_worker_says_which_it_is(self) -> None:
        stream = io.StringIO()
        configure(server_settings(log_format="text"), stream, worker=3)
        logging.getLogger("streamrec.feeder").info("hello", extra={"rank": 1})
        logged()
        assert stream.getvalue().endswith("info    hello worker=3 rank=1\n")

    def test_warnings_are_logged(self) -> None:
        stream = io.StringIO()
        configure(server_settings(), stream)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            logging.captureWarnings(True)
            warnings.warn("slow", stacklevel=1)
        logged()
        assert "slow" in json.loads(stream.getvalue())["message"]

    def test_libraries_do_not_log_requests(self) -> None:
        stream = io.StringIO()
        configure(server_settings(log_level="debug"), stream)
        logging.getLogger("botocore.auth").debug("Signature: swordfish")
        logging.getLogger("streamrec.feeder").debug("ours")
        logged()
        assert json.loads(stream.getvalue())["message"] == "ours"

    def test_the_level_can_be_changed(self) -> None:
        stream = io.StringIO()
        configure(server_settings(log_level="error"), stream)
        log = logging.getLogger("streamrec.feeder")
        log.warning("not this")
        set_level("info")
        log.info("this")
        logged()
        assert json.loads(stream.getvalue())["message"] == "this"


pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="streamrec[otel]")


async def one_client(address: str | None, dataset: FakeDataset, batches: int) -> None:
    """Serve some batches to one client, with traces."""
    async with exporting(address) as traces, Feeder({"train": dataset}) as feeder:
        feeder.statistics.tracing = None if traces is None else traces.subscribed
        where = await feeder.listen("tcp://127.0.0.1:0")
        async with aclosing(await AsyncFeed.open(f"{where}/train")) as feed:
            for _ in range(batches):
                await feed.receive()
            if dataset.error is not None:
                with pytest.raises(CorruptRecord):
                    await feed.receive()
        await eventually(lambda: not feeder.statistics.subscriptions)


def attributes(span: Any) -> dict[str, Any]:
    values = ((a.key, a.value, a.value.WhichOneof("value")) for a in span.attributes)
    return {key: getattr(value, kind) for key, value, kind in values}


@asynchronous
async def test_a_subscription_is_a_span() -> None:
    with collector() as (address, received):
        await one_client(address, FakeDataset(), 2)
    first, whole = received
    assert (first.name, whole.name) == ("first batch", "subscription")
    assert first.parent_span_id == whole.span_id
    assert not whole.parent_span_id
    assert whole.start_time_unix_nano <= first.end_time_unix_nano <= whole.end_time_unix_nano
    found = attributes(whole)
    shown = {"streamrec.dataset": "train", "streamrec.rank": 0, "client.address": "local"}
    assert found.items() >= shown.items()
    assert found["streamrec.batches"] >= 2
    assert "streamrec.wait.client" in attributes(first)
    assert whole.status.code == 0  # a client that leaves is no failure


@asynchronous
async def test_a_failure_is_that_of_the_span() -> None:
    error = CorruptRecord("a record is damaged", url="https://host/a?X-Amz-Signature=1")
    with collector() as (address, received):
        await one_client(address, FakeDataset(fail_at=0, error=error), 0)
    first, whole = received
    assert attributes(whole)["error.type"] == "CorruptRecord"
    assert "a record is damaged" in whole.status.message
    assert "Signature" not in whole.status.message
    assert (whole.status.code, first.status.code) == (2, 0)


@asynchronous
async def test_the_standard_variables_turn_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as (address, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        await one_client(None, FakeDataset(), 1)
        assert len(received) == 2
        for name, value in (("OTEL_TRACES_EXPORTER", "none"), ("OTEL_SDK_DISABLED", "true")):
            with monkeypatch.context() as changed:
                changed.setenv(name, value)
                await one_client(None, FakeDataset(), 1)
    assert len(received) == 2


@asynchronous
async def test_it_is_off_by_default(started_threads: Callable[[], set[str]]) -> None:
    async with exporting(None) as traces:
        assert traces is None
        assert not [name for name in started_threads() if name.startswith("Otel")]


@asynchronous
async def test_a_collector_that_is_down_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_format, "TIMEOUT", 0.05)
    with collector() as (address, _):
        pass
    async with asyncio.timeout(60):
        await one_client(address, FakeDataset(), 2)


@asynchronous
async def test_without_the_extra(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[otel\]'"):
        async with exporting("http://127.0.0.1:1"):
            pass
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    async with exporting(None) as traces:
        assert traces is None
    assert "pip install -e '.[otel]'" in caplog.text
