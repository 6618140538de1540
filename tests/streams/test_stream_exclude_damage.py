"""Excluded records that are damaged, or lie behind damage: none of their bytes go anywhere."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamrec as sr
from streamrec.errors import CorruptLength, CorruptRecord
from streamrec.formats.shards.tfrecord import FOOTER, HEADER
from tests.pipeline.small_datasets import contents, identities, write, write_index
from tests.streams.test_stream_exclude import ORDER, check_rows, named, opened
from tests.support import examples

if TYPE_CHECKING:
    from streamrec.pipeline.batch.batch import Batch

pytestmark = pytest.mark.both_kernels

LENGTH = 9
FRAME = HEADER + LENGTH + FOOTER
COUNTS = (13, 8, 11)
CHUNK = 3 * FRAME
"""Bytes: three records make a chunk of the index."""
COUNTED: list[dict[str, Any]] = [{"index": True}, {"steps_per_epoch": 4}]
LEFT_OUT: dict[str, Any] = {}
ALL = 1.0


def made(directory: Path) -> str:
    source = write(directory, tuple((LENGTH,) * count for count in COUNTS))
    write_index(source, CHUNK)
    return source


def spoil(source: str, shard: int, first: int, last: int) -> None:
    """Invert bytes ``first`` to before ``last`` of a shard."""
    path = Path(source).parent / f"part-{shard:05}.tfrecord"
    data = bytearray(path.read_bytes())
    data[first:last] = bytes(byte ^ 0xFF for byte in data[first:last])
    path.write_bytes(data)


def spoil_payload(source: str, shard: int, record: int) -> None:
    """Damage the last byte of a record's payload."""
    end = record * FRAME + HEADER + LENGTH
    spoil(source, shard, end - 1, end)


def quarantine(directory: Path) -> dict[str, Any]:
    kept = directory / "kept"
    return {"on_corrupt": "quarantine", "quarantine": str(kept), "corrupt_budget": ALL}


def settings_for(how: str, directory: Path) -> dict[str, Any]:
    if how == "quarantine":
        return quarantine(directory)
    return {"on_corrupt": how, "corrupt_budget": 0 if how == "raise" else ALL}


def kept_bytes(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in (directory / "kept").rglob("*.tfrecord"))


def holds(data: bytes, shard: int, record: int) -> bool:
    """Return whether some bytes have a record's first ones, wherever it began."""
    return f"{shard}/{record}|".encode() in data


@pytest.mark.parametrize("how", ["raise", "skip", "quarantine"])
@pytest.mark.parametrize("values", COUNTED)
def test_it_counts_as_excluded_in_its_place(
    tmp_path: Path, values: dict[str, Any], how: str
) -> None:
    source, removed = made(tmp_path), [(0, 5), (1, 0), (1, 7), (2, 3)]
    with opened(source, **values) as stream:
        whole = list(stream)
    for shard, record in removed:
        spoil_payload(source, shard, record)
    how_to = settings_for(how, tmp_path)
    with opened(source, **values, exclude=named(removed), **how_to) as stream:
        check_rows(list(stream), whole, removed)
        counts = stream.statistics()
    # By shard it reads on, beyond the rows that come.
    in_place = sum(pair in removed for pair in identities(whole))
    assert counts["records_excluded"] >= in_place
    assert counts["records_excluded"] == in_place or "index" not in values
    assert counts.get("skipped_records", 0) == counts.get("quarantined", 0) == 0
    assert not kept_bytes(tmp_path)


@pytest.mark.parametrize("how", ["raise", "skip"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_where_nothing_is_counted_it_is_left_out(tmp_path: Path, shuffle: bool, how: str) -> None:
    source = made(tmp_path)
    spoil_payload(source, 0, 5)
    damage = settings_for(how, tmp_path)
    with opened(source, shuffle=shuffle, exclude=named([(0, 5)]), **damage) as stream:
        found = identities(list(stream))
        assert stream.statistics()["records_excluded"] == 1
    assert len(found) == len(set(found)) == sum(COUNTS) - 1
    assert (0, 5) not in found


def test_a_damaged_record_beside_it_ends_the_stream(tmp_path: Path) -> None:
    source = made(tmp_path)
    for record in (5, 6):
        spoil_payload(source, 0, record)
    with opened(source, index=True, exclude=named([(0, 5)])) as stream:
        with pytest.raises(CorruptRecord, match="record 6"):
            list(stream)


def test_a_long_one_is_passed_over_as_a_short_one(tmp_path: Path) -> None:
    source = write(tmp_path, ((40_000, 9, 9),))
    write_index(source, 100)
    spoil(source, 0, 30_000, 30_001)
    with opened(source, index=True, lanes=1, exclude=named([(0, 0)])) as stream:
        assert sum(int(batch.mask.sum()) for batch in stream) == 2
        assert stream.statistics()["records_excluded"] == 1


def test_without_its_length_nobody_knows_where_the_next_one_begins(tmp_path: Path) -> None:
    source = made(tmp_path)
    spoil(source, 0, 5 * FRAME, 5 * FRAME + HEADER)
    with opened(source, exclude=named([(0, 5)])) as stream:
        with pytest.raises(CorruptLength):
            list(stream)


def read(source: str, directory: Path, removed: Any, **values: Any) -> tuple[list[Batch], Any]:
    values |= quarantine(directory)
    with opened(source, exclude=named(removed), **values) as stream:
        batches = list(stream)
        return batches, stream.statistics()


def delivered(batches: list[Batch]) -> list[bytes]:
    """Return the content of all rows that are there."""
    masks = [
        here
        for batch in batches
        for here in ([True] * len(batch) if batch.mask is None else batch.mask.tolist())
    ]
    return [content for content, here in zip(contents(batches), masks, strict=True) if here]


@pytest.mark.parametrize("values", [*COUNTED, LEFT_OUT])
def test_numbers_behind_an_unknown_loss_are_not_trusted(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    """Where two records vanish, the next ones would be numbered too low by one or two."""
    source, removed = made(tmp_path), [(0, 5)]
    spoil(source, 0, 3 * FRAME, 4 * FRAME + HEADER)
    batches, counts = read(source, tmp_path, removed, lanes=1, shuffle=False, **values)
    found = b"\n".join(contents(batches)) + kept_bytes(tmp_path)
    assert not holds(found, 0, 5)
    assert counts["skipped_records"] >= 1
    assert counts["quarantined"] == 0
    # Up to the damage, in the other shards, and in the chunks behind it, all come.
    there = {tuple(map(int, one.split(b"|")[0].split(b"/"))) for one in delivered(batches)}
    expected = {(0, number) for number in range(3)}
    expected |= {(shard, number) for shard in (1, 2) for number in range(COUNTS[shard])}
    if "index" in values:
        expected |= {(0, number) for number in range(6, COUNTS[0])}
    assert there == expected or "steps_per_epoch" in values


@pytest.mark.parametrize("values", [{"index": True}, LEFT_OUT])
def test_damage_behind_the_last_excluded_one_is_kept(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    source, removed = made(tmp_path), [(0, 2), (1, 5)]
    spoil(source, 0, 3 * FRAME, 4 * FRAME + HEADER)
    batches, counts = read(source, tmp_path, removed, lanes=1, shuffle=False, **values)
    assert counts["quarantined"] == 1
    assert counts["records_excluded"] == 2
    assert {b"0/5|0/5|0", b"0/12|0/12"} <= set(delivered(batches))


def keep_all(columns: Any) -> Any:
    return np.ones(len(columns["records"]), bool)


PLACES = [(shard, number) for shard, count in enumerate(COUNTS) for number in range(count)]


@settings(max_examples=examples(20))
@given(
    removed=st.sets(st.sampled_from(PLACES), min_size=1, max_size=6),
    damage=st.lists(
        st.tuples(
            st.integers(0, len(COUNTS) - 1), st.integers(0, 12 * FRAME), st.integers(1, 3 * FRAME)
        ),
        max_size=4,
    ),
    values=st.sampled_from([*COUNTED, LEFT_OUT, {"index": True, "filter": keep_all}]),
    shuffle=st.booleans(),
    lanes=st.sampled_from([1, 4]),
)
def test_no_damage_brings_an_excluded_record_to_light(
    removed: set[tuple[int, int]],
    damage: list[tuple[int, int, int]],
    values: dict[str, Any],
    shuffle: bool,
    lanes: int,
) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        source = made(directory)
        for shard, begin, size in damage:
            spoil(source, shard, begin, begin + size)
        batches, _ = read(source, directory, removed, lanes=lanes, shuffle=shuffle, **values)
        found = b"\n".join(contents(batches)) + kept_bytes(directory)
    for shard, record in removed:
        assert not holds(found, shard, record)


@pytest.mark.parametrize("kind", ["gz", "plain"])
def test_a_shard_that_is_cut_keeps_no_excluded_bytes(tmp_path: Path, kind: str) -> None:
    suffix = ".gz" if kind == "gz" else ""
    path = tmp_path / f"part-00000.tfrecord{suffix}"
    with sr.TFRecordWriter(path) as writer:
        writer.write_many(b"%d|" % number * 20 for number in range(1000))
    path.write_bytes(path.read_bytes()[:-40])
    removed = [(path.name, 990), (path.name, 999)]
    values = {**ORDER, **quarantine(tmp_path), "lanes": 1, "engine": "thread"}
    with sr.open(str(path), rank=0, world_size=1, exclude=removed, **values) as stream:
        found = b"".join(contents(list(stream))) + kept_bytes(tmp_path)
    assert b"|999|" not in found
    assert b"|990|" not in found
