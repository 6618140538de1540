"""The arithmetic of a dataset's runs: their lengths, their starts and their memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from streamrec.config.dataset import ends_text
from streamrec.config.machine import memory_budget
from streamrec.config.places import command_for
from streamrec.errors import ConfigError, MalformedPosition, OtherDataset
from streamrec.pipeline.dataset_identity import check_batches, uncounting_stage
from streamrec.pipeline.terms.memory_needs import MemoryNeeds
from streamrec.pipeline.terms.run_plan import mix_steps
from streamrec.plan.order.coordinates import POINT
from streamrec.plan.order.mixture import names_in
from streamrec.plan.order.window import Windows
from streamrec.plan.state.position import Position
from streamrec.plan.state.record_run import RecordRun

if TYPE_CHECKING:
    from streamrec.config import DatasetSettings
    from streamrec.formats.shards.index import Index
    from streamrec.pipeline.dataset_identity import Identity
    from streamrec.plan.reading.ranges import MemoryPlan
    from streamrec.plan.state.fingerprint import Fingerprint
    from streamrec.plan.state.resume_point import Beginning, ResumePoint


class Arithmetic:
    """The lengths, the starts and the memory of a dataset's runs, without any I/O.

    Args:
        settings: The dataset's settings.
        identity: The orders of its records.
        index: The index of the shards; ``None``: the order is by shard.
        near: True if the shards are files on this machine.
    """

    def __init__(
        self, settings: DatasetSettings, identity: Identity, index: Index | None, *, near: bool
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._index = index
        self._near = near

    # -- lengths -----------------------------------------------------------------------------------

    def remainder(self, world_size: int, batch_size: int | None) -> str:
        """Return what becomes of the records that fill no batch of all ranks.

        Raises:
            ConfigError: The settings allow no such batches.
        """
        lanes = self._identity.lanes
        remainder = self._settings.remainder or ("keep" if world_size == 1 else "drop")
        if world_size > 1 and remainder == "keep":
            raise ConfigError(
                'remainder "keep" gives ranks different last batches; choose "drop" or "pad"'
                + self._costs(world_size, batch_size)
            )
        check_batches(self._settings, batch_size, remainder)
        is_counted = self._identity.is_counted
        few = (self._identity.records or 0) if is_counted else lanes
        if few < lanes and remainder != "keep":
            raise ConfigError(
                f"{lanes} lanes share {few} records, so with {remainder!r} some lanes would "
                f"have none; set lanes to {few} at most"
            )
        return remainder

    def length(self, batch_size: int | None, world_size: int) -> int | None:
        """Count each rank's batches (or single records) in a run; ``None``: endless or unknown."""
        settings = self._settings
        if settings.epochs is None:
            return None
        if settings.steps_per_epoch is not None:
            return settings.epochs * settings.steps_per_epoch
        remainder = self.remainder(world_size, batch_size)
        mixed = self._mix_steps(batch_size, world_size)
        if mixed is not None:
            return mixed
        records = self._identity.records
        if records is not None and (self._gives_all_records or self._reads_all(world_size)):
            steps, rest = divmod(records * settings.epochs, batch_size or 1)
            return steps + (rest > 0 and remainder != "drop")
        run = self._run(remainder, batch_size, world_size)
        return None if run is None else run.steps

    def _mix_steps(self, batch_size: int | None, world_size: int) -> int | None:
        """Return the steps of several ranks in a mix that gives all its records; else ``None``."""
        return mix_steps(self._settings, self._identity.orders, world_size, batch_size or 1)

    @property
    def _gives_all_records(self) -> bool:
        """True in a mix whose epoch is every record of every component."""
        is_whole = self._identity.draws is not None and self._settings.exhausted == "rest"
        return is_whole and not uncounting_stage(self._settings)

    def _reads_all(self, world_size: int) -> bool:
        """Return whether one rank reads whole shards of which the source counts the records."""
        settings = self._settings
        leaves_out = settings.on_corrupt != "raise" or settings.exclude is not None
        is_plain = self._identity.draws is None and not uncounting_stage(settings)
        return world_size == 1 and self._index is None and is_plain and not leaves_out

    def surplus(self, batch_size: int | None, world_size: int) -> int | None:
        """Count the masked rows of a run's batches; below 0: the records that are left out."""
        run = self._run(self.remainder(world_size, batch_size), batch_size, world_size)
        mixed, records = self._mix_steps(batch_size, world_size), self._identity.records
        if mixed is not None and records is not None:
            return mixed * (batch_size or 1) * world_size - records
        return None if run is None else run.surplus

    def _costs(self, world_size: int, batch_size: int | None) -> str:
        """Describe the records that "drop" leaves out and the rows that "pad" adds, if known."""
        drop, pad = (self._run(way, batch_size, world_size) for way in ("drop", "pad"))
        if drop is None or pad is None or batch_size is None:
            return ""
        return (
            f': of a run\'s {drop.records} records "drop" leaves out {-drop.surplus}, "pad" adds '
            f"{pad.surplus} masked rows"
        )

    def _run(self, remainder: str, batch_size: int | None, world_size: int) -> RecordRun | None:
        """Return the arithmetic of a run of whole epochs; ``None``: its records are not counted."""
        epochs, steps = self._settings.epochs, self._settings.steps_per_epoch
        order = self._identity.record_order
        if order is None or epochs is None or steps is not None:
            return None
        # Rank 0 stands for all: with "drop" and "pad" each has as many rows.
        lanes = range(0, self._identity.lanes, world_size)
        return RecordRun(
            order=order,
            # Windows change the order of a run's records, and not their number.
            windows=None,
            lanes=lanes,
            batch_size=batch_size,
            epoch=0,
            step=0,
            end_epoch=epochs,
            remainder=remainder,
        )

    # -- starts ------------------------------------------------------------------------------------

    def position(
        self, fingerprint: Fingerprint, rank: int, world_size: int, point: ResumePoint
    ) -> Position:
        """Return the position of a rank at which to begin; its order must be that of the dataset.

        Raises:
            ConfigError: The position is not known.
            StateError: The position belongs to another dataset, order, rank or world size.
        """
        begin = self._position(fingerprint, rank, world_size, point)
        return replace(begin, ends=ends_text(self._settings))

    def _position(
        self, fingerprint: Fingerprint, rank: int, world_size: int, point: ResumePoint
    ) -> Position:
        own = replace(fingerprint, mix_changes=point.mix_changes)
        if not isinstance(point, Position):
            self._identity.changes(own)
            return self._start(own, rank, world_size, point)
        point = join_components(self._identity, own, point)
        self._identity.changes(own)
        if point.since is None and point.points.size != self._identity.sublanes(point.world_size):
            raise MalformedPosition(
                "the state has a different number of components than this stream; load a state "
                "that this stream has saved"
            )
        # By record one state serves any rank; by shard this refuses what lacks the other ranks.
        if (point.rank, point.world_size) != (rank, world_size):
            return Position.merge([point], rank=rank, world_size=world_size)
        return point

    def record_run(self, start: Position, batch_size: int | None) -> RecordRun:
        """Return the arithmetic of the run at a position; its order must be by record."""
        settings, order = self._settings, self._identity.record_order
        windows = self._identity.windows()
        assert order is not None
        assert start.since is not None
        assert not isinstance(windows, Windows)
        epoch, step = start.since
        ends = settings.epochs is not None and settings.steps_per_epoch is None
        return RecordRun(
            order=order,
            windows=windows,
            lanes=range(start.rank, order.lanes, start.world_size),
            batch_size=batch_size,
            epoch=epoch,
            step=step,
            end_epoch=start.run_epoch + (settings.epochs or 0) if ends else None,
            remainder=self.remainder(start.world_size, batch_size),
        )

    def _start(
        self, fingerprint: Fingerprint, rank: int, world_size: int, beginning: Beginning
    ) -> Position:
        identity, settings = self._identity, self._settings
        if beginning.step:
            return self._seek(fingerprint, rank, world_size, beginning.step)
        epoch = beginning.epoch
        if epoch and identity.draws is not None and settings.exhausted == "repeat":
            raise ConfigError(
                "an epoch's position is unknown in a mix of components that repeat; load a state"
                " to go on in it, or rewind to its beginning"
            )
        return Position.start(
            fingerprint,
            [
                order.first(lane, epoch)
                for order in identity.orders
                for lane in range(rank, identity.lanes, world_size)
            ],
            rank=rank,
            world_size=world_size,
            epoch=epoch,
            step=epoch * (settings.steps_per_epoch or 0),
        )

    def _seek(self, fingerprint: Fingerprint, rank: int, world_size: int, step: int) -> Position:
        """Return the position before a step, as successive runs would reach it."""
        if self._identity.draws is not None:
            raise ConfigError("the position of a step is unknown in a mix; load a state")
        if self._index is None:
            raise ConfigError(
                "the position of a step is unknown without an index; write one with "
                f"{command_for('index', vars(self._settings))} and set index=True, or load a state"
            )
        if not self._identity.is_counted:
            raise ConfigError(
                f"the position of a step is unknown with {uncounting_stage(self._settings)}; load "
                "a state"
            )
        batch_size, settings = fingerprint.global_batch, self._settings
        length = self.length(batch_size and batch_size // world_size, world_size)
        # A run of unknown length never ends, so that all steps lie in the first.
        runs, begun = divmod(step, length) if length else (0, step)
        # Runs follow each other in a stream, each of `epochs` epochs and `length` steps.
        run_epoch = runs * (settings.epochs or 0)
        counted = length and settings.steps_per_epoch is None  # then each run begins an epoch
        epoch, first = (run_epoch, step - begun) if counted else (0, 0)
        start = Position.start(
            fingerprint, [], rank=rank, world_size=world_size, epoch=epoch, step=first
        )
        return replace(start, step=step, run_epoch=run_epoch)

    # -- memory ------------------------------------------------------------------------------------

    def memory(self, world_size: int, budget: int | None = None) -> MemoryPlan:
        """Divide a budget, by default that of the settings.

        Raises:
            ConfigError: A rank's share of the windows or packs does not fit it.
        """
        total = memory_budget(self._settings) if budget is None else budget
        return self._needs(world_size).divide(total)

    def least_budget(self, world_size: int) -> int:
        """Return the smallest budget of a rank's run, in bytes."""
        return self._needs(world_size).least

    def _needs(self, world_size: int) -> MemoryNeeds:
        settings, identity = self._settings, self._identity
        lanes = identity.lanes // world_size
        window = int(settings.shuffle_window) if settings.has_windows else 0
        # A window has whole chunks: one chunk of each lane at least.
        if window and identity.record_order is not None:
            window = max(window, identity.lanes * identity.record_order.largest)
        return MemoryNeeds(
            lanes=lanes,
            # Rows that are dealt to a rank are a lane of their own.
            sublanes=identity.sublanes(world_size)
            + (settings.balance is not None and world_size > 1),
            packs=lanes * settings.pack.held_bytes if settings.pack else 0,
            windows=-(-window // world_size) * len(identity.counts),
            near=self._near,
            has_episodes=settings.window is not None,
        )


def join_components(identity: Identity, own: Fingerprint, point: Position) -> Position:
    """Return the position of a saved state in a mix that components have joined since.

    Args:
        identity: The identity of the dataset.
        own: The fingerprint of the stream that goes on from the state.
        point: The saved state; of any other stream than a mix, it stays as it is.

    Raises:
        StateError: It belongs to another dataset or order.
    """
    known = names_in(point.fingerprint.mix)
    names = [] if identity.components is None else list(identity.components.names)
    missing = sorted(known.difference(names)) if names else []
    if missing:
        raise OtherDataset(
            f"the state has the components {', '.join(missing)}, for which this mix has no source; "
            f"name each with the weight 0, as in {{{missing[0]!r}: (url, 0)}}"
        )
    new = [name for name in identity.waiting if name not in known]
    if not known or not new:
        own.check(point.fingerprint)
        return point
    identity.before_joining(own, new).check(point.fingerprint)
    if point.sources.shape[1] != len(names) - len(new):
        raise MalformedPosition(
            "the state has a different number of components than its mix; give the state as it "
            "was saved"
        )
    return _with_columns(identity, own, point, [name not in new for name in names])


def _with_columns(
    identity: Identity, own: Fingerprint, point: Position, is_known: list[bool]
) -> Position:
    """Return a position with the beginnings of the components that it does not know."""
    lanes = range(point.rank, identity.lanes, point.world_size)
    sources = np.zeros((len(lanes), len(is_known)), POINT)
    sizes = np.zeros(sources.shape, np.int64)
    for number, order in enumerate(identity.orders):
        sources["extent"][:, number] = [order.first(lane, point.origin) for lane in lanes]
    sources[:, is_known], sizes[:, is_known] = point.sources, point.sizes
    return replace(point, fingerprint=own, sources=sources, sizes=sizes)
