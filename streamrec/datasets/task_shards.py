"""The shards of one task: a counted number, which get records in turn, or in sequence by size."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec import kernel
from streamrec.datasets.dataset_manifest import IndexedShard
from streamrec.datasets.writer import TFRecordWriter
from streamrec.errors import StoreError
from streamrec.formats.shards.index import ChunkFinder
from streamrec.formats.shards.tfrecord import FOOTER, HEADER
from streamrec.plan.order.shard_names import owned_shards
from streamrec.stores.writing import new_object
from streamrec.values.record_rows import RecordBlock, RecordRows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from streamrec.datasets.dataset_manifest import SourcePlace
    from streamrec.datasets.task_log import TaskLog
    from streamrec.plan.order.shard_names import ShardNames, Task
    from streamrec.stores.base.protocol import NewObject
    from streamrec.values.columns import ByteArray, BytesColumn, Indices

COMMITS = 8
"""Shards that are made to appear at once."""
BEHIND = 4
"""Shards by size that are made to appear while the next one is written."""
UPLOADS = 8
"""Shards that go to a store while they are written. Each holds up to five parts of 8 MiB, so more
of them wait in temporary files."""


class _ShardWriter(TFRecordWriter):
    """A writer of a shard, which has another name until the dataset is complete.

    Args:
        place: The URL or path to write to.
        shown: The one that errors name.
        log: The task's record.
        spooled: True if it goes to a store only when it is complete.
    """

    def __init__(self, place: str, shown: str, log: TaskLog, *, spooled: bool) -> None:
        self._place, self._spooled = place, spooled
        settings, options = log.part.settings, log.folder.options
        super().__init__(shown, settings.compression, storage_options=options)

    def _new_target(self, storage_options: Mapping[str, Any]) -> NewObject:
        return new_object(self._place, storage_options, spooled=self._spooled)


class _Shard:
    """A shard that is being written, and the places of its chunks."""

    def __init__(self, name: str, shown: str, log: TaskLog, *, spooled: bool = False) -> None:
        self.name = name
        self._finder = ChunkFinder()
        url = log.folder.url
        self.writer = _ShardWriter(url(name), url(shown), log, spooled=spooled)

    def write(self, rows: RecordRows) -> None:
        """Append the records of rows."""
        self.write_frames(kernel.frame_records(rows), rows.lengths + (HEADER + FOOTER))

    def write_frames(self, frames: ByteArray, sizes: Indices) -> None:
        """Append frames that lie end to end, each of the given size."""
        payloads = np.cumsum(sizes) - sizes + HEADER
        lengths, writer = sizes - (HEADER + FOOTER), self.writer
        self._finder.add(RecordBlock(frames, payloads, lengths, 0, writer.records, writer.nbytes))
        writer.write_frames(frames, len(sizes))

    def close(self) -> IndexedShard:
        """Make the shard appear, and return its facts."""
        self.writer.close()
        return IndexedShard(
            name=self.name,
            records=self.writer.records,
            bytes=self.writer.stored,
            begins=self._finder.begins,
            first_records=self._finder.first_records,
            crcs=self._finder.crcs,
        )


class CountedShards:
    """A task's shards of a known number: the first record goes to the first one, and so on.

    All are open at once, and appear when the task is complete.
    """

    def __init__(self, names: ShardNames, task: Task, log: TaskLog) -> None:
        self._log = log
        count = log.part.settings.shards
        assert count is not None
        own = owned_shards(count, task)
        self._turn = 0
        self._is_closing = False
        self._open: list[_Shard] = []
        if log.part.complete:
            return
        try:
            for number in own:
                name = names.shard(number, count)
                shard = _Shard(name, name, log, spooled=len(own) > UPLOADS)
                self._open.append(shard)
        except BaseException:
            self.discard()
            raise

    def write(self, rows: RecordRows) -> None:
        """Append the records of rows, one to each shard in turn."""
        for shard, own in self._turns(len(rows)):
            shard.write(rows.pick(own))

    def write_frames(self, frames: BytesColumn) -> None:
        """Append frames of records, as :meth:`write` does."""
        rows = RecordRows.from_column(frames)
        for shard, own in self._turns(len(rows)):
            picked = rows.pick(own)
            shard.write_frames(kernel.gather(picked).values, picked.lengths)

    def _turns(self, records: int) -> Iterator[tuple[_Shard, Indices]]:
        """Yield shards, and which of so many records each gets."""
        count = len(self._open)
        for first in range(min(count, records)):
            yield self._open[(self._turn + first) % count], np.arange(first, records, count)
        self._turn = (self._turn + records) % max(1, count)

    def mark(self, records: int, place: SourcePlace) -> None:
        """Do nothing, since all shards are written again where one is not complete."""

    def close(self) -> None:
        """Make all shards appear, and note it in the task's record, which is not yet written."""
        if self._log.part.complete:
            return
        self._is_closing = True
        with ThreadPoolExecutor(COMMITS, "streamrec-commit") as threads:
            shards = list(threads.map(_Shard.close, self._open))
        self._log.change(shards=shards, complete=True)

    def discard(self) -> None:
        """Discard the shards that have not appeared, and the task's record if none has."""
        for shard in self._open:
            shard.writer.discard()
        if not (self._is_closing or self._log.part.complete):
            self._log.give_up()


class SequentialShards:
    """A task's shards one after the other, each of up to a number of bytes.

    While some are made to appear, the next one is written.
    """

    def __init__(self, names: ShardNames, task: Task, log: TaskLog) -> None:
        self._log, self._names, self._task = log, names, task
        limit = log.part.settings.shard_bytes
        assert limit is not None
        self._limit = limit
        self._done = list(log.part.shards)
        self._number = len(self._done)
        self._shard: _Shard | None = None
        self._committing: deque[Future[IndexedShard]] = deque()
        self._threads = ThreadPoolExecutor(BEHIND, "streamrec-commit")
        self._marks: deque[tuple[int, SourcePlace]] = deque()
        self._place = log.part.place

    def write(self, rows: RecordRows) -> None:
        """Append the records of rows, and begin a new shard where one is full."""
        for shard, own in self._cuts(np.cumsum(rows.lengths + (HEADER + FOOTER))):
            shard.write(rows.pick(own))

    def write_frames(self, frames: BytesColumn) -> None:
        """Append frames of records, as :meth:`write` does."""
        bounds = frames.offsets
        for shard, own in self._cuts(bounds[1:] - bounds[0]):
            whole = frames.values[bounds[own.start] : bounds[own.stop]]
            shard.write_frames(whole, np.diff(bounds)[own])

    def _cuts(self, ends: Indices) -> Iterator[tuple[_Shard, slice]]:
        """Yield shards, and which of the frames with these ends each takes."""
        first = 0
        while first < len(ends):
            shard = self._shard = self._shard or self._next()
            before = int(ends[first - 1]) if first else 0
            room = before + self._limit - shard.writer.nbytes
            last = int(np.searchsorted(ends, room, "right"))
            if last == first and not shard.writer.records:
                last += 1  # a record longer than a shard has one of its own
            yield shard, slice(first, last)
            if last < len(ends):
                self._commit()
            first = last

    def mark(self, records: int, place: SourcePlace) -> None:
        """Note the place in the source behind so many records of the task."""
        self._marks.append((records, place))

    def close(self) -> None:
        """Make the last shard appear, and note it in the task's record, not yet written."""
        if self._log.part.complete:
            return
        if self._shard is None and not self._number and not self._task.number:
            self._shard = self._next()  # a dataset without records has one shard
        self._commit()
        while self._committing:
            self._take()
        self._log.change(shards=list(self._done), complete=True)

    def discard(self) -> None:
        """Discard the shards that are not complete, and all where no other run can go on."""
        if self._shard is not None:
            self._shard.writer.discard()
        self._threads.shutdown()
        # Those behind one that failed would leave a gap, where no other run could go on.
        while self._committing and self._committing[0].exception() is None:
            self._take()
        if self._log.part.complete:
            return
        if self._log.part.settings.source is not None and self._done:
            with suppress(StoreError):  # then the next run writes more of them again
                self._note()
            return
        later = [shard.result() for shard in self._committing if shard.exception() is None]
        self._log.give_up(*(shard.name for shard in [*self._done, *later]))

    def _next(self) -> _Shard:
        names = self._names
        shard = _Shard(names.staged(self._task, self._number), names.pattern(), self._log)
        self._number += 1
        return shard

    def _commit(self) -> None:
        """Begin to make the shard appear, and note which ones have."""
        while self._committing and (len(self._committing) == BEHIND or self._committing[0].done()):
            self._take()
        # Noted before the next upload begins: what is in the record is surely there.
        self._note()
        if self._shard is not None:
            self._committing.append(self._threads.submit(self._shard.close))
            self._shard = None

    def _take(self) -> None:
        """Wait until the first of the shards has appeared."""
        self._done.append(self._committing[0].result())
        self._committing.popleft()

    def _note(self) -> None:
        """Write in the task's record which shards have appeared, for a run that goes on there."""
        part = self._log.part
        if part.settings.source is not None and len(self._done) > len(part.shards):
            self._log.update(shards=list(self._done), place=self._last_place())

    def _last_place(self) -> SourcePlace | None:
        """Return the last place before which all records are in complete shards."""
        records = sum(shard.records for shard in self._done)
        while self._marks and self._marks[0][0] <= records:
            self._place = self._marks.popleft()[1]
        return self._place
