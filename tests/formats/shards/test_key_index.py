from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError, MalformedIndex
from streamrec.formats.shards.index import Index, ShardEntry
from streamrec.formats.shards.index_names import is_companion
from streamrec.formats.shards.key_index import (
    KeyIndex,
    hashes_of,
    key_url,
    stamp_of,
    value_of,
    values_in,
)

INTEGERS = st.integers(-5, 5) | st.integers(-(1 << 63), (1 << 63) - 1)
BYTES = st.binary(max_size=3)


def entry(name: str, records: int) -> ShardEntry:
    begins = [0] if records else []
    return ShardEntry(name, 100 * records, records, begins, begins, [7] if records else [])


def index_of(shards: list[list[list[Any]]], dtype: str = "int64") -> KeyIndex:
    """Return the index of shards of records, each of which has some values."""
    entries = [entry(f"s{n}", len(records)) for n, records in enumerate(shards)]
    parts = [
        (
            hashes_of([value for record in records for value in record]),
            np.repeat(np.arange(len(records)), list(map(len, records))),
        )
        for records in shards
    ]
    return KeyIndex.of("user", dtype, entries, parts)


@given(st.data(), st.sampled_from(["int64", "bytes"]))
def test_find_is_what_a_search_finds(data: st.DataObject, dtype: str) -> None:
    values = INTEGERS if dtype == "int64" else BYTES
    shards = data.draw(st.lists(st.lists(st.lists(values, max_size=3), max_size=5), max_size=4))
    wanted: list[Any] = data.draw(st.lists(values, max_size=6))
    index = KeyIndex.parse(index_of(shards, dtype).encode(), url="u")
    assert (index.feature, index.dtype) == ("user", dtype)
    places = {
        (n, r)
        for n, records in enumerate(shards)
        for r, record in enumerate(records)
        if {*record} & {*wanted}
    }
    found, numbers, missing = index.find(wanted)
    assert list(zip(found.tolist(), numbers.tolist(), strict=True)) == sorted(places)
    every = {value for records in shards for record in records for value in record}
    assert missing == len({*wanted} - every)


def test_a_changed_byte_is_found() -> None:
    data = index_of([[[3], [4, 5]], [], [[3]]]).encode()
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(MalformedIndex, match="write it again"):
            KeyIndex.parse(changed, url="u")
    for short in (b"", data[:-1], data[:20]):
        with pytest.raises(MalformedIndex):
            KeyIndex.parse(short, url="u")


def test_impossible_numbers_are_refused() -> None:
    """Also where the digest is right, as of a writer with a fault."""
    good = index_of([[[3], [4]]])
    huge = (1 << 62, 1 << 62)
    for wrong in (
        KeyIndex("user", ("s0", "s1"), (1, 2), huge, "int64", good.hashes[:0], good.records[:0]),
        KeyIndex("user", ("s0",), good.stamps, (1,), "int64", good.hashes, good.records),
        KeyIndex("user", ("s0",), good.stamps, (-1,), "int64", good.hashes, good.records),
        KeyIndex("user", (), (), (), "int64", good.hashes, good.records),
    ):
        with pytest.raises(MalformedIndex):
            KeyIndex.parse(wrong.encode(), url="u")
    body = struct.pack("<8sIIQQQ", b"STRMRKEY", 1, 0, 1 << 63, 0, 0)
    with pytest.raises(MalformedIndex):
        KeyIndex.parse(body + blake2b(body, digest_size=16).digest(), url="u")


def test_a_shard_of_another_content_is_not_known() -> None:
    index = index_of([[[3], [4]]])
    same = entry("s0", 2)
    assert index.shard_of(same) == 0
    assert index.shard_of(entry("s1", 2)) is None
    for changed in (
        ShardEntry("s0", 201, 2, [0], [0], [7]),
        ShardEntry("s0", 200, 3, [0], [0], [7]),
        ShardEntry("s0", 200, 2, [0], [0], [8]),
        ShardEntry("s0", 200, 2, [0, 100], [0, 1], [7, 8]),
    ):
        assert index.shard_of(changed) is None
    parsed = Index.parse(Index((same,)).encode(), url="u").entries[0]
    assert stamp_of(parsed) == stamp_of(same)


def test_where_it_stands() -> None:
    assert key_url("s3://b/train.streamrec-index", "user") == "s3://b/train.user.streamrec-keys"
    signed = key_url("https://h/train.streamrec-index?s=1", "a/b c")
    # The object has the name that the others have; a URL of http is encoded.
    assert (
        key_url("s3://b/train.streamrec-index", "a/b c") == "s3://b/train.a%2Fb%20c.streamrec-keys"
    )
    assert signed == "https://h/train.a%252Fb%2520c.streamrec-keys?s=1"
    assert key_url("s3://b/other", "user") == "s3://b/other.user.streamrec-keys"
    assert is_companion("train.user.streamrec-keys")


def test_values_of_texts() -> None:
    assert {value_of(text, "n", "int64") for text in ("7", "007", 7, "+7")} == {7}
    assert value_of("zoë", "n", "bytes") == "zoë".encode()
    assert value_of(" 7 ", "n", "int64") == 7
    for text in ("1_6", "١٦", "", "7.0"):
        with pytest.raises(ConfigError, match="is not an integer"):
            value_of(text, "n", "int64")
    with pytest.raises(ConfigError, match=r"'\\udcff' is not UTF-8"):
        value_of("\udcff", "n", "bytes")


def test_values_of_lines() -> None:
    """A line ends as in any file of texts, and not at other characters that a value may have."""
    text = "\ufeffa\r\nb\u2028c\x85\n\n d\x1c\re"
    assert values_in(text.encode()) == ["a", "b\u2028c\x85", " d\x1c", "e"]
    assert value_of(7, "n", "bytes") == b"7"
    for wrong in ("a", "", str(1 << 63)):
        with pytest.raises(ConfigError, match="not an integer"):
            value_of(wrong, "n", "int64")
