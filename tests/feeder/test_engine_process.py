from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("aiohttp", "asyncio", "numpy", "pydantic", "streamrec.config")


def said(code: str, order: object = None) -> str:
    """What an interpreter of its own prints."""
    command, order = [sys.executable, "-c", code], json.dumps(order)
    done = subprocess.run(command, input=order, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_nothing_heavy_is_imported_before_the_settings_are_read() -> None:
    code = "import sys, streamrec.feeder.engine_process; print(*sys.modules)"
    assert not set(said(code).split()) & set(HEAVY)


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("s3://bucket/x", "streamrec.stores.s3"),
        (["gs://bucket/x", "/y"], "streamrec.stores.gcs"),
        ("https://host/x", "streamrec.stores.http"),
        ("/data/x", "streamrec.stores.local"),
        ("memory://x", "streamrec.stores.memory"),
        ("ftp://host/x", "streamrec.stores.filesystem"),
        ("nothing://x", "streamrec.stores.open"),
    ],
    ids=str,
)
def test_what_reads_the_source_is_imported_beside_the_rest(
    source: str | list[str], module: str
) -> None:
    code = (
        "import os, sys; from streamrec.feeder.engine_process import _import_all;"
        "_import_all('', os.getppid()); print(*sys.modules)"
    )
    wanted = {module, "streamrec.feeder.engine", "streamrec.pipeline.dataset"}
    assert wanted <= set(said(code, {"settings": {"source": source}}).split())


@pytest.mark.parametrize("order", [None, {}, {"settings": None}], ids=str)
def test_a_store_is_imported_before_there_are_settings(order: object) -> None:
    code = (
        "import os, sys; from streamrec.feeder.engine_process import _import_all;"
        "assert _import_all('https://', os.getppid()); print(*sys.modules)"
    )
    assert "streamrec.stores.http" in said(code, order).split()
