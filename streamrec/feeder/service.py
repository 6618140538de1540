"""Everything that the conversations of one feeder share: datasets, settings, counters. No I/O."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from streamrec.config import DaemonSettings
from streamrec.errors import FeederDraining, FeederRefused
from streamrec.feeder.admission import Admission
from streamrec.flow.cleanup import finish

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from streamrec.config import DatasetSettings
    from streamrec.feeder.connection import AsyncConnection
    from streamrec.feeder.shared import Outbox
    from streamrec.kernel.contract import Allocate
    from streamrec.plan.position import Fingerprint, Position
    from streamrec.plan.resume_point import ResumePoint
    from streamrec.stores.base import ObjectInfo
    from streamrec.values.batch import Batch

__all__ = ["DatasetHandle", "RunHandle", "Service", "Statistics", "open_dataset", "opened"]

WAITS = ("credit", "data", "socket")
DROPS = ("full", "crowd", "handshake", "idle")


class RunHandle(Protocol):
    """One rank's batches, from a position on."""

    @property
    def position(self) -> Position:
        """The position of the next batch."""

    async def receive(self) -> Batch:
        """Return the next batch; raise ``EndOfStream`` after the last."""

    def statistics(self) -> Mapping[str, Any]:
        """Return the counters of this run, as plain JSON-able data."""


class DatasetHandle(Protocol):
    """A dataset, as far as a feeder uses it."""

    @property
    def settings(self) -> DatasetSettings:
        """The settings with which it is read."""

    @property
    def shards(self) -> tuple[str, ...]:
        """The URLs of the shards."""

    @property
    def lanes(self) -> int:
        """The number of lanes."""

    def fingerprint(self, batch_size: int | None, world_size: int) -> Fingerprint:
        """Return everything that determines the order; refuse what cannot be served."""

    def length(self, batch_size: int | None, world_size: int) -> int | None:
        """Return the steps of a run; ``None``: it has no end, or nobody knows."""

    def surplus(self, batch_size: int | None, world_size: int) -> int | None:
        """Return the masked rows of all ranks in a run; below 0: so many records are left out."""

    def run(
        self,
        *,
        rank: int,
        world_size: int,
        batch_size: int | None,
        position: ResumePoint | None,
        allocate: Allocate | None = None,
    ) -> AbstractAsyncContextManager[RunHandle]:
        """Start to read; without a ``batch_size``, single records. Columns may be allocated."""

    async def aclose(self) -> None:
        """Close the dataset; a feeder leaves this to whoever opened it."""


async def open_dataset(
    settings: DatasetSettings, objects: Sequence[ObjectInfo] | None = None
) -> DatasetHandle:
    """Open a dataset of the pipeline; the arguments are those of ``Dataset.open``."""
    from streamrec.pipeline.dataset import Dataset

    return await Dataset.open(settings, objects)


@asynccontextmanager
async def opened(
    datasets: Mapping[str, Awaitable[DatasetHandle]],
) -> AsyncIterator[Mapping[str, asyncio.Future[DatasetHandle]]]:
    """Open datasets while the block runs already; close them, or stop opening them, after it."""
    opening = {name: asyncio.ensure_future(dataset) for name, dataset in datasets.items()}
    try:
        yield opening
    finally:
        await finish(_close(opening.values()))


async def _close(opening: Collection[asyncio.Future[DatasetHandle]]) -> None:
    for future in opening:
        future.cancel()
    for dataset in await asyncio.gather(*opening, return_exceptions=True):
        if not isinstance(dataset, BaseException):
            await dataset.aclose()


@dataclass
class Statistics:
    """The counters of a feeder since its start."""

    connections_total: int = 0
    batches: Counter[str] = field(default_factory=Counter)
    """Batches that were sent, by dataset."""
    records: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    """Bytes of whole frames that were sent, by dataset."""
    faults: Counter[str] = field(default_factory=Counter)
    """Errors that were sent to clients, by type."""
    waited: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WAITS, 0.0))
    """Seconds of all connections together, by what they waited for: ``credit`` (the client does not
    take), ``data`` (the store does not give) or ``socket`` (the network does not carry)."""
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DROPS, 0))
    """Connections that the feeder ended, by reason: no room for the client (``full``), or for so
    many handshakes (``crowd``), a handshake that took too long, no sign of life (``idle``)."""


@dataclass(eq=False)
class Service:
    """The part of a feeder that its conversations know."""

    datasets: dict[str, DatasetHandle | Awaitable[DatasetHandle]]
    """By name; a future that is not done yet lets its clients wait."""
    settings: DaemonSettings.Server = field(default_factory=DaemonSettings.Server)
    """The token that clients must present, the limits and the timeouts."""
    linger: float = 300.0
    """Seconds that a client has to read why its stream has ended, and to disconnect."""
    outbox: Outbox | None = None
    """Memory that is shared with the only client."""
    statistics: Statistics = field(default_factory=Statistics, init=False)

    def __post_init__(self) -> None:
        self.admission: Admission[AsyncConnection] = Admission(self.settings)

    def admit(self, connection: AsyncConnection) -> None:
        """Count one who has said HELLO as a client.

        Raises:
            FeederDraining: There is no room for it here.
        """
        refusal = self.admission.admit(connection)
        if refusal is not None:
            self.statistics.dropped["full"] += 1
            raise FeederDraining(refusal)

    async def dataset(self, name: str) -> DatasetHandle:
        """Return a dataset, once it is open.

        Raises:
            FeederRefused: There is none of this name.
            StreamrecError: It cannot be opened.
        """
        handle = self.datasets.get(name)
        if handle is None:
            names = ", ".join(sorted(self.datasets))
            raise FeederRefused(f"there is no dataset {name!r} here; there are: {names}")
        return await asyncio.shield(handle) if isinstance(handle, Awaitable) else handle

    @property
    def obstacle(self) -> str | None:
        """The reason why no new client could be served now; ``None`` while one could."""
        if not all(map(_is_open, self.datasets.values())):
            return "datasets are being opened"
        return self.admission.full


def _is_open(value: DatasetHandle | Awaitable[DatasetHandle]) -> bool:
    if not asyncio.isfuture(value):
        return True
    return value.done() and not value.cancelled() and value.exception() is None
