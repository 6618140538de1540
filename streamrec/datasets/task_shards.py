"""The shards of one task, and the record that it keeps of them for a run that goes on there."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec import kernel
from streamrec.datasets.dataset_manifest import IndexedShard, Manifest, TaskPart
from streamrec.datasets.writer import TFRecordWriter
from streamrec.errors import ConfigError, StoreError
from streamrec.formats.shards.index import ChunkFinder
from streamrec.formats.shards.tfrecord import FOOTER, HEADER
from streamrec.masking import masked
from streamrec.plan.order.shard_names import owned_shards
from streamrec.stores.blocking import new_object
from streamrec.values.record_rows import RecordBlock, RecordRows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from streamrec.datasets.dataset_manifest import SourcePlace, WriteSettings
    from streamrec.formats.examples.feature_types import FeatureTypes
    from streamrec.plan.order.shard_names import ShardNames, Task
    from streamrec.stores.base.protocol import NewObject
    from streamrec.stores.blocking import Folder
    from streamrec.values.columns import ByteArray, BytesColumn, Indices


@dataclass
class TaskLog:
    """A task's record, kept beside the shards until the dataset is complete."""

    folder: Folder
    name: str
    part: TaskPart
    types: FeatureTypes
    """The types of the features in all records so far."""
    records: int = 0
    """The records in shards that are whole already."""
    present: AbstractSet[str] = frozenset()
    """The names of the objects in the directory when the task began."""

    def update(self, **changes: Any) -> None:
        """Change the record, and write it."""
        self.change(**changes)
        self.write()

    def change(self, **changes: Any) -> None:
        """Change the record, but do not write it yet."""
        changes["features"] = self.types.to_dict()
        self.part = self.part.model_copy(update=changes)

    def write(self) -> None:
        """Write the record."""
        try:
            self.folder.write(self.name, self.part.encode())
        except StoreError as error:
            # Nobody knows the record's name.
            raise error.about(self.folder.url("")) from None

    def give_up(self, *staged: str) -> None:
        """Remove the record, and shards that no other run could keep."""
        # What cannot be removed now is removed by the next run.
        with suppress(StoreError):
            self.folder.remove(*staged, self.name)
            if self.part.settings.tasks == 1:  # another task may be about to write there
                self.folder.unmake()


def begin(
    folder: Folder,
    names: ShardNames,
    task: Task,
    settings: WriteSettings,
    types: FeatureTypes,
    *,
    overwrite: bool,
) -> TaskLog:
    """Look at what earlier runs left, remove what is not needed, and begin a task's record.

    Raises:
        ConfigError: There is a dataset of these names, or an unfinished one of other settings.
        StoreError: The directory cannot be made, read or written.
    """
    folder.make()
    sizes = _after_cleaning(folder, names)
    log = TaskLog(folder, names.part(task), TaskPart(settings=settings, overwrite=overwrite), types)
    log.present = sizes.keys()
    before = _before(folder, names, task) if log.name in sizes else None
    if before is None:
        manifest = Manifest.parse(_read(folder, names.manifest(), sizes))
        if manifest is not None and _is_the_same(manifest, settings, sizes):
            log.part = log.part.model_copy(update={"complete": True})
            types.update(manifest.features)
            log.records = manifest.tasks[task.number]
            return log
        _refuse_others(folder, names, sizes, log.part, manifest)
    # Without a source nobody knows whether the records are the same.
    elif before.settings == settings and settings.source is not None:
        log.part = _keep(before, sizes)
    else:
        if before.settings != settings and before.shards and not overwrite:
            raise _refusal(
                folder.url(log.name), "an unfinished dataset", _why(log.part, before, sizes)
            )
        log.part = log.part.model_copy(update={"overwrite": True})
    whole = {shard.name for shard in log.part.shards}
    folder.remove(*(name for name in names.staged_among(sizes, task) if name not in whole))
    if before is not None and not whole:
        folder.remove(*(shard.name for shard in before.shards if shard.name in sizes))
    types.update(log.part.features)
    log.records = sum(shard.records for shard in log.part.shards)
    left = tuple(_names_of(names, task, settings))
    folder.at_once(log.update, partial(folder.remove_left, left))
    return log


def _before(folder: Folder, names: ShardNames, task: Task) -> TaskPart | None:
    """Return the task's record; ``None`` where it has shards that others wrote."""
    part = TaskPart.parse(folder.read(names.part(task)))
    return part if part is not None and part.has_own_names(names, task) else None


def _after_cleaning(folder: Folder, names: ShardNames) -> dict[str, int]:
    """Return the objects' sizes, when the parts of a dataset that is complete are removed."""
    sizes = folder.sizes()
    # No part is begun beside a manifest, so these are left from the last step.
    left = names.parts_among(sizes) if names.manifest() in sizes else {}
    folder.remove(*left)
    return {name: size for name, size in sizes.items() if name not in left}


def _read(folder: Folder, name: str, sizes: dict[str, int]) -> bytes | None:
    return folder.read(name) if name in sizes else None


def _keep(before: TaskPart, sizes: dict[str, int]) -> TaskPart:
    """Return an earlier run's record with the shards that are still whole."""
    if before.settings.shards is None and before.complete:
        return before  # its shards may have their last names already
    whole = 0
    for shard in before.shards:
        if sizes.get(shard.name) != shard.bytes:
            break
        whole += 1
    complete = before.complete and whole == len(before.shards)
    if before.settings.shards is not None and not complete:
        whole = 0  # each record in turn goes to another shard, so all are written again
    changes: dict[str, Any] = {"shards": before.shards[:whole], "complete": complete}
    if whole < len(before.shards):
        changes["place"] = None
    return before.model_copy(update=changes)


def _is_the_same(manifest: Manifest, settings: WriteSettings, sizes: dict[str, int]) -> bool:
    """Return whether a complete dataset is the one to write, with all shards."""
    is_known = settings.source is not None and manifest.settings == settings
    return is_known and manifest.find_damaged(sizes) is None


def _refuse_others(
    folder: Folder,
    names: ShardNames,
    sizes: dict[str, int],
    part: TaskPart,
    manifest: Manifest | None,
) -> None:
    """Refuse to write where there is another dataset, unless it is to be replaced."""
    parts = {
        name: (other, TaskPart.parse(folder.read(name)))
        for name, other in names.parts_among(sizes).items()
    }
    ours = [name for name, (_, of) in parts.items() if of and of.settings == part.settings]
    others = [name for name in parts if name not in ours]
    shards = [] if ours else names.shards_among(sizes)
    obstacle = next(iter([*others, *shards, *({names.manifest()} & sizes.keys())]), None)
    if obstacle is None:
        return
    if not part.overwrite:
        there = parts[obstacle][1] if obstacle in others else manifest
        what = "an unfinished dataset" if obstacle in others else "a dataset"
        raise _refusal(folder.url(obstacle), what, _why(part, there, sizes))
    for name in others:
        folder.remove(*names.staged_among(sizes, parts[name][0]))
    folder.remove(names.manifest(), *others)


def _refusal(url: str, what: str, why: str) -> ConfigError:
    return ConfigError(
        f"{masked(url)}: there is {what} of this name{why}; choose another name, or replace it "
        "with overwrite=True (--overwrite)"
    )


def _why(part: TaskPart, there: TaskPart | Manifest | None, sizes: dict[str, int]) -> str:
    """Return why a dataset that is there is not the one to write."""
    if there is None:
        return ""
    if difference := part.settings.difference(there.settings):
        return f" ({difference})"
    if part.settings.source is None:
        return ", and no source is given that tells whether it has the same records"
    lost = there.find_damaged(sizes) if isinstance(there, Manifest) else None
    return f", whose shard {lost} is missing or has another size" if lost else ""


def _names_of(names: ShardNames, task: Task, settings: WriteSettings) -> Iterator[str]:
    """Yield what the names of all objects that a task writes begin with."""
    yield names.staged_prefix(task)
    if settings.shards is not None:
        for number in owned_shards(settings.shards, task):
            yield names.shard(number, settings.shards)


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
        numbers = owned_shards(count, task)
        self._turn = 0
        self._is_closing = False
        self._open: list[_Shard] = []
        if log.part.complete:
            return
        try:
            for number in numbers:
                name = names.shard(number, count)
                shard = _Shard(name, name, log, spooled=len(numbers) > UPLOADS)
                # Each at once among those that are discarded where a later one cannot be opened.
                self._open.append(shard)
        except BaseException:
            self.discard()
            raise

    def write(self, rows: RecordRows) -> None:
        """Append the records of rows, one to each shard in turn."""
        for shard, chosen in self._turns(len(rows)):
            shard.write(rows.pick(chosen))

    def write_frames(self, frames: BytesColumn) -> None:
        """Append frames of records, as :meth:`write` does."""
        rows = RecordRows.from_column(frames)
        for shard, chosen in self._turns(len(rows)):
            picked = rows.pick(chosen)
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
            # In threads: each close may wait for the last part of an upload.
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
        for shard, chosen in self._cuts(np.cumsum(rows.lengths + (HEADER + FOOTER))):
            shard.write(rows.pick(chosen))

    def write_frames(self, frames: BytesColumn) -> None:
        """Append frames of records, as :meth:`write` does."""
        bounds = frames.offsets
        for shard, chosen in self._cuts(bounds[1:] - bounds[0]):
            whole = frames.values[bounds[chosen.start] : bounds[chosen.stop]]
            shard.write_frames(whole, np.diff(bounds)[chosen])

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
        """Note the place in the source after so many records of the task."""
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
        # Those after one that failed would leave a gap, where no other run could go on.
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
        # Popped after its result: a shard that failed stays first, where discard sees it.
        self._committing.popleft()

    def _note(self) -> None:
        """Write in the task's record which shards have appeared, for a run that goes on there."""
        part = self._log.part
        if part.settings.source is not None and len(self._done) > len(part.shards):
            self._log.update(shards=list(self._done), place=self._last_place())

    def _last_place(self) -> SourcePlace | None:
        """Return the last place before which all records are in complete shards."""
        records = sum(shard.records for shard in self._done)
        # Marks come in order, and only those after whole shards can be gone on from.
        while self._marks and self._marks[0][0] <= records:
            self._place = self._marks.popleft()[1]
        return self._place
