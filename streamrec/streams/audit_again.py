"""The records of logged steps once more: computed from an index, or read again."""

from __future__ import annotations

import json
from contextlib import closing
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.config import DatasetSettings, validate
from streamrec.errors import ConfigError
from streamrec.flow.bridge import Bridge
from streamrec.flow.channel import EndOfStream
from streamrec.plan.state.fingerprint import AS_IT_COMES
from streamrec.streams.ranks import Rank
from streamrec.streams.session import ThreadSession
from streamrec.streams.start import LOGGED
from streamrec.streams.which import RECORDS_AT_ONCE, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from streamrec.pipeline.dataset import Dataset
    from streamrec.streams.audit_part import LoggedStep, Part, Stretch

    Numbers = npt.NDArray[np.int64]
    Expected = tuple[LoggedStep, Numbers, Sequence[str]]
    """A step of a log, the rows that the settings give for it, and the shards."""

OF_THE_ORDER = ("shuffle", "seed", "shuffle_window", "lanes")
"""The settings that a fingerprint tells."""
NO_ROWS = np.zeros((3, 0), np.int64)
"""int64 ``[3, rows]``: the step, the shard's number and the record's number of each row."""


class Again:
    """The records that the settings give for logged steps.

    Args:
        changes: Settings that replace those in the log.
        reads: Read again what is not computed.
    """

    def __init__(self, changes: Mapping[str, Any], *, reads: bool) -> None:
        self._changes, self._reads = changes, reads
        self._datasets: dict[str, Dataset] = {}

    def can_tell(self, part: Part) -> bool:
        """Return whether it can tell the records of an object's steps."""
        fingerprint = part.fingerprint
        is_fixed = not fingerprint.order.endswith(AS_IT_COMES)
        return fingerprint.is_computable or (self._reads and is_fixed)

    def rows(self, part: Part, stretch: Stretch) -> Iterator[Expected]:
        """Yield each step that was not skipped, with its rows.

        Raises:
            ConfigError: The settings are not known, or are wrong.
            StateError: They give another order.
            StreamrecError: The index or the shards cannot be read.
        """
        settings = self._settings(part)
        if part.fingerprint.is_computable:
            yield from self._compute(part, stretch, settings)
        else:
            yield from _read(part, stretch, settings)

    def _settings(self, part: Part) -> DatasetSettings:
        fingerprint, logged = part.fingerprint, part.header["settings"]
        size = fingerprint.global_batch
        plain = {name: logged[name] for name in LOGGED if name in logged}
        plain |= {name: getattr(fingerprint, name) for name in OF_THE_ORDER}
        plain["batch_size"] = size and size // part.header["world_size"]
        # The log of a feeder's client does not tell it.
        plain |= {"index": logged.get("index", True)} if fingerprint.is_computable else {}
        plain |= self._changes
        if "source" not in plain:
            raise ConfigError(
                "a feeder has read for this log, which does not name the shards; give the feeder's "
                "configuration with --config, or a URL and the settings"
            )
        return validate(DatasetSettings, plain)

    def _compute(
        self, part: Part, stretch: Stretch, settings: DatasetSettings
    ) -> Iterator[Expected]:
        from streamrec.pipeline.dataset_places import RankDeliveries

        dataset = self._dataset(settings)
        rank, world_size = part.header["rank"], part.header["world_size"]
        dataset.fingerprint(settings.batch_size, world_size).check(part.fingerprint, "the log")
        of = RankDeliveries(
            dataset, settings.batch_size, rank=rank, world_size=world_size, point=stretch.point
        )

        def rows(entries: Sequence[LoggedStep]) -> Numbers:
            steps = range(entries[0].step, entries[-1].step + entries[-1].steps)
            return np.concatenate([NO_ROWS, *of.rows_of(steps)], axis=1)

        for entries in _groups(
            stretch.entries, max(1, RECORDS_AT_ONCE // (settings.batch_size or 1))
        ):
            for entry, own in _split(entries, rows(entries)):
                yield entry, own, dataset.shards

    def _dataset(self, settings: DatasetSettings) -> Dataset:
        key = json.dumps(settings.model_dump(mode="json"), sort_keys=True)
        if key not in self._datasets:
            with Bridge() as loop:
                self._datasets[key] = loop.call(opened(settings))
        return self._datasets[key]


def _groups(entries: Iterable[LoggedStep], most: int) -> Iterator[list[LoggedStep]]:
    """Yield successive entries of so many steps, about; those that were skipped divide them."""
    for is_skipped, some in groupby(entries, lambda entry: entry.is_skipped):
        group: list[LoggedStep] = []
        for entry in () if is_skipped else some:
            group.append(entry)
            if entry.step + entry.steps - group[0].step >= most:
                yield group
                group = []
        if group:
            yield group


def _split(entries: Sequence[LoggedStep], rows: Numbers) -> Iterator[tuple[LoggedStep, Numbers]]:
    bounds = [(entry.step, entry.step + entry.steps) for entry in entries]
    for entry, (first, last) in zip(entries, np.searchsorted(rows[0], bounds), strict=True):
        yield entry, rows[:, first:last]


def _read(part: Part, stretch: Stretch, settings: DatasetSettings) -> Iterator[Expected]:
    rank = Rank(part.header["rank"], part.header["world_size"])
    # A stretch may be short, and the stream without end.
    few = settings.model_copy(update={"prefetch": 1})
    with closing(ThreadSession(few, rank, stretch.point)) as session:
        session.fingerprint.check(part.fingerprint, "the log")
        shards = session.settings["shards"]
        receive = _receiver(session, settings)
        rows = NO_ROWS
        for entry in stretch.entries:
            end = entry.step + entry.steps
            while (came := receive(end)) is not None:
                rows = np.concatenate([rows[:, rows[0] >= entry.step], came], axis=1)
            if not entry.is_skipped:
                yield entry, rows[:, (rows[0] >= entry.step) & (rows[0] < end)], shards


def _receiver(session: ThreadSession, settings: DatasetSettings) -> Callable[[int], Numbers | None]:
    """Return a function that gives the rows of the next batch, if it begins before a step."""
    state = {"step": -1, "ends": 0}

    def receive(end: int) -> Numbers | None:
        # A run without a batch is followed by others without end.
        if state["step"] >= end or state["ends"] > 1:
            return None
        try:
            batch = session.receive()
        except EndOfStream:
            state["ends"] += 1
            session.subscribe()
            return NO_ROWS
        state["step"], state["ends"] = batch.next_position.step, 0
        shards, records = batch.origin
        steps = np.full(len(shards), batch.next_position.step - 1)
        if settings.batch_size is None:
            steps = np.arange(len(shards)) + batch.next_position.step - len(shards)
        rows = np.stack([steps, shards, records]).astype(np.int64)
        return rows[:, shards >= 0]

    return receive
