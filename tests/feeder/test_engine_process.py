from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("aiohttp", "asyncio", "numpy", "pydantic", "streamrec.config")


def said(code: str) -> str:
    """What an interpreter of its own prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
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
        "import sys; from streamrec.feeder.engine_process import _import_all;"
        f"_import_all({{'source': {source!r}}}); print(*sys.modules)"
    )
    wanted = {module, "streamrec.feeder.engine", "streamrec.pipeline.dataset"}
    assert wanted <= set(said(code).split())
