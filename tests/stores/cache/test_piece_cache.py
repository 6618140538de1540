from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.config.cache_and_audit import CacheSettings
from streamrec.config.machine import memory_share
from streamrec.errors import ConfigError
from streamrec.plan.order.shard_order import ShardOrder
from streamrec.plan.reading.next_use import NextUse, places_of
from streamrec.plan.reading.ranges import RangeRequest
from streamrec.stores.base.protocol import ObjectInfo
from streamrec.stores.cache.cached_store import CachedStore
from streamrec.stores.cache.piece_cache import SLACK, PieceCache, open_cache, to_remove
from streamrec.stores.cache.shelves import CacheFolder, Piece, ProcessMemory, ShelvedPiece
from streamrec.stores.open import Stores
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Iterator


WHOLE = 1 << 20


def piece(number: int, size: int = 100, key: str = "0" * 32) -> Piece:
    return Piece(key, number * size, (number + 1) * size, WHOLE)


def keep(cache: PieceCache, one: Piece) -> None:
    cache.keep(one, memoryview(bytes(one.nbytes)))


def used(shelf: CacheFolder | ProcessMemory) -> int:
    return sum(entry.piece.nbytes for entry in shelf.entries())


def test_needed_last_goes_first() -> None:
    entries = [ShelvedPiece(piece(number), float(number)) for number in range(4)]
    chosen, limit = to_remove(entries, lambda entry: entry.used_at, 150)
    assert (chosen, limit) == ([piece(3), piece(2)], 2.0)
    assert to_remove(entries, lambda entry: entry.used_at, 0) == ([], float("inf"))


@given(st.lists(st.integers(0, 60), max_size=200))
def test_the_size_holds_and_the_latest_stay(numbers: list[int]) -> None:
    times: Iterator[int] = iter(range(1 << 30))
    shelf = ProcessMemory(0, lambda: next(times))
    cache = PieceCache(shelf, 3200, clock=lambda: next(times))
    for number in numbers:
        keep(cache, piece(number))
        assert used(shelf) <= 3200
    latest = list(dict.fromkeys(reversed(numbers)))[:3]
    kept = {entry.piece for entry in shelf.entries()}
    if len(set(numbers)) <= 29:
        assert kept == {piece(number) for number in numbers}
    elif len(set(numbers[-30:])) == 30:
        assert kept >= {piece(number) for number in latest}
    cache.close()


def test_processes_that_share_a_folder_exceed_the_size_by_a_sixteenth_each(tmp_path: Path) -> None:
    size, caches = 32_000, [PieceCache(CacheFolder(tmp_path), 32_000) for _ in range(3)]
    for number in range(1500):
        keep(caches[number % 3], piece(number))
        if number % 10 == 0:
            assert used(CacheFolder(tmp_path)) <= size + 2 * size // SLACK + 300
    assert used(CacheFolder(tmp_path)) > size * 3 // 4


def test_nothing_is_removed_for_a_piece_that_never_fits() -> None:
    shelf = ProcessMemory(0)
    cache = PieceCache(shelf, 3200)
    for number in range(32):
        keep(cache, piece(number))
    keep(cache, Piece("1" * 32, 0, 3300, 3300))
    assert used(shelf) == 3200


def test_without_a_size_a_part_of_what_is_free_is_used() -> None:
    shelf = ProcessMemory(1000)
    cache = PieceCache(shelf, None)
    for number in range(20):
        keep(cache, piece(number))
        assert used(shelf) <= 800
    assert used(shelf) >= 700


def test_pieces_inside_another_one_are_not_kept_twice() -> None:
    shelf = ProcessMemory(0)
    cache = PieceCache(shelf, 10_000)
    for begin, end in [(0, 50), (50, 100), (0, 100), (20, 80), (90, 110)]:
        keep(cache, Piece("k", begin, end, WHOLE))
    assert sorted(entry.piece for entry in shelf.entries()) == [
        Piece("k", 0, 100, WHOLE),
        Piece("k", 90, 110, WHOLE),
    ]


def test_a_part_of_a_piece_is_read() -> None:
    cache = PieceCache(ProcessMemory(0), 10_000)
    cache.keep(Piece("k", 10, 20, WHOLE), memoryview(b"0123456789"))
    view = memoryview(bytearray(3))
    assert cache.load_part(Piece("k", 10, 20, WHOLE), 14, view)
    assert bytes(view) == b"456"
    assert not cache.load_part(Piece("k", 20, 30, WHOLE), 24, view)


class Full(ProcessMemory):
    def __init__(self, error: Exception) -> None:
        super().__init__(0)
        self._error = error

    def save(self, piece: Piece, data: memoryview) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_a_full_disk_is_told_once(
    caplog: pytest.LogCaptureFixture, error: Exception, says: str
) -> None:
    cache = PieceCache(Full(error), 10_000)
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            keep(cache, piece(number))
    (record,) = caplog.records
    assert says in record.getMessage()


# -- Belady's choice against the least recently used -----------------------------------------------

SHARDS, PIECES, LANES, EPOCHS = 96, 8, 8, 3
URLS = [f"gs://bucket/{number:03}" for number in range(SHARDS)]


def trace(order: ShardOrder) -> Iterator[tuple[int, RangeRequest, int]]:
    """Yield the lane, the range and the turn of all reads, side by side, in whole epochs."""
    for turn in range(EPOCHS * SHARDS // LANES):
        for number in range(PIECES):
            for lane in range(LANES):
                extent = order.extent(lane, turn)
                yield lane, RangeRequest(extent, number * 100, (number + 1) * 100), turn


def hits(order: ShardOrder, size: int, *, forecasts: bool) -> float:
    """Return the part of the reads behind the first epoch that a cache of that size answers."""
    ticks: Iterator[float] = iter(float(n) for n in range(1 << 30))
    shelf = ProcessMemory(0, lambda: next(ticks))
    cache = PieceCache(shelf, size, clock=lambda: next(ticks))
    forecast = NextUse(order, places_of(URLS), lambda: next(ticks))
    whole = PIECES * 100
    if forecasts:
        cache.expect(forecast, [ObjectInfo(url, whole, "1") for url in URLS])
    found = reads = 0
    for lane, request, turn in trace(order):
        forecast.reached(lane, request, whole)
        key = cache.key_of(URLS[request.extent.shard], "1")
        one = Piece(key, request.start, request.stop, whole)
        hit = cache.load(one, memoryview(bytearray(100)))
        if not hit:
            keep(cache, one)
        if turn >= SHARDS // LANES:
            found, reads = found + hit, reads + 1
    cache.close()
    return found / reads


def best(order: ShardOrder, size: int) -> float:
    """Return the same of Belady's MIN, which knows the whole trace and evicts single pieces."""
    names = [(request.extent.shard, request.start) for _, request, _ in trace(order)]
    nexts, later = [0] * len(names), dict[tuple[int, int], int]()
    for place in reversed(range(len(names))):
        nexts[place] = later.get(names[place], 1 << 30)
        later[names[place]] = place
    cached: dict[tuple[int, int], int] = {}
    found, first = 0, len(names) // EPOCHS
    for place, name in enumerate(names):
        found += name in cached and place >= first
        cached[name] = nexts[place]
        if len(cached) > size // 100:
            del cached[max(cached, key=lambda one: cached[one])]
    return found / (len(names) - first)


@pytest.mark.parametrize("part", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_forecast_hits_more_than_the_least_recently_used(part: float, shuffle: bool) -> None:
    order = ShardOrder(SHARDS, LANES, shuffle, 7)
    size = int(SHARDS * PIECES * 100 * part)
    lru, belady = (hits(order, size, forecasts=forecasts) for forecasts in (False, True))
    print(f"{part=} {shuffle=} {lru=:.3f} {belady=:.3f} {best(order, size)=:.3f}")
    assert belady > lru + 0.05
    assert belady > 0.85 * best(order, size)


def test_its_threads_end_with_it() -> None:
    cache = PieceCache(ProcessMemory(0), 1000)
    thread = cache.threads.submit(threading.current_thread).result()
    cache.close()
    thread.join()
    with pytest.raises(RuntimeError, match="after shutdown"):
        cache.threads.submit(threading.current_thread)


GIB = 1 << 30


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"folder": "/x"}, "<PieceCache of None bytes in <CacheFolder /x>>"),
        (
            {"folder": "~/x", "size": GIB},
            f"<PieceCache of {GIB} bytes in <CacheFolder /home/me/x>>",
        ),
        ({}, "<PieceCache of None bytes in <CacheFolder /caches/streamrec/ranges>>"),
        (
            {"of": "batches"},
            "<PieceCache of None bytes in <CacheFolder /caches/streamrec/batches>>",
        ),
        (
            {"folder": "memory", "size": GIB},
            f"<PieceCache of {GIB} bytes in <ProcessMemory of {GIB} bytes>>",
        ),
    ],
)
def test_folders_and_sizes(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], shown: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert repr(open_cache(CacheSettings(**settings), {})) == shown


@pytest.mark.parametrize(("owner", "is_taken"), [(0, True), (77, True), (78, False)])
@pytest.mark.parametrize("of", ["ranges", "batches"])
def test_a_folder_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, is_taken: bool, of: str
) -> None:
    """Who may write there could change what is read; the CRC of a piece is no secret."""
    monkeypatch.setattr(os, "geteuid", lambda: 77)
    real, facts = Path.stat, list(tmp_path.stat())
    facts[stat.ST_UID] = owner
    found = os.stat_result(facts)
    monkeypatch.setattr(Path, "stat", lambda path: found if path == tmp_path else real(path))
    values: dict[str, Any] = {"folder": str(tmp_path), "size": GIB, "of": of}
    with nullcontext() if is_taken else pytest.raises(ConfigError, match="another user"):
        open_cache(CacheSettings(**values), {})


def test_memory_without_a_size_is_a_quarter_of_the_machines() -> None:
    assert f"of {memory_share()} bytes" in repr(open_cache(CacheSettings(folder="memory"), {}))


def test_equal_names_at_another_endpoint_are_other_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    settings = CacheSettings(folder="/x")
    options: list[dict[str, Any]] = [
        {},
        {"endpoint_url": "http://one"},
        {"client_kwargs": {"endpoint_url": "http://two"}},
    ]

    def key(options: dict[str, Any]) -> str:
        cache = open_cache(settings, options)
        assert cache
        return cache.key_of("s3://bucket/x", "1")

    keys = [key(each) for each in options]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://three")
    keys.append(key({}))
    assert len(set(keys)) == 4
    assert key({"anon": True}) == keys[-1]


@asynchronous
async def test_remote_stores_alone_are_cached(tmp_path: Path) -> None:
    stores = await asyncio.to_thread(Stores, cache=CacheSettings(folder=str(tmp_path / "cache")))
    assert isinstance(stores.store_for("https://host/x"), CachedStore)
    assert stores.store_for("https://host/y") is stores.store_for("https://host/x")
    for local in ("/data/x", "file:///data/x", "memory://x"):
        assert not isinstance(stores.store_for(local), CachedStore)
    await stores.aclose()
    assert not (tmp_path / "cache").exists()


@asynchronous
async def test_a_cache_of_batches_is_in_front_of_no_store(tmp_path: Path) -> None:
    stores = await asyncio.to_thread(
        Stores, cache=CacheSettings(of="batches", folder=str(tmp_path / "cache"))
    )
    assert stores.cache is not None
    assert not isinstance(stores.store_for("https://host/x"), CachedStore)
    await stores.aclose()
