from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError
from streamrec.flow.channel import EndOfStream
from streamrec.pipeline.batch.batch import Batch, Origin
from streamrec.pipeline.cache.batch_cache import BatchCache, versions_of
from streamrec.stores.base import ObjectInfo
from streamrec.stores.cache.piece_cache import PieceCache
from streamrec.stores.cache.pieces import Piece
from streamrec.stores.cache.process_memory import ProcessMemory
from streamrec.values.columns import BytesColumn, Ragged, Sparse, offsets_of
from tests.pipeline.batch.test_payload import arrays_of, same
from tests.pipeline.cache.test_batch_keys import plan_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrec.plan.state.position import Position

MIB = 1 << 20
PLAN = plan_of()
BEFORE = PLAN.position
ROWS = 3


def batch_behind(before: Position, fill: int = 7) -> Batch:
    """Make a batch with a column of each kind."""
    lanes = before.lanes.copy()
    lanes["record"] += 5
    lanes["taken"] += 5
    splits = offsets_of(np.array([1, 0, 2]))
    columns: dict[str, Any] = {
        "dense": np.full((ROWS, 4), fill, np.float32),
        "bytes": BytesColumn.of([b"one", b"", b"three"]),
        "ragged": Ragged(np.arange(3), splits),
        "sparse": Sparse(np.array([[0, 1], [2, 0]]), np.array([1.5, 2.5]), (ROWS, 2)),
    }
    origin = Origin(np.arange(ROWS, dtype=np.int32), np.arange(ROWS, dtype=np.int64))
    position = replace(before, step=before.step + 1, lanes=lanes)
    return Batch(columns, ROWS, before.epoch, origin, position, np.array([True, True, False]))


def cache_in(shelf: ProcessMemory, size: int = MIB) -> BatchCache:
    return BatchCache(PLAN, PieceCache(shelf, size), ["1"])


@pytest.fixture
def shelf() -> Iterator[ProcessMemory]:
    shelf = ProcessMemory(MIB)
    yield shelf
    shelf._objects.clear()


def the_piece(shelf: ProcessMemory) -> tuple[Piece, bytes]:
    ((piece, _),) = shelf.entries()
    return piece, shelf._objects[piece.key][piece].data


def put(shelf: ProcessMemory, key: str, data: bytes) -> None:
    shelf._objects.clear()
    shelf.save(Piece(key, 0, len(data), len(data)), memoryview(data))


def test_a_batch_is_given_as_it_was_kept(shelf: ProcessMemory) -> None:
    cache, batch = cache_in(shelf), batch_behind(BEFORE)
    assert cache.load(BEFORE) is None
    cache.keep(batch, BEFORE)
    found = cache.load(BEFORE)
    assert found is not None
    assert found.next_position.to_dict() == batch.next_position.to_dict()
    for name in batch:
        same(found[name], batch[name])
        for array in arrays_of(found[name]):
            assert array.flags.writeable
            assert array.ctypes.data % 64 == 0
    assert found.mask is not None
    assert found.mask.tolist() == [True, True, False]
    assert cache.load(batch.next_position) is None


def test_each_load_has_memory_of_its_own(shelf: ProcessMemory) -> None:
    cache = cache_in(shelf)
    cache.keep(batch_behind(BEFORE), BEFORE)
    first, second = cache.load(BEFORE), cache.load(BEFORE)
    assert first is not None
    assert second is not None
    first["dense"][:] = 0
    assert (second["dense"] == 7).all()


def test_the_first_batch_of_a_position_stays(shelf: ProcessMemory) -> None:
    cache = cache_in(shelf)
    cache.keep(batch_behind(BEFORE), BEFORE)
    cache.keep(batch_behind(BEFORE, fill=8), BEFORE)
    found = cache.load(BEFORE)
    assert found is not None
    assert (found["dense"] == 7).all()


def test_the_end_of_a_run_is_kept(shelf: ProcessMemory) -> None:
    cache = cache_in(shelf)
    cache.keep_end(BEFORE)
    with pytest.raises(EndOfStream):
        cache.load(BEFORE)


@given(st.data())
def test_damaged_and_hostile_bytes_are_a_miss_or_another_batch(data: st.DataObject) -> None:
    """No checksum is between these bytes and the reader: it may raise nothing."""
    shelf = ProcessMemory(MIB)
    cache = cache_in(shelf)
    cache.keep(batch_behind(BEFORE), BEFORE)
    piece, whole = the_piece(shelf)
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    put(shelf, piece.key, bytes(damaged[: data.draw(st.integers(1, len(damaged)))]))
    found = cache.load(BEFORE)
    assert found is None or found.rows < 1 << 20


@pytest.mark.parametrize("cut", [0, 1, 23, 24, 25, -1])
def test_cut_pieces_are_a_miss(shelf: ProcessMemory, cut: int) -> None:
    cache = cache_in(shelf)
    cache.keep(batch_behind(BEFORE), BEFORE)
    piece, whole = the_piece(shelf)
    put(shelf, piece.key, whole[:cut] or b"x")
    assert cache.load(BEFORE) is None


def test_a_name_that_says_too_much_is_a_miss(shelf: ProcessMemory) -> None:
    cache = cache_in(shelf)
    cache.keep_end(BEFORE)
    piece, data = the_piece(shelf)
    for other in (
        piece._replace(begin=1),
        piece._replace(size=piece.size + 1),
        piece._replace(end=1 << 40, size=1 << 40),
    ):
        shelf._objects.clear()
        shelf.save(other, memoryview(data))
        assert cache.load(BEFORE) is None


def test_a_small_budget_holds(shelf: ProcessMemory) -> None:
    cache, position = cache_in(shelf, 20_000), BEFORE
    for _ in range(100):
        batch = batch_behind(position)
        cache.keep(batch, position)
        position = batch.next_position
        assert sum(entry.piece.nbytes for entry in shelf.entries()) <= 20_000
    assert len(shelf.entries()) > 5


def test_shards_without_a_strong_version_are_refused() -> None:
    cache = PieceCache(ProcessMemory(MIB), MIB)
    for etag in (None, "", 'W/"1"'):
        with pytest.raises(ConfigError, match=r"s3://b/x was found without a strong one; name the"):
            versions_of([ObjectInfo("s3://b/y", 1, '"1"'), ObjectInfo("s3://b/x", 1, etag)], cache)
    two = [ObjectInfo("s3://b/y", 1, etag) for etag in ('"1"', '"2"')]
    assert len(set(versions_of(two, cache))) == 2
