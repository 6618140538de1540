"""The plan of one rank's run: its orders and settings, and where its lanes begin and end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from streamrec.errors import MalformedPosition
from streamrec.formats.examples.needs import UNLIMITED, DecodeLimits
from streamrec.formats.examples.renaming import Renames
from streamrec.pipeline.batch.functions import NONE, Functions
from streamrec.plan.order.coordinates import LANE, OWN, Coordinates
from streamrec.plan.order.record_order import RecordOrder
from streamrec.plan.order.window import Buckets, Windows
from streamrec.plan.state.position import Position
from streamrec.plan.state.record_run import RecordRun

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from streamrec.config import DatasetSettings
    from streamrec.pipeline.batch.origin import Components
    from streamrec.plan.order.coordinates import Structured
    from streamrec.plan.order.mixture import DrawChange, Draws
    from streamrec.plan.order.record_order import ChunkWindows, Order
    from streamrec.plan.order.shard_order import Extent
    from streamrec.plan.reading.next_use import NextUse
    from streamrec.plan.reading.ranges import MemoryPlan
    from streamrec.plan.state.rank_deal import RankDeal
    from streamrec.stores.cache.piece_cache import PieceCache
    from streamrec.values.record_rows import RecordLengths

HOPELESS = 4
"""The number of passes over all shards of a lane without a kept record or pack before it fails."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The plan of one rank's run."""

    settings: DatasetSettings
    orders: tuple[Order, ...]
    """One for each component of a mix, or for each open shard of a lane; else a single one."""
    position: Position
    memory: MemoryPlan
    batch_size: int | None
    remainder: str
    functions: Functions = NONE
    windows: Windows | ChunkWindows | None = None
    """The windows within which lanes reorder records; ``None``: records keep their order."""
    draws: Draws | None = None
    """The draws of a mix; ``None``: nothing is mixed."""
    changes: Sequence[DrawChange] = ()
    """The changes of a mix's draws while it runs."""
    components: Components | None = None
    """The components of a mix; ``None``: nothing is mixed."""
    next_use: NextUse | None = None
    """The forecast to tell which ranges are read; ``None``: there is no cache."""
    limits: DecodeLimits = UNLIMITED
    """The limits of what the columns of a batch claim."""
    decoded: PieceCache | None = None
    """The cache of decoded pictures or of mapped records; ``None``: there is none."""
    lengths: RecordLengths | None = None
    """The lengths of all records, by which rows are dealt; ``None``: they are not."""
    is_inferred: bool = False
    """True if the features follow from some of the records, and others may differ."""

    is_suspicious: bool = False
    """True if the run has begun again since a large payload did not match its CRC."""

    is_one_by_one: bool = False
    """True if the run has begun again since single records took too much memory together."""

    @property
    def renames(self) -> Renames:
        """The names that features have in the records of each shard."""
        first = (0,) if self.components is None else self.components.first_shards
        return Renames(first, tuple(self.settings.renames.values()))

    @property
    def checks_late(self) -> bool:
        """True if the decoding threads check the CRCs of large payloads, which spares the loop.

        A run in which one does not match begins again before its batch, and checks in the lanes. So
        no stage before the decoder may use payloads, and the run must be able to begin again.
        """
        settings = self.settings
        if not settings.check_crc or settings.on_corrupt != "raise" or not settings.ordered:
            return False
        return not (self.is_suspicious or self.functions.filter or settings.pack or settings.window)

    @cached_property
    def by_record(self) -> RecordRun | None:
        """The arithmetic of a run by record; ``None``: another order, or unknown counts."""
        if self.position.since is None:
            return None
        order = self.orders[0]
        assert isinstance(order, RecordOrder)
        assert not isinstance(self.windows, Windows)
        epoch, step = self.position.since
        return RecordRun(
            order=order,
            windows=self.windows,
            lanes=self.own_lanes,
            batch_size=self.batch_size,
            epoch=epoch,
            step=step,
            end_epoch=self.end_epoch,
            remainder=self.remainder,
        )

    @cached_property
    def deal(self) -> RankDeal | None:
        """The deal of the rows to this rank; ``None``: it keeps all rows of its lanes."""
        run = self.by_record
        if run is None or self.lengths is None:
            return None
        return deal_of(run, self.position, self.settings, self.lengths)

    @property
    def buckets(self) -> Buckets | None:
        """The length buckets of the windows' records; ``None``: there are none."""
        count, rows = self.settings.length_buckets, self.position.fingerprint.global_batch
        if count is None or rows is None:
            return None
        return Buckets(count, rows, self.lanes, self.settings.seed)

    @cached_property
    def starts(self) -> Structured:
        """The lanes' coordinates at the beginning, as in a position by shard."""
        run = self.by_record
        if run is None:
            return self.position.lanes
        starts = run.starts(self.position.step)
        if self.deal is None:
            return starts
        first = np.array([(self.position.step, *[0] * (OWN - 1))], LANE)
        return np.concatenate([starts, first])

    def start(self, j: int) -> Coordinates:
        """Return the coordinates that lane ``j`` of the rank begins at."""
        start = Coordinates(*self.starts[j].item())
        if not self.has_sources:
            return start
        return start._replace(sources=tuple(self.position.sources[j].tolist()))

    @cached_property
    def points(self) -> Structured:
        """The point that each sublane begins at; a lane's other fields may follow."""
        # Component after component, as the sublanes are numbered.
        points = self.position.points if self.by_record is None else self.starts
        return points.T.ravel()

    def rows(self, step: int) -> int:
        """Return the number of records in that step's batch; 1 for single records."""
        return self.batch_size or 1 if self.by_record is None else self.by_record.rows(step)

    @property
    def own_lanes(self) -> range:
        """The numbers of the rank's lanes."""
        return range(self.position.rank, self.lanes, self.position.world_size)

    @property
    def lanes(self) -> int:
        """The number of lanes of all ranks."""
        return self.orders[0].lanes

    @cached_property
    def sublanes(self) -> list[tuple[Order | RankDeal, int]]:
        """The order and lane of each sublane: for each order, the rank's lanes.

        Rows that are dealt to the rank are one further sublane.
        """
        dealt = [] if self.deal is None else [(self.deal, 0)]
        return [*((order, lane) for order in self.orders for lane in self.own_lanes), *dealt]

    @property
    def has_sources(self) -> bool:
        """True if each lane draws from several sublanes: a mix's components, or open shards."""
        return self.position.sources.size > 0

    @property
    def turns(self) -> Windows | None:
        """The windows that set the open shards' turns; ``None``: a lane has one shard open."""
        windows = self.windows
        return windows if isinstance(windows, Windows) and windows.open_shards > 1 else None

    @property
    def shard_bytes(self) -> int:
        """The bytes for which a shard counts in windows besides its records."""
        return self.windows.shard_bytes if isinstance(self.windows, Windows) else 0

    @property
    def keeps_placeholders(self) -> bool:
        """True if a damaged record leaves a masked row, so that later ones keep their places."""
        return keeps_placeholders(self.settings, self.batch_size)

    @property
    def end_epoch(self) -> int | None:
        """The epoch before which the run ends; ``None``: it ends by steps or not at all."""
        epochs, steps = self.settings.epochs, self.settings.steps_per_epoch
        # Components that repeat have epochs of their own, so none of them ends the run.
        repeats = self.draws is not None and self.settings.exhausted == "repeat"
        if epochs is None or steps is not None or repeats:
            return None
        return self.position.run_epoch + epochs

    @property
    def end_step(self) -> int | None:
        """The step at which the run ends; ``None``: it ends with its records or not at all."""
        epochs, steps = self.settings.epochs, self.settings.steps_per_epoch
        if epochs is None or steps is None:
            return self.by_record.end_step if self.by_record else self.mix_end
        # Steps are counted from the very start, through all runs before this one.
        return (self.position.run_epoch + epochs) * steps

    @cached_property
    def mix_end(self) -> int | None:
        """The step at which all ranks end the epoch of a mix; ``None``: its records end it."""
        position, size = self.position, self.batch_size or 1
        steps = mix_steps(self.settings, self.orders, position.world_size, size)
        if steps is None:
            return None
        # A run of one epoch begins where its lanes have given nothing.
        taken = int(position.lanes["taken"].sum()) + position.skip
        return position.step - taken // size + steps

    def at(self, step: int) -> Position:
        """Return the position before a step, by record: no lane is asked where it is."""
        assert self.by_record is not None
        return replace(self.position, step=step, epoch=self.by_record.epoch_at(step), skip=0)

    def after(self, steps: int) -> Position:
        """Return the position after so many more steps, by record.

        More steps than the run has lead to the beginning of the next run.

        Raises:
            MalformedPosition: No stream can get that far.
        """
        assert self.by_record is not None
        step, end = self.position.step + steps, self.end_step
        if end is not None and step > end:
            return self.next_run(self.at(end))
        self.by_record.check(step)
        return self.at(step)

    def extents(self, sublane: int, number: int) -> Iterator[Extent]:
        """Iterate over a sublane's extents from ``number`` to the end of the run."""
        order, lane = self.sublanes[sublane]
        endless = order.extents(lane, number)
        end = self.end_epoch
        return endless if end is None else takewhile(lambda extent: extent.epoch < end, endless)

    def lane_end(self, lane: int) -> Coordinates:
        """Return the lane's coordinates after the run."""
        ends = [self.sublane_end(order, lane) for order in self.orders]
        if not self.has_sources:
            return ends[0]
        return Coordinates(self.end_epoch or 0, 0, 0, sources=tuple(end.point for end in ends))

    def sublane_end(self, order: Order | RankDeal, lane: int) -> Coordinates:
        """Return the coordinates, after the run, of the sublane of that order and lane."""
        end = self.end_epoch
        return Coordinates(0 if end is None else order.first(lane, end), 0, 0)

    def epoch(self, sublane: int) -> int:
        """Return the epoch that a sublane begins in."""
        order, lane = self.sublanes[sublane]
        return order.extent(lane, int(self.points["extent"][sublane])).epoch

    def check(self) -> None:
        """Refuse a position that contradicts itself or the index.

        Raises:
            StateError: No run of this plan can have been at this position.
        """
        order = self.orders[0]
        if self.by_record is not None:
            self.by_record.check(self.position.step)
        elif isinstance(order, RecordOrder):
            self._check_chunks()
        elif self.turns is not None:
            self._check_open_shards()

    def _check_chunks(self) -> None:
        points = self.position.points.reshape(len(self.own_lanes), -1).T
        for order, own in zip(self.orders, points, strict=True):
            assert isinstance(order, RecordOrder)
            order.check(self.own_lanes, own)

    def _check_open_shards(self) -> None:
        epochs = np.array([self.epoch(sublane) for sublane in range(len(self.sublanes))])
        lowest = epochs.reshape(len(self.orders), -1).min(axis=0)
        if (lowest != self.position.lanes["extent"]).any():
            raise MalformedPosition(
                "the state says that a lane is in another epoch than the shards it has open; load "
                "a state that was saved by this stream"
            )

    def patience(self, lane: int) -> int | None:
        """Return the number of extents without a row after which the lane fails.

        For lanes with open shards it is a number of epochs. ``None``: never, as the run ends.
        """
        if self.end_epoch is not None:
            return None
        # In an epoch a lane has a few of the shards; after as many epochs as lanes it has had all.
        if self.turns is not None:
            return HOPELESS * self.lanes
        return HOPELESS * max(order.reach(lane) for order in self.orders)

    def next_run(self, position: Position) -> Position:
        """Return the position at which the next run begins, if this one ended at ``position``."""
        epoch = position.run_epoch + (self.settings.epochs or 0)
        # Without an end by epochs the lanes are in the middle of theirs: the next run goes on
        # there.
        if self.end_epoch is None:
            return replace(position, run_epoch=epoch)
        begin = Position.start(
            position.fingerprint,
            [order.first(lane, epoch) for order in self.orders for lane in self.own_lanes],
            rank=position.rank,
            world_size=position.world_size,
            epoch=epoch,
            step=position.step,
        )
        return replace(begin, ends=position.ends)


def deal_of(
    run: RecordRun, position: Position, settings: DatasetSettings, lengths: RecordLengths
) -> RankDeal | None:
    """Return the deal of a run's rows to a rank; ``None``: there is one rank alone.

    Raises:
        ConfigError: The costs are too high to be added up.
    """
    world_size, balance = position.world_size, settings.balance
    if world_size == 1 or balance is None or run.batch_size is None:
        return None
    from streamrec.plan.state.rank_deal import RankDeal  # few streams deal rows

    lanes, rows = range(run.order.lanes), run.batch_size * world_size
    whole = replace(run, lanes=lanes, batch_size=rows)
    return RankDeal(whole, position.rank, world_size, lengths, balance)


def mix_steps(
    settings: DatasetSettings, orders: Sequence[Order], world_size: int, batch_size: int
) -> int | None:
    """Return the steps of each rank in the epoch of a mix that gives all its records.

    Each lane has as many records of a component as any other, or one more. So all ranks end where
    each lane has given what the shortest may have, in every epoch alike.

    Returns:
        ``None``: there is one rank, which reads all, or the orders do not tell.
    """
    if world_size == 1 or settings.exhausted != "rest":
        return None
    shortest = sum(
        order.records // order.lanes for order in orders if isinstance(order, RecordOrder)
    )
    return shortest * (orders[0].lanes // world_size) // batch_size


def keeps_placeholders(settings: DatasetSettings, batch_size: int | None) -> bool:
    """Return whether damaged and excluded records leave masked rows, so that others stay."""
    is_counted = settings.steps_per_epoch is not None or settings.index is not None
    return is_counted and batch_size is not None and _has_places(settings)


def leaves_places(settings: DatasetSettings) -> bool:
    """Return whether an excluded record would leave a masked row, so that others stay."""
    excluding = settings.model_copy(update={"exclude": ()})
    return keeps_placeholders(excluding, settings.batch_size)


def marks_placeholders(settings: DatasetSettings, batch_size: int | None) -> bool:
    """Return whether a reader marks such records, for rows or for their places in windows."""
    return _has_places(settings) and (
        settings.has_windows or keeps_placeholders(settings, batch_size)
    )


def _has_places(settings: DatasetSettings) -> bool:
    """Return whether such a record has a place; with a filter or packs it has none."""
    leaves_out = settings.on_corrupt != "raise" or settings.exclude is not None
    stages = (settings.filter, settings.pack, settings.window)
    return leaves_out and stages == (None, None, None)
