"""The index of a dataset: the number of records in each shard, and the places where chunks begin.

It is one small object beside the dataset's shards. A chunk is a stretch of a shard that begins at a
record; chunks of about a MiB let one shard be read from many places at once. The layout stands in
docs/reference/dataset-index.md. An index comes from outside, so :meth:`Index.parse` checks all of
it. It says nothing about where the shards are stored, so that it describes each copy of them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Self, overload

import numpy as np

from streamrec.errors import MalformedIndex
from streamrec.formats.shards.index_names import SIGNED
from streamrec.formats.shards.resync import LARGEST as LARGEST_SHARD
from streamrec.formats.shards.tfrecord import FOOTER, HEADER, footer, is_intact
from streamrec.values.columns import offsets_of
from streamrec.values.record_rows import Chunks

if TYPE_CHECKING:
    from collections.abc import Iterable

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


class IndexColumns(NamedTuple):
    """The facts of all shards, and those of all their chunks, end to end."""

    names: Sequence[str]
    sizes: Indices
    records: Indices
    bounds: Indices
    """int64 ``[shards + 1]``: the chunks before each shard, and in all."""
    begins: Indices
    first_records: Indices
    crcs: npt.NDArray[np.int64]
    etags: Sequence[str | None]

    @classmethod
    def of(cls, entries: Sequence[ShardEntry]) -> Self:
        """Join the facts of entries."""
        return cls(
            [entry.name for entry in entries],
            np.array([entry.size for entry in entries], np.int64),
            np.array([entry.records for entry in entries], np.int64),
            offsets_of(np.array([len(entry.begins) for entry in entries], np.int64)),
            _join(entry.begins for entry in entries),
            _join(entry.first_records for entry in entries),
            _join(entry.crcs for entry in entries),
            [entry.etag for entry in entries],
        )

    def take(self, shards: Sequence[int]) -> IndexColumns:
        """Return the facts of the shards of these numbers, in this order."""
        numbers = np.array(shards, np.int64)
        counts = np.diff(self.bounds)[numbers]
        bounds = offsets_of(counts)
        chunks = np.arange(bounds[-1]) + np.repeat(self.bounds[numbers] - bounds[:-1], counts)
        return IndexColumns(
            [self.names[shard] for shard in shards],
            self.sizes[numbers],
            self.records[numbers],
            bounds,
            self.begins[chunks],
            self.first_records[chunks],
            self.crcs[chunks],
            [self.etags[shard] for shard in shards],
        )


class Entries(Sequence[ShardEntry]):
    """The entries of shards, each made when it is asked for: there may be a million of them."""

    def __init__(self, columns: IndexColumns) -> None:
        self.columns = columns
        """Their facts, which must not be changed."""

    def __len__(self) -> int:
        return len(self.columns.names)

    @overload
    def __getitem__(self, shard: int) -> ShardEntry: ...
    @overload
    def __getitem__(self, shard: slice) -> Entries: ...
    def __getitem__(self, shard: int | slice) -> ShardEntry | Entries:
        """Return the entry of a shard, or those of a slice."""
        columns, number = self.columns, range(len(self))[shard]
        if isinstance(number, range):
            return Entries(columns.take(number))
        chunks = slice(*columns.bounds[number : number + 2].tolist())
        return ShardEntry(
            columns.names[number],
            columns.sizes.item(number),
            columns.records.item(number),
            columns.begins[chunks],
            columns.first_records[chunks],
            columns.crcs[chunks],
            columns.etags[number],
        )


@dataclass(frozen=True, eq=False)
class Index:
    """The entries of all shards, found by name."""

    entries: Sequence[ShardEntry]

    @cached_property
    def columns(self) -> IndexColumns:
        """The facts of all entries."""
        entries = self.entries
        return entries.columns if isinstance(entries, Entries) else IndexColumns.of(entries)

    @cached_property
    def _by_name(self) -> dict[str, int]:
        return {name: shard for shard, name in enumerate(self.columns.names)}

    def __repr__(self) -> str:
        return f"<Index of {len(self.entries)} shards, {self.records} records>"

    @cached_property
    def records(self) -> int:
        """The number of records in all shards."""
        return sum(self.columns.records.tolist())

    def find(self, names: Iterable[str]) -> int | None:
        """Return the number of the shard that has one of these names; ``None``: none has.

        The ``?...`` of signed URLs does not count, so an index that was written without signatures
        serves them, too, and the other way round.
        """
        for name in names:
            plain = name.removesuffix(SIGNED)
            for each in (name, plain, f"{plain}{SIGNED}"):
                if (shard := self._by_name.get(each)) is not None:
                    return shard
        return None

    def select(self, shards: Sequence[int]) -> Index:
        """Return the index of the shards of these numbers, in this order."""
        if list(shards) == list(range(len(self.entries))):
            return self
        return Index(Entries(self.columns.take(shards)))

    def by_name(self) -> Index:
        """Return the same entries, sorted by their names."""
        names = self.columns.names
        return self.select(sorted(range(len(names)), key=names.__getitem__))

    def chunks(self) -> Chunks:
        """Return all chunks, in the order of the entries."""
        return self._chunks

    @cached_property
    def _chunks(self) -> Chunks:
        columns = self.columns
        counts, firsts = np.diff(columns.bounds), columns.first_records
        return Chunks(
            np.repeat(np.arange(len(counts), dtype=np.int64), counts),
            columns.begins,
            _ends(columns.begins, counts, columns.sizes),
            firsts,
            _ends(firsts, counts, columns.records) - firsts,
        )

    def digest(self) -> str:
        """Return 16 hexadecimal digits of a hash over the shards' records and chunks.

        These determine an order. Names, ETags and CRCs are left out, so that states outlive a new
        index of the same shards, also one of another version.
        """
        hashed = blake2b(digest_size=8)
        for column in (self.columns.records, *self.chunks()):
            # In one byte order, so that the digest is the same on every machine.
            hashed.update(np.ascontiguousarray(column, "<i8").data)
        return hashed.hexdigest()

    def encode(self) -> bytes:
        """Serialize the index, in the latest version."""
        columns = self.columns
        # A file's name need not be UTF-8: Python holds other bytes as surrogates.
        names = [name.encode(errors="surrogateescape") for name in columns.names]
        text = b"".join(names)
        chunks = len(columns.begins)
        body = b"".join(
            (
                _HEAD.pack(MAGIC, VERSION, len(names), chunks, len(text)),
                columns.sizes.astype("<i8").tobytes(),
                columns.records.astype("<i8").tobytes(),
                np.diff(columns.bounds).astype("<u4").tobytes(),
                np.array([len(name) for name in names], "<u4").tobytes(),
                columns.begins.astype("<i8").tobytes(),
                columns.first_records.astype("<i8").tobytes(),
                columns.crcs.astype("<u4").tobytes(),
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
            return cls(Entries(_columns(data)))
        except MalformedIndex as fault:
            raise MalformedIndex(fault.message, url=url) from None


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


def _columns(data: bytes) -> IndexColumns:
    """Check all of an index's bytes, and return its columns."""
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
    bounds, names, *etags = map(offsets_of, lengths)
    text, named = data[at:-_DIGEST], int(names[-1])
    if bounds[-1] != chunks or named + sum(int(own[-1]) for own in etags) != text_bytes:
        raise MalformedIndex(f"the index's parts do not add up, {_DAMAGED}")
    strings = _strings(text[:named], names, "surrogateescape")  # a file's name need not be UTF-8
    # Entries are found by name, so one of the two would never be read.
    if len(set(strings)) != shards:
        raise MalformedIndex(f"two shards of the index have one name, {_DAMAGED}")
    versions = _strings(text[named:], etags[0]) if etags else [""] * shards
    # With 0, which says that a CRC is not known, no record is compared.
    crcs = np.zeros(chunks, np.int64) if has_etags else crcs.astype(np.int64)
    known = [version or None for version in versions]
    found = IndexColumns(strings, sizes, records, bounds, begins, firsts, crcs, known)
    if not _are_sound(sizes, records, np.diff(bounds), begins, firsts):
        for entry in Entries(found):  # one by one, to name it
            check_entry(entry)
    return found


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
    if _digest(memoryview(data)[:-_DIGEST]) != data[-_DIGEST:]:
        raise MalformedIndex(f"the index's digest is wrong, {_DAMAGED}")
    return version, shards, chunks, text


def _strings(text: bytes, bounds: Indices, errors: str = "strict") -> list[str]:
    pairs = pairwise(bounds.tolist())
    if text.isascii():  # most are, and a million are then decoded at once
        whole = text.decode()
        return [whole[a:b] for a, b in pairs]
    try:
        return [text[a:b].decode(errors=errors) for a, b in pairs]
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


def _digest(body: bytes | memoryview) -> bytes:
    return blake2b(body, digest_size=_DIGEST).digest()
