"""Tables of what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.aims import Target, targets_as_markdown
from bench.feeding.systems import BARE, ENGINE, SHARED, TCP, TF_SERVICE
from bench.markdown import MISSING, number, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.feeding.measuring import Cell

HEADINGS = {"ready": "Ready-made batches", "shards": "From local shards, checked"}
OF_BARE = 0.7
OF_ENGINE = 0.9
OF_TF_SERVICE = {"images": 4.0, "recsys": 8.0}


def as_markdown(cells: Sequence[Cell], aims: Sequence[Target]) -> str:
    """Return the tables, the ratios first."""
    parts = [part for part in HEADINGS if any(cell.part == part for cell in cells)]
    text = [section for part in parts for section in _ratios(part, cells)]
    text += ["### Of one client's rate, all clients together", _growth(cells)]
    if aims:
        text += ["### Aims", targets_as_markdown(aims)]
    text += ["### Everything", _everything(cells)]
    return "\n\n".join(text)


def _ratios(part: str, cells: Sequence[Cell]) -> list[str]:
    """Return a table of the rates of one client over that of the bare socket."""
    alone = [cell for cell in cells if cell.part == part and cell.clients == 1]
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
    return [f"### {HEADINGS[part]}, one client", table_]


def _growth(cells: Sequence[Cell]) -> str:
    """Return a table of what many clients get, over what one gets."""
    counts = sorted({cell.clients for cell in cells})
    rows = []
    for first in cells:
        if first.clients == min(one.clients for one in _alike(first, cells)):
            found = {cell.clients: cell for cell in _alike(first, cells)}
            if len(found) > 1:
                shown = [_of_one(found.get(count), first) for count in counts]
                rows.append([f"{first.part}, {first.load.name}: {first.system.name}", *shown])
    return table(["MB/s, and of the fewest clients'", *map(str, counts)], rows) if rows else MISSING


def _of_one(cell: Cell | None, first: Cell) -> str:
    rate, one = _rate(cell), _rate(first)
    return f"{number(rate)} ({number(rate / one)})" if rate and one else MISSING


def _everything(cells: Sequence[Cell]) -> str:
    head = ("clients", "MB/s", "records/s", "of bare", "server, s/GB", "client, s/GB")
    rows = [
        [
            f"{cell.part}, {cell.load.name}: {cell.system.name}",
            str(cell.clients),
            number(_rate(cell)),
            number(cell.median("records_per_second")),
            number(_of_bare(cell, cells)),
            number(cell.median("server_cpu")),
            number(cell.median("client_cpu")),
            *(number(wait and 1e3 * wait) for wait in (cell.wait(0.5), cell.wait(0.99))),
        ]
        for cell in cells
    ]
    return table(["", *head, "p50, ms", "p99, ms"], rows)


def targets(cells: Sequence[Cell]) -> list[Target]:
    """Return the aims that were measured."""
    found = []
    for cell in cells:
        for name, aim, measured in _judged(cell, cells):
            if measured is not None:
                found.append(
                    Target(f"{cell.part}, {cell.load.name}: {name}", "times", aim, measured)
                )
    return found


def _judged(cell: Cell, cells: Sequence[Cell]) -> Iterable[tuple[str, float, float | None]]:
    kind, system = cell.load.dataset.kind, cell.system.name
    if cell.clients == 1 and cell.part == "ready" and system == TCP:
        yield "TCP over the bare socket", OF_BARE, _of_bare(cell, cells)
        most = max(_alike(cell, cells), key=lambda one: one.clients)
        rate, one = _rate(most), _rate(cell)
        if most is not cell and rate and one:
            yield f"{most.clients} clients over TCP over one", 1.0, rate / one
    if cell.clients == 1 and cell.part == "ready" and system == SHARED:
        yield (
            "shared memory over the engine process",
            OF_ENGINE,
            cell.over(_beside(cell, ENGINE, cells)),
        )
    if cell.clients == 1 and cell.part == "shards" and system == TCP and cell.load.is_parsed:
        aim = OF_TF_SERVICE.get(kind)
        if aim is not None:
            yield "TCP over tf.data service", aim, cell.over(_beside(cell, TF_SERVICE, cells))


def _of_bare(cell: Cell | None, cells: Sequence[Cell]) -> float | None:
    return None if cell is None else cell.over(_beside(cell, BARE, cells))


def _beside(cell: Cell, system: str, cells: Sequence[Cell]) -> Cell | None:
    """Return the cell of another system that was measured by turns with this one."""
    ours = cell.part, cell.load.name, cell.clients
    same = (one for one in cells if (one.part, one.load.name, one.clients) == ours)
    return _find(same, system, cell.load.name)


def _alike(cell: Cell, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells that differ in the number of clients alone."""
    ours = cell.part, cell.load.name, cell.system.name
    return [one for one in cells if (one.part, one.load.name, one.system.name) == ours]


def _find(cells: Iterable[Cell], system: str, load: str) -> Cell | None:
    found = (cell for cell in cells if (cell.system.name, cell.load.name) == (system, load))
    return next(found, None)


def _rate(cell: Cell | None) -> float | None:
    return None if cell is None else cell.median("megabytes_per_second")
