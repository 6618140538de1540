"""Protocols of a dataset and its runs, as a feeder needs them; tests have doubles of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

from streamrec.pipeline.terms.memory_needs import NO_CEILING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.config import DatasetSettings
    from streamrec.flow.timings import Timings
    from streamrec.kernel.contract import Allocate
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.terms.memory_needs import Measures, RunCeiling
    from streamrec.plan.state.fingerprint import Fingerprint
    from streamrec.plan.state.position import Position
    from streamrec.plan.state.resume_point import ResumePoint
    from streamrec.stores.base.protocol import ObjectInfo


class ServedRun(Protocol):
    """A run whose batches are served; :class:`streamrec.pipeline.run.Run` says what each does."""

    @property
    def position(self) -> Position:
        """The position of the next batch."""

    @property
    def measures(self) -> Measures:
        """The counts and timings of the run."""

    def statistics(self) -> dict[str, Any]:
        """Return counters since the start, and current sizes."""

    async def receive(self) -> Batch:
        """Return the next batch; raise ``EndOfStream`` at the end of the run."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


class Served(Protocol):
    """A dataset that is served; :class:`streamrec.pipeline.dataset.Dataset` says what each does."""

    @property
    def settings(self) -> DatasetSettings:
        """The settings, which never change."""

    @property
    def objects(self) -> Sequence[ObjectInfo]:
        """The shards in their order."""

    @property
    def shards(self) -> Sequence[str]:
        """The shards' URLs."""

    @property
    def lanes(self) -> int:
        """The lanes of all ranks."""

    @property
    def stored_bytes(self) -> int | None:
        """The bytes of all shards; ``None``: the store did not say them all."""

    @property
    def timings(self) -> Timings:
        """The times of the listings that found the shards."""

    def fingerprint(self, batch_size: int | None, world_size: int, *, rank: int = 0) -> Fingerprint:
        """Return the facts that determine the order of a stream over the dataset."""

    def length(self, batch_size: int | None, world_size: int) -> int | None:
        """Count each rank's batches in a run; ``None``: endless or unknown."""

    def surplus(self, batch_size: int | None, world_size: int) -> int | None:
        """Count the masked rows of a run's batches; below 0: the records that are left out."""

    def check_memory(self) -> None:
        """Check that one rank can run at least, where there are as many as lanes."""

    def least_budget(self, world_size: int) -> int:
        """Return the smallest budget of a rank's run, in bytes."""

    def position(
        self, batch_size: int | None, rank: int, world_size: int, point: ResumePoint
    ) -> Position:
        """Return the position of a rank at which to begin."""

    def run(
        self,
        *,
        rank: int,
        world_size: int,
        batch_size: int | None,
        position: ResumePoint | None,
        allocate: Allocate | None = None,
        budget: int | None = None,
        ceiling: RunCeiling = NO_CEILING,
    ) -> ServedRun:
        """Make one rank's run, from a position or the beginning."""

    async def aclose(self) -> None:
        """Close what the dataset holds."""
