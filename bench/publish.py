"""Fills the tables and pictures of README.md and the documentation from the results.

::

    python -m bench.publish

A table stands between two comments, the first of which names it. A test holds that the pages have
what this would write.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench import suite
from bench.dlio.workloads import WORKLOADS
from bench.harness import RATE, Column, number
from bench.machine import ROOT
from bench.pictures import draw_anew
from streamrec.formats.shards.index import Index, ShardEntry

BLOCK = re.compile(r"<!-- table: (?P<name>[a-z_]+) -->\n.*?<!-- end of the table -->", re.DOTALL)


@click.command()
def main() -> None:
    """Fill the tables of all pages, draw the pictures, and name the files that have changed."""
    for page in pages():
        before = page.read_text()
        after = fill(before)
        if after != before:
            page.write_text(after)
            click.echo(page.relative_to(ROOT))
    try:
        drawn = draw_anew(ROOT / suite.RESULTS / "pictures.json", ROOT / "docs" / "images")
    except ImportError:
        raise click.ClickException("The pictures need matplotlib; pip install it.") from None
    for picture in drawn:
        click.echo(picture.relative_to(ROOT))


def pages() -> list[Path]:
    """Return the pages that have tables of results."""
    found = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/**/README.md")]
    return sorted(page for page in found if BLOCK.search(page.read_text()))


def names(text: str) -> list[str]:
    """Return the names of the tables of a page."""
    return [block["name"] for block in BLOCK.finditer(text)]


def fill(text: str) -> str:
    """Return a page with its tables as the results have them."""

    def new(block: re.Match[str]) -> str:
        name = block["name"]
        return f"<!-- table: {name} -->\n\n{made_of(name)}\n\n<!-- end of the table -->"

    return BLOCK.sub(new, text)


def made_of(name: str) -> str:
    """Return a table, or that its results are still to come."""
    try:
        return TABLES[name]()
    except FileNotFoundError:
        return "Not measured yet: `python -m bench all` does."


STORE = "store at 50 ms and 60 MB/s a connection"
FIRST = "first batches behind the store"
NGINX = "nginx on loopback"
BEGINNING = "first_batch_seconds"
FEEDER_CPU = {
    "client_cpu_seconds_per_gigabyte": "client CPU, s/GB",
    "feeder_cpu_seconds_per_gigabyte": "feeder CPU, s/GB",
}
PATHS = {"peers": "PATH", "dlio": "PATH"}
TEN_GIGABITS = 1.25e9
"""Bytes a second."""
CHUNK_ENTRY = 20
"""Bytes of an index for each chunk."""
Row = Mapping[str, Any]
"""A row of a file of results."""


def content(name: str) -> Any:
    """Return what a file of results holds."""
    return json.loads((ROOT / suite.RESULTS / f"{name}.json").read_text())


def rows_of(name: str, group: str = "") -> list[Row]:
    return [row for row in content(name)["rows"] if row["group"] == group or not group]


def row_of(name: str, group: str, case: str) -> Row:
    [found] = [row for row in rows_of(name, group) if row["case"] == case]
    return found


def median(row: Row, figure: str) -> float | None:
    found: dict[str, float] = row["summary"].get(figure, {})
    return found.get("median")


def cell(row: Row, figure: str) -> str:
    """Return the median of a figure, or nothing."""
    value = median(row, figure)
    return "" if value is None else number(value)


def span(row: Row, figure: str = RATE) -> str:
    """Return the least and the largest value of a figure."""
    found = row["summary"].get(figure)
    return f"{number(found['min'])} to {number(found['max'])}" if found else "failed"


def column(head: str, figure: str) -> Column:
    return Column(head, lambda row: cell(row, figure), str)


def table(columns: Sequence[Column], rows: Iterable[Any]) -> str:
    """Return a table without padding, so that a change of one cell is a change of one line."""
    cells = [[column.cell(row) for column in columns] for row in rows]
    return lines_of([column.head for column in columns], cells)


def lines_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


GROUP = Column("", lambda row: row["group"], str)


def how_fast() -> str:
    """Return the table of the README."""
    place = f"{STORE}, plain"
    stream = row_of("remote", place, "for")
    downloads = [one for one in rows_of("remote", place) if one["case"].startswith("download")]
    best = max(downloads, key=lambda row: median(row, RATE) or 0)
    in_flight = best["case"].removeprefix("download, ").partition(" ")[0]
    peer = row_of("remote", place, "WebDataset over curl, 4 workers")
    first = (cell(one, BEGINNING) for one in (row_of("remote", f"{FIRST}, plain", "for"), peer))
    beginnings = [f"{seconds} s" for seconds in first]
    about = {
        "streamrec, a plain `for`: checked and parsed": (stream, beginnings[0]),
        f"aiohttp alone with {in_flight} requests in flight: neither checked nor parsed": (
            best,
            "",
        ),
        "WebDataset over curl with 4 workers": (peer, beginnings[1]),
    }
    return lines_of(
        ("", "first batch", "rate"),
        [
            (f"{name}, {median(row, 'gigabytes'):.0f} GB", first, f"{cell(row, RATE)} MB/s")
            for name, (row, first) in about.items()
        ],
    )


def readers(name: str, groups: Mapping[str, str], more: Mapping[str, str]) -> str:
    """Return the rates of all readers of some groups.

    Args:
        groups: Groups, and what stands before the names of their rows.
        more: More figures, and their headings.
    """

    def ratios(row: Row) -> str:
        return ", ".join(f"{ratio:.2f} {label}" for label, ratio in row["ratios"].items() if ratio)

    columns = (
        Column("case", lambda row: f"{groups[row['group']]}{row['case']}", str),
        column("first batch, s", BEGINNING),
        column("MB/s", RATE),
        Column("least to most", span, str),
        column("after the first batch", f"{RATE}_after_first_batch"),
        *(column(head, figure) for figure, head in more.items()),
        Column("ratio", ratios, str),
    )
    return table(columns, (row for group in groups for row in rows_of(name, group)))


def both_transports(name: str, group: str) -> str:
    """Return the rates of all readers, by plain HTTP and over TLS, and their CPU time."""
    cpu = {
        "client_cpu_seconds_per_gigabyte": "client CPU, s/GB",
        "engine_cpu_seconds_per_gigabyte": "+ engine, s/GB",
    }
    return readers(name, {f"{group}, plain": "", f"{group}, TLS": "TLS: "}, cpu)


def all_readers(name: str, more: Mapping[str, str]) -> str:
    """Return the rates of all readers of all groups."""
    groups = {row["group"]: f"{row['group']}: " for row in rows_of(name)}
    return readers(name, groups, more)


def beginnings() -> str:
    """Return how the first batches of a store's streams are spread."""
    rows = []
    for group, before in {f"{FIRST}, plain": "", f"{FIRST}, TLS": "TLS: "}.items():
        for row in rows_of("remote", group):
            seconds = [one[BEGINNING] for one in row["measurements"]]
            parts = np.quantile(seconds, (0, 0.25, 0.5, 0.75, 1))
            rows.append((f"{before}{row['case']}", *(f"{part:.2f}" for part in parts)))
    return lines_of(("", "least", "first quarter", "median", "third quarter", "most"), rows)


def growth() -> str:
    """Return the first batch and the memory of more and more shards."""
    memory, rows = "peak_megabytes", []
    for group in dict.fromkeys(row["group"] for row in rows_of("growth")):
        few, some, many = (row_of("growth", group, count) for count in ("10", "1,000", "100,000"))
        cells = [
            f"{cell(row, BEGINNING)} s, {median(row, memory):.0f} MB" for row in (few, some, many)
        ]
        seconds, megabytes = (
            ((median(many, figure) or 0) - (median(some, figure) or 0)) / 99_000
            for figure in (BEGINNING, memory)
        )
        slope = f"{seconds * 1e6:.0f} µs and {megabytes * 1e3:.1f} KB a shard"
        rows.append((group.removeprefix("many shards, "), *cells, slope))
    head = ("first batch, largest process", "10 shards", "1,000", "100,000", "from 1,000 on")
    return lines_of(head, rows)


def shuffle() -> str:
    """Return how well each order mixes each dataset."""
    orders = content("shuffle")["orders"]
    rows = [
        (title, *(number(figures[title]["chi_square"]) for figures in orders.values()))
        for title in next(iter(orders.values()))
    ]
    return lines_of(("order", *orders), rows)


def resharding() -> str:
    """Return the rate of each way to write shards anew, its memory and its chi-square."""
    columns = (
        GROUP,
        Column("way", lambda row: row["case"], str),
        Column("MB/s", lambda row: median(row, RATE)),
        Column("CPU s/GB", lambda row: median(row, "cpu_seconds_per_gigabyte")),
        Column("peak, MB", lambda row: median(row, "peak_megabytes")),
        Column("chi-square", lambda row: median(row, "chi_square")),
    )
    return table(columns, rows_of("reshard"))


def writing() -> str:
    """Return the rate of each writer: to a disk, to a store, and from other formats."""

    def records(row: Row) -> str:
        is_there = row["measurements"] or row["failures"]
        return cell(row, "records_per_second") if is_there else "not installed"

    columns = (
        GROUP,
        Column("way", lambda row: row["case"], str),
        Column("records/s", records, str),
        column("MB/s", RATE),
        column("CPU s/GB", "cpu_seconds_per_gigabyte"),
    )
    return table(columns, rows_of("write"))


def padding() -> str:
    """Return the padding in per cent of each way to bucket."""
    found = content("padding")["padding"]
    buckets = list(next(iter(found.values())))
    head = [f"{'no' if count == 'none' else count} buckets" for count in buckets]
    rows = [
        (title, *(f"{100 * shares[count]:.0f}" for count in buckets))
        for title, shares in found.items()
    ]
    return lines_of(("per cent", *head), rows)


def feeder_memory() -> str:
    """Return what a feeder and its clients take."""
    stages = content("feeder_connections")["stages"]
    one, two = ({stage["what"]: stage for stage in stages[workers]} for workers in ("1", "2"))
    nobody, idle = (one["nobody"], two["nobody"]), one["1,000 idle"]
    return lines_of(
        ("", "memory", "descriptors"),
        [
            (
                "the daemon with one worker, with two",
                ", ".join(f"{stage['pss_mb']:.0f} MB" for stage in nobody),
                ", ".join(f"{stage['descriptors']}" for stage in nobody),
            ),
            (
                "a client that is connected and reads nothing",
                f"{idle['kb_a_client'] / 1e3:.1f} MB",
                f"{idle['descriptors_a_client']:.0f}",
            ),
            (
                "a session that reads",
                "what it was lent, 8 MiB or more",
                "1, and one for each connection to a store or open shard",
            ),
        ],
    )


def index() -> str:
    """Return what an index costs: its bytes by the layout, and times by the measured rate."""
    found = content("index")
    measured, shards = found["cases"][0], found["settings"]["shards"]
    total, rate = measured["shard bytes"], measured["MB/s"] * 1e6
    entries = (ShardEntry(f"part-{i:05}", total // shards, 1, [0], [0], [0]) for i in range(shards))
    rows = [
        (
            *("1,000 of a MB", "1 MiB, the default"),
            f"{len(Index(tuple(entries)).encode()) / 1e3:.0f} KB",
            f"{measured['seconds to check every byte']:.1f} s",
            f"{total / TEN_GIGABITS:.1f} s",
        )
    ]
    for terabytes, mebibytes in ((1, 1), (10, 1), (10, 4)):
        nbytes = terabytes * 1e12
        size = CHUNK_ENTRY * nbytes / (mebibytes << 20) / 1e6
        times = (duration(nbytes / rate), duration(nbytes / TEN_GIGABITS))
        rows.append((f"{terabytes} TB", f"{mebibytes} MiB", f"{size:.0f} MB", *times))
    written = f"to write it, at {rate / 1e9:.1f} GB/s"
    return lines_of(("shards", "chunk size", "index", written, "at 10 Gbit/s"), rows)


def duration(seconds: float) -> str:
    """Return minutes, and hours where there are any."""
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def dlio() -> str:
    """Return what DLIO reports of each reader."""
    columns = (
        Column("workload", lambda row: row["group"], str),
        Column("reader", lambda row: row["case"], str),
        column("AU, %", "utilisation"),
        Column("least to most", lambda row: span(row, "utilisation"), str),
        column("samples/s", "samples_per_second"),
        Column("least to most", lambda row: span(row, "samples_per_second"), str),
        column("first batch, s", BEGINNING),
        column("CPU, s", "cpu_seconds"),
    )
    aims = "; ".join(
        f"{one.name} needs {one.needed:,.0f} samples/s and {one.passing:g} %" for one in WORKLOADS
    )
    return f"{table(columns, rows_of('dlio'))}\n\nTo pass, {aims}."


def aims(name: str) -> str:
    """Return what a benchmark compares: each aim, and what was measured."""
    columns = (
        Column("", lambda aim: aim["name"], str),
        Column("aim", _aim, str),
        Column("measured", lambda aim: number(aim["measured"]), str),
    )
    return table(columns, content(name)["aims"])


def _aim(aim: Mapping[str, Any]) -> str:
    return f"{'at least' if aim['least'] else 'at most'} {aim['aim']:g} {aim['unit']}"


def tables(name: str) -> str:
    """Return the tables of a file of results without padding, below their headings."""
    lines = (ROOT / suite.RESULTS / f"{name}.md").read_text().splitlines()
    kept = [line for line in lines if line.startswith(("|", "##")) or not line]
    text = "\n".join(f"**{line.lstrip('# ')}**" if line.startswith("#") else line for line in kept)
    narrow = re.sub(r"-{3,}", "---", re.sub(r" {2,}", " ", text))
    return re.sub(r"\n{3,}", "\n\n", narrow).strip()


def made() -> str:
    """Return when each table was made, on which commit, and the seconds that it took."""
    found = content("all")["tables"]
    rows = [
        (f"`{name}`", f"{one['seconds']:,.0f}", one["date"][:10], f"`{one['commit']}`")
        for name, one in found.items()
    ]
    total = sum(one["seconds"] for one in found.values())
    machines = [one["machine"] for one in found.values()]
    shown = dict.fromkeys(
        f"{on['cores']} cores of {on['cpu']}, {on['memory_gigabytes']:.0f} GB, {on['python']}"
        for on in machines
    )
    head = ("table", "seconds", "date", "commit")
    lines = lines_of(head, [*rows, ("all", f"{total:,.0f}", "", "")])
    return f"{lines}\n\nThe machine: {'; '.join(shown)}."


def commands() -> str:
    """Return the files of results, and what makes each."""

    def files(one: suite.Table) -> str:
        paths = sorted((ROOT / suite.RESULTS).glob(f"{one.name}.*"))
        return ", ".join(f"`{path.name}`" for path in paths)

    columns = (
        Column("table", lambda one: one.name, "`{}`"),
        Column("compares", lambda one: one.about, str),
        Column("files", files, str),
        Column("made by", lambda one: shlex.join(one.command(suite.RESULTS, PATHS)), "`python {}`"),
    )
    return table(columns, suite.TABLES)


TABLES: Mapping[str, Callable[[], str]] = {
    "how_fast": how_fast,
    "remote": partial(both_transports, "remote", STORE),
    "beginnings": beginnings,
    "nginx": partial(both_transports, "nginx", NGINX),
    "busy_tail": partial(all_readers, "busy_tail", {"longest_wait_seconds": "longest wait, s"}),
    "growth": growth,
    "first": partial(all_readers, "first", FEEDER_CPU),
    "resharding": resharding,
    "writing": writing,
    "shuffle": shuffle,
    "padding": padding,
    "feeder_memory": feeder_memory,
    "index": index,
    "dlio": dlio,
    "commands": commands,
    "made": made,
    **{name: partial(aims, name) for name in ("kernel", "feeder")},
    **{
        name: partial(tables, name)
        for name in (
            *(
                "adapters",
                "attribution",
                "autoscale",
                "cached_epochs",
                "feeder_connections",
                "feeder_hostile",
            ),
            *(
                "feeder_leaving",
                "fetch_processes",
                "fleet",
                "images",
                "shapes",
                "simulation",
                "start",
            ),
            *("sweep", "verdicts"),
        )
    },
}
"""Function that makes each table, by the name in the page."""


if __name__ == "__main__":
    main()
