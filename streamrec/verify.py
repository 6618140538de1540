"""Reads every byte of a dataset's shards, names every fault, and finds what an index holds."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.arguments import options_of, source_texts
from streamrec.errors import (
    ConfigError,
    DataError,
    OutOfMemory,
    StoreError,
    StoreUnavailable,
    to_fields,
)
from streamrec.flow.retry import Backoff
from streamrec.formats.compression import HEAD, Decompressor, detect, of_name
from streamrec.formats.index import CHUNK_BYTES, ChunkFinder, Index, ShardEntry
from streamrec.formats.tfrecord import FrameScanner
from streamrec.masking import masked, masked_repr
from streamrec.memory import automatic_budget
from streamrec.plan.position import relative_names
from streamrec.stores.base import ObjectInfo, bare_url
from streamrec.stores.open import Stores

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
    from os import PathLike

    from streamrec.config import Compression
    from streamrec.errors import StreamrecError
    from streamrec.types import Octets

__all__ = ["ShardReport", "check", "index_of"]

SHARDS_AT_ONCE = 8
RANGE = 4 << 20
"""Bytes of a request."""
AHEAD = 4
"""Ranges of a shard that are under way: eight shards with four of 4 MiB take 128 MiB."""
ATTEMPTS = 8
"""Failures of one range in a row, none of which brought a byte, before it is given up."""
INFLATED = 4 << 20


@dataclass
class ShardReport:
    """What reading one shard wholly has found."""

    url: str
    size: int = 0
    """Bytes as it is stored."""
    etag: str | None = None
    compression: str = "none"
    faults: list[StreamrecError] = field(default_factory=list)
    records: int = 0
    """Records that are intact, and damaged stretches that are provably one record."""
    lost: int = 0
    """Bytes from each fault to the next intact record; decompressed, if the shard is compressed."""
    unread: int = 0
    """Bytes of a compressed shard that cannot be decompressed."""
    finder: ChunkFinder = field(default_factory=ChunkFinder)

    __repr__ = masked_repr

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "url": masked(self.url),
            "bytes": self.size,
            "records": self.records,
            "compression": self.compression,
            "faults": [to_fields(fault) for fault in self.faults],
            "bytes_lost": self.lost,
            "bytes_not_looked_at": self.unread,
        }


async def check(
    urls: str | PathLike[str] | Sequence[str | PathLike[str]],
    storage_options: Mapping[str, Any] | None = None,
    *,
    chunk_bytes: int = CHUNK_BYTES,
    largest: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[ShardReport]:
    """Read every byte of the shards, several at a time, and check every CRC.

    Args:
        urls: As ``streamrec.open`` takes them.
        storage_options: fsspec's.
        chunk_bytes: What the chunks of an index are to hold.
        largest: ``max_record_bytes``: a longer record is a fault, and is passed over; ``None``: as
            many as a stream's memory budget has by default.
        progress: Called with a word, the bytes read, and how many there are, as far as is known.

    Returns:
        A report for each shard, sorted by URL; a shard that cannot be read is a fault, too.

    Raises:
        ConfigError: A URL cannot be understood.
        StoreError: The shards cannot be listed.
    """
    source, stores = source_texts(urls), Stores(options_of(storage_options))
    try:
        objects = await stores.resolve(source)
        reports = [ShardReport(found.url, finder=ChunkFinder(chunk_bytes)) for found in objects]
        total = sum(found.size or 0 for found in objects)
        checker = _Checker(stores, total, progress, largest or automatic_budget())
        limit = asyncio.Semaphore(SHARDS_AT_ONCE)
        await _all_of(
            [
                asyncio.ensure_future(checker.check(found, report, limit))
                for found, report in zip(objects, reports, strict=True)
            ]
        )
        return reports
    finally:
        await stores.aclose()


async def _all_of(tasks: Sequence[asyncio.Future[None]]) -> None:
    """Wait for all; the first error cancels the others and is raised itself."""
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def index_of(reports: Sequence[ShardReport]) -> Index:
    """The index of shards that were read without a fault.

    Raises:
        ConfigError: A shard is compressed: no record in it can be begun with.
        StreamrecError: The first fault.
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
    names = relative_names([bare_url(report.url) for report in reports])
    return Index(
        tuple(
            ShardEntry(
                name,
                report.size,
                report.etag,
                report.records,
                report.finder.begins,
                report.finder.first_records,
            )
            for name, report in zip(names, reports, strict=True)
        )
    )


@dataclass
class _Checker:
    """Checks shards; counts the bytes of all of them."""

    stores: Stores
    total: int
    progress: Callable[[str, int, int], None] | None
    largest: int
    read: int = 0

    async def check(self, found: ObjectInfo, report: ShardReport, limit: asyncio.Semaphore) -> None:
        """Read one shard; what is wrong with it is in its report."""
        async with limit:
            try:
                await self._scan(found, report)
            except (StoreError, DataError) as fault:
                report.faults.append(fault)
            except MemoryError as error:
                report.faults.append(OutOfMemory.of(error, url=report.url))

    async def _scan(self, found: ObjectInfo, report: ShardReport) -> None:
        scan: _Scan | None = None
        reader = _ShardReader(self.stores, found)
        async with aclosing(reader.pieces()) as pieces:
            async for piece in pieces:
                report.size, report.etag = reader.info.size or 0, reader.info.etag
                if scan is None:
                    kind = detect(piece[:HEAD].tobytes(), of_name(found.url, reader.info.encoding))
                    report.compression = kind
                    scan = self._new_scan(report, kind)
                await asyncio.get_running_loop().run_in_executor(None, scan.add, piece)
                self._count(len(piece))
        report.size, report.etag = reader.info.size or 0, reader.info.etag
        if scan is not None:
            scan.finish()

    def _new_scan(self, report: ShardReport, kind: Compression) -> _Scan:
        if kind != "none":
            return _InflatedScan(report, self.largest, kind)
        scan = _Scan(report, self.largest)
        scan.size = report.size
        return scan

    def _count(self, nbytes: int) -> None:
        self.read += nbytes
        if self.progress is not None:
            self.progress("checking", self.read, max(self.total, self.read))


class _ShardReader:
    """The bytes of one shard in order, some ranges ahead; of one version."""

    def __init__(self, stores: Stores, found: ObjectInfo) -> None:
        self.info = found
        """Learns from the answers."""
        self._stores = stores
        self._next = 0
        self._tasks: deque[asyncio.Task[Octets]] = deque()

    async def pieces(self) -> AsyncGenerator[Octets]:
        """All bytes, as uint8 arrays."""
        self._start_more()
        try:
            while self._tasks:
                piece = await self._tasks[0]
                self._tasks.popleft()
                self._start_more()
                if len(piece):
                    yield piece
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start_more(self) -> None:
        """The first range tells the size, where the listing did not."""
        size = self.info.size
        while len(self._tasks) < AHEAD and (self._next < (size or 0) or not self._next):
            stop = self._next + RANGE if size is None else min(max(size, 1), self._next + RANGE)
            self._tasks.append(asyncio.create_task(self._range(self._next, stop)))
            self._next = stop

    async def _range(self, start: int, stop: int) -> Octets:
        memory, filled, backoff = np.empty(stop - start, np.uint8), 0, Backoff(Random())
        while True:
            try:
                async with self._open(start + filled, stop) as body:
                    self.info = body.info
                    size = body.info.size
                    end = (stop if size is None else max(start, min(stop, size))) - start
                    while filled < end:
                        count = await body.readinto(memory.data[filled:end])
                        if not count:
                            raise StoreUnavailable("the response ended early", url=self.info.url)
                        filled += count
                        backoff.reset()
                return memory[:filled]
            except StoreError as error:
                if not error.retryable or backoff.attempt == ATTEMPTS:
                    raise error.at(start + filled) from None
                await asyncio.sleep(backoff.next(getattr(error, "retry_after", None)))

    def _open(self, start: int, stop: int) -> Any:
        store = self._stores.store_for(self.info.url)
        return store.open_range(self.info.url, start, stop, etag=self.info.etag)


class _Scan:
    """Looks for records in a shard's bytes, and behind damage for the next one that is intact."""

    def __init__(self, report: ShardReport, largest: int) -> None:
        self.size: int | None = None
        """Bytes of all frames, once known."""
        self._report = report
        self._scanner = FrameScanner(url=report.url, most=largest)

    def add(self, piece: Octets) -> None:
        """The next bytes."""
        while len(piece) or self._scanner.pending:
            piece = piece[self._scan(piece) :]

    def finish(self) -> None:
        """The shard ends here."""
        while True:
            while self._scanner.searching or self._scanner.pending:
                self._scan(_NOTHING)
            try:
                self._scanner.finish()
            except DataError as fault:
                self._note(fault)
            else:
                return

    def _scan(self, piece: Octets) -> int:
        """Look at the next bytes; how many of them are done with."""
        self._scanner.size = self.size
        try:
            blocks, consumed = self._scanner.scan(piece, more=False)
        except DataError as fault:
            self._note(fault)
            return 0
        for block in blocks:
            self._report.finder.add(block)
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
    """The same, of compressed bytes; of a stream that is damaged, those before its fault."""

    def __init__(self, report: ShardReport, largest: int, kind: Compression) -> None:
        super().__init__(report, largest)
        self._inflater = Decompressor(kind, url=report.url)
        self._memory = np.empty(INFLATED, np.uint8)
        self._is_over = False

    def add(self, piece: Octets) -> None:
        """The next bytes, as they are stored."""
        source = piece.data
        while not self._is_over and (len(source) or self._inflater.pending):
            try:
                taken, given = self._inflater.fill(source, self._memory.data)
            except DataError as fault:
                self._abandon(fault)
            else:
                source = source[taken:]
                super().add(self._memory[:given].copy())

    def finish(self) -> None:
        """The object ends here."""
        self._inflater.end()
        self.add(_NOTHING)
        if self._is_over:
            return
        try:
            self._inflater.finish()
        except DataError as fault:
            self._abandon(fault)
        else:
            self.size = self._inflater.produced
            super().finish()

    def _abandon(self, fault: DataError) -> None:
        assert fault.offset is not None
        self._report.faults.append(fault)
        self._report.unread = max(0, self._report.size - fault.offset)
        self._is_over = True
        self._scanner.abandon(_NOTHING, fault, self._report.unread)
        self._count_lost()


_NOTHING = np.empty(0, np.uint8)
