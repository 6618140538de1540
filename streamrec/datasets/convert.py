"""The writing of a dataset from a source: every record to its split's shards."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from streamrec.config.machine import usable_cores
from streamrec.config.places import absolute as absolute_place
from streamrec.datasets.dataset_manifest import SourcePlace
from streamrec.datasets.external_shuffle import LEAST_MEMORY, ExternalShuffle
from streamrec.datasets.sharded_writer import ShardedWriter, divide
from streamrec.errors import ConfigError
from streamrec.formats.examples.feature_types import FeatureTypes
from streamrec.formats.examples.specs import VarLenFeature
from streamrec.formats.shards.tfrecord import FOOTER, HEADER
from streamrec.pipeline.batch.functions import load
from streamrec.plan.order.permutation import seed_of
from streamrec.plan.order.shard_names import Task, split_shards
from streamrec.sources.opening import KINDS, kind_of, open_source
from streamrec.sources.reading import Reader, read_source
from streamrec.sources.source import DEFAULT_MEMORY, Memory
from streamrec.sources.table import RowTable
from streamrec.surroundings import absolute
from streamrec.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from streamrec.errors import DataError
    from streamrec.plan.order.shard_names import Splits
    from streamrec.sources.reading import ReadBlock
    from streamrec.sources.source import Source
    from streamrec.values.columns import BytesColumn


SMALL = 32 << 20
"""Bytes of a table below which processes save little, as they take time to start: on two cores,
16 MiB of CSV took 1.7 s with one and 1.6 s with two, and 32 MiB 2.8 and 2.2 s."""


@dataclass(frozen=True)
class Conversion:
    """The description of a dataset that is written from a source; it can be pickled."""

    source: str
    """A path, a URL, a pattern, or ``module:function``."""
    destination: Destination
    kind: str | None = None
    """The kind of the source; ``None``: by what is there."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the source's kind."""
    splits: Splits | None = None
    shuffle: Shuffle | None = None
    skips: bool = False
    """Leave out records that are wrong, and tell them."""
    workers: int | None = None
    """The threads or processes that read; ``None``: one for each core, or one for a small table."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """fsspec's options of the source."""
    memory: Memory = DEFAULT_MEMORY
    """The bounds of what is read at once."""

    def open(self) -> Source:
        """Open the source.

        Raises:
            ConfigError: There is no such source, or an option is not one of its kind.
            DataError: It cannot be read.
            StoreError: It is in a store, and cannot be read.
        """
        return open_source(
            self.source,
            self.kind,
            self.options,
            load=load,
            storage_options=self.storage_options,
            memory=self.memory,
            splits=self.splits,
        )

    def run(
        self,
        source: Source,
        *,
        dry_run: bool = False,
        progress: Callable[[str, int, int | None], None] = lambda *_: None,
    ) -> Outcome:
        """Write the dataset, or the task's part of it, from the opened source.

        See :func:`convert` for the other arguments, and for errors.
        """
        reader = Reader(source, self.splits, skips=self.skips)
        workers = self.workers_for(source)
        is_mixed = self.shuffle is not None
        task = self.destination.task
        blocks = read_source(source, reader, task, workers, is_mixed=is_mixed, memory=self.memory)
        return convert(
            source,
            blocks,
            self.destination,
            self.splits,
            shuffle=self.shuffle,
            begin=lambda piece: setattr(reader, "first", piece),
            dry_run=dry_run,
            progress=progress,
        )

    def workers_for(self, source: Source) -> int:
        """Return the number of threads or processes that read the opened source."""
        if self.workers is not None:
            return self.workers
        total, tasks = source.total, self.destination.task.tasks
        # Only tables that processes read: threads start at once, and pay for any size.
        if total is None or total // tasks >= SMALL:
            return usable_cores()
        is_quick = isinstance(source, RowTable) and source.reads_in == "processes"
        return 1 if is_quick else usable_cores()

    def anywhere(self) -> Conversion:
        """Return the same without relative paths, for processes in other directories.

        Raises:
            ConfigError: There is no such source.
        """
        source, options = self.source, dict(self.options)
        kind = KINDS[self.kind or kind_of(source, self.storage_options)]
        if source and not kind.is_function:
            source = _absolute(source)
        if "metadata_files" in options:  # relative names in the lists belong to this directory
            options.setdefault("input_files_prefix", "")
        for option in kind.options:
            if option.is_place and option.name in options:
                options[option.name] = _absolute_all(options[option.name])
        template = _absolute(self.destination.template)
        destination = replace(self.destination, template=template)
        return replace(self, source=source, options=options, destination=destination)

    def run_task(self, number: int, tasks: int) -> Outcome:
        """Write the part of one of several tasks, which may be in other processes."""
        task = Task.of((number, tasks))
        part = replace(self, destination=replace(self.destination, task=task))
        return part.run(part.open())


def _absolute_all(places: str | Sequence[str]) -> Any:
    return _absolute(places) if isinstance(places, str) else list(map(_absolute, places))


def _absolute(place: str) -> str:
    return absolute_place(place) if "://" in place else os.path.join(absolute(Path()), place)  # noqa: PTH118 - keeps a slash at the end


LISTED = 1000
"""Skipped records that are listed; the others are counted."""


@dataclass(frozen=True)
class Destination:
    """The place and the form of the shards."""

    template: str
    """As for :class:`ShardedWriter`; of a directory, with a slash at the end."""
    task: Task
    shards: int | None = None
    shard_bytes: int | None = None
    compression: str | None = None
    overwrite: bool = False
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)


class Shuffle(NamedTuple):
    """A random order of all records of a split, or of a task's part of it."""

    seed: int = 0
    memory: int = 1 << 30
    """The most bytes of memory for all splits; more records wait in temporary files."""


@dataclass
class SplitPlan:
    """One split of the dataset: where it goes, and what it has so far."""

    name: str | None
    """``None``: the dataset has no splits."""
    template: str
    shards: int | None
    records: int = 0
    bytes: int | None = None
    """The bytes of the records with their frames, before compression; counted by a dry run."""
    was_complete: bool = False
    """A run before wrote it, or the task's part of it, and nothing was read."""


@dataclass
class Outcome:
    """The result of a conversion, or of its dry run."""

    splits: list[SplitPlan]
    skipped: int = 0
    refusals: list[DataError] = field(default_factory=list)
    """The errors of the first records that were skipped."""

    def take(self, errors: list[DataError]) -> None:
        """Count skipped records."""
        self.skipped += len(errors)
        self.refusals += errors[: LISTED - len(self.refusals)]


class _RecordTarget(Protocol):
    def write_many(self, records: BytesColumn) -> None: ...

    def mark(self, place: SourcePlace) -> None: ...


class _SizeCounter:
    """A target that counts bytes, and keeps nothing."""

    def __init__(self, plan: SplitPlan) -> None:
        self._plan = plan
        plan.bytes = 0  # a split that gets no record is counted, too

    def write_many(self, records: BytesColumn) -> None:
        """Count the records' bytes with their frames."""
        # A column may be a part of a larger one, so its offsets need not begin at 0.
        size = int(records.offsets[-1] - records.offsets[0]) + len(records) * (HEADER + FOOTER)
        assert self._plan.bytes is not None
        self._plan.bytes += size

    def mark(self, place: SourcePlace) -> None:
        """Do nothing."""


class _Shuffled:
    """A target that keeps its records until all are there, and then writes them in their order."""

    def __init__(self, writer: ShardedWriter, shuffle: ExternalShuffle) -> None:
        self._writer, self._shuffle = writer, shuffle

    def write_many(self, records: BytesColumn) -> None:
        """Keep records."""
        self._shuffle.add(records)

    def mark(self, place: SourcePlace) -> None:
        """Do nothing, since any shard may have any record."""

    def finish(self) -> Iterator[int]:
        """Write all records, and yield the bytes of each step."""
        for block in self._shuffle.blocks():
            self._writer.write_many(block)
            yield len(block.values)

    @property
    def nbytes(self) -> int:
        """The bytes to write."""
        return self._shuffle.nbytes


def _shuffles(shuffle: Shuffle, task: Task, splits: int) -> list[ExternalShuffle]:
    """Return the shuffle of each split, which share the memory."""
    if shuffle.memory < LEAST_MEMORY * splits:
        raise ConfigError(
            f"the shuffle's memory is {shuffle.memory:,} bytes; give at least "
            f"{LEAST_MEMORY * splits:,}, which is 16 MiB for each split"
        )
    # Each task shuffles its own part: with one seed, parts of equal length would be permuted alike.
    seed = seed_of(shuffle.seed, task.number) if task.number else shuffle.seed
    return [ExternalShuffle(seed, memory=shuffle.memory // splits) for _ in range(splits)]


def _writer(
    source: Source, destination: Destination, plan: SplitPlan, facts: Mapping[str, Any]
) -> ShardedWriter:
    return ShardedWriter(
        plan.template,
        shards=plan.shards,
        shard_bytes=destination.shard_bytes,
        task=destination.task,
        features=_specs(source.features),
        compression=destination.compression,
        labels=source.labels,
        source=None
        if source.identity is None
        else {**source.identity, "split": plan.name, **facts},
        overwrite=destination.overwrite,
        storage_options=destination.storage_options,
    )


def _facts(splits: Splits | None, shuffle: Shuffle | None) -> dict[str, Any]:
    """Return what determines the records of each split, and their order, besides the source."""
    facts: dict[str, Any] = {}
    if splits is not None:
        facts["splits"] = splits.to_dict()
    if shuffle is not None:
        facts["shuffle"] = {"seed": shuffle.seed}
    return facts


def _specs(features: Mapping[str, Any] | FeatureTypes | None) -> Any:
    if features is None or isinstance(features, FeatureTypes):
        return features
    # Without a fixed length: a row may lack any value.
    return {name: VarLenFeature(dtype) for name, dtype in features.items()}


def convert(
    source: Source,
    blocks: Iterator[ReadBlock],
    destination: Destination,
    splits: Splits | None,
    *,
    shuffle: Shuffle | None = None,
    dry_run: bool = False,
    begin: Callable[[int], None] | None = None,
    progress: Callable[[str, int, int | None], None] = lambda *_: None,
) -> Outcome:
    """Write a dataset from a source's blocks.

    Where a run before wrote all of it, or all of the task's part, no block is read.

    Args:
        source: The source.
        blocks: Its blocks, as :func:`read_source` gives them; in another order, the records are.
        destination: Where they go.
        splits: The splits, which the blocks' records are divided over.
        shuffle: Put the records of each split in a random order.
        dry_run: Count, and write nothing.
        begin: Is called before the first block, where a run before was killed, with the number of
            the task's pieces whose records are written: the blocks begin after them.
        progress: Is called with a word, the amount of the source that is done, and the whole.

    Raises:
        ConfigError: The destination is wrong, or there is a dataset of its name.
        DataError: A record is wrong.
        StoreError: An object cannot be written.
    """
    arguments = destination.template, splits, destination.shards, destination.task.tasks
    plans = [SplitPlan(*split) for split in split_shards(*arguments)]
    outcome = Outcome(plans)
    if dry_run:
        _write(source, blocks, outcome, [_SizeCounter(plan) for plan in plans], progress)
        return outcome
    with ExitStack() as stack:
        facts = _facts(splits, shuffle)
        writers = [stack.enter_context(_writer(source, destination, p, facts)) for p in plans]
        # All splits or none: one pass over the source writes them all.
        if all(writer.is_complete for writer in writers):
            for plan, writer in zip(plans, writers, strict=True):
                plan.records, plan.was_complete = writer.skip_written(), True
        elif shuffle is None:
            place = _go_on(writers, begin, outcome)
            _write(source, blocks, outcome, writers, progress, place)
        else:
            # A shuffle cannot go on where a run before ended, since any record may be in any shard.
            shuffles = map(stack.enter_context, _shuffles(shuffle, destination.task, len(plans)))
            targets = list(map(_Shuffled, writers, shuffles))
            _write(source, blocks, outcome, targets, progress)
            _finish(targets, source.total, progress)
    return outcome


def _finish(
    targets: list[_Shuffled], amount: int | None, progress: Callable[[str, int, int | None], None]
) -> None:
    """Write what was shuffled; the progress is told in parts of the source's amount."""
    done, total = 0, sum(target.nbytes for target in targets)
    for target in targets:
        for more in target.finish():
            done += more
            progress("writing", (amount or total) * done // total, amount or total)


def _write(
    source: Source,
    blocks: Iterator[ReadBlock],
    outcome: Outcome,
    targets: Sequence[_RecordTarget],
    progress: Callable[[str, int, int | None], None],
    place: SourcePlace | None = None,
) -> None:
    first, done = (place.pieces, place.amount) if place else (0, 0)
    total = source.total
    for pieces, read in enumerate(blocks, first + 1):
        outcome.take(read.skipped)
        for number, records in divide(read.block.records, read.splits, len(targets)):
            targets[number].write_many(records)
            outcome.splits[number].records += len(records)
        done += read.block.amount
        counts = [split.records for split in outcome.splits]
        place = SourcePlace(
            version=__version__, pieces=pieces, amount=done, skipped=outcome.skipped, records=counts
        )
        for target in targets:
            target.mark(place)
        progress("reading", done, total)


def _go_on(
    writers: list[ShardedWriter], begin: Callable[[int], None] | None, outcome: Outcome
) -> SourcePlace | None:
    """Begin after the pieces whose records are in shards of all splits, and return the place."""
    places = [writer.place for writer in writers if not writer.is_complete]
    usable = [place for place in places if place is not None and place.version == __version__]
    # Another version may cut pieces in another way.
    if begin is None or len(usable) < len(places):
        return None
    # The split that is behind the others decides: records before it are skipped elsewhere.
    place = min(usable, key=lambda place: place.pieces)
    begin(place.pieces)
    outcome.skipped = place.skipped
    for writer, split, records in zip(writers, outcome.splits, place.records, strict=True):
        split.records = writer.skip_written(records)
    return place
