"""Lists of records that are never delivered, and the shards that their names stand for."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError
from streamrec.masking import masked
from streamrec.pipeline.terms import exclusions
from streamrec.pipeline.terms.exclusions import (
    MOST_BYTES,
    MOST_LINE,
    Exclusions,
    find_records,
    name_pairs,
    read_list,
)

URLS = ["s3://bucket/a/part-0", "s3://bucket/a/part-1", "s3://bucket/b/part-1"]
COUNTS = [5, 3, 9]


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def found(data: bytes, urls: list[str] = URLS, counts: list[int] | None = COUNTS) -> Exclusions:
    return find_records(read_list(data, "removed.jsonl"), urls, counts, "removed.jsonl")


def numbers(excluded: Exclusions) -> dict[int, list[int]]:
    return {shard: each.tolist() for shard, each in excluded.numbers.items()}


@pytest.mark.parametrize(
    "name",
    ["part-0", "a/part-0", "bucket/a/part-0", "s3://bucket/a/part-0"],
)
def test_a_shard_is_named_by_its_url_or_the_last_parts_of_it(name: str) -> None:
    excluded = found(lines({"shard": name, "record": 4}, {"shard": name, "record": 0}))
    assert numbers(excluded) == {0: [0, 4]}


def test_a_name_below_the_common_folder_is_enough() -> None:
    urls = ["/x/part-1", "/x/a/part-1"]
    assert numbers(found(lines({"shard": "/x/part-1", "record": 1}), urls)) == {0: [1]}
    assert numbers(found(lines({"shard": "part-1", "record": 1}), urls)) == {0: [1]}


@pytest.mark.parametrize("name", ["/x/caf\udce9.tfrecord", "/x/a\tb.tfrecord"])
def test_a_list_has_names_as_they_are_shown(name: str) -> None:
    for shown in (masked(name), masked(name).rpartition("/")[2]):
        record = {"shard": shown, "record": 1}
        assert shown.isprintable()
        assert numbers(found(lines(record), ["/x/b", name], None)) == {1: [1]}


def test_a_shard_that_is_read_twice_is_meant_twice() -> None:
    urls = [URLS[0], URLS[0]]
    assert numbers(found(lines({"shard": "part-0", "record": 1}), urls)) == {0: [1], 1: [1]}


def test_empty_lines_and_other_keys_are_ignored() -> None:
    data = b"\n" + lines({"shard": "part-0", "record": 1, "why": "asked"}) + b"  \n"
    assert numbers(found(data)) == {0: [1]}
    assert numbers(found(b"")) == {}


WRONG: list[tuple[bytes, str]] = [
    *(
        (line, "removed.jsonl, line 2: this is not a record to exclude; write one JSON object")
        for line in (
            b"{",
            b"\xff",
            b"[]",
            b"17",
            b"[" * 4000,
            b"9" * 4090,
            b'{"shard": "part-0"}',
            b'{"shard": "part-0", "record": -1}',
            b'{"shard": "part-0", "record": true}',
            b'{"shard": "part-0", "record": 1.0}',
            b'{"shard": "part-0", "record": 281474976710656}',
            b'{"shard": "", "record": 1}',
            b'{"shard": 0, "record": 1}',
            b" " * MOST_LINE + b'{"shard": "part-0", "record": 1}',
        )
    ),
    (b'{"shard": "part-9", "record": 1}', "line 2: the source has no shard 'part-9'; did you mean"),
    (b'{"shard": "x", "record": 1}', "line 2: the source has no shard 'x'; correct the name"),
    (b'{"shard": "art-0", "record": 1}', "line 2: the source has no shard 'art-0'"),
    (
        b'{"shard": "part-1", "record": 1}',
        "line 2: 'part-1' may be s3://bucket/a/part-1 or s3://bucket/b/part-1; write more of",
    ),
    (
        b'{"shard": "part-0", "record": 5}',
        "line 2: there is no record 5 in s3://bucket/a/part-0, which has 5, numbered from 0",
    ),
]


@pytest.mark.parametrize(("line", "message"), WRONG)
def test_what_is_wrong_is_told_with_its_line(line: bytes, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        found(b"\n" + line)
    assert message in str(caught.value)


def test_a_wrong_pair_is_told_with_its_number() -> None:
    with pytest.raises(ConfigError, match=r"exclude\[1\]: there is no record 7 in"):
        find_records(name_pairs([("part-0", 1), ("part-0", 7)]), URLS, COUNTS, "exclude")


def test_a_list_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exclusions, "MOST_RECORDS", 1)
    with pytest.raises(ConfigError, match="line 2: more than 1 records are excluded"):
        found(lines(*[{"shard": "part-0", "record": 1}] * 2))
    with pytest.raises(ConfigError, match=r"removed.jsonl has more than \d+ bytes"):
        found(bytes(MOST_BYTES + 1))


def test_without_an_index_a_shards_end_tells_its_count() -> None:
    excluded = found(lines({"shard": "part-0", "record": 7}), counts=None)
    excluded.check_end(0, 8, URLS[0])
    excluded.check_end(1, 0, URLS[1])
    with pytest.raises(ConfigError, match=r"removed.jsonl: there is no record 7 in .*which has 7"):
        excluded.check_end(0, 7, URLS[0])


@given(st.sets(st.integers(0, 30)), st.integers(0, 30), st.integers(0, 10))
def test_those_within_a_block(excluded: set[int], first: int, count: int) -> None:
    pairs = [("part-0", number) for number in excluded]
    whole = find_records(name_pairs(pairs), URLS, None, "exclude")
    expected = [number - first for number in range(first, first + count) if number in excluded]
    assert whole.within(0, first, count).tolist() == expected
    assert whole.within(1, first, count).tolist() == []


def test_a_part_of_the_shards_has_its_part_of_the_list() -> None:
    pairs = [("a/part-0", 4), ("a/part-1", 1), ("b/part-1", 8), ("b/part-1", 2)]
    whole = find_records(name_pairs(pairs), URLS, COUNTS, "exclude")
    assert whole.records == 4
    part = whole.of_shards(range(1, 3))
    assert numbers(part) == {0: [1], 1: [2, 8]}
    named = part.pairs(URLS[1:])
    assert named == [(URLS[1], 1), (URLS[2], 2), (URLS[2], 8)]
    again = find_records(name_pairs(named), URLS[1:], None, "exclude")
    assert numbers(again) == numbers(part)


def test_whether_a_stretch_has_an_excluded_record() -> None:
    whole = find_records(name_pairs([("part-0", 3)]), URLS, COUNTS, "exclude")
    found = [whole.names_any(0, first, end) for first, end in [(0, 3), (3, 4), (2, 9), (4, 9)]]
    assert found == [False, True, True, False]
    assert whole.names_any(0, 1)
    assert not whole.names_any(0, 4)
    assert not whole.names_any(1, 0)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ConfigError):
        found(data)
