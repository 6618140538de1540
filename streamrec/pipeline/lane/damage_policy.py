"""Damage in a sublane: it is read again, then raised, or skipped, counted and quarantined."""

from __future__ import annotations

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from streamrec.config.places import local_path
from streamrec.config.schemes import line_of
from streamrec.errors import (
    AccessDenied,
    CorruptBudgetExceeded,
    CorruptRecord,
    RecordTooLarge,
    TruncatedShard,
)
from streamrec.flow.cleanup import end_threads
from streamrec.formats.shards.tfrecord import FOOTER, HEADER, frame
from streamrec.masking import masked
from streamrec.stores.base.source_text import names_apart
from streamrec.values.record_rows import RecordBlock

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping, Sequence

    from streamrec.config import DatasetSettings
    from streamrec.errors import DataError
    from streamrec.formats.shards.tfrecord import DamagedSpan
    from streamrec.pipeline.fetch.range_queue import RangeRead
    from streamrec.plan.order.shard_order import Extent


log = logging.getLogger("streamrec.pipeline")

_SAFE = {"": "%", ".": "%2E", "..": "%2E%2E"}
"""Names in place of parts of a path that cannot be file names."""
_WITH_EXCLUDED = (
    " and not kept, and the rest of the shard, or of its chunk in the index, is left out, because "
    "it may hold a record of exclude"
)
FEW = 1000
"""The least number of records that a fractional budget is a fraction of: one damaged record among
the first ten does not mean that a tenth of all are damaged."""


class SpanSink(Protocol):
    """A store of the spans that were skipped."""

    def store(self, shard: int, damaged: DamagedSpan) -> asyncio.Future[None]:
        """Store a span; return a future that is done when it is stored."""

    async def aclose(self) -> None:
        """Wait until all spans are stored."""


@dataclass(eq=False)
class CorruptionLog:
    """The log of all damage that one run skips.

    Args:
        urls: The shards' URLs.
        budget: ``corrupt_budget``: a number of records, or a fraction of those read.
        sink: Stores the skipped spans; ``None``: they are not stored.
    """

    urls: Sequence[str] = field(repr=False)
    budget: float
    sink: SpanSink | None = None
    met: int = 0
    """The number of records that the lanes have read, damaged ones included."""
    _records: int = 0
    _bytes: int = 0
    _quarantined: int = 0
    _known: set[tuple[int, int]] = field(default_factory=set)
    _different: int = 0

    def skip(
        self, shard: int, damaged: DamagedSpan, *, keeps: bool = True
    ) -> asyncio.Future[None] | None:
        """Count, log and store a span that is about to be skipped.

        Args:
            shard: The shard's number.
            damaged: The span.
            keeps: Whether its bytes may be stored; false if they may be an excluded record's.

        Returns:
            A future that is done when the span is stored; nothing that follows it may be delivered
            before. ``None``: it is not stored, or was before.

        Raises:
            CorruptBudgetExceeded: The run has skipped more than the budget allows.
        """
        self._bytes += len(damaged.content) + damaged.unread
        is_new = self._count((shard, damaged.offset), damaged.records)
        self._log(shard, damaged, keeps=keeps)
        if damaged.records:
            self._check(shard, damaged.offset, damaged.record, damaged.fault.message)
        if self.sink is None or not is_new or not keeps:
            return None
        self._quarantined += 1
        return self.sink.store(shard, damaged)

    def miss(self, extent: Extent, records: int) -> None:
        """Count and log records that a chunk lacks, beyond those that damaged spans counted as.

        Raises:
            CorruptBudgetExceeded: The run has skipped more than the budget allows.
        """
        if records <= 0:
            return
        # The complement, which is never a byte's offset: spans are counted by theirs.
        self._count((extent.shard, ~extent.begin), records)
        url = masked(self.urls[extent.shard])
        log.warning(
            "%s: the chunk at byte %d lacks %d more records; they are skipped",
            url,
            extent.begin,
            records,
        )
        last = f"{records} more are missing from the chunk that begins there"
        self._check(extent.shard, extent.begin, extent.first_record, last)

    def hopeless(self, shard: int, extents: int) -> CorruptBudgetExceeded:
        """Make the error for an endless lane that would never deliver anything."""
        return CorruptBudgetExceeded(
            f"a lane read {extents} shards or chunks in a row without an intact record, and "
            "has no others; replace the damaged shards, or lower lanes",
            url=self.urls[shard],
            skipped_records=self._records,
            skipped_bytes=self._bytes,
        )

    def statistics(self) -> dict[str, int]:
        """Return counters since the start of the run."""
        return {
            "skipped_records": self._records,
            "skipped_bytes": self._bytes,
            "quarantined": self._quarantined,
        }

    async def aclose(self) -> None:
        """Wait until all spans are stored."""
        if self.sink is not None:
            await self.sink.aclose()

    def _count(self, key: tuple[int, int], records: int) -> bool:
        """Count skipped records; return whether those of this key are met for the first time."""
        self._records += records
        self.met += records
        is_new = key not in self._known
        if is_new:
            self._known.add(key)
            self._different += records
        return is_new

    def _check(self, shard: int, offset: int, record: int, last: str) -> None:
        """Raise an error if more records are damaged than the budget allows."""
        # Of a number of records, each damaged one counts once, however often it is read.
        if isinstance(self.budget, int):
            exceeded = self._different > self.budget
        else:
            # A fraction compares what was met, and so counts a record each time that it is read.
            exceeded = self._records > self.budget * max(FEW, self.met)
        if exceeded:
            raise CorruptBudgetExceeded(
                f"{self._records} damaged records ({self._bytes} bytes) are more than "
                f"corrupt_budget={self.budget} allows to skip; the last one: {last}; replace the "
                "damaged shards, or raise the budget",
                url=self.urls[shard],
                offset=offset,
                record=record,
                skipped_records=self._records,
                skipped_bytes=self._bytes,
            )

    def _log(self, shard: int, damaged: DamagedSpan, *, keeps: bool) -> None:
        count = "1 record" if damaged.exact else "an unknown number of records, counted as 1"
        url = masked(self.urls[shard])
        where = f"bytes {damaged.offset} to {damaged.end} from record {damaged.record} on"
        if damaged.unread:
            where += f", and the last {damaged.unread} bytes of the compressed object,"
        rest = "" if keeps else _WITH_EXCLUDED
        log.warning("%s: %s are skipped (%s)%s: %s", url, where, count, rest, damaged.fault.message)


class Quarantine:
    """A sink that writes each span to an object of its own: a TFRecord shard of one Example.

    A thread writes. The name follows from the shard and the offsets, so that a span that is skipped
    again, after a resume or by another run, overwrites its object.

    Args:
        url: The URL below which the objects are written.
        urls: The shards' URLs.
        storage_options: fsspec's options for the URL's filesystem.
    """

    def __init__(self, url: str, urls: Sequence[str], storage_options: Mapping[str, Any]) -> None:
        self._url = url.rstrip("/")
        self._urls = urls
        self._names = names_apart(urls)
        self._options = storage_options
        self._threads = ThreadPoolExecutor(1, "streamrec-quarantine")

    def store(self, shard: int, damaged: DamagedSpan) -> asyncio.Future[None]:
        """Begin to store a span; the future is done when it is stored."""
        url = f"{self._url}/{object_name(self._names[shard], damaged)}"
        content = example_of(masked(self._urls[shard]), damaged)
        loop = asyncio.get_running_loop()
        write = partial(self._write, url, content)
        writing = loop.run_in_executor(self._threads, write)
        # Retrieved at once, so that asyncio does not warn if nobody waits for it.
        writing.add_done_callback(lambda done: done.cancelled() or done.exception())
        return writing

    def _write(self, url: str, content: bytes) -> None:
        # A shard's name may have a link for a directory, which could lead anywhere.
        root = os.path.realpath(local_path(self._url))
        if "://" not in local_path(url) and not _is_below(local_path(url), root):
            raise AccessDenied(
                f"a link leads out of the quarantine {masked(self._url)}; remove the link", url=url
            )
        from streamrec.stores.blocking import write_object

        write_object(url, content, self._options, make_directory=True)

    async def aclose(self) -> None:
        """Wait until all spans are stored."""
        await end_threads(self._threads, cancel=False)


def _is_below(path: str, root: str) -> bool:
    """Return whether a path is below a directory when all links are followed."""
    return os.path.realpath(path).startswith(f"{root.rstrip('/')}/")


def object_name(name: str, damaged: DamagedSpan) -> str:
    """Return the name of a span's object, below the quarantine's URL.

    Args:
        name: The shard's name below the directory that all shards share.
        damaged: The damaged span.
    """
    # A key of a store may have any parts. These would lead out of the quarantine.
    inside = "/".join(_SAFE.get(part, part) for part in name.split("/"))
    return f"{inside}.{damaged.offset:015}-{damaged.end:015}.tfrecord"


def example_of(url: str, damaged: DamagedSpan) -> bytes:
    """Encode a span and all facts about it as one framed Example."""
    values = {
        "url": url,
        "begin": damaged.offset,
        "end": damaged.end,
        "record": damaged.record,
        "unread": damaged.unread,
        "is_one_record": int(damaged.exact),
        "reason": f"{type(damaged.fault).__name__}: {damaged.fault.message}",
        "bytes": damaged.content.tobytes(),
    }
    from streamrec.formats.examples.example import encode_example  # imports protobuf

    return frame(encode_example(values))


def corruption_log_of(settings: DatasetSettings, urls: Sequence[str]) -> CorruptionLog | None:
    """Make the log that the settings ask for; ``None``: damage ends the run."""
    if settings.on_corrupt == "raise":
        return None
    sink = None
    if settings.quarantine is not None:
        # The options are those of the shards' store: another one must not get its secrets.
        same = line_of(settings.quarantine).name == line_of(urls[0]).name
        options = settings.storage_options or {} if same else {}
        sink = Quarantine(settings.quarantine, urls, options)
    return CorruptionLog(urls, settings.corrupt_budget, sink)


_NOTHING = np.empty(0, np.uint8)


@dataclass(eq=False)
class DamagePolicy:
    """The policy for one sublane's damage, with the faults that it has met.

    Args:
        counts: Counts faults that are gone when the bytes are read again, as ``refetched``.
        log: The log of skipped damage; ``None``: damage ends the lane.
        keeps_placeholders: Whether a damaged record leaves a row without bytes in its place.
        notify: Called when a damaged span has been stored.
        reach: The number of different extents that the lane meets if it goes on for ever.
    """

    counts: Counter[str]
    log: CorruptionLog | None = None
    keeps_placeholders: bool = False
    notify: Callable[[], None] = lambda: None
    reach: int = 1
    _empty_extents: int = -1
    _damaged: bool = False  # a part of the extent was skipped
    _inexact: int = 0  # damaged records of the extent that are a guess
    _suspect: DataError | None = None
    _reread: tuple[int, int] = (0, 0)
    _storing: asyncio.Future[None] | None = None

    @property
    def skips(self) -> bool:
        """True if damage is skipped."""
        return self.log is not None

    @property
    def has_skipped(self) -> bool:
        """True if a part of the extent was skipped."""
        return self._damaged

    @property
    def is_storing(self) -> bool:
        """True while a damaged span is being stored."""
        return self._storing is not None

    def enter(self, extent: Extent) -> None:
        """Begin an extent.

        Raises:
            CorruptBudgetExceeded: No extent of the lane has an intact record.
        """
        self._reread, self._inexact, self._damaged = (0, 0), 0, False
        self._empty_extents += 1
        if self.log is not None and self._empty_extents > 2 * self.reach:
            raise self.log.hopeless(extent.shard, self._empty_extents)

    def rereads(self, fault: DataError, read: RangeRead, *, is_excluded: bool = False) -> bool:
        """Return whether to read a corrupt record again, as it may have changed on the way.

        If that is of no use, the damage is skipped. That of an excluded record always is.

        Raises:
            DataError: The damage is certain and is not skipped, or the record is too large.
        """
        fault.__traceback__ = None  # else the kept fault would hold the range's memory
        assert fault.offset is not None
        if self._is_certain(fault, read):
            # A record that is too large is never skipped: the order would depend on the memory.
            is_final = self.log is None and not is_excluded
            if isinstance(fault, RecordTooLarge):
                raise fault
            if is_final:
                raise with_way_on(fault)
            return False
        self._suspect = fault
        self._reread = fault.offset, read.request.stop
        return True

    def _is_certain(self, fault: DataError, read: RangeRead) -> bool:
        """Return whether reading the bytes again is of no use, or was of none."""
        # Those of a compressed shard would have to be read from the shard's beginning.
        if read.inflated or isinstance(fault, (TruncatedShard, RecordTooLarge)):
            return True
        assert fault.offset is not None
        start, stop = self._reread
        was_whole = start <= fault.offset and read.request.stop <= stop
        was_same = self._suspect is not None and self._suspect.offset == fault.offset
        return was_same or (was_whole and self.log is not None)

    def count(self, block: RecordBlock) -> None:
        """Count intact records; a suspected fault before them is gone."""
        if self._suspect is not None:
            self._suspect = None
            self.counts["refetched"] += 1
        # Entering the next extent counts it as empty, until it gives a record.
        self._empty_extents = -1
        if self.log is not None:
            self.log.met += len(block)

    def leave_out(self, *, is_own: bool) -> None:
        """Count a damaged record that is excluded: not as damage, and its bytes are not stored.

        Args:
            is_own: Whether it is of the lane's part of a chunk; else another lane counts it.
        """
        self._suspect = None
        self.counts["records_excluded"] += is_own

    def skip(self, damaged: DamagedSpan, shard: int, *, keeps: bool = True) -> bool:
        """Count a damaged span, and store it if it keeps its bytes; return whether that is done."""
        assert self.log is not None
        if self._storing is None:
            self._storing = self.log.skip(shard, damaged, keeps=keeps)
            if self._storing is not None:
                self._storing.add_done_callback(lambda _: self.notify())
        if self._storing is not None:
            if not self._storing.done():
                return False
            # What could not be stored ends the lane: nothing is dropped without being kept where
            # that was asked for.
            self._storing.result()
        self._storing = self._suspect = None
        self._damaged = True
        self._inexact += 0 if damaged.exact else damaged.records
        return True

    def placeholder(self, damaged: DamagedSpan, shard: int) -> RecordBlock | None:
        """Return the row that a damaged span leaves; ``None`` if it leaves none."""
        leaves_row = damaged.exact and self.keeps_placeholders
        return placeholder_of(damaged, shard) if leaves_row else None

    def missing(self, extent: Extent, found: int) -> RecordBlock | None:
        """Return placeholders for the records that a chunk lacks; ``None`` if it needs none.

        Args:
            extent: The extent that has been read.
            found: The number in the shard of the first record that was not found.
        """
        # Of a shard without an index the source may count the records; there it has no damage.
        if not self.keeps_placeholders or extent.records is None or extent.end is None:
            return None
        missing = missing_from(extent, found)
        if not len(missing):
            return None
        assert self.log is not None
        self.log.miss(extent, len(missing) - self._inexact)
        self._empty_extents = -1
        return missing


def with_way_on(fault: DataError) -> DataError:
    """Return a fault of damaged bytes that also says how a stream goes on."""
    # At byte 0 it is rather another kind of file, of which nothing would be read.
    if not fault.offset and not isinstance(fault, CorruptRecord):
        return fault
    return replace(
        fault, message=f'{fault.message}; with on_corrupt="skip" a stream goes on without it'
    )


def placeholder_of(damaged: DamagedSpan, shard: int) -> RecordBlock:
    """Make a placeholder for a damaged span that is exactly one record: a row without bytes."""
    length = len(damaged.content) - HEADER - FOOTER
    offsets, lengths = np.array([HEADER]), np.array([length])
    return RecordBlock(
        buffer=_NOTHING,
        offsets=offsets,
        lengths=lengths,
        shard=shard,
        first_ordinal=damaged.record,
        base=damaged.offset,
        lost=True,
    )


def missing_from(extent: Extent, begin_of_gap: int) -> RecordBlock:
    """Make placeholders for the extent's records that were not found before its end.

    Args:
        extent: An extent whose records an index counts.
        begin_of_gap: The number in the shard of the first record that was not found.
    """
    assert extent.end is not None
    assert extent.records is not None
    begin = extent.first_record + extent.skip
    first = max(begin, begin_of_gap)
    count = max(0, begin + extent.records - first)
    nothing = np.zeros(count, np.int64)
    base = extent.end - HEADER - FOOTER
    return RecordBlock(
        buffer=_NOTHING,
        offsets=nothing + HEADER,
        lengths=nothing,
        shard=extent.shard,
        first_ordinal=first,
        base=base,
        lost=True,
    )
