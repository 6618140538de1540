from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from typing import Any

import pytest

from streamrec.feeder.engine_process import _import_for, _listen

HEAVY = ("aiohttp", "asyncio", "numpy", "pydantic", "streamrec.config")


def said(code: str, order: object = None) -> str:
    """Return the output of a new interpreter."""
    command, order = [sys.executable, "-c", code], json.dumps(order)
    done = subprocess.run(command, input=order, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_nothing_heavy_is_imported_before_the_settings_are_read() -> None:
    code = "import sys, streamrec.feeder.engine_process; print(*sys.modules)"
    assert not set(said(code).split()) & set(HEAVY)


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("s3://bucket/x", "streamrec.stores.s3.s3_store"),
        (["gs://bucket/x", "/y"], "streamrec.stores.gcs.gcs_store"),
        ("https://host/x", "streamrec.stores.http.http_store"),
        ("/data/x", "streamrec.stores.local_store"),
        ("memory://x", "streamrec.stores.memory_store"),
        ("ftp://host/x", "streamrec.stores.fsspec.filesystem_store"),
        ("nothing://x", "streamrec.stores.open"),
    ],
    ids=str,
)
def test_what_reads_the_source_is_imported(source: str | list[str], module: str) -> None:
    code = (
        "import json, os, sys; import streamrec.feeder.engine_process as it; it._import_all('');"
        "it._import_for(json.loads(it._listen(os.getppid()))); print(*sys.modules)"
    )
    wanted = {module, "streamrec.feeder.engine", "streamrec.pipeline.dataset"}
    assert wanted <= set(said(code, {"settings": {"source": source}}).split())


def test_a_store_is_imported_before_there_are_settings() -> None:
    code = (
        "import sys; from streamrec.feeder.engine_process import _import_all;"
        "_import_all('https://'); print(*sys.modules)"
    )
    assert "streamrec.stores.http.http_store" in said(code).split()


@pytest.mark.parametrize("order", [{}, {"settings": None}, {"settings": {"source": []}}], ids=str)
def test_what_is_wrong_with_settings_is_told_later(order: dict[str, Any]) -> None:
    _import_for(order)


def test_functions_are_found_where_the_parent_finds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/here"])
    _import_for({"path": ["/there", "/here", "/elsewhere"]})
    assert sys.path == ["/here", "/there", "/elsewhere"]


@pytest.mark.parametrize("pieces", [[], [b"all"], [b"a" * 4096, b"b" * 4096]], ids=len)
def test_waits_until_the_parent_has_said_all(
    pieces: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece is written when the one before was read, and the end is the pipe's."""
    theirs, ours = os.pipe()
    coming = iter(pieces)

    def ready(*_: object) -> tuple[list[int], list[int], list[int]]:
        piece = next(coming, None)
        os.close(ours) if piece is None else os.write(ours, piece)
        return [theirs], [], []

    with os.fdopen(theirs) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(select, "select", ready)
        assert _listen(os.getppid()) == b"".join(pieces)
