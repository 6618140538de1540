"""``stream.report_to`` reports on every kind of stream, until that is closed."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from queue import Queue
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import ConfigError
from streamrec.feeder.server.server import Feeder
from streamrec.pipeline.dataset import Dataset
from streamrec.streams import reports
from streamrec.streams.reports import Periods, place_of
from tests.pipeline.small_datasets import settings_of, write
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.config.keywords import Engine
    from streamrec.streams.stream import Stream

SHARDS = ((400,) * 30, (3000,) * 30)
LONG = "1h"
"""A period that ends with the stream alone."""

Told = list[tuple[int, dict[str, float]]]


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write(tmp_path / "raw", SHARDS)


def check(told: Told) -> None:
    [(step, values)] = told
    assert step == 8
    assert values["records_per_second"] > 0
    assert values["bytes_per_second"] > 0
    assert 0 < values["waited"] <= 1
    assert values["epoch"] in (0, 1)


def follow(stream: Stream) -> None:
    told: Told = []
    with stream:
        stream.report_to(lambda *report: told.append(report), every=LONG)
        for _ in stream:
            pass
    check(told)


async def follow_async(stream: Stream) -> None:
    told: Told = []
    async with stream:
        stream.report_to(lambda *report: told.append(report), every=LONG)
        async for _ in stream:
            pass
    check(told)


@pytest.mark.parametrize("engine", ["process", "thread"])
def test_a_plain_loop_is_reported_on(source: str, engine: Engine) -> None:
    follow(sr.open(source, batch_size=8, engine=engine))


@asynchronous
async def test_an_asynchronous_loop_is_reported_on(source: str) -> None:
    await follow_async(sr.open(source, batch_size=8))


@asynchronous
async def test_reports_go_on_where_the_stream_was_moved(source: str) -> None:
    reported: Told = []
    async with sr.open(source, batch_size=8, epochs=None) as stream:
        stream.report_to(lambda *report: reported.append(report), every=LONG)
        await anext(stream)
        stream.rewind()
        await anext(stream)
        assert not reported
    assert len(reported) == 1


@pytest.mark.parametrize("is_async", [False, True])
@asynchronous
async def test_the_stream_of_a_feeder_is_reported_on(source: str, is_async: bool) -> None:
    dataset = await Dataset.open(settings_of(source, batch_size=8))
    try:
        async with Feeder({"train": dataset}) as feeder:
            address = f"{await feeder.listen('tcp://127.0.0.1:0')}/train"
            stream = sr.connect(address, rank=0, world_size=1)
            await (follow_async(stream) if is_async else asyncio.to_thread(follow, stream))
    finally:
        await dataset.aclose()


def test_it_reports_each_period(source: str) -> None:
    told: Queue[int] = Queue()
    with sr.open(source, batch_size=8, engine="thread") as stream:
        stream.report_to(lambda step, _: told.put(step), every=0.001)
        assert [told.get(timeout=60) for _ in range(3)] == [0, 0, 0]
        next(stream)
        while told.get(timeout=60) != 1:
            pass


def test_an_error_of_the_tracker_is_logged_once(
    source: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked: Queue[int] = Queue()

    def fail(step: int, _: dict[str, float]) -> None:
        asked.put(step)
        raise OSError("the tracker is away")

    with sr.open(source, batch_size=8, engine="thread") as stream:
        stream.report_to(fail, every=0.001)
        for _ in range(3):
            asked.get(timeout=60)
        assert sum(len(batch) for batch in stream) == 60
    assert [record.levelno for record in caplog.records if "tracker" in record.message] == [
        logging.WARNING
    ]


def test_a_tracker_that_hangs_does_not_hold_up_the_end(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "PATIENCE", 0.01)
    go_on = threading.Event()
    with sr.open(source, batch_size=8, engine="thread") as stream:
        stream.report_to(lambda *_: go_on.wait(), every=LONG)
    go_on.set()


def test_no_thread_is_left(source: str, started_threads: Any) -> None:
    with sr.open(source, batch_size=8, engine="thread") as stream:
        stream.report_to(lambda *_: None, every=LONG)
        assert "streamrec-report" in started_threads()
    assert "streamrec-report" not in started_threads()


def test_a_stream_that_is_dropped_is_no_longer_reported_on(source: str) -> None:
    stream = sr.open(source, batch_size=8)
    stream.report_to(lambda *_: None, every=LONG)
    threads = stream._reports[0]._threads
    del stream
    gc.collect()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("target", "every", "words"),
    [(5, "30s", "cannot write to an int"), (print, "often", "every is 'often'")],
)
def test_wrong_arguments_are_refused(source: str, target: Any, every: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sr.open(source).report_to(target, every)


def test_streams_over_one_source_have_a_place_each_on_the_board() -> None:
    first, second, other = place_of("a"), place_of("a"), place_of("b")
    assert len({first, second, other}) == 3


def test_two_reports_in_one_moment_divide_by_no_zero() -> None:
    periods = Periods({"batches": 0}, lambda: 5.0)
    assert periods.end({"batches": 0}).counts["batches"] == 0
