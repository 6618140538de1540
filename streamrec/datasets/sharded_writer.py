"""The writer of a dataset: shards of equal types, their index and their manifest."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec import kernel
from streamrec.config.arguments import options_of, place_text, plain_integer
from streamrec.config.plain_values import byte_size
from streamrec.datasets.dataset_manifest import WriteSettings
from streamrec.datasets.merge_shards import complete, merge_tasks
from streamrec.datasets.task_shards import CountedShards, SequentialShards, begin
from streamrec.datasets.writer import LARGE, WholeOrAbsent, compression_of, payload_of
from streamrec.errors import ConfigError, WrongFeatureType
from streamrec.formats.examples.encode import encode_blocks
from streamrec.formats.examples.feature_types import FeatureTypes
from streamrec.masking import masked
from streamrec.plan.order.shard_names import MOST_SHARDS, ShardNames, Task
from streamrec.stores.blocking import Folder
from streamrec.values.columns import BytesColumn
from streamrec.values.record_rows import RecordRows

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    import numpy.typing as npt

    from streamrec.datasets.dataset_manifest import SourcePlace
    from streamrec.datasets.writer import Record

HELD_BYTES = 1 << 18
"""Bytes of single records that are collected before they are framed together."""
HELD_RECORDS = 1 << 12


class ShardedWriter(WholeOrAbsent):
    """A writer of a dataset in shards, with an index and a manifest beside them.

    With ``shards``, records go to the shards in turn: the first record to the first shard, the next
    one to the second. With ``shard_bytes``, the records stay in sequence, and shards get their
    final names when the dataset is complete. Each object appears whole or not at all. After a
    writer was killed, run it again with the same arguments and records: it ends with the same
    bytes, and removes what the killed writer left.

    Several tasks can write one dataset, with the same arguments except for ``task``; each task has
    its own shards. When all tasks are done, ``merge_index`` completes the dataset. If there is only
    one task, ``close`` completes it.

    Args:
        template: The shards' URL or path without their numbers: ``gs://bucket/train.tfrecord``
            gives ``train-00000-of-00128.tfrecord`` and so on. A ``*`` stands for the number:
            ``train-*.tfrecord`` gives the same. A missing local directory is created.
        shards: The number of shards of the whole dataset. Either this or ``shard_bytes`` is given.
        shard_bytes: The most bytes of a shard, before compression, such as ``"128MB"``; a longer
            record has a shard of its own.
        task: The task's number and the number of tasks.
        features: Specs by feature name: all features that records may have. By default, each
            feature has its type in the first record that has it. Records given as bytes are not
            checked.
        index: Write the index for ``streamrec.open(..., index=True)``. Compressed shards have none.
        compression: As for ``TFRecordWriter``.
        labels: The numbers of the classes by name, for the manifest, where ``streamrec.labels``
            finds them; or a mapping from each feature that has classes to such numbers.
        source: The name and version of the data that the records come from, as plain JSON: for the
            manifest, and to tell whether shards of a killed run can be kept.
        overwrite: Replace a dataset of the same name, when this one is complete.
        storage_options: The options for fsspec, for a URL.

    Raises:
        ConfigError: An argument is wrong, or there is a dataset of these names.
        StoreError: The directory cannot be made, read or written.
    """

    def __init__(
        self,
        template: str | os.PathLike[str],
        *,
        shards: int | None = None,
        shard_bytes: int | str | None = None,
        task: tuple[int, int] = (0, 1),
        features: Mapping[str, Any] | FeatureTypes | None = None,
        index: bool = True,
        compression: str | None = None,
        labels: Mapping[str, int] | Mapping[str, Mapping[str, int]] | None = None,
        source: Any = None,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        # First, since __del__ looks at it also where an argument is wrong.
        self._shards: CountedShards | SequentialShards | None = None
        self._template = place_text(template)
        self._task = Task.of(task)
        self._names = ShardNames.parse(self._template)
        kind = compression_of(compression, self._template)
        settings = WriteSettings(
            shards=_count(shards, shard_bytes),
            shard_bytes=None if shard_bytes is None else byte_size("shard_bytes", shard_bytes),
            tasks=self._task.tasks,
            compression=kind,
            # Reading cannot begin inside a compressed shard.
            index=index and kind == "none",
            labels=_labels(labels),
            source=_plain(source),
        )
        self._types = features if isinstance(features, FeatureTypes) else FeatureTypes(features)
        self._folder = Folder(self._names.directory, options_of(storage_options))
        self._log = begin(
            self._folder, self._names, self._task, settings, self._types, overwrite=overwrite
        )
        make = CountedShards if settings.shards is not None else SequentialShards
        self._shards = make(self._names, self._task, self._log)
        # Records of a run before that are in whole shards come again, and are dropped.
        self._to_skip = self._log.records
        self._held: list[Any] = []
        self._held_bytes = 0
        self.records = 0
        """The number of records taken, those of shards that were whole already included."""

    def __repr__(self) -> str:
        state = "open" if self._shards else "closed"
        task = f"task {self._task.number} of {self._task.tasks}"
        return f"<ShardedWriter {masked(self._template)}, {task}, {state}: {self.records} records>"

    @property
    def is_complete(self) -> bool:
        """True if all of the task's records are in shards, as of a run before with this source.

        Then close the writer without writing any record.
        """
        return self._log.part.complete

    def skip_written(self, most: int | None = None) -> int:
        """Return the number of records in shards that are whole already, and do not expect them.

        They are the first of the task's records. A source that can begin after them need not make
        them again. If this is not called, the writer takes and drops them.

        Args:
            most: Skip so many at most, and expect the others.
        """
        return self._skip(self._to_skip if most is None else min(most, self._to_skip))

    @property
    def place(self) -> SourcePlace | None:
        """The last place that ``mark`` told of the records in shards that are whole."""
        return self._log.part.place

    def mark(self, place: SourcePlace) -> None:
        """Note the place in the source after the records so far, for a run that goes on there."""
        self._open_shards().mark(self.records, place)

    def write(self, record: Record) -> None:
        """Append one record: bytes as they are, or a mapping, which becomes an Example.

        Raises:
            WrongFeatureType: A value has no representation, or another type than the feature has in
                the records before; the error names the feature, the record and both types.
            TypeError: Neither bytes nor a mapping.
        """
        self._open_shards()
        if self._to_skip:
            self._skip(1)
            return
        if isinstance(record, Mapping):
            payload = self._types.encode(record, self.records)
        else:
            payload = payload_of(record)
        self.records += 1
        if len(payload) >= LARGE:
            self._write_large(payload)
            return
        self._held.append(payload)
        self._held_bytes += len(payload)
        if self._held_bytes >= HELD_BYTES or len(self._held) >= HELD_RECORDS:
            self._flush()

    def write_many(self, records: Iterable[Record] | BytesColumn | Mapping[str, Any]) -> None:
        """Append records: one by one, or faster as a whole.

        Args:
            records: Records as ``write`` takes them; a ``BytesColumn`` of records; or a
                mapping of columns or a batch, as ``encode_examples`` takes it.
        """
        if isinstance(records, Mapping):
            for frames in self._encode_blocks(records):
                self._write_frames(frames)
        elif isinstance(records, BytesColumn):
            self._write_rows(RecordRows.from_column(records))
        else:
            for record in records:
                self.write(record)

    def close(self) -> None:
        """Make the shards appear, and complete the dataset if there is one task.

        Raises:
            StoreError: An object cannot be stored. The task can be run again.
            ConfigError: There were fewer records than in the run before that is continued.
        """
        if self._shards is None:
            return
        shards, self._shards = self._shards, None
        was_complete = self.is_complete
        # The caller saw that nothing is to be written, and gave no records.
        if was_complete and not self.records:
            self.skip_written()
        try:
            if self._to_skip:
                raise ConfigError(
                    f"{masked(self._template)}: the records end {self._to_skip} before those of "
                    "the shards of an earlier run; name another source, or set overwrite=True"
                )
            self._write_held(shards)
            shards.close()
        finally:
            shards.discard()
        # A run that was killed in its last step left shards without an index.
        if self._task.tasks == 1 and was_complete:
            merge_tasks(self._folder, self._names)
        elif self._task.tasks == 1:
            complete(self._log, self._names)
        elif not was_complete:
            self._log.write()

    def discard(self) -> None:
        """Discard the records of shards that are not complete."""
        if self._shards is not None:
            shards, self._shards = self._shards, None
            shards.discard()

    def __del__(self) -> None:
        if getattr(self, "_shards", None) is not None:
            self.discard()
            message = (
                f"{self!r} was never closed, so its dataset is not complete; call close(), or use "
                "it in a with statement"
            )
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)

    def _open_shards(self) -> CountedShards | SequentialShards:
        if self._shards is None:
            raise ValueError(f"{self!r} takes no more records; make a new writer")
        return self._shards

    def _skip(self, records: int) -> int:
        self._to_skip -= records
        self.records += records
        return records

    def _flush(self) -> None:
        self._write_held(self._open_shards())

    def _write_held(self, shards: CountedShards | SequentialShards) -> None:
        if self._held:
            records, self._held, self._held_bytes = self._held, [], 0
            shards.write(RecordRows.of(records))

    def _write_large(self, payload: bytes) -> None:
        """Write a record by itself, without a copy."""
        self._flush()
        octets = np.frombuffer(payload, np.uint8)
        column = BytesColumn(octets, np.array([0, len(payload)]))
        self._open_shards().write(RecordRows.from_column(column))

    def _write_rows(self, rows: RecordRows) -> None:
        self._flush()
        shards = self._open_shards()
        skipped = self._skip(min(self._to_skip, len(rows)))
        shards.write(rows.part(skipped, None))
        self.records += len(rows) - skipped

    def _write_frames(self, frames: BytesColumn) -> None:
        self._flush()
        shards = self._open_shards()
        skipped = self._skip(min(self._to_skip, len(frames)))
        shards.write_frames(BytesColumn(frames.values, frames.offsets[skipped:]))
        self.records += len(frames) - skipped

    def _encode_blocks(self, columns: Mapping[str, Any]) -> Iterator[BytesColumn]:
        kinds: list[tuple[str, str | None, int]] = []
        try:
            blocks = encode_blocks(
                columns,
                lambda name, kind, row: kinds.append((name, kind, self.records + row)),
                framed=True,
            )
        except WrongFeatureType as error:
            # Numbered from the task's first record on.
            error.record = self.records + (error.record or 0)
            raise
        # Only now: a column that is refused must leave no type behind.
        self._types.take(kinds)
        return blocks


def divide(
    records: BytesColumn, numbers: npt.NDArray[np.uint8] | None, splits: int
) -> Iterator[tuple[int, BytesColumn]]:
    """Yield the number and the records of each split that has some.

    Args:
        records: The records.
        numbers: The number of each record's split; ``None``: all are of the only one.
        splits: The number of splits.
    """
    if numbers is None:
        yield 0, records
        return
    for number in range(splits):
        rows = np.flatnonzero(numbers == number)
        # All of one split: gathering would copy them for nothing.
        if len(rows) == len(records) > 0:
            yield number, records
        elif len(rows):
            yield number, kernel.gather(RecordRows.from_column(records).pick(rows))


def _count(shards: object, shard_bytes: object) -> int | None:
    if (shards is None) == (shard_bytes is None):
        raise ConfigError(
            "give either shards, the number of shards, or shard_bytes, the size of each, as in "
            "shard_bytes='128MB'"
        )
    if shards is None:
        return None
    count = plain_integer(shards)
    if isinstance(count, int) and 1 <= count <= MOST_SHARDS:
        return count
    raise ConfigError(f"shards is {shards!r}; give a number from 1 to {MOST_SHARDS:,}")


def _labels(labels: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if labels is None:
        return None
    return {k: dict(v) if isinstance(v, Mapping) else v for k, v in labels.items()}


def _plain(source: Any) -> Any:
    """Return the source as it is read back from JSON."""
    try:
        return json.loads(json.dumps(source))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"source cannot be written as JSON: {error}; give text, numbers, lists and dicts"
        ) from None
