from __future__ import annotations

import http.server
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from streamrec.cli.configuration import check
from streamrec.config import load_daemon
from streamrec.demo import processes
from streamrec.demo.processes import Child, check_ready, feeder, store
from streamrec.errors import StreamrecError
from tests.demo.support import SMALL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def status_port(status: int) -> Iterator[str]:
    """Serve a feeder's second port that always gives one answer."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"datasets are being opened\n")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_store(tmp_path: Path) -> None:
    (tmp_path / "buckets").mkdir()
    with store(tmp_path, SMALL) as child:
        answer = child.ready()
        assert answer["endpoint"].startswith("http://127.0.0.1:")
        assert answer["pid"] == child.process.pid
    assert child.process.returncode == 0


def test_closing_again_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "buckets").mkdir()
    child = store(tmp_path, SMALL)
    child.ready()
    child.close()
    child.close()
    assert child.process.returncode == 0


def test_the_feeder_and_its_reason_not_to_start(tmp_path: Path) -> None:
    (tmp_path / "buckets" / processes.BUCKET).mkdir(parents=True)
    with store(tmp_path, SMALL) as loopback:
        endpoint = loopback.ready()["endpoint"]
        with feeder(tmp_path, SMALL, endpoint) as child:
            with pytest.raises(StreamrecError, match=r"feeder process did not start.*no object"):
                child.ready()
    assert child.process.returncode == 1


def test_the_configuration_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "feeder.toml"
    path.write_text(processes._configuration(SMALL, "http://127.0.0.1:9000"))
    settings = load_daemon(path)
    check(settings)
    dataset = settings.datasets["pictures"]
    assert (dataset.lanes, dataset.batch_size, dataset.shuffle) == (4, 2, True)
    assert dataset.steps_per_epoch == SMALL.steps_per_epoch
    assert set(dataset.features or ()) == {"id", "label", "image"}


def test_a_process_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "START", 0.01)
    (tmp_path / "silent.py").write_text("import sys; sys.stdin.read()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Child("silent", ["silent"], tmp_path / "log") as child:
        with pytest.raises(StreamrecError, match="silent process did not start: no reason"):
            child.ready()


def test_a_process_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GOODBYE", 0.01)
    (tmp_path / "deaf.py").write_text("print('{}', flush=True)\nimport signal; signal.pause()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Child("deaf", ["deaf"], tmp_path / "log") as child:
        assert child.ready() == {}
    assert child.process.returncode == -9


def test_ready() -> None:
    with status_port(200) as status:
        check_ready(status)


def test_not_ready() -> None:
    with (
        status_port(503) as status,
        pytest.raises(StreamrecError, match="datasets are being opened"),
    ):
        check_ready(status)


def test_nobody_there() -> None:
    with pytest.raises(StreamrecError, match="does not answer"):
        check_ready("127.0.0.1:1")
