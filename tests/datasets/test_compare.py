from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec.datasets import compare as module
from streamrec.datasets.compare import Comparison, compare, compare_in_any_order
from streamrec.datasets.shard_source import ShardSource
from streamrec.datasets.writer import TFRecordWriter
from streamrec.errors import CorruptRecord
from tests.support import examples

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

RECORDS = [b"%d" % number for number in range(1000)]
Records = st.lists(st.sampled_from([b"", b"a", b"b", b"cc"]), max_size=8)


def dataset(directory: Path, records: Sequence[bytes], shards: int = 1) -> ShardSource:
    directory.mkdir(exist_ok=True)
    for number in range(shards):
        with TFRecordWriter(directory / f"x-{number}") as writer:
            writer.write_many(
                records[number * len(records) // shards : (number + 1) * len(records) // shards]
            )
    return ShardSource.find([directory / f"x-{number}" for number in range(shards)])


def compared(directory: Path, one: Sequence[bytes], two: Sequence[bytes]) -> Comparison:
    return compare(dataset(directory / "a", one, 3), dataset(directory / "b", two, 2))


def in_any_order(directory: Path, one: Sequence[bytes], two: Sequence[bytes]) -> Comparison:
    return compare_in_any_order(dataset(directory / "a", one, 3), dataset(directory / "b", two, 2))


def test_equal_datasets(tmp_path: Path) -> None:
    assert compared(tmp_path, RECORDS, RECORDS) == Comparison(1000, 1000)
    assert in_any_order(tmp_path, RECORDS, RECORDS[::-1]) == Comparison(1000, 1000)


def test_a_record_that_differs(tmp_path: Path) -> None:
    others = [*RECORDS[:600], b"XXX", *RECORDS[601:]]
    (line,) = compared(tmp_path, RECORDS, others).differences
    a, b = tmp_path / "a", tmp_path / "b"
    assert line == f"record 267 of {a}/x-1 differs from record 100 of {b}/x-1"
    assert in_any_order(tmp_path, RECORDS, others).differences == [
        "1 record is missing",
        f"record 100 of {b}/x-1 is missing",
        "1 record is extra",
        f"record 267 of {a}/x-1 is extra",
    ]


@pytest.mark.parametrize("length", [999, 500, 0])
def test_records_at_the_end(tmp_path: Path, length: int) -> None:
    (line,) = compared(tmp_path, RECORDS, RECORDS[:length]).differences
    count = f"{1000 - length:,} " + ("record is" if length == 999 else "records are")
    assert line.startswith(f"{count} extra at the end, from record ")
    found = compared(tmp_path, RECORDS[:length], RECORDS)
    assert found.differences[0].startswith(f"{count} missing at the end")
    assert (found.records, found.others) == (length, 1000)


def test_the_tenth_difference_is_the_last(tmp_path: Path) -> None:
    *lines, last = compared(tmp_path, RECORDS, RECORDS[1:]).differences
    assert len(lines) == 10
    assert last == "the comparison ended there"
    others = [b"x%d" % number for number in range(1000)]
    lines = in_any_order(tmp_path, RECORDS, others).differences
    assert [lines[0], lines[11]] == ["1,000 records are missing", "1,000 records are extra"]
    assert len(lines) == 22


def test_memory_is_bounded_where_very_many_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_HELD", 50)
    first, *_ = in_any_order(tmp_path, RECORDS, []).differences
    assert first == "at least 50 records are extra"


def test_a_record_that_comes_more_often(tmp_path: Path) -> None:
    found = in_any_order(tmp_path, [b"a"] * 30, [b"a"] * 50)
    assert found.differences[0] == "20 records are missing"
    assert len(found.differences) == 11


@settings(max_examples=examples(30), deadline=None)
@given(Records, Records)
def test_what_is_missing_and_extra(
    tmp_path_factory: pytest.TempPathFactory, one: list[bytes], two: list[bytes]
) -> None:
    directory = tmp_path_factory.mktemp("compare")
    assert (not compared(directory, one, two).differences) == (one == two)
    found = in_any_order(directory, one, two).differences
    missing, extra = Counter(two) - Counter(one), Counter(one) - Counter(two)
    counted = [(missing.total(), "missing"), (extra.total(), "extra")]
    expected = [
        f"{count} {'record is' if count == 1 else 'records are'} {what}"
        for count, what in counted
        if count
    ]
    assert [line for line in found if line[0].isdigit()] == expected
    assert len([line for line in found if line.endswith("missing")]) == (
        missing.total() + bool(missing)
    )


def test_damage_ends_it(tmp_path: Path) -> None:
    source, other = dataset(tmp_path / "a", RECORDS), dataset(tmp_path / "b", RECORDS)
    path = tmp_path / "b" / "x-0"
    data = bytearray(path.read_bytes())
    data[-6] ^= 1
    path.write_bytes(data)
    for way in (compare, compare_in_any_order):
        with pytest.raises(CorruptRecord):
            way(source, other)
