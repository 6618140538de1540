"""Damaged shards in a whole run: what is skipped, kept, counted and marked, from any position."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec import FixedLenFeature
from streamrec.errors import (
    CorruptBudgetExceeded,
    CorruptLength,
    DataError,
    StoreError,
    TruncatedShard,
)
from streamrec.flow.channel import EndOfStream
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.examples.example import Example, encode_example
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.state.position import Position
from streamrec.streams.sources import read_records
from tests.formats.damaged_shards import damaged_shards, oracle
from tests.pipeline.small_datasets import identities, receive_all, settings_of
from tests.support import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.run import Run

pytestmark = pytest.mark.both_kernels

ALL = 1.0
"""The budget that allows everything."""
FEW_BYTES = frame(b"a" * 20), frame(b"b" * 20), frame(b"c" * 20), frame(b"d" * 20)


def write(directory: Path, shards: Sequence[bytes]) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    for index, shard in enumerate(shards):
        (directory / f"part-{index:05}.tfrecord").write_bytes(shard)
    return f"{directory}/part-*.tfrecord"


async def collect(source: str, position: Position | None = None, **values: Any) -> list[Batch]:
    dataset = await Dataset.open(settings_of(source, **{"on_corrupt": "skip", **values}))
    try:
        return await receive_all(dataset, position=position)
    finally:
        await dataset.aclose()


async def run_to_the_end(source: str, **values: Any) -> tuple[list[Batch], dict[str, Any]]:
    dataset = await Dataset.open(settings_of(source, **values))
    run: Run = dataset.run(
        rank=0, world_size=1, batch_size=dataset.settings.batch_size, position=None
    )
    try:
        return await receive_from(run), run.statistics()
    finally:
        await dataset.aclose()


async def receive_from(run: Run) -> list[Batch]:
    batches = []
    async with run:
        while True:
            try:
                batches.append(await run.receive())
            except EndOfStream:
                return batches


def rows(batches: Sequence[Batch]) -> list[tuple[tuple[int, int], bytes | None]]:
    """Return the origin of every row, and its bytes or ``None``."""
    contents = [record for batch in batches for record in batch.records.to_list()]
    masks = [
        is_there
        for batch in batches
        for is_there in (batch.mask if batch.mask is not None else np.ones(len(batch), bool))
    ]
    return [
        (origin, content if is_there else None)
        for origin, content, is_there in zip(
            identities(list(batches)), contents, masks, strict=True
        )
    ]


def flipped(shard: bytes, place: int) -> bytes:
    return shard[:place] + bytes([shard[place] ^ 1]) + shard[place + 1 :]


# -- skip and quarantine, held against the oracle --------------------------------------------------


@settings(max_examples=examples(30))
@given(st.lists(damaged_shards(), min_size=1, max_size=3))
def test_everything_that_can_be_proven_comes_and_the_rest_is_kept(shards: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        source, kept = write(Path(directory) / "data", shards), Path(directory) / "kept"
        batches, statistics = asyncio.run(
            run_to_the_end(
                source,
                batch_size=3,
                lanes=1,
                on_corrupt="quarantine",
                corrupt_budget=ALL,
                quarantine=str(kept),
            )
        )
        objects = [read_object(path) for path in sorted(kept.rglob("*.tfrecord"))]
    known = [oracle(shard) for shard in shards]
    assert rows(batches) == [
        ((index, record.number), record.payload)
        for index, (whole, _) in enumerate(known)
        for record in whole
    ]
    gaps = [
        (f"part-{index:05}.tfrecord", gap.begin, shards[index][gap.begin : gap.end])
        for index, (_, gaps) in enumerate(known)
        for gap in gaps
    ]
    assert objects == gaps
    assert statistics["quarantined"] == statistics["skipped_records"] == len(gaps)
    assert statistics["skipped_bytes"] == sum(len(content) for _, _, content in gaps)


def read_object(path: Path) -> tuple[str, int, bytes]:
    """Read the shard's name, the offset and the bytes from an object of the quarantine."""
    (record,) = read_records(str(path))
    feature = Example.FromString(record).features.feature
    (begin,), (end,) = feature["begin"].int64_list.value, feature["end"].int64_list.value
    (content,) = feature["bytes"].bytes_list.value
    assert end - begin == len(content)
    assert path.name.endswith(f"{begin:015}-{end:015}.tfrecord")
    return feature["url"].bytes_list.value[0].decode().rpartition("/")[2], begin, content


@settings(max_examples=examples(20))
@given(
    shards=st.lists(damaged_shards(most=4), min_size=1, max_size=3),
    lanes=st.integers(1, 2),
    shuffle=st.booleans(),
    steps=st.sampled_from([None, 6]),
    batch_size=st.integers(1, 3),
)
def test_stop_at_every_k(
    shards: list[bytes], lanes: int, shuffle: bool, steps: int | None, batch_size: int
) -> None:
    values: dict[str, Any] = {
        "lanes": lanes,
        "shuffle": shuffle,
        "shuffle_window": 400,
        "steps_per_epoch": steps,
        "batch_size": batch_size,
        "corrupt_budget": ALL,
    }
    with tempfile.TemporaryDirectory() as directory:
        source = write(Path(directory), shards)
        try:
            whole = asyncio.run(collect(source, **values))
        except (CorruptBudgetExceeded, DataError):
            assert not all(oracle(shard)[0] for shard in shards)
            return  # a lane has nothing to repeat
        for k, batch in enumerate(whole, start=1):
            position = Position.from_dict(batch.next_position.to_dict())
            tail = asyncio.run(collect(source, position, **values))
            assert rows(tail) == rows(whole[k:])


# -- counted runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 9, 15, 35])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_damaged_record_keeps_its_place_in_a_counted_run(
    tmp_path: Path, place: int, shuffle: bool
) -> None:
    """All that differs from the intact shards is the mask of the damaged rows."""
    shard = b"".join(FEW_BYTES)
    damaged = flipped(shard, len(FEW_BYTES[0]) + place)
    values: dict[str, Any] = {
        "batch_size": 2,
        "steps_per_epoch": 8,
        "shuffle": shuffle,
        "shuffle_window": 200,
        "corrupt_budget": 1,
    }
    intact = asyncio.run(collect(write(tmp_path / "intact", [shard, shard]), **values))
    batches = asyncio.run(collect(write(tmp_path / "damaged", [shard, damaged]), **values))
    assert rows(batches) == [
        (origin, None if origin == (1, 1) else content) for origin, content in rows(intact)
    ]
    assert all(batch.mask is not None for batch in batches)


def test_without_a_count_a_damaged_record_is_left_out(tmp_path: Path) -> None:
    source = write(tmp_path, [flipped(b"".join(FEW_BYTES), 15)])
    (batch,) = asyncio.run(collect(source, batch_size=8, corrupt_budget=1))
    assert identities([batch]) == [(0, 1), (0, 2), (0, 3)]
    assert batch.mask is None


@pytest.mark.parametrize("spec", [FixedLenFeature((2,), "int64"), FixedLenFeature((), bytes)])
def test_a_batch_of_nothing_but_damage(tmp_path: Path, spec: Any) -> None:
    value = [1, 2] if spec.shape else b"text"
    record = frame(encode_example({"x": value}))
    source = write(tmp_path, [flipped(record, len(record) - 1) + record])
    first, second = asyncio.run(
        collect(
            source,
            batch_size=1,
            steps_per_epoch=2,
            corrupt_budget=1,
            features=describe({"x": spec}),
        )
    )
    assert first.mask is not None
    assert second.mask is not None
    assert (first.mask.tolist(), second.mask.tolist()) == ([False], [True])
    assert len(first["x"]) == 1
    assert second["x"][0] == value if spec.shape == () else second["x"][0].tolist() == value


# -- budget, log, failures -------------------------------------------------------------------------


def test_the_budget_counts_different_records(tmp_path: Path) -> None:
    source = write(tmp_path, [flipped(b"".join(FEW_BYTES), 15)])
    batches = asyncio.run(collect(source, batch_size=3, epochs=5, corrupt_budget=1))
    assert len(batches) == 5


def test_one_more_than_the_budget_allows(tmp_path: Path) -> None:
    damaged = flipped(flipped(b"".join(FEW_BYTES), 15), 40)
    source = write(tmp_path, [damaged])
    with pytest.raises(CorruptBudgetExceeded, match="corrupt_budget=1") as caught:
        asyncio.run(collect(source, batch_size=1, corrupt_budget=1))
    error = caught.value
    assert (error.offset, error.record) == (36, 1)
    assert (error.skipped_records, error.skipped_bytes) == (2, 72)


def test_a_fraction_is_one_of_a_thousand_records_at_least(tmp_path: Path) -> None:
    damaged = flipped(flipped(b"".join(FEW_BYTES), 15), 60)
    source = write(tmp_path, [damaged])
    assert len(asyncio.run(collect(source, batch_size=1, corrupt_budget=0.002))) == 2
    with pytest.raises(CorruptBudgetExceeded):
        asyncio.run(collect(source, batch_size=1, corrupt_budget=0.001))


def test_a_lane_in_which_nothing_is_intact_does_not_go_on_for_ever(tmp_path: Path) -> None:
    source = write(tmp_path, [b"not a single record in here", b"nor in here, whatever is read"])
    with pytest.raises(CorruptBudgetExceeded, match="without an intact record"):
        asyncio.run(collect(source, lanes=2, batch_size=1, epochs=None, corrupt_budget=ALL))


def test_each_span_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = write(tmp_path, [b"".join(FEW_BYTES[:2]) + b"??" + FEW_BYTES[2]])
    with caplog.at_level(logging.WARNING, "streamrec.pipeline"):
        asyncio.run(collect(source, batch_size=1, corrupt_budget=1))
    (message,) = [record.getMessage() for record in caplog.records]
    assert "part-00000.tfrecord: bytes 72 to 74 from record 2 on are skipped" in message
    assert "unknown number" in message


def test_raise_is_what_happens_by_default(tmp_path: Path) -> None:
    source = write(tmp_path, [flipped(FEW_BYTES[0], 1)])
    with pytest.raises(CorruptLength):
        asyncio.run(collect(source, batch_size=1, on_corrupt="raise"))


def test_nothing_passes_what_cannot_be_kept(tmp_path: Path) -> None:
    """Neither the records behind it, nor the position."""
    (tmp_path / "kept").write_text("a file where a directory should be")
    source = write(tmp_path / "data", [flipped(b"".join(FEW_BYTES), 40)])
    values: dict[str, Any] = {"on_corrupt": "quarantine", "corrupt_budget": 1, "batch_size": 1}

    async def read() -> list[Batch]:
        dataset = await Dataset.open(
            settings_of(source, quarantine=str(tmp_path / "kept"), **values)
        )
        run = dataset.run(rank=0, world_size=1, batch_size=1, position=None)
        received = []
        try:
            async with run:
                with pytest.raises(StoreError):
                    while True:
                        received.append(await run.receive())
        finally:
            await dataset.aclose()
        return received

    assert identities(asyncio.run(read())) == [(0, 0)]


def test_a_second_run_writes_the_same_objects(tmp_path: Path) -> None:
    source = write(tmp_path / "data", [flipped(b"".join(FEW_BYTES), 40)])
    kept = tmp_path / "kept"
    values: dict[str, Any] = {"on_corrupt": "quarantine", "corrupt_budget": 1, "batch_size": 1}
    contents = []
    for _ in range(2):
        asyncio.run(collect(source, quarantine=f"file://{kept}", **values))
        contents.append({path.name: path.read_bytes() for path in kept.iterdir()})
    assert contents[0] == contents[1]
    assert list(contents[0]) == ["part-00000.tfrecord.000000000000036-000000000000072.tfrecord"]


def test_a_cut_shard_ends_the_run_unless_it_is_skipped(tmp_path: Path) -> None:
    source = write(tmp_path, [b"".join(FEW_BYTES)[:-3], FEW_BYTES[0]])
    with pytest.raises(TruncatedShard):
        asyncio.run(collect(source, lanes=1, batch_size=1, on_corrupt="raise"))
    batches = asyncio.run(collect(source, lanes=1, batch_size=1, corrupt_budget=1))
    assert identities(batches) == [(0, 0), (0, 1), (0, 2), (1, 0)]
