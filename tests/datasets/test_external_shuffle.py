from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.datasets import external_shuffle
from streamrec.datasets.external_shuffle import LEAST_MEMORY, ExternalShuffle
from streamrec.errors import ConfigError, StoreError
from streamrec.measure.shuffling import mixing_of
from streamrec.values.columns import BytesColumn, offsets_of
from tests.datasets.test_write_faults import full_disk

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.both_kernels


def numbered(first: int, count: int, size: int = 8) -> BytesColumn:
    """Records of a size whose first eight bytes are their numbers."""
    values = np.zeros((count, size), np.uint8)
    values[:, :8] = np.arange(first, first + count)[:, None].view(np.uint8)
    return BytesColumn(values.reshape(-1), offsets_of(np.full(count, size, np.int64)))


def shuffled(blocks: Sequence[BytesColumn], limit: int = 1 << 20, **how: object) -> list[bytes]:
    """All records in the new order, if records of so many bytes are held in memory."""
    with ExternalShuffle(memory=LEAST_MEMORY, **how) as shuffle:  # type: ignore[arg-type]
        shuffle._limit = limit
        for block in blocks:
            shuffle.add(block)
        return [record for block in shuffle.blocks() for record in block.to_list()]


def order(count: int, *, size: int = 8, block: int = 500, **how: object) -> list[int]:
    blocks = [numbered(first, min(block, count - first), size) for first in range(0, count, block)]
    records = shuffled(blocks, **how)  # type: ignore[arg-type]
    return [int.from_bytes(record[:8], "little") for record in records]


@given(
    st.lists(st.lists(st.binary(max_size=30), max_size=20), max_size=10),
    st.integers(1, 2000),
    st.integers(0, 3),
)
def test_a_permutation_that_is_the_same_for_any_memory(
    blocks: list[list[bytes]], limit: int, seed: int
) -> None:
    records = [record for block in blocks for record in block]
    found = shuffled([BytesColumn.of(block) for block in blocks], limit, seed=seed)
    assert sorted(found) == sorted(records)
    assert found == shuffled([BytesColumn.of(records)], seed=seed)


def test_the_order_is_the_same_for_ever() -> None:
    assert order(12) == [0, 2, 3, 4, 7, 6, 1, 10, 9, 11, 8, 5]
    assert order(12, seed=1) != order(12)


def test_tasks_have_consecutive_parts_of_the_order() -> None:
    parts = [order(1000, task=(task, 3), limit=5000) for task in range(3)]
    assert list(itertools.chain(*parts)) == order(1000)
    assert min(map(len, parts)) > 250


def test_nothing_of_the_order_before_is_left() -> None:
    count = 1 << 15
    found = np.array(order(count, limit=100_000, block=4096))
    assert mixing_of(found // (count // 64), 256).chi_square == pytest.approx(1, abs=0.05)
    displacement = np.abs(found - np.arange(count)).mean() / count
    assert displacement == pytest.approx(1 / 3, abs=0.01), "as of a perfect shuffle"
    neighbours = [np.corrcoef(found[:-lag], found[lag:])[0, 1] for lag in range(1, 129)]
    assert max(map(abs, neighbours)) < 0.02


def test_memory_holds_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    array = ExternalShuffle._array

    def counted(self: ExternalShuffle, dtype: Any, place: int, count: int) -> Any:
        if dtype is np.uint8:
            read.append(count)
        return array(self, dtype, place, count)

    monkeypatch.setattr(ExternalShuffle, "_array", counted)
    assert sorted(order(2000, size=1000, limit=200_000, block=50)) == list(range(2000))
    runs = 2000 // 200  # of four blocks each, the first number that takes 200,000 bytes
    buckets = [sum(read[first : first + runs]) for first in range(0, len(read), runs)]
    assert max(buckets) <= 200_000
    assert sum(buckets) == 2_000_000


def test_records_longer_than_the_memory() -> None:
    assert sorted(order(5, size=5000, limit=1000, block=1)) == list(range(5))


def test_pieces_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_shuffle, "PIECE", 10_000)
    with ExternalShuffle() as shuffle:
        shuffle.add(numbered(0, 100, 1000))
        assert {len(block) for block in shuffle.blocks()} <= {9, 1}


def test_no_records() -> None:
    assert shuffled([]) == []
    assert shuffled([BytesColumn.of([])]) == []


def test_its_own_description() -> None:
    with ExternalShuffle() as shuffle:
        shuffle.add(numbered(0, 3))
        assert repr(shuffle) == "<ExternalShuffle of 3 records, 0 runs on disk>"
        assert (shuffle.records, shuffle.nbytes) == (3, 24)


def test_too_little_memory() -> None:
    with pytest.raises(ConfigError, match="give at least 16,777,216"):
        ExternalShuffle(memory=1 << 20)


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    with (
        full_disk(50_000),
        pytest.raises(StoreError, match="temporary file cannot be used: File too large") as caught,
        ExternalShuffle(memory=LEAST_MEMORY, directory=str(tmp_path)) as shuffle,
    ):
        shuffle._limit = 10_000
        for first in range(0, 200, 10):
            shuffle.add(numbered(first, 10, 1000))
    assert "name another disk with TMPDIR" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file or directory"):
        shuffled([numbered(0, 1000)], limit=1, directory=str(tmp_path / "none"))


def test_a_file_that_was_cut_short(tmp_path: Path) -> None:
    with ExternalShuffle(memory=LEAST_MEMORY, directory=str(tmp_path)) as shuffle:
        shuffle._limit = 1
        shuffle.add(numbered(0, 10))
        assert shuffle._file is not None
        os.ftruncate(shuffle._file.fileno(), 100)
        with pytest.raises(StoreError, match="it was cut short"):
            list(shuffle.blocks())
