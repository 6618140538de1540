"""The writing of a dataset from a source: every record to its split's shards."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from streamrec import __version__
from streamrec.datasets.dataset_manifest import SourcePlace
from streamrec.datasets.external_shuffle import LEAST_MEMORY, ExternalShuffle
from streamrec.datasets.sharded_writer import ShardedWriter, divide
from streamrec.errors import ConfigError
from streamrec.formats.examples.feature_types import FeatureTypes
from streamrec.formats.examples.specs import VarLenFeature
from streamrec.formats.shards.tfrecord import FOOTER, HEADER
from streamrec.plan.order.permutation import seed_of
from streamrec.plan.order.split_shards import split_shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from streamrec.errors import DataError
    from streamrec.plan.order.shard_names import Task
    from streamrec.plan.order.splits import Splits
    from streamrec.sources.reading import ReadBlock
    from streamrec.sources.source import Source
    from streamrec.values.columns import BytesColumn

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

    def write_many(self, records: BytesColumn) -> None:
        """Count the records' bytes with their frames."""
        size = int(records.offsets[-1] - records.offsets[0]) + len(records) * (HEADER + FOOTER)
        self._plan.bytes = (self._plan.bytes or 0) + size

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
            the task's pieces whose records are written: the blocks begin behind them.
        progress: Is called with a word, the amount of the source that is done, and the whole.

    Raises:
        ConfigError: The destination is wrong, or there is a dataset of its name.
        DataError: A record is wrong.
        StoreError: An object cannot be written.
    """
    given = destination.template, splits, destination.shards, destination.task.tasks
    plans = [SplitPlan(*split) for split in split_shards(*given)]
    outcome = Outcome(plans)
    if dry_run:
        _write(source, blocks, outcome, [_SizeCounter(plan) for plan in plans], progress)
        return outcome
    with ExitStack() as stack:
        facts = _facts(splits, shuffle)
        writers = [stack.enter_context(_writer(source, destination, p, facts)) for p in plans]
        if all(writer.is_complete for writer in writers):
            for plan, writer in zip(plans, writers, strict=True):
                plan.records, plan.was_complete = writer.skip_written(), True
        elif shuffle is None:
            place = _begun(writers, begin, outcome)
            _write(source, blocks, outcome, writers, progress, place)
        else:
            shuffles = map(stack.enter_context, _shuffles(shuffle, destination.task, len(plans)))
            targets = list(map(_Shuffled, writers, shuffles))
            _write(source, blocks, outcome, targets, progress)
            _finish(targets, source.total, progress)
    return outcome


def _finish(
    targets: list[_Shuffled],
    amount: int | None,
    progress: Callable[[str, int, int | None], None],
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
            version=__version__,
            pieces=pieces,
            amount=done,
            skipped=outcome.skipped,
            records=counts,
        )
        for target in targets:
            target.mark(place)
        progress("reading", done, total)


def _begun(
    writers: list[ShardedWriter], begin: Callable[[int], None] | None, outcome: Outcome
) -> SourcePlace | None:
    """Begin behind the pieces whose records are in shards of all splits, and return the place."""
    places = [writer.place for writer in writers if not writer.is_complete]
    known = [place for place in places if place is not None and place.version == __version__]
    if begin is None or len(known) < len(places):
        return None
    place = min(known, key=lambda place: place.pieces)
    begin(place.pieces)
    outcome.skipped = place.skipped
    for writer, split, records in zip(writers, outcome.splits, place.records, strict=True):
        split.records = writer.skip_written(records)
    return place
