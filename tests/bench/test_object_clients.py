"""Other clients of object stores, as far as they are installed, and what a run skips."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from shutil import which
from typing import TYPE_CHECKING

import pytest

from bench.peers import CLIENTS as OTHERS
from bench.peers import PACKAGES, Peers
from bench.readers.object_clients import CLIENTS, RANGE_BYTES, Range, Task
from streamrec.devstore import DevStore

if TYPE_CHECKING:
    from pathlib import Path

KEYS = ("test", "testsecret")
IS_THERE = {
    "streamrec": True,
    "curl": which("curl") is not None,
    **{name: find_spec(name) is not None for name in OTHERS},
}


def task(endpoint: str, size: int) -> Task:
    return Task(endpoint, KEYS, [("data", "one", size), ("data", "two", 1)], in_flight=2)


def test_ranges_cover_each_object_once() -> None:
    assert list(task("", RANGE_BYTES + 5).ranges()) == [
        Range("data", "one", 0, RANGE_BYTES),
        Range("data", "one", RANGE_BYTES, RANGE_BYTES + 5),
        Range("data", "two", 0, 1),
    ]


@pytest.mark.parametrize("client", [name for name in CLIENTS if IS_THERE[name]])
def test_each_client_downloads_all_bytes(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with DevStore(anonymous=True) as store:
        for name, size in (("one", 300_000), ("two", 1)):
            store.put(f"data/{name}", bytes(size))
        for variable, value in (
            ("AWS_ACCESS_KEY_ID", KEYS[0]),
            ("AWS_SECRET_ACCESS_KEY", KEYS[1]),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ENDPOINT_URL", store.endpoint),
        ):
            monkeypatch.setenv(variable, value)
        assert CLIENTS[client](task(store.endpoint, 300_000))() == 300_001
        assert store.statistics.bytes_sent == 300_001


def test_each_client_has_a_program() -> None:
    assert set(OTHERS) | {"streamrec", "curl"} == set(CLIENTS)


def test_a_run_names_what_its_interpreter_lacks(tmp_path: Path) -> None:
    versions = {**dict.fromkeys(PACKAGES), "torch": "2", "webdataset": "1", "obstore": "0.12"}
    peers = Peers(sys.executable, versions, tmp_path)
    assert "obstore" in peers.clients
    assert "awscrt" not in peers.clients
    skipped = [line.partition(":")[0] for line in peers.missing()]
    assert skipped == ["MosaicML Streaming", "s3dlio", "s3torchconnector", "awscrt"]
