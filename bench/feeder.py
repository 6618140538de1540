"""The feeder beside other ways to bring batches from one process to another, on loopback.

Systems: streamrec's feeder over TCP, over a Unix socket with shared memory, and over TLS;
streamrec's engine process; tf.data service; pyarrow Flight; and the same bytes by bare ``sendall``
and ``recv_into``. Clients and servers are processes apart.

*ready*: a few batches are sent again and again, so that only the way counts. *shards*: local shards
are read, checked, and parsed or not. The systems of a group take turns in each round, and no other
is connected meanwhile. bench/results/README.md says how each number is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from time import monotonic, sleep
from typing import Any, NamedTuple

import click

import streamrec as sr
from bench import datasets, machine
from bench.cases import RATE, Failure, say
from bench.datasets import Dataset
from bench.feeder_systems import (
    BARE,
    ENGINE,
    SHARED,
    SYSTEMS,
    TCP,
    TF_SERVICE,
    Load,
    Process,
    Setup,
    System,
)
from bench.feeding.clients import nbytes
from bench.harness import PEERS, Aim, Report, Run, benchmark, now, number, table
from bench.readers.streams import specs
from bench.services import self_signed
from bench.stopwatch import cpu_seconds, tree

SIZES: dict[str, tuple[Callable[[Path, float], Dataset], float, int]] = {
    "images": (datasets.images, 321.6, 64),
    "tokens": (datasets.tokens, 81.6, 256),
    "recsys": (datasets.recsys, 136.0, 4096),
}
"""Function that makes each dataset, its size in 10^6 bytes with ``--size 1``, and its batches."""
PARTS = ("ready", "shards")
WARMING = 0.25
"""Seconds before each measurement in which clients fetch what was read ahead meanwhile."""
PATIENCE = 5.0
"""Seconds after which a turn without a batch is a failure; a shorter one is had again."""
CLOSING = 5.0
"""Seconds for clients to disconnect; some of TensorFlow's never do."""
LEAST_BYTES = 0.95
"""Part of the bytes of streamrec's batch that another system's must have to count as the same."""
HEADINGS = {"ready": "Ready-made batches", "shards": "From local shards, checked"}
OF_BARE = 0.7
OF_ENGINE = 0.9
OF_TF_SERVICE = {"images": 4.0, "recsys": 8.0}


@benchmark("feeder", repeat=3, only=True, data=True)
@click.option("--seconds", default=0.3, show_default=True, help="Seconds of a turn.")
@click.option("--size", default=1.0, show_default=True, help="Size of the data; 1 is 0.5 GB.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Part to measure.")
@click.option("--kinds", multiple=True, type=click.Choice(list(SIZES)), help="Kind of data.")
@PEERS
def main(run: Run, *, seconds: float, peers_python: str, **chosen: Any) -> Report:
    loads = list(loads_of(run.data, chosen["kinds"] or tuple(SIZES), chosen["size"]))
    needed = sorted({module for system in SYSTEMS for module in system.needs})
    versions = machine.module_versions(peers_python, needed)
    cells: list[Cell] = []
    with self_signed() as certificate, Setup(loads, peers_python, certificate) as setup:
        named = [system for system in SYSTEMS if run.selects(system.name)]
        reasons = {system.name: system.missing(setup, versions) for system in named}
        run.skipped += [f"{name}: {reason}" for name, reason in reasons.items() if reason]
        systems = [system for system in named if reasons[system.name] is None]
        for group in groups(loads, systems, chosen["parts"] or PARTS):
            measure(setup, group, seconds, run.repeat)
            cells += group
    aims = targets(cells)
    for cell in cells:
        if cell.failure:
            say(f"{cell.title}: {cell.failure}")
    facts = {
        "peers": versions,
        "settings": {"rounds": run.repeat, "seconds": seconds},
        "loads": {one.name: {"batch_size": one.batch_size, "bytes": one.nbytes} for one in loads},
        "rows": [cell.facts() for cell in cells],
    }
    failed = any(cell.failure for cell in cells)
    return Report(f"{where(versions)}\n\n{as_markdown(cells)}", facts, aims, failed=failed)


def loads_of(data: Path, kinds: Sequence[str], size: float) -> Iterator[Load]:
    """Make the shards, and yield their records as batches."""
    for kind in kinds:
        make, megabytes, batch_size = SIZES[kind]
        dataset = make(data, megabytes * size)
        datasets.read_into_page_cache([dataset])
        features = specs(dataset.features)
        with sr.open(
            dataset.pattern, features, batch_size=batch_size, engine="thread", epochs=None
        ) as stream:
            yield Load(dataset, batch_size, nbytes(next(iter(stream))))


def groups(
    loads: Sequence[Load], systems: Sequence[System], parts: Sequence[str]
) -> Iterator[list[Cell]]:
    """Yield the cells that are measured by turns."""
    for part in parts:
        for load in loads:
            found = [Cell(part, system, load) for system in systems if part in system.parts]
            if found:
                yield found


def where(peers: Mapping[str, str | None]) -> str:
    """Return where it was measured, and with which versions."""
    on = machine.describe()
    versions = ", ".join(f"{name} {version}" for name, version in peers.items() if version)
    return (
        f"{now()}: {on['cpu']}, {on['cores']} cores, {on['memory_gigabytes']:g} GB, "
        f"{on['kernel']}, {on['python']}, streamrec {on['streamrec']['revision']}; {versions}."
    )


# -- measuring by turns: whatever else the machine does hits all systems alike ---------------------


class Turn(NamedTuple):
    """What the client of a system got in one turn."""

    megabytes_per_second: float
    records_per_second: float
    server_cpu: float
    """CPU seconds for each GB, of the processes that serve."""
    client_cpu: float
    waits: list[float]
    """Seconds that each batch was waited for."""


@dataclass
class Cell:
    """A system with a load, and what was measured of it."""

    part: str
    system: System
    load: Load
    turns: list[Turn] = field(default_factory=list)
    failure: str | None = None

    @property
    def title(self) -> str:
        """Return everything that tells it from the others."""
        return f"{self.part}, {self.load.name}: {self.system.name}"

    def median(self, quantity: str) -> float | None:
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
            "failure": self.failure,
            "p50_seconds": self.wait(0.5),
            "p99_seconds": self.wait(0.99),
            "turns": [
                {name: value for name, value in turn._asdict().items() if name != "waits"}
                for turn in self.turns
            ],
        }


class _Running:
    """The connected client of a cell."""

    def __init__(self, setup: Setup, cell: Cell) -> None:
        repeats = cell.part == "ready"
        self._cell = cell
        servers, arguments = cell.system.reach(setup, cell.load, repeats=repeats)
        arguments["job"] = f"{cell.title}, turn {len(cell.turns)}".replace(" ", "-")
        self._host = cell.system.host(setup, repeats=repeats)
        before = set(_descendants([self._host]))
        self._host.tell(do="open", name=cell.title, arguments=arguments)
        self._check(self._host.answer())
        helpers = set(_descendants([self._host])) - before
        self._servers = set(_descendants(servers))
        self._clients = {self._host.pid}
        (self._servers if cell.system.serves_by_helpers else self._clients).update(helpers)

    def _check(self, first: dict[str, Any]) -> None:
        """Compare a batch with what it should be."""
        load = self._cell.load
        if first["records"] != load.batch_size or first["nbytes"] < LEAST_BYTES * load.nbytes:
            raise Failure(f"a batch is {first}, not {load.batch_size} records in {load.nbytes}")

    def run(self, seconds: float) -> Turn:
        """Let the client take batches, and measure after a while."""
        start = monotonic() + WARMING
        self._host.tell(do="run", name=self._cell.title, start=start, stop=start + seconds)
        _sleep_until(start)
        before = _cpu_seconds(self._servers), _cpu_seconds(self._clients)
        _sleep_until(start + seconds)
        after = _cpu_seconds(self._servers), _cpu_seconds(self._clients)
        answer = self._host.answer()
        records = answer["records"]
        if not records and seconds > PATIENCE:
            raise Failure(f"no batch came in {seconds:g} s")
        if not records:
            return self.run(2 * seconds)
        megabytes = records * self._cell.load.nbytes / self._cell.load.batch_size / 1e6
        servers, clients = (
            sum(late[pid] - early[pid] for pid in late if pid in early)
            for early, late in zip(before, after, strict=True)
        )
        return Turn(
            megabytes / seconds,
            records / seconds,
            servers / (megabytes / 1e3),
            clients / (megabytes / 1e3),
            answer["waits"],
        )

    def close(self) -> None:
        """Disconnect the client; a process that cannot do so in time is killed."""
        with suppress(Failure):
            self._host.tell(do="close", name=self._cell.title)
            self._host.answer(CLOSING)


def measure(setup: Setup, cells: Sequence[Cell], seconds: float, rounds: int) -> None:
    """Measure cells of one load: each has a turn in each round, and connects for that alone.

    Whoever stayed connected would go on to read ahead in the turn of the next.
    """
    for seed in range(rounds):
        for cell in Random(seed).sample(cells, len(cells)):
            if cell.failure is None:
                say(cell.title)
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


def _descendants(processes: Iterable[Process]) -> list[int]:
    """Return the ids of processes, and of all that descend from them."""
    return [pid for process in processes for pid in tree(process.pid)]


def _cpu_seconds(pids: Iterable[int]) -> Mapping[int, float]:
    """Return the CPU seconds that processes have taken so far; of those that are gone, none."""
    taken = {}
    for pid in pids:
        with suppress(OSError):
            taken[pid] = cpu_seconds(pid)
    return taken


# -- tables ----------------------------------------------------------------------------------------


def as_markdown(cells: Sequence[Cell]) -> str:
    """Return the ratios of each part."""
    text = [section for part in HEADINGS for section in _ratios(part, cells)]
    return "\n\n".join(text)


def _ratios(part: str, cells: Sequence[Cell]) -> list[str]:
    """Return a table of the rates over that of the bare socket."""
    alone = [cell for cell in cells if cell.part == part]
    loads = list(dict.fromkeys(cell.load.name for cell in alone))
    systems = list(dict.fromkeys(cell.system.name for cell in alone))
    rows = [
        [system, *(number(_of_bare(_find(alone, system, load), cells)) for load in loads)]
        for system in systems
    ]
    rates = [number(_rate(_find(alone, BARE, load))) for load in loads]
    if not rows:
        return []
    table_ = table(["of the bare socket", *loads], [*rows, ["bare socket, MB/s", *rates]])
    return [f"### {HEADINGS[part]}", table_]


def targets(cells: Sequence[Cell]) -> list[Aim]:
    """Return the aims that were measured."""
    found = []
    for cell in cells:
        for name, aim, measured in _judged(cell, cells):
            if measured is not None:
                found.append(Aim(f"{cell.part}, {cell.load.name}: {name}", "times", aim, measured))
    return found


def _judged(cell: Cell, cells: Sequence[Cell]) -> Iterable[tuple[str, float, float | None]]:
    kind, system = cell.load.dataset.kind, cell.system.name
    if cell.part == "ready" and system == TCP:
        yield "TCP over the bare socket", OF_BARE, _of_bare(cell, cells)
    if cell.part == "ready" and system == SHARED:
        yield (
            "shared memory over the engine process",
            OF_ENGINE,
            cell.over(_beside(cell, ENGINE, cells)),
        )
    if cell.part == "shards" and system == TCP:
        aim = OF_TF_SERVICE.get(kind)
        if aim is not None:
            yield "TCP over tf.data service", aim, cell.over(_beside(cell, TF_SERVICE, cells))


def _of_bare(cell: Cell | None, cells: Sequence[Cell]) -> float | None:
    return None if cell is None else cell.over(_beside(cell, BARE, cells))


def _beside(cell: Cell, system: str, cells: Sequence[Cell]) -> Cell | None:
    """Return the cell of another system that was measured by turns with this one."""
    return _find((one for one in cells if one.part == cell.part), system, cell.load.name)


def _find(cells: Iterable[Cell], system: str, load: str) -> Cell | None:
    found = (cell for cell in cells if (cell.system.name, cell.load.name) == (system, load))
    return next(found, None)


def _rate(cell: Cell | None) -> float | None:
    return None if cell is None else cell.median(RATE)


if __name__ == "__main__":
    main()
