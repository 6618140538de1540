"""Measures systems by turns, so that whatever else the machine does hits all of them alike."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from statistics import median
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.feeding.processes import cpu_seconds
from bench.measure import Failure
from bench.usage import children

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bench.feeding.processes import Process
    from bench.feeding.setup import Load, Setup
    from bench.feeding.systems import System

WARMING = 0.25
"""Seconds before each measurement in which clients fetch what was read ahead meanwhile."""
PATIENCE = 5.0
"""Seconds after which a turn without a batch is a failure; a shorter one is had again."""
CLOSING = 5.0
"""Seconds for clients to disconnect; some of TensorFlow's never do."""
LEAST_BYTES = 0.95
"""Part of the bytes of streamrec's batch that another system's must have to count as the same."""


class Turn(NamedTuple):
    """What all clients of a system got in one turn."""

    megabytes_per_second: float
    records_per_second: float
    server_cpu: float
    """CPU seconds for each GB, of the processes that serve."""
    client_cpu: float
    waits: list[float]
    """Seconds that each batch was waited for."""


@dataclass
class Cell:
    """A system with a load and a number of clients, and what was measured of it."""

    part: str
    system: System
    load: Load
    clients: int
    turns: list[Turn] = field(default_factory=list)
    failure: str | None = None

    @property
    def title(self) -> str:
        """Return everything that tells it from the others."""
        return f"{self.part}, {self.load.name}, {self.clients} clients: {self.system.name}"

    def median(self, quantity: str) -> float | None:
        """Return the median of all turns."""
        values = [getattr(turn, quantity) for turn in self.turns]
        return median(values) if values else None

    def wait(self, share: float) -> float | None:
        """Return the seconds that a share of the batches came within."""
        waits = sorted(wait for turn in self.turns for wait in turn.waits)
        return waits[min(len(waits) - 1, int(share * len(waits)))] if waits else None

    def over(self, other: Cell | None) -> float | None:
        """Return the median, over the turns, of this rate over that of another cell."""
        if other is None or not self.turns or not other.turns:
            return None
        return median(
            ours.megabytes_per_second / theirs.megabytes_per_second
            for ours, theirs in zip(self.turns, other.turns, strict=True)
        )

    def facts(self) -> dict[str, Any]:
        """Return plain values for the results."""
        return {
            "part": self.part,
            "system": self.system.name,
            "load": self.load.name,
            "clients": self.clients,
            "failure": self.failure,
            "p50_seconds": self.wait(0.5),
            "p99_seconds": self.wait(0.99),
            "turns": [
                {name: value for name, value in turn._asdict().items() if name != "waits"}
                for turn in self.turns
            ],
        }


class _Running:
    """The connected clients of a cell."""

    def __init__(self, setup: Setup, cell: Cell) -> None:
        repeats = cell.part == "ready"
        self._cell = cell
        servers, arguments = cell.system.reach(setup, cell.load, repeats=repeats)
        arguments["job"] = f"{cell.title}, turn {len(cell.turns)}".replace(" ", "-")
        self._hosts = cell.system.hosts(setup, cell.clients, repeats=repeats)
        before = set(_descendants(self._hosts))
        self._open(arguments)
        helpers = set(_descendants(self._hosts)) - before
        self._servers = {*_pids(servers), *_descendants(servers)}
        self._clients = set(_pids(self._hosts))
        (self._servers if cell.system.serves_by_helpers else self._clients).update(helpers)

    def _open(self, arguments: dict[str, Any]) -> None:
        parts = [
            len(range(n, self._cell.clients, len(self._hosts))) for n in range(len(self._hosts))
        ]
        kind = self._cell.system.kind
        for host, clients in zip(self._hosts, parts, strict=True):
            host.tell(
                do="open", name=self._cell.title, kind=kind, clients=clients, arguments=arguments
            )
        for answer in [host.answer() for host in self._hosts]:
            self._check(answer)

    def _check(self, first: dict[str, Any]) -> None:
        """Compare a batch with what it should be."""
        load = self._cell.load
        if first["records"] != load.batch_size or first["nbytes"] < LEAST_BYTES * load.nbytes:
            raise Failure(f"a batch is {first}, not {load.batch_size} records in {load.nbytes}")

    def run(self, seconds: float) -> Turn:
        """Let the clients take batches, and measure after a while."""
        start = monotonic() + WARMING
        for host in self._hosts:
            host.tell(do="run", name=self._cell.title, start=start, stop=start + seconds)
        _sleep_until(start)
        before = cpu_seconds(self._servers), cpu_seconds(self._clients)
        _sleep_until(start + seconds)
        after = cpu_seconds(self._servers), cpu_seconds(self._clients)
        answers = [host.answer() for host in self._hosts]
        records = sum(answer["records"] for answer in answers)
        if not records and seconds > PATIENCE:
            raise Failure(f"no batch came in {seconds:g} s")
        if not records:
            return self.run(2 * seconds)
        megabytes = records * self._cell.load.nbytes / self._cell.load.batch_size / 1e6
        servers, clients = (
            sum(late[pid] - early[pid] for pid in late if pid in early)
            for early, late in zip(before, after, strict=True)
        )
        waits = [wait for answer in answers for wait in answer["waits"]]
        return Turn(
            megabytes / seconds,
            records / seconds,
            servers / (megabytes / 1e3),
            clients / (megabytes / 1e3),
            waits,
        )

    def close(self) -> None:
        """Disconnect the clients; a process that cannot do so in time is killed."""
        for host in self._hosts:
            with suppress(Failure):
                host.tell(do="close", name=self._cell.title)
        for host in self._hosts:
            with suppress(Failure):
                host.answer(CLOSING)


def measure(
    setup: Setup,
    cells: Sequence[Cell],
    seconds: float,
    rounds: int,
    progress: Callable[[str], None],
) -> None:
    """Measure cells of one load: each has a turn in each round, and connects for that alone.

    Whoever stayed connected would go on to read ahead in the turn of the next.
    """
    for number in range(rounds):
        for cell in Random(number).sample(cells, len(cells)):
            if cell.failure is None:
                progress(cell.title)
                try:
                    cell.turns.append(_turn(setup, cell, seconds))
                except Failure as failure:
                    cell.failure = str(failure)
                    cell.turns.clear()


def _turn(setup: Setup, cell: Cell, seconds: float) -> Turn:
    running = _Running(setup, cell)
    try:
        return running.run(seconds)
    finally:
        running.close()


def _sleep_until(when: float) -> None:
    sleep(max(0.0, when - monotonic()))


def _pids(processes: Iterable[Process]) -> list[int]:
    return [process.pid for process in processes]


def _descendants(processes: Iterable[Process]) -> list[int]:
    found = _pids(processes)
    for pid in found:
        found += children(pid)
    return found
