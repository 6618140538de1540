from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.by_day import at_night
from tests.feeder.engine.test_engine import settings

if TYPE_CHECKING:
    from pathlib import Path

CHILD = """
import os, socket, sys
from streamrec.feeder.engine import engine_process

async def serve(sock, order):
    print(order["settings"]["batch_size"], sys.path[-1], *sys.modules)

engine_process.serve = serve
ours, theirs = socket.socketpair()
sys.argv = ["", str(os.getppid()), str(theirs.detach()), sys.argv[1]]
engine_process.main()
"""


def said(store: str, order: bytes) -> list[str]:
    """Return the words that a process prints for an order."""
    command = [sys.executable, "-c", CHILD, store]
    done = subprocess.run(command, input=order, capture_output=True, check=True, timeout=60)
    return done.stdout.decode().split()


@pytest.mark.parametrize(
    ("store", "module"),
    [
        ("s3://", "streamrec.stores.s3.s3_store"),
        at_night("gs://", "streamrec.stores.gcs.gcs_store"),
        at_night("https://", "streamrec.stores.http.http_store"),
        ("/", "streamrec.stores.local_store"),
        at_night("ftp://", "streamrec.stores.fsspec.filesystem_store"),
        ("nothing://", "streamrec.stores.open"),
        ("", "streamrec.stores.open"),
    ],
)
def test_serves_what_it_is_told(store: str, module: str, tmp_path: Path) -> None:
    plain = settings(tmp_path).model_dump(mode="json")
    order = json.dumps(
        {"settings": plain, "path": ["/elsewhere"], "objects": None, "functions": None}
    ).encode()
    batch_size, place, *modules = said(store, order)
    assert batch_size == "4"
    assert place == "/elsewhere", "where the parent finds the user's functions"
    assert module in modules


def test_ends_when_it_is_told_nothing() -> None:
    assert said("/", b"") == []
