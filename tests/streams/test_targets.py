"""The figures of a stream reach each kind of tracker, in its own words."""

from __future__ import annotations

import logging
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from streamrec.errors import ConfigError
from streamrec.streams.targets import target_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
