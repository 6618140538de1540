from __future__ import annotations

import struct
from dataclasses import replace
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError, MalformedIndex
from streamrec.formats.shards.index import ShardEntry
from streamrec.formats.shards.index_names import LENGTHS, is_companion
from streamrec.formats.shards.key_index import key_url
from streamrec.formats.shards.length_index import LengthIndex
from streamrec.values.record_rows import RecordLengths

RECORDS = st.tuples(st.integers(0, (1 << 32) - 1), st.integers(16, 300))


def entry(name: str, records: list[tuple[int, int]]) -> ShardEntry:
    """Return the entry of a shard with a chunk of two records, and one of the rest."""
    ends = np.cumsum([0, *(size for _, size in records)]).tolist()
    firsts = [n for n in (0, 2) if n < len(records)]
    return ShardEntry(
        name, ends[-1], len(records), [ends[n] for n in firsts], firsts, [7] * len(firsts)
    )


def index_of(shards: list[list[tuple[int, int]]]) -> LengthIndex:
    entries = [entry(f"s{n}", records) for n, records in enumerate(shards)]
    parts = [np.array(records, np.int64).reshape(-1, 2).T for records in shards]
    return LengthIndex.of("tokens", entries, [(lengths, sizes) for lengths, sizes in parts])


@given(st.lists(st.lists(RECORDS, max_size=4), max_size=4))
def test_what_is_parsed_is_what_was_encoded(shards: list[list[tuple[int, int]]]) -> None:
    index = LengthIndex.parse(index_of(shards).encode(), url="u")
    assert index.feature == "tokens"
    for number, records in enumerate(shards):
        found = index.of_shard(entry(f"s{number}", records))
        assert found is not None
        pairs = zip(found.lengths.tolist(), found.sizes.tolist(), strict=True)
        assert list(pairs) == records


def test_a_changed_byte_is_found() -> None:
    data = index_of([[(3, 20), (4, 30), (5, 40)], [], [(1, 17)]]).encode()
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(MalformedIndex, match="write it again"):
            LengthIndex.parse(changed, url="u")
    for short in (b"", data[:-1], data[:20]):
        with pytest.raises(MalformedIndex):
            LengthIndex.parse(short, url="u")


def test_impossible_numbers_are_refused() -> None:
    """Also where the digest is right, as of a writer with a fault."""
    good = index_of([[(3, 20), (4, 30)]])
    for wrong in (
        replace(good, counts=(3,)),
        replace(good, names=("s0", "s1"), stamps=(1, 2), counts=(3, -1)),
    ):
        with pytest.raises(MalformedIndex):
            LengthIndex.parse(wrong.encode(), url="u")
    body = struct.pack("<8sIIQQ", b"STRMRLEN", 1, 0, 1 << 63, 0)
    with pytest.raises(MalformedIndex):
        LengthIndex.parse(body + blake2b(body, digest_size=16).digest(), url="u")


def test_a_shard_of_another_content_is_not_known() -> None:
    records = [(3, 20), (4, 30), (5, 40)]
    index, same = index_of([records]), entry("s0", records)
    assert index.of_shard(same) is not None
    assert index.of_shard(replace(same, name="s1")) is None
    assert index.of_shard(replace(same, crcs=[7, 8])) is None
    # Sizes that are not those of the chunks would be places at which no record begins.
    for sizes in ([20, 30, 41], [21, 30, 39], [20, 31, 39]):
        wrong = replace(index, records=RecordLengths(index.records.lengths, np.array(sizes, "u4")))
        assert wrong.of_shard(same) is None


def test_other_numbers_of_records_are_not_those_of_the_shard() -> None:
    """Also where all shards have as many together, as of a writer with a fault."""
    shards = [[(3, 20), (4, 30), (5, 40)], [(1, 17), (2, 18)]]
    for counts in ((1, 4), (4, 1)):
        wrong = replace(index_of(shards), counts=counts)
        found = LengthIndex.parse(wrong.encode(), url="u")
        assert [found.of_shard(entry(f"s{n}", shards[n])) for n in (0, 1)] == [None, None]


def test_a_record_too_large_for_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="a record of s0 has 4 GiB or more"):
        LengthIndex.of("tokens", [entry("s0", [(1, 20)])], [(np.array([1]), np.array([1 << 32]))])


def test_where_it_stands() -> None:
    url = key_url("s3://b/train.streamrec-index", "tokens", LENGTHS)
    assert url == "s3://b/train.tokens.streamrec-lengths"
    assert is_companion(url)
