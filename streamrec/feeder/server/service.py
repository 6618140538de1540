"""The service behind a feeder's connections: its datasets, and all that their clients share.

It knows nothing of sockets: :mod:`streamrec.feeder.server.server` lets clients in. The limits that
all clients share, for handshakes, connections and memory, are counted without I/O.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
from collections import Counter
from collections.abc import Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from streamrec.config.dataset import LEAST_BUDGET
from streamrec.config.machine import (
    daemon_batch_limit,
    daemon_budget,
    daemon_pixel_limit,
    memory_budget,
    usable_cores,
    worker_count,
)
from streamrec.config.server_settings import ServerSettings
from streamrec.errors import ConfigError, FeederDraining, FeederRefused
from streamrec.feeder.access.access import Access
from streamrec.feeder.functions.map_identity import Codes
from streamrec.feeder.server.datasets import ServedDataset
from streamrec.feeder.server.replicas import WINDOW, Readings
from streamrec.feeder.server.statistics import FeederStatistics
from streamrec.flow.cores import Cores
from streamrec.flow.pool import Abandoned
from streamrec.pipeline.assembler import THREADS
from streamrec.pipeline.terms.memory_needs import NO_CEILING, RunCeiling

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from streamrec.feeder.access.tokens import Grant
    from streamrec.feeder.client.connection import AsyncConnection
    from streamrec.feeder.server.replicas import ReplicaReader
    from streamrec.pipeline.served import Served, ServedRun
    from streamrec.plan.state.position import Position


Guest = TypeVar("Guest")


class Admission(Generic[Guest]):
    """Counts connections: each is a handshake first and, once it said HELLO, a client.

    A client says HELLO at once. So where handshakes are too many the oldest is the one to cut, of
    those at the address with the most: those who say nothing, however many they are, keep nobody
    out who does.

    Args:
        limits: The settings that say how many there may be.
    """

    def __init__(self, limits: ServerSettings) -> None:
        self._limits = limits
        self._handshakes: dict[Guest, str | None] = {}
        """The addresses of handshakes, in the order of their arrival."""
        self._clients: dict[Guest, str | None] = {}
        """The addresses of clients."""

    @property
    def guests(self) -> list[Guest]:
        """All connections that are counted."""
        return [*self._handshakes, *self._clients]

    @property
    def handshakes(self) -> int:
        """Connections that are not yet clients."""
        return len(self._handshakes)

    @property
    def clients(self) -> int:
        """Connections that are clients."""
        return len(self._clients)

    @property
    def full(self) -> str | None:
        """The reason why there is no room for another client; ``None`` where there is."""
        most = self._limits.max_connections
        if len(self._clients) < most:
            return None
        return f"the feeder serves {most} clients already (max_connections)"

    def arrive(self, guest: Guest, address: str | None) -> Guest | None:
        """Count a new handshake.

        Args:
            guest: The connection.
            address: Of another machine; ``None``: it comes from this one.

        Returns:
            The handshake to cut, where they are too many now; it is counted no longer.
        """
        self._handshakes[guest] = address
        if len(self._handshakes) <= self._limits.max_handshakes:
            return None
        # Counted anew each time: this runs only while handshakes are too many.
        counts = Counter(self._handshakes.values())
        most = max(counts.values())
        oldest = next(one for one, where in self._handshakes.items() if counts[where] == most)
        del self._handshakes[oldest]
        return oldest

    def admit(self, guest: Guest) -> str | None:
        """Count a handshake as a client from now on; returns why not, where there is no room."""
        address = self._handshakes.get(guest)
        refusal = self.full or self._full_at(address)
        if refusal is None:
            self._handshakes.pop(guest, None)
            self._clients[guest] = address
        return refusal

    def leave(self, guest: Guest) -> None:
        """Count a connection no longer."""
        self._handshakes.pop(guest, None)
        self._clients.pop(guest, None)

    def _full_at(self, address: str | None) -> str | None:
        most = self._limits.max_connections_per_address
        if address is None or list(self._clients.values()).count(address) < most:
            return None
        return (
            f"the feeder serves {most} clients at {address} already; raise "
            "max_connections_per_address in its [server] if they are all meant to be there"
        )


MIB = 1 << 20
SHARE = 4
"""A session gets one part in this many of what is free, at most, and so leaves room for others."""
KEPT = 4
"""One part in this many of the budget is kept for larger batches: the largest takes as much."""


class SharedBudget:
    """A budget from which sessions borrow until they end.

    While much is free a session gets all that it asks for. Then each gets a quarter of what is
    left, but never less than the least that its dataset can be read with; who cannot get that much
    is refused. What a session gets changes its speed alone.

    Sessions grow with their largest batches. Once one has, a part of the budget is kept for those
    that are here. Otherwise new sessions would take what these need next: each would be sent away
    for the other, and none would get on.

    Args:
        total: Bytes of all sessions together.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.lent = 0
        """Bytes that sessions have now."""
        self.sessions = 0
        """The number of sessions that have some."""
        self._grows = False
        """True once one of these sessions has wanted more."""

    def __repr__(self) -> str:
        return f"<SharedBudget, {self.lent} of {self.total} bytes lent to {self.sessions} sessions>"

    @property
    def free(self) -> int:
        """Bytes that no session has."""
        return self.total - self.lent

    @property
    def kept(self) -> int:
        """Bytes that no new session gets."""
        return self.total // KEPT if self._grows else 0

    @property
    def spent(self) -> str | None:
        """The reason why no session could get any; ``None`` while one could."""
        if self.free - self.kept >= LEAST_BUDGET:
            return None
        return f"{self.sessions} sessions have the whole memory_budget"

    def lend(self, asked: int, least: int) -> int:
        """Lend memory to a session; it gives back what it got with :meth:`give_back`.

        Args:
            asked: The bytes that the session would use.
            least: The bytes without which it cannot read; ``asked`` at most.

        Returns:
            The bytes that it gets, ``least`` to ``asked``.

        Raises:
            ConfigError: It needs more than the whole budget.
            FeederDraining: Too little is free now.
        """
        self._check(least, self.kept)
        granted = min(asked, max(least, (self.free - self.kept) // SHARE))
        self.lent += granted
        self.sessions += 1
        return granted

    def grow(self, more: int) -> None:
        """Lend more bytes to a session that has some; it gives all back together.

        Raises:
            ConfigError: They are more than the whole budget.
            FeederDraining: Too little is free now.
        """
        self._grows = True
        self._check(more, 0)
        self.lent += more

    def check(self, least: int) -> None:
        """Check that a session could get memory if it were alone.

        Raises:
            ConfigError: It needs more than the whole budget.
        """
        if least > self.total:
            raise ConfigError(
                f"the feeder's memory_budget is {self.total / MIB:.0f} MiB, and this dataset needs "
                f"{least / MIB:.0f} MiB for a session; raise memory_budget in the feeder's [server]"
            )

    def _check(self, least: int, kept: int) -> None:
        """Refuse to lend what there is not, and what is kept."""
        self.check(least)
        if least > self.free - kept:
            besides = f", keeps {kept / MIB:.0f} MiB for their larger batches," if kept else ","
            raise FeederDraining(
                f"the feeder has lent {self.lent / MIB:.0f} MiB of its memory_budget of "
                f"{self.total / MIB:.0f} MiB to {self.sessions} sessions{besides} and this one "
                f"needs {least / MIB:.0f} MiB; go on elsewhere, or raise memory_budget in the "
                "feeder's [server]"
            )

    def give_back(self, granted: int) -> None:
        """Take back what a session got."""
        self.lent -= granted
        self.sessions -= 1
        if not self.sessions:
            self._grows = False


AFTER = 2.0
"""Seconds from the end of a session until memory is given back, once for all that end meanwhile."""

release = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""The C library's function, or ``None`` where it is not glibc."""


class Heap:
    """The memory of a process whose sessions come and go.

    glibc keeps most of what is freed below a block that is still used: a feeder would hold what its
    busiest hour took. ``malloc_trim`` gives whole free pages back, in some milliseconds.

    Args:
        after: Seconds from the end of a session until memory is given back.
    """

    def __init__(self, after: float = AFTER) -> None:
        self._after = after
        self.is_due = False
        """``True`` while memory is going to be given back, and is."""

    def shrink_soon(self) -> None:
        """Give free memory back to the system, soon."""
        if not self.is_due and release is not None:
            self.is_due = True
            asyncio.get_running_loop().call_later(self._after, self._shrink)

    def _shrink(self) -> None:
        assert release is not None
        # In a thread: ctypes lets go of the interpreter for the milliseconds that it takes.
        shrinking = asyncio.get_running_loop().run_in_executor(None, release, 0)
        shrinking.add_done_callback(self._done)

    def _done(self, _: asyncio.Future[int]) -> None:
        self.is_due = False


log = logging.getLogger("streamrec.feeder")


@dataclass(eq=False, repr=False)
class Service:
    """The datasets of a feeder, with the memory, the limits and the counters of all clients."""

    datasets: dict[str, Served | Awaitable[Served]]
    """By name; one that is not open yet lets its clients wait."""
    settings: ServerSettings = field(default_factory=ServerSettings)
    """The limits and the timeouts."""
    linger: float = 300.0
    """Seconds that a client has to read why its stream has ended, and to disconnect."""
    budget: SharedBudget | None = None
    """The memory that all sessions share; ``None``: each takes what its dataset's settings say."""
    access: Access = field(default=None)  # type: ignore[assignment]
    """Who may read; ``None``: as the settings say."""
    codes: Codes | None = field(default_factory=Codes)
    """Digests of the datasets' functions, to tell clients; ``None``: nobody compares them."""

    def __post_init__(self) -> None:
        if self.access is None:
            self.access = Access(self.settings)
        self.admission: Admission[Any] = Admission(self.settings)
        """The connections: those of this process, or their numbers."""
        self.statistics = FeederStatistics()
        self.readings = Readings(self._reading)
        cores = usable_cores() // worker_count(self.settings)
        self.cores = Cores(max(THREADS, cores))  # a session that is alone has all its threads
        """The cores on which pictures of all sessions are decoded."""
        self._heap = Heap()

    async def admit(self, connection: AsyncConnection) -> None:
        """Count one who has said HELLO as a client.

        Raises:
            FeederDraining: There is no room for it here.
        """
        refusal = self.admission.admit(connection)
        if refusal is not None:
            self.statistics.dropped["full"] += 1
            raise FeederDraining(refusal)

    @asynccontextmanager
    async def memory(self, dataset: Served, world_size: int, more: int = 0) -> AsyncIterator[Loan]:
        """Lend a session its memory while the block runs.

        Args:
            dataset: What it reads.
            world_size: The number of ranks.
            more: Bytes that it needs besides.

        Yields:
            The bytes that it may take, and the limits of its batches.

        Raises:
            FeederDraining: Other sessions have too much of it now.
            ConfigError: The daemon's whole budget is too small for a session.
        """
        budgeted = memory_budget(dataset.settings)
        asked, least = budgeted + more, min(budgeted, dataset.least_budget(world_size)) + more
        try:
            granted = await self.lend(asked, least)
        except FeederDraining:
            self.statistics.dropped["full"] += 1
            raise
        if granted is not None and granted < asked:
            log.info("a session gets %d of the %d MiB it asks for", granted >> 20, asked >> 20)
        loan = Loan(self, granted, more)
        try:
            yield loan
        finally:
            loan.end()
            self._heap.shrink_soon()

    async def lend(self, asked: int, least: int) -> int | None:
        """Lend memory as :meth:`SharedBudget.lend` does, if there is a budget."""
        return None if self.budget is None else self.budget.lend(asked, least)

    async def grow(self, granted: int, more: int) -> None:  # noqa: ARG002 - workers tell it
        """Lend more memory to a session; errors as of :meth:`SharedBudget.grow`.

        Args:
            granted: The bytes that it has.
            more: The bytes that it needs besides.
        """
        assert self.budget is not None
        self.budget.grow(more)

    def give_back(self, granted: int) -> None:
        """Take back what was lent."""
        assert self.budget is not None
        self.budget.give_back(granted)

    @asynccontextmanager
    async def _reading(
        self, reader: ReplicaReader, position: Position
    ) -> AsyncIterator[tuple[ServedRun, int]]:
        """Start a run whose batches go to several clients."""
        dataset = reader.dataset
        kept = min(WINDOW, daemon_budget(self.settings) // 4)
        async with self.memory(dataset, reader.world_size, kept) as loan:
            run = dataset.run(
                rank=reader.rank,
                world_size=reader.world_size,
                batch_size=reader.batch_size,
                position=position,
                budget=loan.budget,
                ceiling=loan.ceiling,
            )
            with self.statistics.reading(reader.name, run):
                async with run as batches:
                    yield batches, kept

    async def dataset(self, name: str, grant: Grant | None = None) -> Served:
        """Return a dataset, once it is open.

        Args:
            name: Its name.
            grant: What the client may know of; ``None``: everything.

        Raises:
            FeederRefused: There is no dataset of this name.
            StreamrecError: It cannot be opened.
        """
        handle = self.datasets.get(name)
        if handle is None:
            # Names that a client may not read are not told.
            names = [one for one in self.datasets if grant is None or grant.opens(one)]
            raise FeederRefused(
                f"there is no dataset {name!r} here; there are: {', '.join(sorted(names))}",
                code="dataset",
            )
        if isinstance(handle, Awaitable):
            # A future would be cancelled with the client that waits for it.
            return await (asyncio.shield(handle) if asyncio.isfuture(handle) else handle)
        return handle

    def note_failure(self, name: str, error: Exception) -> None:
        """Note that a client's stream of a dataset has failed."""
        handle = self.datasets.get(name)
        if isinstance(handle, ServedDataset):
            handle.note_failure(error)


class Loan:
    """The memory of a session, from its beginning to its end.

    Args:
        service: Lends it.
        granted: The bytes that it has lent; ``None``: it lends none, and sets no limits.
        kept: Bytes of them that are not for the session's run.
    """

    def __init__(self, service: Service, granted: int | None, kept: int) -> None:
        self.budget = None if granted is None else granted - kept
        """The bytes that the run may take; ``None``: as many as the dataset's settings say."""
        self.ceiling = NO_CEILING
        """The limits of the run's batches."""
        self._service = service
        self._granted = granted
        self._growing = self._over = False
        self._loop = asyncio.get_running_loop()
        if granted is not None:
            settings = service.settings
            limits = daemon_batch_limit(settings), daemon_pixel_limit(settings)
            self.ceiling = RunCeiling(*limits, self.borrow, service.cores)

    def __repr__(self) -> str:
        return f"<Loan of {self._granted} bytes>"

    def borrow(self, more: int) -> None:
        """Borrow more for a batch, in the thread that decodes it.

        Raises:
            ConfigError: It is more than the whole budget.
            FeederDraining: Too little is free now.
        """
        # The budget belongs to the loop: the thread asks there, and waits for the answer.
        asyncio.run_coroutine_threadsafe(self._grow(more), self._loop).result()

    def end(self) -> None:
        """Give all of it back, as soon as nothing more is being borrowed."""
        self._over = True
        # While more is being borrowed, the end of that gives all of it back.
        if not self._growing and self._granted is not None:
            self._service.give_back(self._granted)
            self._granted = None

    async def _grow(self, more: int) -> None:
        if self._over or self._granted is None:
            # The session has given its memory back, and nobody waits for its batches any more.
            raise Abandoned
        self._growing = True
        try:
            await self._service.grow(self._granted, more)
            self._granted += more
        finally:
            self._growing = False
            if self._over:
                self.end()
