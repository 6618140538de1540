"""``stream.report_to`` reports on every kind of stream, until that is closed."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from queue import Queue
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import streamrec as sr
from streamrec.errors import ConfigError
from streamrec.feeder.server.server import Feeder
from streamrec.pipeline.dataset import Dataset
from streamrec.streams import reports
from streamrec.streams.reports import Periods, place_of, target_of
from tests.pipeline.small_datasets import settings_of, write
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Iterator
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


NEVER_CLOSED = """
import sys
import streamrec as sr

stream = sr.open(sys.argv[1], batch_size=8)
stream.report_to(lambda step, values: print(step, values["records_per_second"] > 0), every="1h")
for batch in stream:
    pass
"""


def test_a_stream_that_nobody_closes_is_reported_on_at_the_end_of_the_program(source: str) -> None:
    command = [sys.executable, "-c", NEVER_CLOSED, source]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "8 True\n"


@pytest.mark.parametrize("in_cycle", [False, True])
@pytest.mark.parametrize("engine", ["process", "thread"])
def test_a_stream_that_is_dropped_is_reported_on_once_more(
    source: str, engine: Engine, in_cycle: bool
) -> None:
    told: Told = []
    stream = sr.open(source, batch_size=8, engine=engine)
    stream.report_to(lambda *report: told.append(report), every=LONG)
    threads = stream._reports[0]._threads
    for _ in stream:
        pass
    if in_cycle:  # as a trainer holds its loader, and the loader the trainer
        vars(stream)["itself"] = stream
    del stream
    gc.collect()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    check(told)


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


LABELS = {"instance": "host-b", "rank": "5"}
VALUES = {"records_per_second": 8.0, "wait/first_byte": 0.25}


class Calls:
    """A tracker with one method, which notes how it is called."""

    def __init__(self, method: str) -> None:
        self.of: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        setattr(self, method, lambda *args, **kwargs: self.of.append((args, kwargs)))


def test_a_function() -> None:
    told: list[Any] = []
    target = target_of(lambda step, values: told.append((step, values)), LABELS)
    target.write(7, VALUES)
    target.end()
    assert told == [(7, VALUES)]
    assert told[0][1] is not VALUES


def test_nothing() -> None:
    target_of(None, LABELS).write(7, VALUES)


def test_a_summary_writer() -> None:
    writer = Calls("add_scalar")
    target_of(writer, LABELS).write(7, VALUES)
    assert [args for args, _ in writer.of] == [
        ("streamrec/records_per_second", 8.0, 7),
        ("streamrec/wait/first_byte", 0.25, 7),
    ]


def test_a_logger_of_a_framework() -> None:
    logger = Calls("log_metrics")
    target_of(logger, LABELS).write(7, VALUES)
    ours = {"streamrec/records_per_second": 8.0, "streamrec/wait/first_byte": 0.25}
    assert logger.of == [((ours,), {"step": 7})]


class Run:
    """A run of Weights & Biases, as far as it is used."""

    def __init__(self) -> None:
        self.metrics: list[Any] = []
        self.rows: list[Any] = []

    def define_metric(self, name: str, step_metric: str) -> None:
        self.metrics.append((name, step_metric))

    def log(self, values: dict[str, float], *, commit: bool) -> None:
        self.rows.append((values, commit))


@pytest.mark.parametrize("is_module", [False, True])
def test_a_run_of_weights_and_biases(is_module: bool) -> None:
    run = Run()
    Run.__module__ = "wandb.sdk.wandb_run"
    module = ModuleType("wandb")
    module.run = run  # type: ignore[attr-defined]
    target_of(module if is_module else run, LABELS).write(7, VALUES)
    assert run.metrics == [("streamrec/*", "streamrec/step")]
    [(row, commit)] = run.rows
    assert (row["streamrec/step"], row["streamrec/records_per_second"]) == (7, 8.0)
    assert commit is False, "a step of its own would drop what the job logs with its steps"


@pytest.mark.parametrize("is_module", [False, True])
def test_a_run_of_mlflow(is_module: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls("log_metrics")
    run = type("ActiveRun", (), {"__module__": "mlflow.tracking.fluent"})()
    run.info = SimpleNamespace(run_id="r1")
    module = ModuleType("mlflow")
    module.__dict__.update(active_run=lambda: run, log_metrics=vars(calls)["log_metrics"])
    monkeypatch.setitem(sys.modules, "mlflow", module)
    target_of(module if is_module else run, LABELS).write(7, VALUES)
    assert [kwargs for _, kwargs in calls.of] == [{"step": 7, "run_id": "r1"}]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_tracker_without_a_run_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(name)
    module.__dict__.update(run=None, active_run=lambda: None)
    monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(ConfigError, match="before report_to"):
        target_of(module, LABELS)


def test_a_registry_of_prometheus() -> None:
    registry = CollectorRegistry(auto_describe=True)
    target = target_of(registry, LABELS)
    target.write(7, VALUES)
    text = generate_latest(registry).decode()
    assert 'streamrec_stream_records_per_second{instance="host-b",rank="5"} 8.0' in text
    assert 'streamrec_stream_wait_first_byte{instance="host-b",rank="5"} 0.25' in text
    assert 'streamrec_stream_step{instance="host-b",rank="5"} 7.0' in text
    target.end()
    assert generate_latest(registry) == b""


@contextmanager
def gateway() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Run a Pushgateway; yield its URL, and the paths and texts that are pushed."""
    pushed: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            pushed.append((self.path, body.decode()))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", pushed
        finally:
            server.shutdown()
            thread.join()


def test_a_text_that_is_not_a_url() -> None:
    with pytest.raises(
        ConfigError, match="cannot write to 'runs/1'; give the URL of a Pushgateway"
    ):
        target_of("runs/1", {})


def test_a_pushgateway() -> None:
    with gateway() as (url, pushed):
        target_of(url, LABELS).write(7, VALUES)
    [(path, text)] = pushed
    assert path == "/metrics/job/streamrec/instance/host-b/rank/5"
    assert "streamrec_stream_records_per_second 8.0" in text


@pytest.mark.parametrize("target", [5, logging.getLogger("job"), object()])
def test_what_is_no_tracker_is_refused(target: Any) -> None:
    with pytest.raises(ConfigError, match=r"cannot write to an? \w+; give a SummaryWriter"):
        target_of(target, LABELS)


@pytest.mark.night  # by day an example reports to it
def test_the_real_summary_writer(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    reading = import_module("tensorboard.backend.event_processing.event_accumulator")
    writing = import_module("torch.utils.tensorboard")
    with writing.SummaryWriter(str(tmp_path)) as writer:
        target_of(writer, LABELS).write(7, VALUES)
    events = reading.EventAccumulator(str(tmp_path))
    events.Reload()
    [event] = events.Scalars("streamrec/records_per_second")
    assert (event.step, event.value) == (7, 8.0)
