"""The records of a dataset's steps, by the index: no shard is read."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamrec.config.places import command_for
from streamrec.errors import ConfigError
from streamrec.masking import masked
from streamrec.pipeline.dataset_identity import uncounting_stage
from streamrec.pipeline.terms.run_plan import deal_of
from streamrec.plan.state.record_run import Delivery

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from streamrec.config import DatasetSettings
    from streamrec.pipeline.dataset import Dataset
    from streamrec.plan.order.record_order import RecordOrder
    from streamrec.plan.state.rank_deal import RankDeal
    from streamrec.plan.state.record_run import Delivered, RecordRun
    from streamrec.plan.state.resume_point import ResumePoint

    Numbers = npt.NDArray[np.int64]


class DeliveredRecord(NamedTuple):
    """A record's place in a run, and its place in the shards."""

    step: int
    rank: int
    row: int
    """The row of the batch, from 0."""
    epoch: int
    lane: int
    shard: str
    """The shard's URL."""
    record: int
    """The record's number in the shard, from 0."""
    chunk_offset: int
    """The byte of the shard at which the index's chunk begins that has the record."""
    chunk_record: int
    """The number of records in the chunk before it; 0: its frame begins at ``chunk_offset``."""
    is_excluded: bool
    """True for a record of ``exclude``, of which the batch has a masked row at most."""
    chunk_end: int
    """The byte of the shard after the chunk."""
    component: str | None = None
    """The component's name; ``None``: nothing is mixed."""


class RankDeliveries:
    """The places of one rank's records.

    Args:
        dataset: The dataset.
        batch_size: Records per batch; ``None``: single records.
        rank: The rank.
        world_size: The number of ranks.
        point: The place where the run began or stands.

    Raises:
        ConfigError: The order does not follow from an index alone.
        StateError: The state is not of this dataset.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int | None,
        *,
        rank: int,
        world_size: int,
        point: ResumePoint,
    ) -> None:
        self._dataset, self._rank = dataset, rank
        if dataset.components is not None:
            raise ConfigError("this is computed for one source, not for a mix; name one source")
        self._start = dataset.position(batch_size, rank, world_size, point)
        self._first_run = dataset.record_run(self._start, batch_size)

    def _delivery(self, run: RecordRun) -> Delivery | RankDeal:
        """Return the records of a run of the rank, dealt or those of its own lanes."""
        dataset, lengths = self._dataset, self._dataset.lengths
        dealt = lengths and deal_of(run, self._start, dataset.settings, lengths)
        return dealt or Delivery(run)

    def of_steps(self, steps: range) -> Iterator[DeliveredRecord]:
        """Yield the places of the records of these steps, in their order."""
        for run, first, last in self._runs(steps):
            yield from self._rows(run, first, last)

    def rows_of(self, steps: range) -> Iterator[Numbers]:
        """Yield the places of the records of these steps, in their order.

        Yields:
            int64 ``[3, n]``: step, number of the shard in the dataset, and record in the shard.
        """
        for run, first, last in self._runs(steps):
            yield numbers_of(self._delivery(run).of_steps(first, last), run.order)

    def steps_of_epoch(self) -> range:
        """Return the steps of the whole batches of the first epoch."""
        run = self._first_run
        steps = run.order.records // (run.batch_size or 1)
        return range(run.step, run.step + (steps if run.steps is None else min(steps, run.steps)))

    @property
    def records_by_shard(self) -> Numbers:
        """The records that the order has of each shard: int64 ``[shards]``."""
        order = self._first_run.order
        table = order.table
        counts = np.zeros(len(self._dataset.shards), np.int64)
        np.add.at(counts, table.shard, table.records)
        for shard, part in order.shard_parts.items():
            counts[shard] = part.records
        return counts

    def _runs(self, steps: range) -> Iterator[tuple[RecordRun, int, int]]:
        """Yield each run that has some of these steps, its first one and the one after its last."""
        step = steps.start
        while step < steps.stop:
            run = self._run_at(step)
            run.check(steps.stop)
            end = steps.stop if run.end_step is None else min(steps.stop, run.end_step)
            # A run of less than a batch has no step, and no later one has.
            if end <= step:
                return
            yield run, step, end
            step = end

    def of_record(self, shard: int, record: int, epochs: range) -> Iterator[DeliveredRecord]:
        """Yield the places at which runs deliver a record in these epochs, if they do.

        Raises:
            ConfigError: The shard has no such record.
        """
        number = check_record(self._first_run.order, shard, record, self._dataset.shards[shard])
        for epoch in epochs:
            run = self._run_of_epoch(epoch)
            step = self._delivery(run).step_of(number, epoch)
            rows = () if step is None else self._rows(run, step, step + 1)
            named = epoch, self._dataset.shards[shard], record
            yield from (row for row in rows if (row.epoch, row.shard, row.record) == named)

    def _run_of_epoch(self, epoch: int) -> RecordRun:
        """Return the run that has an epoch: that of the start, or a later one."""
        run = self._first_run
        if run.end_epoch is None or epoch < run.end_epoch:
            return run
        return run.later((epoch - run.epoch) // (run.end_epoch - run.epoch))

    def _run_at(self, step: int) -> RecordRun:
        """Return the run that has a step: that of the start, or a later one."""
        run = self._first_run
        check_begin(step, run.step)
        if not run.steps or run.end_step is None or step < run.end_step:
            return run
        return run.later((step - run.step) // run.steps)

    def _rows(self, run: RecordRun, first: int, last: int) -> Iterator[DeliveredRecord]:
        delivered = self._delivery(run).of_steps(first, last)
        return places_of(self._dataset, self._rank, delivered, run.order)


def check_record(order: RecordOrder, shard: int, record: int, url: str) -> int:
    """Return the number in an order's table of a record of a shard.

    Raises:
        ConfigError: The order does not have it.
    """
    number = order.record_number(shard, record)
    if number is None:
        part = order.shard_parts.get(shard)
        has = part.records if part else int(order.table.records[order.table.shard == shard].sum())
        raise ConfigError(
            f"there is no record {record} of {masked(url)} in this stream, which has {has} of it; "
            "correct the number"
        )
    return number


def check_begin(step: int, begin: int) -> None:
    """Check that a step does not come before the one with which a run begins.

    Raises:
        ConfigError: It does.
    """
    if step < begin:
        raise ConfigError(
            f"step {step} comes before the run of this state, which begins with step {begin}; "
            "leave the state out, or give an earlier one"
        )


def numbers_of(delivered: Delivered, order: RecordOrder) -> Numbers:
    """Return the places of delivered records, whose numbers are those of an order's table.

    Returns:
        int64 ``[3, n]``: step, number of the shard in the dataset, and record in the shard.
    """
    chunks, inside = order.chunk_places(delivered.records)
    shards = order.table.shard[chunks]
    return np.stack([delivered.steps, shards, order.table.first_record[chunks] + inside])


def places_of(
    dataset: Dataset, rank: int, delivered: Delivered, order: RecordOrder
) -> Iterator[DeliveredRecord]:
    """Yield the places of delivered records, whose numbers are those of an order's table."""
    table = order.table
    chunks, inside = order.chunk_places(delivered.records)
    columns: Sequence[list[int]] = [
        column.tolist()
        for column in (
            delivered.steps,
            delivered.epochs,
            delivered.lanes,
            table.shard[chunks],
            table.first_record[chunks] + inside,
            table.begin[chunks],
            table.end[chunks],
            inside,
        )
    ]
    excluded, names = dataset.excluded, _component_names(dataset, table.shard[chunks])
    step, row = -1, 0
    for (now, epoch, lane, shard, record, begin, end, before), name in zip(
        zip(*columns, strict=True), names, strict=True
    ):
        step, row = now, row + 1 if now == step else 0
        yield DeliveredRecord(
            step=step,
            rank=rank,
            row=row,
            epoch=epoch,
            lane=lane,
            shard=dataset.shards[shard],
            record=record,
            chunk_offset=begin,
            chunk_record=before,
            is_excluded=excluded is not None and excluded.names_any(shard, record, record + 1),
            chunk_end=end,
            component=name,
        )


def _component_names(dataset: Dataset, shards: Numbers) -> Iterable[str | None]:
    components = dataset.components
    if components is None:
        return repeat(None, len(shards))
    return (components.names[number] for number in components.of(shards.astype(np.int32)).tolist())


def check_settings(settings: DatasetSettings) -> None:
    """Check that the records of a step follow from an index.

    Raises:
        ConfigError: They do not; the message says what would have to be read.
    """
    if settings.index is None:
        raise ConfigError(
            "without an index the order depends on the size of every record, and is not computed; "
            "if the run had index=True, give that, too (on the command line: --set index=true); "
            "otherwise read the stream from a state to the step, and look at batch.origin"
        )
    stage = uncounting_stage(settings) or (settings.length_buckets and "length_buckets")
    if stage:
        raise ConfigError(
            f"with {stage} the records of a step depend on the content of those before it; read "
            "the stream from the nearest state to the step: "
            f"{command_for('which', vars(settings), '--read --state FILE')}, or look at "
            "batch.origin"
        )
