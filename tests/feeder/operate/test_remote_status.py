from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.errors import FeederLost, FeederRefused
from streamrec.feeder.operate import remote_status
from streamrec.feeder.operate.remote_status import read_status, view_status
from tests.feeder.page.snapshots import snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def answering(body: bytes, status: int = 200) -> Iterator[tuple[str, int]]:
    """Run a server that gives one answer to everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield "127.0.0.1", server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_the_status_of_a_feeder() -> None:
    with answering(json.dumps(snapshot()).encode()) as where:
        assert read_status(*where)["datasets"].keys() == {"train"}
        assert view_status(*where).is_ready


def test_nothing_answers() -> None:
    with answering(b"") as (host, port):
        pass
    with pytest.raises(FeederLost, match=rf"no status at {host}:{port} \(Connection refused\)"):
        read_status(host, port)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 404, "it answers 404"),
        (b"<html>", 200, "another form"),
        (b"[" * 100_000, 200, "another form"),
        (b"[]", 200, "another form"),
        (b'{"status": "ok"}', 200, "another form"),
        (b'{"version": 1}', 200, "another form"),
        (b'{"version": 2}', 200, "has version 2 .* and this streamrec reads 1"),
        (json.dumps({"version": "\x1b" * 999}).encode(), 200, r"has version \?{20} of"),
    ],
)
def test_what_answers_is_no_feeder(body: bytes, status: int, words: str) -> None:
    with answering(body, status) as where, pytest.raises(FeederRefused, match=words):
        view_status(*where)


@pytest.mark.parametrize(
    "changes", [{"subscriptions": [{}]}, {"taken": 1e300}, {"datasets": 7}, {"samples": 7}]
)
def test_a_part_has_another_form(changes: dict[str, Any]) -> None:
    body = json.dumps(snapshot() | changes).encode()
    with answering(body) as where, pytest.raises(FeederRefused, match="another form"):
        view_status(*where)


def test_an_answer_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_status, "MOST", 1000)
    with answering(b" " * 2000) as where, pytest.raises(FeederRefused, match="too long"):
        read_status(*where)
