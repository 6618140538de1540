"""The writing of a dataset from a source: every record to its split's shards."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from streamrec import kernel
from streamrec.formats.examples.specs import VarLenFeature
from streamrec.formats.shards.tfrecord import FOOTER, HEADER
from streamrec.plan.split_shards import split_shards
from streamrec.shard_tools.sharded_writer import ShardedWriter
from streamrec.shard_tools.writer import payload_of
from streamrec.values.columns import BytesColumn
from streamrec.values.records import RecordRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from streamrec.errors import DataError
    from streamrec.plan.shard_names import Task
    from streamrec.plan.splits import Splits
    from streamrec.shard_tools.sources.reading import ReadBlock
    from streamrec.shard_tools.sources.source import Block, Source

__all__ = ["Destination", "Outcome", "SplitPlan", "convert"]

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


class _Target(Protocol):
    def write_many(self, records: Any) -> None: ...


class _Counter:
    """A target that counts bytes, and keeps nothing."""

    def __init__(self, plan: SplitPlan) -> None:
        self._plan = plan

    def write_many(self, records: Any) -> None:
        """Count the records' bytes with their frames."""
        if isinstance(records, BytesColumn):
            size = int(records.offsets[-1])
        else:
            size = sum(len(payload_of(record)) for record in records)
        self._plan.bytes = (self._plan.bytes or 0) + size + len(records) * (HEADER + FOOTER)


class _Writers:
    """The writers of all splits: all datasets are complete at the end of ``with``, or none."""

    def __init__(self, source: Source, destination: Destination, plans: list[SplitPlan]) -> None:
        self._stack = ExitStack()
        self.targets: list[_Target] = []
        try:
            for plan in plans:
                writer = _writer(source, destination, plan)
                self.targets.append(self._stack.enter_context(writer))
        except BaseException as error:
            self._stack.__exit__(type(error), error, None)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)


def _writer(source: Source, destination: Destination, plan: SplitPlan) -> ShardedWriter:
    return ShardedWriter(
        plan.template,
        shards=plan.shards,
        shard_bytes=destination.shard_bytes,
        task=destination.task,
        features=_specs(source.features),
        compression=destination.compression,
        labels=source.labels,
        source=None if source.identity is None else source.identity | {"split": plan.name},
        overwrite=destination.overwrite,
        storage_options=destination.storage_options,
    )


def _specs(features: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if features is None:
        return None
    return {name: VarLenFeature(dtype) for name, dtype in features.items()}


def convert(
    source: Source,
    blocks: Iterator[ReadBlock],
    destination: Destination,
    splits: Splits | None,
    *,
    dry_run: bool = False,
    progress: Callable[[str, int, int | None], None] = lambda *_: None,
) -> Outcome:
    """Write a dataset from a source's blocks.

    Args:
        source: The source.
        blocks: Its blocks, as :func:`read_source` gives them; in another order, the records are.
        destination: Where they go.
        splits: The splits, which the blocks' records are divided over.
        dry_run: Count, and write nothing.
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
        _write(source, blocks, outcome, [_Counter(plan) for plan in plans], progress)
        return outcome
    with _Writers(source, destination, plans) as writers:
        _write(source, blocks, outcome, writers.targets, progress)
    return outcome


def _write(
    source: Source,
    blocks: Iterator[ReadBlock],
    outcome: Outcome,
    targets: list[_Target],
    progress: Callable[[str, int, int | None], None],
) -> None:
    done = 0
    for read in blocks:
        outcome.take(read.skipped)
        for number, records in _by_split(read, len(targets)):
            targets[number].write_many(records)
            outcome.splits[number].records += len(records)
        done += read.block.amount
        progress("reading", done, source.total)


def _by_split(read: ReadBlock, splits: int) -> Iterator[tuple[int, Any]]:
    """Yield the records of each split that has some in a block."""
    if read.splits is None:
        yield 0, read.block.records
        return
    for number in range(splits):
        rows = np.flatnonzero(read.splits == number)
        if len(rows):
            yield number, _rows(read.block, rows)


def _rows(block: Block, rows: Any) -> Any:
    if not isinstance(block.records, BytesColumn):
        return [block.records[row] for row in rows.tolist()]
    if len(rows) == len(block.records):
        return block.records
    return kernel.gather(RecordRows.from_column(block.records).pick(rows))
