from __future__ import annotations

import struct
from dataclasses import replace
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import MalformedIndex
from streamrec.formats.shards.index import ChunkFinder, Index, ShardEntry, _are_sound, check_entry
from streamrec.formats.shards.tfrecord import FrameScanner, frame
from streamrec.kernel import masked_crc32c
from streamrec.values.record_rows import RecordBlock

pytestmark = pytest.mark.both_kernels

LENGTHS = st.lists(st.integers(0, 60), max_size=30)


def payloads(lengths: list[int]) -> list[bytes]:
    return [bytes([number % 256]) * length for number, length in enumerate(lengths)]


def scanned(lengths: list[int], chunk_bytes: int, cuts: list[int]) -> tuple[ChunkFinder, bytes]:
    """Scan in pieces a shard of records of these lengths; return its chunks and its bytes."""
    data = b"".join(map(frame, payloads(lengths)))
    finder, scanner = ChunkFinder(chunk_bytes), FrameScanner(url="shard")
    bounds = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    for begin, end in pairwise(bounds):
        view = np.frombuffer(data, np.uint8)[begin:end]
        while len(view):
            blocks, consumed = scanner.scan(view, more=False)
            for block in blocks:
                finder.add(block)
            view = view[consumed:]
    return finder, data


def entry(name: str, lengths: list[int], chunk_bytes: int, **more: Any) -> ShardEntry:
    finder, data = scanned(lengths, chunk_bytes, [])
    facts: dict[str, Any] = {"crcs": finder.crcs, **more}
    return ShardEntry(name, len(data), finder.records, finder.begins, finder.first_records, **facts)


@st.composite
def indices(draw: st.DrawFn) -> Index:
    names = draw(st.lists(st.text("ab/é", min_size=1, max_size=6), max_size=5, unique=True))
    chunk_bytes = draw(st.integers(1, 200))
    return Index(tuple(entry(name, draw(LENGTHS), chunk_bytes) for name in names))


def plain(index: Index) -> list[tuple[object, ...]]:
    return [
        (e.name, e.size, e.records, list(e.begins), list(e.first_records), list(e.crcs), e.etag)
        for e in index.entries
    ]


def with_etags(index: Index, etags: list[str]) -> bytes:
    """Serialize an index as version 1 did."""
    names = [e.name.encode() for e in index.entries]
    versions = [etag.encode() for etag in etags]
    counts = [len(e.begins) for e in index.entries]
    text = b"".join(names + versions)
    columns: list[tuple[str, list[int]]] = [
        ("<i8", [e.size for e in index.entries]),
        ("<i8", [e.records for e in index.entries]),
        ("<u4", counts),
        ("<u4", [len(name) for name in names]),
        ("<u4", [len(version) for version in versions]),
        ("<i8", [begin for e in index.entries for begin in e.begins]),
        ("<i8", [first for e in index.entries for first in e.first_records]),
    ]
    head = HEAD.pack(b"STRMRIDX", 1, len(names), sum(counts), len(text))
    return signed(head + b"".join(np.array(c, kind).tobytes() for kind, c in columns) + text)


@given(indices(), st.data())
def test_an_index_of_version_1_is_read(index: Index, data: st.DataObject) -> None:
    """It knows ETags, and no CRCs. States that were saved with it go on with a new one."""
    etags = [data.draw(st.sampled_from(["", '"a"', "é"])) for _ in index.entries]
    old = Index.parse(with_etags(index, etags), url="u")
    facts = zip(index.entries, etags, strict=True)
    known = [replace(e, crcs=[0] * len(e.begins), etag=etag or None) for e, etag in facts]
    assert plain(old) == plain(Index(tuple(known)))
    assert old.digest() == index.digest()


@given(indices(), st.data())
def test_entries_are_made_when_they_are_asked_for(index: Index, data: st.DataObject) -> None:
    """Those of any shards, in any order and as often as wanted, are those of the same entries."""
    parsed = Index.parse(index.encode(), url="u")
    count = len(index.entries)
    shards = data.draw(st.lists(st.integers(0, count - 1)) if count else st.just([]))
    chosen = Index(tuple(index.entries[shard] for shard in shards))
    assert plain(parsed.select(shards)) == plain(chosen)
    assert parsed.select(shards).digest() == chosen.digest()
    assert parsed.select(range(count)) is parsed
    part = slice(*sorted(data.draw(st.tuples(*[st.integers(0, count)] * 2))))
    assert plain(Index(parsed.entries[part])) == plain(Index(index.entries[part]))
    assert plain(parsed.by_name()) == sorted(plain(index), key=lambda entry: str(entry[0]))


@given(indices())
def test_what_is_written_is_read(index: Index) -> None:
    again = Index.parse(index.encode(), url="u")
    assert plain(again) == plain(index)
    assert again.digest() == index.digest()
    assert again.records == index.records
    assert [again.find(["none", e.name]) for e in again.entries] == list(range(len(again.entries)))
    assert again.find(["none"]) is None


@given(LENGTHS, st.integers(1, 200), st.lists(st.integers(0, 2000), max_size=5))
def test_chunks_begin_at_records_and_are_as_long_as_they_must(
    lengths: list[int], chunk_bytes: int, cuts: list[int]
) -> None:
    finder, data = scanned(lengths, chunk_bytes, cuts)
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length + 16)
    assert finder.records == len(lengths)
    assert finder.begins == [starts[number] for number in finder.first_records]
    records = payloads(lengths)
    assert finder.crcs == [masked_crc32c(records[number]) for number in finder.first_records]
    chunks = Index((entry("s", lengths, chunk_bytes),)).chunks()
    sizes = (chunks.end - chunks.begin).tolist()
    assert sum(sizes) == len(data)
    assert int(chunks.records.sum()) == len(lengths)
    for size, last in zip(
        sizes[:-1], (chunks.first_record + chunks.records - 1).tolist(), strict=False
    ):
        assert chunk_bytes <= size < chunk_bytes + lengths[last] + 16


@given(indices(), st.data())
def test_a_damaged_index_is_refused(index: Index, data: st.DataObject) -> None:
    good = index.encode()
    place = data.draw(st.integers(0, len(good) - 1))
    flipped = (
        good[:place] + bytes([good[place] ^ data.draw(st.integers(1, 255))]) + good[place + 1 :]
    )
    for bad in (flipped, good[:place], good + b"x"):
        with pytest.raises(MalformedIndex):
            Index.parse(bad, url="u")


@given(st.binary(max_size=300))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedIndex, match="streamrec index"):
        Index.parse(data, url="u")


HEAD = struct.Struct("<8sIIQQ")


def signed(body: bytes) -> bytes:
    return body + blake2b(body, digest_size=16).digest()


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=6, max_size=6),
    st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=3),
    st.sampled_from([1, 2]),
)
def test_a_hostile_index_with_a_right_digest_is_refused_or_sound(
    numbers: list[int], counts: list[int], version: int
) -> None:
    """One shard of two chunks, with any numbers in every column."""
    size, records, *chunks = numbers
    etags, crcs = (1, 0) if version == 1 else (0, 2)
    for counted in (counts, [2, 1, 0]):
        body = (
            HEAD.pack(b"STRMRIDX", version, 1, 2, 1)
            + struct.pack("<qq", size, records)
            + struct.pack(f"<{2 + etags}I", *counted[: 2 + etags])
            + struct.pack("<qqqq", *chunks)
            + struct.pack(f"<{crcs}I", *counts[:crcs])
            + b"n"
        )
        try:
            (found,) = Index.parse(signed(body), url="u").entries
        except MalformedIndex:
            continue
        begins, firsts = [*found.begins, found.size], [*found.first_records, found.records]
        assert begins == sorted(set(begins))
        assert firsts == sorted(set(firsts))
        assert begins[0] == firsts[0] == 0


@pytest.mark.parametrize("version", [1, 2])
def test_lengths_are_compared_before_anything_is_set_aside(version: int) -> None:
    body = HEAD.pack(b"STRMRIDX", version, 2**32 - 1, 2**63, 2**63)
    with pytest.raises(MalformedIndex, match="not what it says"):
        Index.parse(signed(body), url="u")


def test_a_later_version_is_refused_by_name() -> None:
    body = HEAD.pack(b"STRMRIDX", 3, 0, 0, 0)
    with pytest.raises(MalformedIndex, match=r"u: the index has version 3.*upgrade"):
        Index.parse(signed(body), url="u")


def test_two_shards_of_one_name_are_refused() -> None:
    double = Index((entry("a", [1], 9), entry("a", [2], 9)))
    with pytest.raises(MalformedIndex, match="one name"):
        Index.parse(double.encode(), url="u")


def test_the_digest_is_of_what_determines_an_order() -> None:
    one = Index((entry("a", [1, 2, 3], 20), entry("b", [4], 20)))
    mirror = Index((entry("c", [1, 2, 3], 20, crcs=[0, 0]), entry("d", [4], 20, etag="y")))
    others = [
        Index((entry("a", [1, 2, 3], 90), entry("b", [4], 20))),
        Index((entry("a", [1, 3, 2], 20), entry("b", [4], 20))),
        Index((entry("b", [4], 20), entry("a", [1, 2, 3], 20))),
        Index((entry("a", [1, 2, 3, 4], 20),)),
    ]
    assert mirror.digest() == one.digest()
    assert len({one.digest(), *(other.digest() for other in others)}) == 5


def test_twenty_bytes_a_chunk() -> None:
    small, large = (Index((entry("a", [9] * n, 1),)) for n in (10, 110))
    assert len(large.encode()) - len(small.encode()) == 100 * 20


def block_of(data: bytes, first: int, last: int, number: int) -> RecordBlock:
    """Make a block of some records of 20 bytes each; ``number`` is that of the first."""
    offsets = np.arange(12, (last - first) * 36, 36)
    buffer = np.frombuffer(data, np.uint8)[first * 36 : last * 36]
    return RecordBlock(buffer, offsets, np.full(last - first, 20), 0, number, first * 36)


@given(st.integers(0, 5), st.integers(1, 6), st.integers(0, 6 * 36 - 1), st.booleans())
def test_a_replaced_record_at_a_chunks_begin_is_found(
    first: int, last: int, at: int, framed: bool
) -> None:
    """Six records, in chunks of two. A damaged record is not a replaced one."""
    indexed = entry("a", [20] * 6, 72)
    records = payloads([20] * 6)
    changed = at // 36
    if framed:
        records[changed] = b"another" + records[changed][7:]
        data = b"".join(map(frame, records))
    else:
        sound = b"".join(map(frame, records))
        data = sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :]
    if first < last:
        is_seen = framed and changed % 2 == 0 and first <= changed < last
        expected = changed - first if is_seen else None
        assert indexed.replaced(block_of(data, first, last, first)) == expected
        unknown = replace(indexed, crcs=[0, 0, 0])
        assert unknown.replaced(block_of(data, first, last, first)) is None


@pytest.mark.parametrize("by", [-1, 0, 1])
def test_a_chunk_with_another_number_is_found(by: int) -> None:
    """Six records, in chunks of two; the number of the second chunk is off."""
    data = b"".join(map(frame, payloads([20] * 6)))
    sound = entry("a", [20] * 6, 72)
    wrong = replace(sound, first_records=[0, 2 + by, 4])
    expected = {-1: 1, 0: None, 1: 1}[by]
    assert wrong.miscounted(block_of(data, 1, 6, 1)) == expected
    assert wrong.miscounted(block_of(data, 3, 6, 3)) is None
    assert wrong.miscounted(block_of(data, 0, 0, 0)) is None


NUMBERS = st.integers(-1, 40) | st.sampled_from([0, 16, 32, 48, 1 << 62])


@st.composite
def odd_entries(draw: st.DrawFn) -> ShardEntry:
    """Entries of which some can be, and some differ from such in a number."""
    count = draw(st.integers(0, 3))
    begins = [0, 16, 48][:count]
    size, records = (64, count + draw(st.integers(0, 1))) if count else (0, 0)
    facts = [size, records, *begins, *range(count)]
    if draw(st.booleans()):
        facts[draw(st.integers(0, len(facts) - 1))] = draw(NUMBERS)
    columns = np.array(facts[2:], np.int64)
    return ShardEntry(
        "a", facts[0], facts[1], columns[:count], columns[count:], np.zeros(count, np.int64)
    )


def is_taken(entry: ShardEntry) -> bool:
    try:
        check_entry(entry)
    except MalformedIndex:
        return False
    return True


@given(st.lists(odd_entries(), max_size=3))
def test_all_entries_at_once_are_judged_as_each_is(entries: list[ShardEntry]) -> None:
    def joined(columns: list[Any]) -> Any:
        return np.concatenate([np.empty(0, np.int64), *columns])

    columns = (
        np.array([e.size for e in entries], np.int64),
        np.array([e.records for e in entries], np.int64),
        np.array([len(e.begins) for e in entries], np.int64),
        joined([e.begins for e in entries]),
        joined([e.first_records for e in entries]),
    )
    assert _are_sound(*columns) == all(map(is_taken, entries))
