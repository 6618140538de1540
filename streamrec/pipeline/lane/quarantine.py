"""The log of damaged spans, which counts them against the budget, and their quarantine."""

from __future__ import annotations

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from streamrec.config.places import local_path
from streamrec.config.schemes import line_of
from streamrec.errors import AccessDenied, CorruptBudgetExceeded
from streamrec.flow.cleanup import end_threads
from streamrec.formats.shards.tfrecord import frame
from streamrec.masking import masked
from streamrec.stores.base.source_text import names_apart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamrec.config import DatasetSettings
    from streamrec.formats.shards.tfrecord import DamagedSpan
    from streamrec.plan.order.shard_order import Extent

log = logging.getLogger("streamrec.pipeline")

_SAFE = {"": "%", ".": "%2E", "..": "%2E%2E"}
"""Names in place of parts of a path that cannot be file names."""
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

    def skip(self, shard: int, damaged: DamagedSpan) -> asyncio.Future[None] | None:
        """Count, log and store a span that is about to be skipped.

        Returns:
            A future that is done when the span is stored; nothing that follows it may be delivered
            before. ``None``: it is not stored, or was before.

        Raises:
            CorruptBudgetExceeded: The run has skipped more than the budget allows.
        """
        self._bytes += len(damaged.content) + damaged.unread
        is_new = self._count((shard, damaged.offset), damaged.records)
        self._log(shard, damaged)
        if damaged.records:
            self._check(shard, damaged.offset, damaged.record, damaged.fault.message)
        if self.sink is None or not is_new:
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
            "has no others; replace the damaged shards, or set lanes to less",
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

    def _log(self, shard: int, damaged: DamagedSpan) -> None:
        count = "1 record" if damaged.exact else "an unknown number of records"
        url = masked(self.urls[shard])
        where = f"bytes {damaged.offset} to {damaged.end} from record {damaged.record} on"
        if damaged.unread:
            where += f", and the last {damaged.unread} bytes of the compressed object,"
        log.warning("%s: %s are skipped (%s): %s", url, where, count, damaged.fault.message)


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
        root = os.path.realpath(local_path(self._url))
        if "://" not in local_path(url) and not _is_below(local_path(url), root):
            raise AccessDenied(
                f"a link leads out of the quarantine {masked(self._url)}; remove the link", url=url
            )
        from streamrec.stores.writing import write_object

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
        same = line_of(settings.quarantine).name == line_of(urls[0]).name
        options = settings.storage_options or {} if same else {}
        sink = Quarantine(settings.quarantine, urls, options)
    return CorruptionLog(urls, settings.corrupt_budget, sink)
