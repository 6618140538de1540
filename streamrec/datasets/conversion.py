"""The description of a dataset that is written from a source, for this process or for others."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamrec.config.cores import usable_cores
from streamrec.config.places import absolute as absolute_place
from streamrec.datasets.convert import convert
from streamrec.pipeline.batch.functions import load
from streamrec.plan.order.shard_names import Task
from streamrec.sources.opening import KINDS, kind_of, open_source
from streamrec.sources.reading import Reader, read_source
from streamrec.sources.source import DEFAULT_MEMORY, Memory
from streamrec.sources.table import RowTable
from streamrec.surroundings import absolute

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from streamrec.datasets.convert import Destination, Outcome, Shuffle
    from streamrec.plan.order.splits import Splits
    from streamrec.sources.source import Source

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
