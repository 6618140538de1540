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
from typing import Any, NamedTuple

import click

from bench import suite
from bench.cases import RATE
from bench.harness import Column, number
from bench.machine import ROOT
from bench.pictures import draw_anew
from bench.verdicts import COLUMNS as VERDICTS
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
        parts = (f"<!-- table: {name} -->", made_of(name), "<!-- end of the table -->")
        return "\n\n".join(filter(None, parts))

    return BLOCK.sub(new, text)


def made_of(name: str) -> str:
    """Return a table; nothing where its results are still to come."""
    try:
        return TABLES[name]()
    except FileNotFoundError:
        return ""


STORE = "store at 50 ms and 60 MB/s a connection"
FIRST = "first batches behind the store"
IDLE = "beside an idle trainer"
BEGINNING = "first_batch_seconds"
UNITS = {
    RATE: "MB/s",
    BEGINNING: "s",
    "pictures_per_second": "pictures/s",
    "records_per_second": "records/s",
    "samples_per_second": "samples/s",
}
PATHS = {"peers": "PATH", "dlio": "PATH"}
TEN_GIGABITS = 1.25e9
"""Bytes a second."""
CHUNK_ENTRY = 20
"""Bytes of an index for each chunk."""
SPREADS, ENDS = ("min-max", "least to most"), ("least", "most")
"""The ends of the headings of spreads, and the headings of those in two columns."""
SAME = re.compile(r"-|(\S+)(?:-| to )\1")
"""The spread of a single round, or of none."""
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


def lines_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def how_fast() -> str:
    """Return the table of the README."""
    place = f"{STORE}, plain"
    stream = row_of("remote", place, "for")
    downloads = [one for one in rows_of("remote", place) if one["case"].startswith("download")]
    best = max(downloads, key=lambda row: median(row, RATE) or 0)
    in_flight = best["case"].removeprefix("download, ").partition(" ")[0]
    [curl] = [one for one in rows_of("remote", place) if one["case"].startswith("curl, ")]
    peer = row_of("remote", place, "WebDataset over curl, 4 workers")
    first = (cell(one, BEGINNING) for one in (row_of("remote", f"{FIRST}, plain", "for"), peer))
    beginnings = [f"{seconds} s" for seconds in first]
    about = {
        "streamrec, a plain `for`: checked and parsed": (stream, beginnings[0]),
        f"{curl['case']}: downloaded, neither checked nor parsed": (curl, ""),
        f"aiohttp, {in_flight} in flight: downloaded, neither checked nor parsed": (best, ""),
        "WebDataset over curl with 4 workers": (peer, beginnings[1]),
    }
    return lines_of(
        ("", "first batch", "rate"),
        [
            (f"{name}, {median(row, 'gigabytes'):.1f} GB", first, f"{cell(row, RATE)} MB/s")
            for name, (row, first) in about.items()
        ],
    )


class Pair(NamedTuple):
    """Two rows of one file of results beside each other, in a table of the most important ones."""

    about: str
    section: str
    """The anchor of the section of "How fast" that has the rows."""
    table: str
    group: str
    case: str
    beside: str
    """The other case, or the beginning of such names: then the one with the best rate."""
    figure: str = RATE
    beside_group: str = ""
    """Empty: that of the case."""

    def cells(self) -> tuple[str, ...]:
        row = row_of(self.table, self.group, self.case)
        others = rows_of(self.table, self.beside_group or self.group)
        found = [one for one in others if one["case"] == self.beside]
        found = found or [one for one in others if one["case"].startswith(self.beside)]
        other = max(found, key=lambda one: median(one, self.figure) or 0.0)
        mine, its = median(row, self.figure), median(other, self.figure)
        assert mine
        assert its
        unit = UNITS[self.figure]
        name = "idle trainer" if self.beside_group == IDLE else other["case"]
        return (
            f"[{self.about}](#{self.section})",
            f"{row['case']}: {number(mine)} {unit}",
            f"{name}: {number(its)} {unit}",
            f"{mine / its:.2f}",
        )


def pairs(rows: Sequence[Pair], head: str) -> str:
    return lines_of((head, "streamrec", "beside", "ratio"), [row.cells() for row in rows])


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


def verdicts() -> str:
    """Return the table of planted bottlenecks."""
    # Older results have the rate of before where nothing was predicted.
    rows = [
        {**row, "predicted": None, "error": None}
        if row["next"] is None and row["predicted"] == row["before"]
        else row
        for row in content("verdicts")["verdicts"]
    ]
    return table(VERDICTS, rows)


def table(columns: Sequence[Column], rows: Iterable[Any]) -> str:
    """Return a table without padding, so that a change of one cell is a change of one line."""
    cells = [[column.cell(row) for column in columns] for row in rows]
    return lines_of([column.head for column in columns], cells)


def tables(name: str) -> str:
    """Return the tables of a file of results without padding, below their headings."""
    lines = (ROOT / suite.RESULTS / f"{name}.md").read_text().splitlines()
    kept = [line for line in lines if line.startswith(("|", "##")) or not line]
    text = "\n".join(f"**{line.lstrip('# ')}**" if line.startswith("#") else line for line in kept)
    narrow = re.sub(r"-{3,}", "---", re.sub(r" {2,}", " ", text))
    plain = re.sub(r"(?:^\|.*\n?)+", without_spreads, narrow, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", plain).strip()


def without_spreads(block: re.Match[str]) -> str:
    """Return a table without the spreads of a single round."""
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in block[0].splitlines()]
    columns = list(zip(*rows, strict=True))
    least, most = ([cells for head, _, *cells in columns if head == end] for end in ENDS)
    kept = [
        column
        for column in columns
        if not (column[0].endswith(SPREADS) and all(SAME.fullmatch(cell) for cell in column[2:]))
        and not (column[0] in ENDS and least == most)
    ]
    lines = (f"| {' | '.join(cells)} |\n" for cells in zip(*kept, strict=True))
    return "".join(lines).replace("|  |", "| |")


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


FAR, SHAPES, BUSY = "a-store-at-a-distance", "unusual-shapes-and-stores", "beside a trainer: "
DISTANT = (FAR, "remote", f"{STORE}, plain")
PICTURES = "pictures", "images", "JPEG of 224 x 224", "streamrec"
DLIO = "mlperf-storage", "dlio", "resnet50_h100, object store", "streamrec", "DLIO's own, tf.data"
STALLED = "busy-trainers-and-requests-that-stall", "busy_tail"
SUMMARY = (
    Pair("A store at a distance, beside a loader", *DISTANT, "for", "WebDataset"),
    Pair("A store at a distance, beside a download in Python", *DISTANT, "for", "download"),
    Pair(
        "Examples of 28 features, from local files to batches",
        *("the-kernel", "kernel", "from files to batches, recsys", "sr.open, for", "tf.data, "),
    ),
    Pair("Pictures of 224 x 224, decoded", *PICTURES, "tf.data", "pictures_per_second"),
    Pair("MLPerf Storage's ResNet-50, from a store", *DLIO, "samples_per_second"),
)
SLOWER = (
    Pair("Plain `for`, beside curl", *DISTANT, "for", "curl"),
    Pair(
        "First batch with an engine started ahead",
        *(FAR, "remote", f"{FIRST}, plain", "for, engine started ahead", "for", BEGINNING),
    ),
    *(
        Pair(about, SHAPES, "shapes", group, case, "download")
        for about, group, case in (
            ("300 ms to the first byte", "300 ms", "for"),
            ("Four connections", "four connections", "for"),
            ("One record of 2.8 MB a shard", "one 2.8 MB record a shard", "for"),
            ("The same, shuffled", "one 2.8 MB record a shard", "for, shuffled"),
            ("One record of 2 KB a shard", "one 2 KB record a shard", "for"),
            ("Records of 100 bytes", "100 B, batches of 65,536", "for"),
            ("2,000 features a record", "2,000 features", "for"),
        )
    ),
    *(
        Pair(about, *STALLED, f"{BUSY}{trainer}", case, case, RATE, IDLE)
        for about, trainer, case in (
            ("Trainer with 10 ms of Python a batch", "10 ms of Python after each batch", "for"),
            ("Trainer that never leaves Python", "a thread of Python that never stops", "for"),
            ("The same", "a thread of Python that never stops", "async for"),
        )
    ),
    Pair(
        "JPEGs of 224 x 224, beside a library alone",
        *PICTURES,
        "torchvision",
        "pictures_per_second",
    ),
    Pair(
        "Windows of episodes that overlap, JPEG",
        *("tfds-folders-and-episodes", "tfds", "episodes of 224 x 224, JPEG, stride 1"),
        *("streamrec", "tensorflow_datasets", "records_per_second"),
    ),
    Pair("MLPerf Storage's ResNet-50", *DLIO, "samples_per_second"),
    Pair(
        "PyTorch, a worker of a DataLoader",
        *("adapters", "adapters", "recsys", "PyTorch, as_loader in one worker", "stream"),
    ),
    Pair(
        "Records one by one", "adapters", "adapters", "recsys", "stream of single records", "stream"
    ),
    Pair(
        "Tokens written to a store",
        *("writing", "write", "tokens, store", "columns by block", "plain upload"),
    ),
    Pair(
        "Shards written anew",
        *("shards-written-anew", "reshard", "disk to disk: 2 KB", "reshard --shards 8", "copy"),
    ),
)
TABLES: Mapping[str, Callable[[], str]] = {
    **{one.name: partial(tables, one.name) for one in suite.TABLES if one.name != "pictures"},
    "how_fast": how_fast,
    "summary": partial(pairs, SUMMARY, "measured"),
    "slower": partial(pairs, SLOWER, "where"),
    "feeder_memory": feeder_memory,
    "verdicts": verdicts,
    "index": index,
    "commands": commands,
    "made": made,
}
"""Function that makes each table, by the name in the page."""


if __name__ == "__main__":
    main()
