"""The index of a dataset: the number of records in each shard, and the places where chunks begin.

It is one small object beside the dataset's shards. A chunk is a stretch of a shard that begins at a
record; chunks of about a MiB let one shard be read from many places at once. The layout stands in
docs/reference/dataset-index.md. An index comes from outside, so :meth:`Index.parse` checks all of
it. It says nothing about where the shards are stored, so that it describes each copy of them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Self

import numpy as np

from streamrec.errors import MalformedIndex
from streamrec.formats.shards.index_names import SIGNED
from streamrec.formats.shards.resync import LARGEST as LARGEST_SHARD
from streamrec.formats.shards.tfrecord import FOOTER, HEADER, footer, is_intact
from streamrec.values.record_rows import Chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from streamrec.values.columns import Indices
    from streamrec.values.record_rows import RecordBlock

CHUNK_BYTES = 1 << 20
"""The default size of a chunk. A lane's window of 256 MiB / 48 then holds five chunks, so that it
draws from five places at once; an index takes 20 bytes for each, which is 19 MB for a TB."""
LARGEST = 1 << 30
"""The most bytes of an index, which has then 50 million chunks. A larger object is not read."""

MAGIC = b"STRMRIDX"
VERSION = 2
WITH_ETAGS = 1
"""The version that has the ETag of each shard, and no CRCs; it is read, but not written."""
_HEAD = struct.Struct("<8sIIQQ")
"""Magic, version, shards, chunks, bytes of text."""
_DIGEST = 16
_SHARD = {VERSION: 2 * 8 + 2 * 4, WITH_ETAGS: 2 * 8 + 3 * 4}
_CHUNK = {VERSION: 2 * 8 + 4, WITH_ETAGS: 2 * 8}
_DAMAGED = "so it is damaged or not an index; write it again with `streamrec index`"


_NONE = np.empty(0, np.int64)
_FIRST = np.zeros(1, np.int64)
"""The only chunk's begin and first record in all shards of one chunk: an array takes 112 bytes."""


@dataclass(slots=True)  # not frozen, which would make each of a million take five times as long
class ShardEntry:
    """The index's entry for one shard."""

    name: str
    """The shard's path, relative to the directory that all shards of the dataset share."""
    size: int
    """The shard's size in bytes."""
    records: int
    begins: Sequence[int] | npt.NDArray[np.int64]
    """The byte at which each chunk begins; the first is 0. Empty where the shard has no records."""
    first_records: Sequence[int] | npt.NDArray[np.int64]
    """The number of each chunk's first record."""
    crcs: Sequence[int] | npt.NDArray[np.int64]
    """The stored CRC of each chunk's first record; 0 where it is not known."""
    etag: str | None = None
    """The ETag of the indexed object, as the store wrote it; only an old index has it."""

    def replaced(self, block: RecordBlock) -> int | None:
        """Return the first row that is another record than was indexed; ``None``: there is none.

        Only the records that begin chunks are compared. A damaged one is not another one.

        Args:
            block: Records of the shard.
        """
        chunks, begins, rows = self._begun_in(block)
        for row, begin, crc in zip(rows.tolist(), begins, self.crcs[chunks], strict=True):
            # Where no record begins, there is none to compare; 0 is a CRC that an old index lacks.
            is_same = block.offsets[row] != begin or crc in (0, footer(block, row))
            # The payload's CRC takes a pass over it, so it is checked last.
            if not is_same and is_intact(block, row):
                return int(row)
        return None

    def miscounted(self, block: RecordBlock) -> int | None:
        """Return the first row that begins a chunk and has another number than the index says.

        Args:
            block: Records of the shard, with their true numbers.
        """
        chunks, begins, rows = self._begun_in(block)
        at_begins = block.offsets[rows] == begins
        others = block.first_ordinal + rows != np.asarray(self.first_records[chunks])
        wrong = rows[at_begins & others]
        return int(wrong[0]) if len(wrong) else None

    def _begun_in(self, block: RecordBlock) -> tuple[slice, Indices, Indices]:
        """Return the chunks that begin in a block, the places in it, and the rows there."""
        if block.lost or not len(block):
            return slice(0), _NONE, _NONE
        # Offsets are those of payloads, but a chunk begins with a frame's header.
        before = block.base - HEADER
        first = int(np.searchsorted(self.begins, before + block.offsets.item(0)))
        last = int(np.searchsorted(self.begins, before + block.offsets.item(-1), "right"))
        begins = np.asarray(self.begins[first:last], np.int64) - before
        return slice(first, last), begins, np.searchsorted(block.offsets, begins)


@dataclass(frozen=True, eq=False)
class Index:
    """The entries of all shards, found by name."""

    entries: tuple[ShardEntry, ...]

    @cached_property
    def _by_name(self) -> dict[str, ShardEntry]:
        return {entry.name: entry for entry in self.entries}

    def __repr__(self) -> str:
        return f"<Index of {len(self.entries)} shards, {self.records} records>"

    @cached_property
    def records(self) -> int:
        """The number of records in all shards."""
        return sum(entry.records for entry in self.entries)

    def get(self, name: str) -> ShardEntry | None:
        """Return the entry of the shard with this name; ``None`` if there is none.

        The ``?...`` of signed URLs does not count, so an index that was written without signatures
        serves them, too, and the other way round.
        """
        if (entry := self._by_name.get(name)) is not None:
            return entry
        plain = name.removesuffix(SIGNED)
        found = (self._by_name.get(each) for each in (plain, f"{plain}{SIGNED}"))
        return next((entry for entry in found if entry is not None), None)

    def find(self, names: Iterable[str]) -> ShardEntry | None:
        """Return the entry of the shard that has one of these names; ``None`` if there is none."""
        return next((entry for entry in map(self.get, names) if entry is not None), None)

    def chunks(self) -> Chunks:
        """Return all chunks, in the order of the entries."""
        return self._chunks

    @cached_property
    def _chunks(self) -> Chunks:
        entries = self.entries
        counts = np.array([len(entry.begins) for entry in entries], np.int64)
        sizes = np.array([entry.size for entry in entries], np.int64)
        records = np.array(self._counts(), np.int64)
        begins = _join(entry.begins for entry in entries)
        firsts = _join(entry.first_records for entry in entries)
        return Chunks(
            np.repeat(np.arange(len(counts), dtype=np.int64), counts),
            begins,
            _ends(begins, counts, sizes),
            firsts,
            _ends(firsts, counts, records) - firsts,
        )

    def digest(self) -> str:
        """Return 16 hexadecimal digits of a hash over the shards' records and chunks.

        These determine an order. Names, ETags and CRCs are left out, so that states outlive a new
        index of the same shards, also one of another version.
        """
        chunks = self.chunks()
        hashed = blake2b(digest_size=8)
        for column in (np.array(self._counts(), "<i8"), *chunks):
            # In one byte order, so that the digest is the same on every machine.
            hashed.update(np.ascontiguousarray(column, "<i8").tobytes())
        return hashed.hexdigest()

    def encode(self) -> bytes:
        """Serialize the index, in the latest version."""
        entries = self.entries
        # A file's name need not be UTF-8: Python holds other bytes as surrogates.
        names = [entry.name.encode(errors="surrogateescape") for entry in entries]
        text = b"".join(names)
        counts = [len(entry.begins) for entry in entries]
        body = b"".join(
            (
                _HEAD.pack(MAGIC, VERSION, len(entries), sum(counts), len(text)),
                np.array([entry.size for entry in entries], "<i8").tobytes(),
                np.array(self._counts(), "<i8").tobytes(),
                np.array(counts, "<u4").tobytes(),
                np.array([len(name) for name in names], "<u4").tobytes(),
                _join(entry.begins for entry in entries).astype("<i8").tobytes(),
                _join(entry.first_records for entry in entries).astype("<i8").tobytes(),
                _join(entry.crcs for entry in entries).astype("<u4").tobytes(),
                text,
            )
        )
        return body + _digest(body)

    @classmethod
    def parse(cls, data: bytes, *, url: str) -> Self:
        """Parse the bytes that :meth:`encode` gave, now or in an older version.

        Args:
            data: The object's bytes.
            url: The object's URL, for errors.

        Raises:
            MalformedIndex: The bytes are not an index, are damaged, or are of a later version.
        """
        try:
            return cls(tuple(_entries(data)))
        except MalformedIndex as fault:
            raise MalformedIndex(fault.message, url=url) from None

    @staticmethod
    def parse_names(data: bytes, *, url: str) -> list[tuple[str, int]]:
        """Return the names and sizes of all shards alone, in a fraction of the time.

        Arguments and errors are those of :meth:`parse`; chunks are not checked.
        """
        try:
            version, shards, chunks, text_bytes = _check_header(data)
            strings, sizes = _names_and_sizes(data, version, shards, chunks, text_bytes)
        except MalformedIndex as fault:
            raise MalformedIndex(fault.message, url=url) from None
        return list(zip(strings, sizes, strict=True))

    def _counts(self) -> list[int]:
        return [entry.records for entry in self.entries]


class ChunkFinder:
    """A finder of the places where a shard's chunks begin, from the shard's blocks in order.

    Args:
        chunk_bytes: The size of a chunk: it ends with the record that reaches so many bytes.
    """

    def __init__(self, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.records = 0
        self.begins: list[int] = []
        self.first_records: list[int] = []
        self.crcs: list[int] = []
        self._chunk_bytes = chunk_bytes

    def add(self, block: RecordBlock) -> None:
        """Look at the shard's next block of records."""
        starts = block.offsets + (block.base - HEADER)
        at = self._next(starts)
        while at < len(starts):
            self.begins.append(int(starts[at]))
            self.first_records.append(block.first_ordinal + at)
            self.crcs.append(footer(block, at))
            at = self._next(starts)
        # By the block's own number, so that lost records before it count as well.
        self.records = block.first_ordinal + len(block)

    def _next(self, starts: npt.NDArray[np.int64]) -> int:
        """Return the index, in ``starts``, of the record that begins the next chunk."""
        if not self.begins:
            return 0
        return int(np.searchsorted(starts, self.begins[-1] + self._chunk_bytes))


def _entries(data: bytes) -> list[ShardEntry]:
    """Check all of an index's bytes, and return its entries."""
    version, shards, chunks, text_bytes = _check_header(data)
    has_etags = version == WITH_ETAGS
    # In the order of the layout in docs/reference/dataset-index.md.
    columns = [*[("<i8", shards)] * 2, *[("<u4", shards)] * (2 + has_etags)]
    columns += [*[("<i8", chunks)] * 2, ("<u4", 0 if has_etags else chunks)]
    arrays, at = [], _HEAD.size
    for dtype, count in columns:
        arrays.append(np.frombuffer(data, dtype, count, at))
        at += arrays[-1].nbytes
    sizes, records, *lengths, begins, firsts, crcs = arrays
    counts, names, *etags = (array.tolist() for array in lengths)
    if sum(counts) != chunks or sum(map(sum, [names, *etags])) != text_bytes:
        raise MalformedIndex(f"the index's parts do not add up, {_DAMAGED}")
    text = data[at:-_DIGEST]
    strings = _strings(text, names, "surrogateescape")  # a file's name need not be UTF-8
    # Entries are found by name, so one of the two would never be read.
    if len(set(strings)) != shards:
        raise MalformedIndex(f"two shards of the index have one name, {_DAMAGED}")
    versions = _strings(text[sum(names) :], etags[0]) if etags else [""] * shards
    # With 0, which says that a CRC is not known, no record is compared.
    crcs = np.zeros(chunks, np.int64) if has_etags else crcs.astype(np.int64)
    bounds = pairwise([0, *accumulate(counts)])
    facts = zip(strings, sizes.tolist(), records.tolist(), versions, bounds, strict=True)
    entries = [
        ShardEntry(
            name,
            size,
            count,
            _places(begins, first, last),
            _places(firsts, first, last),
            crcs[first:last],
            version or None,
        )
        for name, size, count, version, (first, last) in facts
    ]
    if not _are_sound(sizes, records, np.array(counts, np.int64), begins, firsts):
        for entry in entries:  # one by one, to name it
            check_entry(entry)
    return entries


def _places(column: Indices, first: int, last: int) -> Indices:
    return _FIRST if last - first == 1 and not column[first] else column[first:last]


def _names_and_sizes(
    data: bytes, version: int, shards: int, chunks: int, text_bytes: int
) -> tuple[list[str], list[int]]:
    sizes = np.frombuffer(data, "<i8", shards, _HEAD.size)
    # Behind the sizes: records, counts of chunks, then the lengths of names.
    lengths = np.frombuffer(data, "<u4", shards, _HEAD.size + shards * (8 + 8 + 4)).tolist()
    text = data[_HEAD.size + shards * _SHARD[version] + chunks * _CHUNK[version] : -_DIGEST]
    if sum(lengths) > text_bytes:
        raise MalformedIndex(f"the index's parts do not add up, {_DAMAGED}")
    strings = _strings(text, lengths, "surrogateescape")
    if len(set(strings)) != shards:
        raise MalformedIndex(f"two shards of the index have one name, {_DAMAGED}")
    if shards and (sizes.min() < 0 or sizes.max() >= LARGEST_SHARD):
        raise MalformedIndex(f"a shard of the index has no size that a shard can have, {_DAMAGED}")
    return strings, sizes.tolist()


def _are_sound(
    sizes: Indices, records: Indices, counts: Indices, begins: Indices, firsts: Indices
) -> bool:
    """Return whether :func:`check_entry` takes all entries, of which there may be a million."""
    has_chunks = counts > 0
    heads = (np.cumsum(counts) - counts)[has_chunks]
    bytes_held = _ends(begins, counts, sizes) - begins
    records_held = _ends(firsts, counts, records) - firsts
    return not (
        sizes[~has_chunks].any()
        or records[~has_chunks].any()
        or begins[heads].any()
        or firsts[heads].any()
        or any((column < 0).any() for column in (sizes, records, begins, firsts))
        or (sizes >= LARGEST_SHARD).any()
        or (bytes_held <= 0).any()
        or (records_held <= 0).any()
        or (records_held > bytes_held // (HEADER + FOOTER)).any()
    )


def _ends(starts: Indices, counts: Indices, totals: Indices) -> Indices:
    """Return where each chunk ends: at the next one of its shard, or where the shard ends.

    Args:
        starts: The starts of all shards' chunks.
        counts: The number of chunks of each shard.
        totals: The end of each shard.
    """
    ends = np.append(starts[1:], starts[:1])
    ends[np.cumsum(counts)[counts > 0] - 1] = totals[counts > 0]
    return ends


def _check_header(data: bytes) -> tuple[int, int, int, int]:
    """Check length and digest; return version, numbers of shards and chunks, and bytes of text."""
    # Foreign bytes first: they would give any version, and the wrong advice.
    if len(data) < _HEAD.size + _DIGEST or data[:8] != MAGIC:
        raise MalformedIndex(f"the object does not begin like an index, {_DAMAGED}")
    _, version, shards, chunks, text = _HEAD.unpack_from(data)
    # Before length and digest, which a later version may count differently.
    if version not in _SHARD:
        raise MalformedIndex(
            f"the index has version {version}, but this streamrec reads {VERSION} and older ones; "
            "upgrade streamrec, or write the index again"
        )
    size = _HEAD.size + shards * _SHARD[version] + chunks * _CHUNK[version] + text + _DIGEST
    # The numbers of the header are only believed once they fit the length: all arrays follow from
    # them.
    if len(data) != size:
        raise MalformedIndex(
            f"the index has {len(data)} bytes, which is not what it says, {_DAMAGED}"
        )
    if _digest(data[:-_DIGEST]) != data[-_DIGEST:]:
        raise MalformedIndex(f"the index's digest is wrong, {_DAMAGED}")
    return version, shards, chunks, text


def _strings(text: bytes, lengths: list[int], errors: str = "strict") -> list[str]:
    bounds = [0, *accumulate(lengths)]
    try:
        return [text[a:b].decode(errors=errors) for a, b in pairwise(bounds)]
    except UnicodeDecodeError:
        raise MalformedIndex(f"a version in the index is not text, {_DAMAGED}") from None


def check_entry(entry: ShardEntry) -> None:
    """Refuse chunks beyond their shard, out of order, or with more records than have room.

    Raises:
        MalformedIndex: There are some.
    """
    begins = np.append(entry.begins, entry.size)
    firsts = np.append(entry.first_records, entry.records)
    if not len(entry.begins) == len(entry.first_records) == len(entry.crcs):
        sound = False
    elif not len(entry.begins):
        # The first record begins a chunk, so only an empty shard has none.
        sound = entry.records == entry.size == 0
    else:
        sound = bool(
            begins[0] == firsts[0] == 0
            and min(begins.min(), firsts.min()) >= 0
            and entry.size < LARGEST_SHARD
            and (np.diff(begins) > 0).all()
            and (np.diff(firsts) > 0).all()
            # The shortest record is a frame without a payload.
            and (np.diff(firsts) <= np.diff(begins) // (HEADER + FOOTER)).all()
        )
    if not sound:
        raise MalformedIndex(f"the chunks of {entry.name} in the index are impossible, {_DAMAGED}")


def _join(columns: Iterable[Sequence[int] | npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    # An empty array first: without any column, there would be nothing to join. And an empty list
    # counts as one of floats, which no cast that is called safe takes.
    empty = np.empty(0, np.int64)
    return np.concatenate([empty, *columns], dtype=np.int64, casting="unsafe")


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=_DIGEST).digest()
