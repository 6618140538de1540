"""The check of a dataset: its bytes and its faults."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.config.arguments import options_of, source_texts
from streamrec.config.machine import automatic_budget
from streamrec.datasets.indexes import KeyCollector, LengthCollector
from streamrec.errors import ConfigError, DataError, OutOfMemory, StoreError, TruncatedShard
from streamrec.flow.cleanup import all_of, end
from streamrec.formats.shards.compression import HEAD, Decompressor, detect, of_name
from streamrec.formats.shards.index import CHUNK_BYTES, ChunkFinder, Index, ShardEntry
from streamrec.formats.shards.tfrecord import FrameScanner
from streamrec.masking import masked, masked_repr
from streamrec.stores.base.protocol import ObjectInfo, read_range
from streamrec.stores.base.source_text import names_apart
from streamrec.stores.open import Stores
from streamrec.wire.error_fields import to_fields

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
    from os import PathLike

    from streamrec.config import Compression
    from streamrec.datasets.indexes import EntryCheck, IndexCheck
    from streamrec.errors import StaleIndex, StreamrecError
    from streamrec.values.columns import ByteArray


SHARDS_AT_ONCE = 8
RANGE = 4 << 20
"""Bytes of a request."""
AHEAD = 4
"""Ranges of a shard in flight: eight shards with four ranges of 4 MiB each take 128 MiB."""
INFLATED = 4 << 20
"""Bytes of decompressed data that are scanned at a time."""


@dataclass
class ShardReport:
    """The results of reading one whole shard."""

    url: str
    size: int = 0
    """The size in bytes, as the shard is stored."""
    compression: str = "none"
    faults: list[StreamrecError] = field(default_factory=list)
    records: int = 0
    """The number of intact records, and of damaged stretches that are provably one record."""
    lost: int = 0
    """Bytes between a fault and the next intact record, of all faults; of a compressed shard,
    decompressed bytes."""
    unread: int = 0
    """Stored bytes of a compressed shard that cannot be decompressed."""
    finder: ChunkFinder = field(default_factory=ChunkFinder)
    entry: EntryCheck | None = None
    """The comparison with the shard's entry in an index."""
    keys: Sequence[KeyCollector] = ()
    """Collect the values of features."""
    lengths: Sequence[LengthCollector] = ()
    """Collect the lengths of features."""

    __repr__ = masked_repr

    @property
    def is_cut(self) -> bool:
        """True if the shard ends inside a record, so that a part of it is missing."""
        return any(isinstance(fault, TruncatedShard) for fault in self.faults)

    def index_faults(self) -> list[StaleIndex]:
        """Return a fault for each number of the index that the shard's bytes contradict."""
        if self.entry is None or any(isinstance(fault, StoreError) for fault in self.faults):
            return []
        return self.entry.finish(self.size, self.records, is_damaged=bool(self.faults))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "url": masked(self.url),
            "bytes": self.size,
            "records": self.records,
            "compression": self.compression,
            "faults": [to_fields(fault) for fault in self.faults],
            "is_cut": self.is_cut,
            "bytes_lost": self.lost,
            "bytes_not_looked_at": self.unread,
        }


async def check(
    urls: str | PathLike[str] | Sequence[str | PathLike[str]],
    storage_options: Mapping[str, Any] | None = None,
    *,
    chunk_bytes: int = CHUNK_BYTES,
    largest: int | None = None,
    index: IndexCheck | None = None,
    keys: Mapping[str, str] | None = None,
    lengths: Mapping[str, str] | None = None,
    progress: Callable[[str, int, int | None], None] = lambda *_: None,
) -> list[ShardReport]:
    """Read every byte of the shards, several at a time, and check every CRC.

    Args:
        urls: As ``streamrec.open`` takes them.
        storage_options: The options for fsspec.
        chunk_bytes: The size of an index's chunks in bytes.
        largest: ``max_record_bytes``: a longer record is a fault and is skipped; ``None``: the
            default memory budget of a stream.
        index: Compares the index beside the shards, and gets its faults.
        keys: Features whose values are collected, and the types of these.
        lengths: Features whose lengths are collected, and the types of their values.
        progress: Called with a word, the bytes read, and all bytes as far as they are known.

    Returns:
        A report for each shard, sorted by URL; for a shard that cannot be read it has a fault.

    Raises:
        ConfigError: A URL cannot be understood.
        StoreError: The shards cannot be listed.
    """
    source = source_texts(urls)
    stores = Stores(options_of(storage_options), progress=progress)
    try:
        objects = await stores.resolve(source)
        total = sum(shard.size or 0 for shard in objects)
        if index is not None:
            await index.find(stores, [shard.url for shard in objects])
        # Faults are reported and not raised, so a length that is damaged must not claim all memory.
        most = largest or automatic_budget()
        checker = _Checker(
            stores=stores,
            total=total,
            progress=progress,
            chunk_bytes=chunk_bytes,
            largest=most,
            index=index,
            keys=keys or {},
            lengths=lengths or {},
        )
        reports = await all_of(map(checker.check, objects))
        if index is not None:
            index.faults += [fault for report in reports for fault in report.index_faults()]
        return reports
    finally:
        await stores.aclose()


def index_of(reports: Sequence[ShardReport]) -> Index:
    """Build the index of shards that were read without a fault.

    Raises:
        ConfigError: A shard is compressed, so that reading cannot begin inside it.
        StreamrecError: A shard has a fault; this is the first one.
    """
    for report in reports:
        if report.compression != "none":
            raise ConfigError(
                f"{masked(report.url)} is compressed ({report.compression}), and reading can "
                "begin at its first byte only, so it cannot be indexed; store the shards without "
                "compression, or read them in the order by shard"
            )
        if report.faults:
            raise report.faults[0]
    names = names_apart([report.url for report in reports])
    return Index(
        tuple(
            ShardEntry(
                name=name,
                size=report.size,
                records=report.records,
                begins=report.finder.begins,
                first_records=report.finder.first_records,
                crcs=report.finder.crcs,
            )
            for name, report in zip(names, reports, strict=True)
        )
    )


@dataclass
class _Checker:
    """A checker of shards, which counts the bytes read of all of them."""

    stores: Stores
    total: int
    progress: Callable[[str, int, int | None], None]
    chunk_bytes: int
    largest: int
    index: IndexCheck | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    lengths: Mapping[str, str] = field(default_factory=dict)
    read: int = 0
    limit: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SHARDS_AT_ONCE))

    async def check(self, shard: ObjectInfo) -> ShardReport:
        """Read one shard, and report its faults."""
        keys = [KeyCollector(shard.url, feature, self.keys[feature]) for feature in self.keys]
        lengths = [LengthCollector(shard.url, *feature) for feature in self.lengths.items()]
        finder = ChunkFinder(self.chunk_bytes)
        report = ShardReport(shard.url, finder=finder, keys=keys, lengths=lengths)
        if self.index is not None:
            report.entry = self.index.entry(shard.url)
        # All shards are tasks at once; only some of them read, so that memory stays bounded.
        async with self.limit:
            try:
                await self._scan(shard, report)
            except (StoreError, DataError) as fault:
                report.faults.append(fault)
            except MemoryError as error:
                report.faults.append(OutOfMemory.of(error, url=report.url))
        return report

    async def _scan(self, shard: ObjectInfo, report: ShardReport) -> None:
        scan: _Scan | None = None
        reader = _ShardReader(self.stores, shard)
        async with aclosing(reader.pieces()) as pieces:
            async for piece in pieces:
                report.size = reader.info.size or 0
                # The first bytes tell the compression, whatever the name says.
                scan = scan or self._new_scan(report, reader.info, piece)
                # In a thread: the next ranges arrive while this one is checked.
                await asyncio.get_running_loop().run_in_executor(None, scan.add, piece)
                self._count(len(piece))
        report.size = reader.info.size or 0
        if scan is not None:
            scan.finish()

    def _new_scan(self, report: ShardReport, info: ObjectInfo, piece: ByteArray) -> _Scan:
        kind = detect(piece[:HEAD].tobytes(), of_name(info.url, info.encoding))
        report.compression = kind
        if kind != "none":
            return _InflatedScan(report, self.largest, kind)
        return _Scan(report, self.largest, report.size)

    def _count(self, nbytes: int) -> None:
        self.read += nbytes
        # A listing may not know sizes, and then more bytes come than were counted.
        self.progress("checking", self.read, max(self.total, self.read))


class _ShardReader:
    """A reader of one version of a shard, which requests some ranges ahead."""

    def __init__(self, stores: Stores, shard: ObjectInfo) -> None:
        self.info = shard
        """The shard's size, version and encoding, as the latest response gave them."""
        self._stores = stores
        self._next = 0
        self._tasks: deque[asyncio.Task[ByteArray]] = deque()

    async def pieces(self) -> AsyncGenerator[ByteArray]:
        """Yield all bytes in order, as uint8 arrays."""
        self._start_more()
        try:
            while self._tasks:
                # Popped after the wait: a cancelled wait must leave the task among those that are
                # ended.
                piece = await self._tasks[0]
                self._tasks.popleft()
                self._start_more()
                if len(piece):
                    yield piece
        finally:
            await end(*self._tasks)

    def _start_more(self) -> None:
        """Request ranges until ``AHEAD`` of them are in flight."""
        # Where the listing gave no size, the first range's response does.
        size = self.info.size
        while len(self._tasks) < AHEAD and (self._next < (size or 0) or not self._next):
            # An empty shard is asked for, too: only a response tells that it can be read.
            stop = self._next + RANGE if size is None else min(max(size, 1), self._next + RANGE)
            self._tasks.append(asyncio.create_task(self._range(self._next, stop)))
            self._next = stop

    async def _range(self, start: int, stop: int) -> ByteArray:
        store = self._stores.store_for(self.info.url)
        piece, self.info = await read_range(store, self.info, start, stop)
        return piece


class _Scan:
    """A scan of a shard's bytes for records; after damage it looks for the next intact one."""

    def __init__(self, report: ShardReport, largest: int, size: int | None = None) -> None:
        self.size = size
        """The size of all frames in bytes; ``None`` while it is not known."""
        self._report = report
        self._scanner = FrameScanner(url=report.url, most=largest)

    def add(self, piece: ByteArray) -> None:
        """Scan the shard's next bytes."""
        # A scan may stop at a fault, and goes on after it with the same piece.
        while len(piece) or self._scanner.pending:
            piece = piece[self._scan(piece) :]

    def finish(self) -> None:
        """Conclude the scan at the shard's end."""
        while True:
            # At the end a record that was cut off is a fault, after which there may be whole ones.
            while self._scanner.searching or self._scanner.pending:
                self._scan(_NOTHING)
            try:
                self._scanner.finish()
            except DataError as fault:
                self._note(fault)
            else:
                return

    def _scan(self, piece: ByteArray) -> int:
        """Scan the next bytes, and return how many of them were consumed."""
        self._scanner.size = self.size
        try:
            blocks, consumed = self._scanner.scan(piece, more=False)
        except DataError as fault:
            self._note(fault)
            return 0
        for block in blocks:
            self._report.finder.add(block)
            if self._report.entry is not None:
                self._report.entry.add(block)
            for keys in self._report.keys:
                keys.add(block)
            for lengths in self._report.lengths:
                lengths.add(block)
            self._report.records += len(block)
        self._count_lost()
        return consumed

    def _note(self, fault: DataError) -> None:
        self._report.faults.append(fault)
        self._scanner.recover(fault)

    def _count_lost(self) -> None:
        for damaged in self._scanner.damaged:
            self._report.lost += len(damaged.content)
            self._report.records += damaged.exact
        self._scanner.damaged.clear()


class _InflatedScan(_Scan):
    """A scan of a compressed shard: of a damaged stream, it scans the bytes before the fault."""

    def __init__(self, report: ShardReport, largest: int, kind: Compression) -> None:
        super().__init__(report, largest)
        self._inflater = Decompressor(kind, url=report.url)
        self._memory = np.empty(INFLATED, np.uint8)
        self._is_over = False

    def add(self, piece: ByteArray) -> None:
        """Decompress and scan the next bytes of the stored object."""
        source = piece.data
        while not self._is_over and (len(source) or self._inflater.pending):
            try:
                consumed, produced = self._inflater.fill(source, self._memory.data)
            except DataError as fault:
                self._abandon(fault)
            else:
                source = source[consumed:]
                # A copy: the scanner may keep a part, and the memory is filled again.
                super().add(self._memory[:produced].copy())

    def finish(self) -> None:
        """Conclude the scan at the object's end."""
        # What the library holds back comes only now.
        self._inflater.end()
        self.add(_NOTHING)
        if self._is_over:
            return
        try:
            self._inflater.finish()
        except DataError as fault:
            self._abandon(fault)
        else:
            # All is decompressed, so the size of all frames is known.
            self.size = self._inflater.produced
            super().finish()

    def _abandon(self, fault: DataError) -> None:
        assert fault.offset is not None
        self._report.faults.append(fault)
        self._report.unread = max(0, self._report.size - fault.offset)
        self._is_over = True
        # Nothing after the fault can be decompressed, so what the scanner holds is lost, too.
        self._scanner.abandon(_NOTHING, fault, self._report.unread)
        self._count_lost()


_NOTHING = np.empty(0, np.uint8)
