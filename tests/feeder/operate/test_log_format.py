from __future__ import annotations

import io
import json
import logging
import os
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.feeder.operate.log_format import (
    MOST_MESSAGES,
    JsonFormatter,
    LogThread,
    RateLimit,
    TextFormatter,
    configure,
    set_level,
)
from tests.feeder.support import server_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

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
