"""Readers that fill a cache are killed again and again: nobody sees a wrong byte in it.

tests/README.md has the command for the long form.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.devstore import DevStore
from streamrec.formats.shards.tfrecord import frame
from streamrec.stores.cache.folder import Folder
from streamrec.stores.cache.pieces import key_of

if TYPE_CHECKING:
    from collections.abc import Iterator

KILLS = int(os.environ.get("STREAMREC_TEST_KILLS", "20"))
SEED = int(os.environ.get("STREAMREC_TEST_SEED", "7"))
SHARDS = 12
SIZE = 16 << 20
MOST_BATCHES = 60
ROOT = Path(__file__).parents[3]


@pytest.fixture
def objects() -> dict[str, bytes]:
    """Make shards of 30 MiB in all: twice what the cache holds, so that pieces come and go."""
    random = Random(1)
    return {
        f"bucket/part-{shard:05}.tfrecord": b"".join(
            frame(random.randbytes(40_000 + shard)) for _ in range(64)
        )
        for shard in range(SHARDS)
    }


@pytest.fixture
def store(objects: dict[str, bytes]) -> Iterator[DevStore]:
    with DevStore() as devstore:
        for name, data in objects.items():
            devstore.put(name, data)
        yield devstore


def settings_of(store: DevStore, cache: Any) -> dict[str, Any]:
    return {
        "source": "s3://bucket/part-*.tfrecord",
        "storage_options": store.storage_options,
        "batch_size": 8,
        "shuffle": True,
        "shuffle_window": "4MiB",
        "engine": "thread",
        "cache": cache,
    }


def kill_after(batches: int, settings: dict[str, Any]) -> None:
    """Kill a reader as soon as it has said that it has taken so many batches."""
    command = [sys.executable, "-m", "tests.stores.cache.endless_stream", json.dumps(settings)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        for _ in range(batches):
            assert reader.stdout.readline(), "the reader has failed"
        reader.kill()


def check(folder: Path, contents: dict[str, bytes]) -> int:
    """Compare all pieces with what they are of; return the bytes of those that can be read."""
    shelf, checked = Folder(folder), 0
    for piece, _ in shelf.entries():
        view = memoryview(bytearray(piece.nbytes))
        if shelf.load(piece, view):
            assert bytes(view) == contents[piece.key][piece.begin : piece.end], piece
            checked += piece.nbytes
    return checked


def test_a_killed_reader_leaves_no_wrong_byte(
    store: DevStore, objects: dict[str, bytes], tmp_path: Path
) -> None:
    random, folder = Random(SEED), tmp_path / "cache"
    settings = settings_of(store, {"folder": str(folder), "size": SIZE})
    contents = {}
    for name, data in objects.items():
        etag = store.put(name, data)
        contents[key_of(f"s3://{name}", etag, store.endpoint)] = data
    for kill in range(KILLS):
        kill_after(random.randint(1, MOST_BATCHES), settings)
        checked = check(folder, contents)
        assert 0 < checked <= SIZE, f"kill {kill}, seed {SEED}"
    with sr.open(**settings_of(store, None)) as plain, sr.open(**settings) as cached:
        for expected, found in zip(plain, cached, strict=True):
            assert found.records.to_list() == expected.records.to_list()
