"""Datasets of every kind of source, byte by byte as TensorFlow's writer wrote them."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from tests.cli.support import DATA
from tests.cli.support import streamrec as cli
from tests.sources.real_sources import OF_FLOWERS, options_of, real_source

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.both_kernels

WRITTEN = json.loads((DATA / "written.json").read_text())
"""The SHA-256 of shards, as ``tests/data/make.py`` wrote them with TensorFlow."""


@pytest.mark.parametrize("kind", ["pictures", "pictures.tar", *OF_FLOWERS])
def test_the_bytes_are_those_of_tensorflow(kind: str, tmp_path: Path) -> None:
    source = real_source(kind, tmp_path)
    outcome = cli("write", source, tmp_path / "x", "--shards", 1, "--workers", 1, *options_of(kind))
    assert outcome.code == 0, outcome
    shard = (tmp_path / "x-00000-of-00001").read_bytes()
    assert hashlib.sha256(shard).hexdigest() == WRITTEN.get(kind, WRITTEN["flowers"])
