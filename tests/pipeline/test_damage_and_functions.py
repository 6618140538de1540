"""Damaged shards in runs that filter, map and pack."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec import FixedLenFeature, VarLenFeature
from streamrec.config import Pack
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.examples.example import encode_example
from streamrec.formats.shards.tfrecord import frame
from streamrec.plan.state.position import Position
from streamrec.values.columns import BytesColumn
from tests.formats.damaged_shards import damaged_shards, oracle
from tests.pipeline.small_datasets import identities
from tests.pipeline.test_damage import ALL, FEW_BYTES, collect, flipped, rows, write
from tests.support import examples

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from streamrec.pipeline.batch.batch import Batch

TOKENS = describe({"x": VarLenFeature("int64")})


def is_even(columns: Mapping[str, Any]) -> npt.NDArray[np.bool_]:
    """Return whether the last byte is even; an empty record counts as even."""
    records = columns["records"].to_list()
    return np.array([not any(record[-1:]) or record[-1] % 2 == 0 for record in records], bool)


def in_capitals(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {"records": BytesColumn.of([one.upper() for one in columns["records"].to_list()])}


def documents(count: int) -> list[bytes]:
    return [frame(encode_example({"x": [i] * (i % 3 + 1)})) for i in range(1, count + 1)]


@settings(max_examples=examples(20))
@given(shards=st.lists(damaged_shards(most=4), min_size=1, max_size=3), shuffle=st.booleans())
def test_a_filter_sees_what_is_intact_and_resumes_behind_damage(
    shards: list[bytes], shuffle: bool
) -> None:
    values: dict[str, Any] = {
        "batch_size": 2,
        "lanes": 1,
        "shuffle": shuffle,
        "shuffle_window": 400,
        "corrupt_budget": ALL,
        "filter": is_even,
    }
    intact = {
        ((index, record.number), record.payload)
        for index, shard in enumerate(shards)
        for record in oracle(shard)[0]
        if is_even({"records": BytesColumn.of([record.payload])})[0]
    }
    with tempfile.TemporaryDirectory() as directory:
        source = write(Path(directory), shards)
        whole = asyncio.run(collect(source, **values))
        assert set(rows(whole)) == intact
        for k, batch in enumerate(whole, start=1):
            position = Position.from_dict(batch.next_position.to_dict())
            tail = asyncio.run(collect(source, position, **values))
            assert rows(tail) == rows(whole[k:])


def test_what_is_intact_is_mapped(tmp_path: Path) -> None:
    source = write(tmp_path, [flipped(b"".join(FEW_BYTES), 40)])
    values: dict[str, Any] = {"corrupt_budget": 1, "map": in_capitals}
    (batch,) = asyncio.run(collect(source, batch_size=8, **values))
    assert batch.records.to_list() == [b"A" * 20, b"C" * 20, b"D" * 20]


@pytest.mark.parametrize("place", [3, 14])
@pytest.mark.parametrize("shuffle", [False, True])
def test_what_is_intact_is_packed_and_resumed(tmp_path: Path, place: int, shuffle: bool) -> None:
    shard = documents(8)
    shard[3] = flipped(shard[3], place)
    source = write(tmp_path, [b"".join(shard)])
    values: dict[str, Any] = {
        "batch_size": 1,
        "lanes": 1,
        "features": TOKENS,
        "pack": Pack(4),
        "corrupt_budget": 1,
        "shuffle": shuffle,
        "shuffle_window": 300,
    }
    whole = asyncio.run(collect(source, **values))
    assert sorted(set(tokens(whole))) == [1, 2, 3, 5, 6, 7, 8]
    for k, batch in enumerate(whole, start=1):
        tail = asyncio.run(collect(source, batch.next_position, **values))
        assert tokens(tail) == tokens(whole[k:])


def tokens(batches: list[Batch]) -> list[int]:
    return [token for batch in batches for token in batch["x"].ravel().tolist() if token]


def test_transform_sees_the_mask_of_a_counted_run(tmp_path: Path) -> None:
    source = write(tmp_path, [flipped(b"".join(FEW_BYTES), 40)])

    def transform(batch: Batch) -> dict[str, Any]:
        return {"there": batch.mask}

    (batch,) = asyncio.run(
        collect(source, batch_size=4, steps_per_epoch=1, corrupt_budget=1, transform=transform)
    )
    assert batch["there"].tolist() == [True, False, True, True]
    assert identities([batch]) == [(0, 0), (0, 1), (0, 2), (0, 3)]


@pytest.mark.parametrize("steps", [None, 2])
def test_rows_of_damage_borrow_what_is_mapped(tmp_path: Path, steps: int | None) -> None:
    source = write(tmp_path, [flipped(b"".join(FEW_BYTES), 40)])
    values: dict[str, Any] = {"corrupt_budget": 1, "map": in_capitals, "steps_per_epoch": steps}
    batches = asyncio.run(collect(source, batch_size=2, **values))
    letters = [b[:1] for batch in batches for b in batch.records.to_list()]
    assert letters == ([b"A", b"A", b"C", b"D"] if steps else [b"A", b"C", b"D"])
    assert [batch.mask is None for batch in batches] == [steps is None] * 2


def test_a_batch_of_nothing_but_damage_is_mapped_as_no_rows(tmp_path: Path) -> None:
    source = write(tmp_path, [flipped(b"".join(FEW_BYTES), 40)])
    values: dict[str, Any] = {"corrupt_budget": 1, "map": in_capitals, "steps_per_epoch": 2}
    batches = asyncio.run(collect(source, batch_size=1, **values))
    assert [batch.records.to_list() for batch in batches] == [[b"A" * 20], [b""]]


@pytest.mark.parametrize("values", [{}, {"steps_per_epoch": 1}])
def test_what_is_filtered_or_packed_leaves_no_row_of_damage(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    source = write(tmp_path, [flipped(b"".join(FEW_BYTES), 40)])
    values = {"corrupt_budget": 1, "filter": is_even, **values}
    (batch,) = asyncio.run(collect(source, batch_size=1, **values))
    assert batch.mask is None
    assert batch.records.to_list() == [b"d" * 20]


def test_padding_and_damage_borrow_of_what_is_intact(tmp_path: Path) -> None:
    """The first row is lost, so it is filled from the first that is there."""
    record = frame(encode_example({"x": 7}))
    source = write(tmp_path, [flipped(record, len(record) - 1) + record])
    features = describe({"x": FixedLenFeature((), "int64")})
    (batch,) = asyncio.run(
        collect(source, batch_size=2, steps_per_epoch=1, corrupt_budget=1, features=features)
    )
    assert batch.mask is not None
    assert batch.mask.tolist() == [False, True]
    assert batch["x"].tolist() == [7, 7]
