"""Fills the tables of README.md and the documentation from the results.

::

    python -m bench.publish

A table stands between two comments, the first of which names it. A test holds that the pages have
what this would write.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench import suite
from bench.dlio.workloads import WORKLOADS
from bench.harness import number
from bench.machine import ROOT
from streamrec.formats.shards.index import Index, ShardEntry

BLOCK = re.compile(r"<!-- table: (?P<name>[a-z_]+) -->\n.*?<!-- end of the table -->", re.DOTALL)


@click.command()
def main() -> None:
    """Fill the tables of all pages, and name the pages that have changed."""
    for page in pages():
        before = page.read_text()
        after = filled(before)
        if after != before:
            page.write_text(after)
            click.echo(page.relative_to(ROOT))


def pages() -> list[Path]:
    """Return the pages that have tables of results."""
    found = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/**/README.md")]
    return sorted(page for page in found if BLOCK.search(page.read_text()))


def names(text: str) -> list[str]:
    """Return the names of the tables of a page."""
    return [block["name"] for block in BLOCK.finditer(text)]


def filled(text: str) -> str:
    """Return a page with its tables as the results have them."""

    def table(block: re.Match[str]) -> str:
        name = block["name"]
        return f"<!-- table: {name} -->\n\n{TABLES[name]()}\n\n<!-- end of the table -->"

    return BLOCK.sub(table, text)


STORE = "store at 50 ms and 60 MB/s a connection"
FIRST = "first batches behind the store"
NGINX = "nginx on loopback"
RATE, AFTER = "megabytes_per_second", "megabytes_per_second_after_first_batch"
BEGINNING = "first_batch_seconds"
CPU = ("client_cpu_seconds_per_gigabyte", "engine_cpu_seconds_per_gigabyte")
PATHS = {"peers": "PATH", "dlio": "PATH"}
TEN_GIGABITS = 1.25e9
"""Bytes a second."""
CHUNK_ENTRY = 20
"""Bytes of an index for each chunk."""


@dataclass(frozen=True)
class Results:
    """The rows of a file of results."""

    rows: Sequence[Mapping[str, Any]]

    def group(self, name: str) -> list[Mapping[str, Any]]:
        return [row for row in self.rows if row["group"] == name]

    def row(self, group: str, case: str) -> Mapping[str, Any]:
        [found] = [row for row in self.group(group) if row["case"] == case]
        return found


def content(name: str) -> Any:
    """Return what a file of results holds."""
    return json.loads((ROOT / suite.RESULTS / f"{name}.json").read_text())


def results(name: str) -> Results:
    return Results(content(name)["rows"])


def median(row: Mapping[str, Any], quantity: str) -> float | None:
    """Return the median of a quantity, ``None`` where the row has none."""
    found: dict[str, float] = row["summary"].get(quantity, {})
    return found.get("median")


def cell(row: Mapping[str, Any], quantity: str) -> str:
    """Return the median of a quantity, or nothing."""
    value = median(row, quantity)
    return "" if value is None else number(value)


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table without padding, so that a change of one cell is a change of one line."""
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def how_fast() -> str:
    """Return the table of the README."""
    found = results("remote")
    place = f"{STORE}, plain"
    stream = found.row(place, "for")
    downloads = [row for row in found.group(place) if row["case"].startswith("download")]
    best = max(downloads, key=lambda row: median(row, RATE) or 0)
    in_flight = best["case"].removeprefix("download, ").partition(" ")[0]
    peer = found.row(place, "WebDataset over curl, 4 workers")
    beginning = found.row(f"{FIRST}, plain", "for")
    download = f"aiohttp alone with {in_flight} requests in flight: neither checked nor parsed"
    return plain_table(
        ("", "first batch", "rate"),
        [
            (
                f"streamrec, a plain `for`: checked and parsed, {_gigabytes(stream)}",
                f"{cell(beginning, BEGINNING)} s",
                f"{cell(stream, RATE)} MB/s",
            ),
            (f"{download}, {_gigabytes(best)}", "", f"{cell(best, RATE)} MB/s"),
            (
                f"WebDataset over curl with 4 workers, {_gigabytes(peer)}",
                f"{cell(peer, BEGINNING)} s",
                f"{cell(peer, RATE)} MB/s",
            ),
        ],
    )


def _gigabytes(row: Mapping[str, Any]) -> str:
    return f"{median(row, 'gigabytes'):.0f} GB"


def readers(name: str, groups: Mapping[str, str], cpu: bool) -> str:
    """Return the rates of all readers of some groups.

    Args:
        name: Name of the file.
        groups: Groups, and what stands before the names of their rows.
        cpu: True for the columns of CPU time, in place of the longest wait.
    """
    found = results(name)
    quantities = CPU if cpu else ("longest_wait_seconds",)
    more = ("client CPU, s/GB", "+ engine, s/GB") if cpu else ("longest wait, s",)
    head = ("case", "first batch, s", "MB/s", "least to most", "after the first batch", *more)
    rows = [
        (
            f"{before}{row['case']}",
            cell(row, BEGINNING),
            cell(row, RATE),
            spread(row),
            cell(row, AFTER),
            *(cell(row, quantity) for quantity in quantities),
            ", ".join(f"{ratio:.2f} {label}" for label, ratio in row["ratios"].items() if ratio),
        )
        for group, before in groups.items()
        for row in found.group(group)
    ]
    return plain_table((*head, "ratio"), rows)


def spread(row: Mapping[str, Any]) -> str:
    """Return the least and the largest rate."""
    rates = row["summary"].get(RATE)
    return f"{number(rates['min'])} to {number(rates['max'])}" if rates else "failed"


def remote() -> str:
    """Return the rates behind a store."""
    return readers("remote", {f"{STORE}, plain": "", f"{STORE}, TLS": "TLS: "}, cpu=True)


def nginx() -> str:
    return readers("nginx", {f"{NGINX}, plain": "", f"{NGINX}, TLS": "TLS: "}, cpu=True)


def busy_tail() -> str:
    """Return the rates beside trainers, and where requests stall."""
    groups = dict.fromkeys(row["group"] for row in results("busy_tail").rows)
    return readers("busy_tail", {group: f"{group}: " for group in groups}, cpu=False)


def beginnings() -> str:
    """Return how the first batches of a store's streams are spread."""
    found = results("remote")
    groups = {f"{FIRST}, plain": "", f"{FIRST}, TLS": "TLS: "}
    rows = []
    for group, before in groups.items():
        for row in found.group(group):
            seconds = [one[BEGINNING] for one in row["measurements"]]
            parts = np.quantile(seconds, (0, 0.25, 0.5, 0.75, 1))
            rows.append((f"{before}{row['case']}", *(f"{part:.2f}" for part in parts)))
    return plain_table(("", "least", "first quarter", "median", "third quarter", "most"), rows)


def growth() -> str:
    """Return the first batch and the memory of more and more shards."""
    found = results("growth")
    groups = dict.fromkeys(row["group"] for row in found.rows)
    rows = []
    for group in groups:
        few, some, many = (found.row(group, count) for count in ("10", "1,000", "100,000"))
        cells = [f"{cell(row, BEGINNING)} s, {_megabytes(row)} MB" for row in (few, some, many)]
        seconds, memory = (
            ((median(many, quantity) or 0) - (median(some, quantity) or 0)) / 99_000
            for quantity in (BEGINNING, "peak_megabytes")
        )
        slope = f"{seconds * 1e6:.0f} µs and {memory * 1e3:.1f} KB a shard"
        rows.append((group.removeprefix("many shards, "), *cells, slope))
    head = ("first batch, largest process", "10 shards", "1,000", "100,000", "from 1,000 on")
    return plain_table(head, rows)


def _megabytes(row: Mapping[str, Any]) -> str:
    return f"{median(row, 'peak_megabytes'):.0f}"


def shuffle() -> str:
    """Return how well each order mixes each dataset."""
    orders = content("shuffle")["orders"]
    titles = list(next(iter(orders.values())))
    rows = [
        (title, *(number(figures[title]["chi_square"]) for figures in orders.values()))
        for title in titles
    ]
    return plain_table(("order", *orders), rows)


def resharding() -> str:
    """Return the rate of each way to write shards anew, its memory and its chi-square."""
    quantities = (RATE, "cpu_seconds_per_gigabyte", "peak_megabytes", "chi_square")
    rows = [
        (row["group"], row["case"], *(number(median(row, name)) for name in quantities))
        for row in results("reshard").rows
    ]
    return plain_table(("", "way", "MB/s", "CPU s/GB", "peak, MB", "chi-square"), rows)


def writing() -> str:
    """Return the rate of each writer: to a disk, to a store, and from other formats."""
    quantities = ("records_per_second", RATE, "cpu_seconds_per_gigabyte")
    large = {(row["group"], row["case"]): row for row in results("write_large").rows}
    rows = []
    for row in results("write").rows:
        group, case = name = row["group"], row["case"]
        is_there = row["measurements"] or row["failures"]
        found = [cell(row, each) for each in quantities] if is_there else ["not installed", "", ""]
        rows.append((group, case, *found, cell(large[name], RATE) if name in large else ""))
    head = ("", "way", "records/s", "MB/s", "CPU s/GB", "MB/s, ten times the records")
    return plain_table(head, rows)


def padding() -> str:
    """Return the padding in per cent of each way to bucket."""
    found = content("padding")["padding"]
    buckets = list(next(iter(found.values())))
    head = [f"{'no' if count == 'none' else count} buckets" for count in buckets]
    rows = [
        (title, *(f"{100 * shares[count]:.0f}" for count in buckets))
        for title, shares in found.items()
    ]
    return plain_table(("per cent", *head), rows)


def feeder_memory() -> str:
    """Return what a feeder and its clients take."""
    stages = content("feeder_connections")["stages"]
    one, two = (
        {stage["what"]: stage for stage in stages[workers]}["nobody"] for workers in ("1", "2")
    )
    [idle] = [stage for stage in stages["1"] if stage["what"] == "1,000 idle"]
    return plain_table(
        ("", "memory", "descriptors"),
        [
            (
                "the daemon with one worker, with two",
                f"{one['pss_mb']:.0f} MB, {two['pss_mb']:.0f} MB",
                f"{one['descriptors']}, {two['descriptors']}",
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
    size = measured["shard bytes"] // shards
    rate = measured["MB/s"] * 1e6
    rows = [
        (
            "1,000 of a MB",
            "1 MiB, the default",
            f"{_index_bytes(shards, size) / 1e3:.0f} KB",
            f"{measured['seconds to check every byte']:.1f} s",
            f"{measured['shard bytes'] / TEN_GIGABITS:.1f} s",
        )
    ]
    for terabytes, mebibytes in ((1, 1), (10, 1), (10, 4)):
        nbytes = terabytes * 1e12
        rows.append(
            (
                f"{terabytes} TB",
                f"{mebibytes} MiB",
                f"{CHUNK_ENTRY * nbytes / (mebibytes << 20) / 1e6:.0f} MB",
                duration(nbytes / rate),
                duration(nbytes / TEN_GIGABITS),
            )
        )
    written = f"to write it, at {rate / 1e9:.1f} GB/s"
    return plain_table(("shards", "chunk size", "index", written, "at 10 Gbit/s"), rows)


def _index_bytes(shards: int, size: int) -> int:
    entries = (ShardEntry(f"part-{i:05}", size, 1, [0], [0], [0]) for i in range(shards))
    return len(Index(tuple(entries)).encode())


def duration(seconds: float) -> str:
    """Return minutes, and hours where there are any."""
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def dlio() -> str:
    """Return what DLIO reports of each reader."""
    head = ("workload", "reader", "AU, %", "least to most", "samples/s", "least to most")
    rows = [
        (
            row["group"],
            row["case"],
            cell(row, "utilisation"),
            _range(row, "utilisation"),
            cell(row, "samples_per_second"),
            _range(row, "samples_per_second"),
            cell(row, BEGINNING),
            cell(row, "cpu_seconds"),
        )
        for row in results("dlio").rows
    ]
    aims = "; ".join(
        f"{one.name} needs {one.needed:,.0f} samples/s and {one.passing:g} %" for one in WORKLOADS
    )
    return f"{plain_table((*head, 'first batch, s', 'CPU, s'), rows)}\n\nTo pass, {aims}."


def _range(row: Mapping[str, Any], quantity: str) -> str:
    found = row["summary"].get(quantity)
    return f"{number(found['min'])} to {number(found['max'])}" if found else "failed"


def commands() -> str:
    """Return the files of results, and what makes each."""
    rows = []
    for one in suite.TABLES:
        paths = sorted((ROOT / suite.RESULTS).glob(f"{one.name}.*"))
        files = ", ".join(f"`{path.name}`" for path in paths)
        command = f"python {shlex.join(one.command(suite.RESULTS, PATHS))}"
        rows.append((f"`{one.name}`", one.about, files, f"`{command}`"))
    return plain_table(("table", "compares", "files", "made by"), rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "how_fast": how_fast,
    "remote": remote,
    "beginnings": beginnings,
    "nginx": nginx,
    "busy_tail": busy_tail,
    "growth": growth,
    "resharding": resharding,
    "writing": writing,
    "shuffle": shuffle,
    "padding": padding,
    "feeder_memory": feeder_memory,
    "index": index,
    "dlio": dlio,
    "commands": commands,
}
"""Function that makes each table, by the name in the page."""


if __name__ == "__main__":
    main()
