"""Readers that fill a cache are killed again and again: nobody sees a wrong byte in it.

tests/README.md has the command for the long form.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import IO, TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.devstore import DevStore
from streamrec.formats.shards.tfrecord import frame
from streamrec.stores.cache.piece_cache import SLACK, THREADS
from streamrec.stores.cache.shelves import PIECE, CacheFolder, key_of
from tests.by_day import is_day

if TYPE_CHECKING:
    from collections.abc import Iterator

KILLS = int(os.environ.get("STREAMREC_TEST_KILLS", "2" if is_day() else "5"))
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


@contextmanager
def reader(settings: dict[str, Any]) -> Iterator[IO[str]]:
    """Start a reader, whose lines tell of its batches; kill it at the end."""
    command = [sys.executable, "-m", "tests.stores.cache.endless_stream", json.dumps(settings)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.kill()


def wait_for(batches: int, lines: IO[str]) -> None:
    for _ in range(batches):
        assert lines.readline(), "the reader has failed"


def check(folder: Path, contents: dict[str, bytes]) -> int:
    """Compare all pieces with what they are of; return the bytes of those that can be read."""
    shelf, checked = CacheFolder(folder), 0
    for piece, _ in shelf.entries():
        view = memoryview(bytearray(piece.nbytes))
        if shelf.load(piece, view):
            assert bytes(view) == contents[piece.key][piece.begin : piece.end], piece
            checked += piece.nbytes
    return checked


@pytest.fixture
def contents(store: DevStore, objects: dict[str, bytes]) -> dict[str, bytes]:
    """Return the objects by their keys in the cache."""
    keys = (
        key_of(f"s3://{name}", store.put(name, objects[name]), store.endpoint) for name in objects
    )
    return dict(zip(keys, objects.values(), strict=True))


def test_a_killed_reader_leaves_no_wrong_byte(
    store: DevStore, contents: dict[str, bytes], tmp_path: Path
) -> None:
    random, folder = Random(SEED), tmp_path / "cache"
    settings = settings_of(store, {"folder": str(folder), "size": SIZE})
    for kill in range(KILLS):
        with reader(settings) as lines:
            wait_for(random.randint(1, MOST_BATCHES), lines)
        checked = check(folder, contents)
        assert 0 < checked <= SIZE, f"kill {kill}, seed {SEED}"
    with sr.open(**settings_of(store, None)) as plain, sr.open(**settings) as cached:
        for expected, found in zip(plain, cached, strict=True):
            assert found.records.to_list() == expected.records.to_list()


@pytest.mark.night
def test_a_killed_reader_leaves_no_wrong_batch(store: DevStore, tmp_path: Path) -> None:
    random, folder = Random(SEED), tmp_path / "cache"
    settings = settings_of(store, {"of": "batches", "folder": str(folder), "size": 2 * SIZE})
    for kill in range(KILLS):
        with reader(settings) as lines:
            wait_for(random.randint(1, MOST_BATCHES), lines)
        held = sum(entry.piece.nbytes for entry in CacheFolder(folder).entries())
        assert 0 < held <= 2 * SIZE, f"kill {kill}, seed {SEED}"
    endless: dict[str, Any] = {"epochs": None}
    with (
        sr.open(**settings_of(store, None), **endless) as plain,
        sr.open(**settings, **endless) as cached,
    ):
        for expected, found in zip(sr.take(plain, 100), sr.take(cached, 100), strict=True):
            assert found.records.to_list() == expected.records.to_list()
        assert cached.statistics()["cached_batches"] > 0


@pytest.mark.night
def test_readers_share_a_folder_and_its_size(
    store: DevStore, contents: dict[str, bytes], tmp_path: Path
) -> None:
    settings = settings_of(store, {"folder": str(tmp_path), "size": SIZE})
    with ExitStack() as readers:
        lines = [readers.enter_context(reader({**settings, "seed": seed})) for seed in range(3)]
        for _ in range(30):
            for each in lines:
                wait_for(5, each)
            others = len(lines) - 1
            assert check(tmp_path, contents) <= SIZE + others * (SIZE // SLACK + THREADS * PIECE)
    check(tmp_path, contents)
