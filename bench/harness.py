"""The harness of all benchmarks: tables, files of results and the command line.

A benchmark is a function with options of click, which measures and returns a :class:`Report`::

    @benchmark("padding", repeat=3)
    @click.option("--size", default=1.0)
    def main(run: Run, size: float) -> Report: ...

``run`` has what is common to all: the rounds, the cases that are selected, the directory of data.
A :class:`~bench.cases.Case` is a program of :mod:`bench.readers` with its arguments. Each is
measured in a fresh process, in rounds, so that drift hits all alike. What a program prints a judge
makes figures of: a flat mapping, by name. A table is a sequence of :class:`Column`, over results or
mappings.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import wraps
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from bench import machine
from bench.cases import MISSING, Case, Judge, Result, measure, ratio
from streamrec.flow.bridge import new_event_loop

T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


# -- tables ----------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, its first column aligned to the left, the others to the right.

    Cells are padded, so that it can be read as plain text, too.
    """
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (max(width, 2) - 1) + ":" for width in widths[1:])]
    return "\n".join(_line(cells, widths) for cells in (head, rule, *rows))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
    return f"| {' | '.join(padded)} |"


def number(value: float | None) -> str:
    """Format a number with at least three digits."""
    if value is None:
        return MISSING
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


class Column(NamedTuple):
    """A column of a table.

    Args:
        key: Name of a figure, of which a result has the median; or a function of the row.
        form: Makes a cell of the value; or a format, to which a missing value is ``-``.
    """

    head: str
    key: str | Callable[[Any], Any]
    form: str | Callable[[Any], str] = number

    def cell(self, row: Any) -> str:
        if callable(self.key):
            value = self.key(row)
        else:
            value = row.median(self.key) if isinstance(row, Result) else row.get(self.key)
        if callable(self.form):
            return self.form(value)
        return MISSING if value is None else self.form.format(value)


def table_of(columns: Sequence[Column], rows: Sequence[Any]) -> str:
    """Return a table with a line for each row: a result, or a mapping of figures."""
    cells = [[column.cell(row) for column in columns] for row in rows]
    return table([column.head for column in columns], cells)


def tables_of(columns: Sequence[Column], results: Sequence[Result], heading: str = "### {}") -> str:
    """Return a table below a heading for each group of cases."""
    groups = dict.fromkeys(result.case.group for result in results)
    members = {group: [one for one in results if one.case.group == group] for group in groups}
    return "\n\n".join(
        f"{heading.format(group)}\n\n{table_of(columns, rows)}" for group, rows in members.items()
    )


def name_of(result: Result) -> str:
    """Return the cell that names a case, with its failure if it had one."""
    if not result.failures:
        return result.case.name
    refused = any("ConfigError" in failure for failure in result.failures)
    return f"{result.case.name} ({'refused' if refused else 'failed'})"


def spread(figure: str, between: str = "-", form: str = "") -> Callable[[Result], str]:
    """Return a column's function: the least and the largest value of a figure of several rounds."""

    def cell(result: Result) -> str:
        values = result.values(figure)
        if len(values) < 2:
            return MISSING
        ends = [format(end, form) if form else number(end) for end in (min(values), max(values))]
        return between.join(ends)

    return cell


@dataclass(frozen=True)
class Aim:
    """An aim, and what was measured, if anything; ``least`` is true where more is better."""

    name: str
    unit: str
    aim: float
    measured: float | None
    least: bool = True

    @property
    def met(self) -> bool:
        measured = float("nan") if self.measured is None else self.measured
        return measured >= self.aim if self.least else measured <= self.aim

    def facts(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


AIMS = (
    Column("", lambda aim: aim.name, str),
    Column("aim", lambda a: f"{'at least' if a.least else 'at most'} {a.aim:g} {a.unit}", str),
    Column("measured", lambda aim: aim.measured),
    Column("met", lambda aim: "yes" if aim.met else "no", str),
)


# -- files of results ------------------------------------------------------------------------------


def rows_of(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return everything that was measured, a row for each case."""
    return [
        {
            "case": result.case.name,
            "group": result.case.group,
            "ratios": {one.label: ratio(result, one, results) for one in result.case.comparisons},
            "summary": result.summary(),
            "measurements": result.measurements,
            "failures": result.failures,
        }
        for result in results
    ]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write plain values, floats with six digits; a file that exists is replaced."""
    rounded = json.loads(json.dumps(content), parse_float=lambda text: float(f"{float(text):.6g}"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_text(rounded))


def seal(path: Path) -> None:
    """Add to a JSON file the digests of what was measured and of the files beside it.

    A test holds the files against them, so that nobody changes a figure but by measuring.
    """
    content = json.loads(path.read_text())
    path.write_text(_text({**content, "digests": digests(path)}))


def digests(path: Path) -> dict[str, str]:
    """Return the digests of a JSON file's content and of the files of its name beside it."""
    content = json.loads(path.read_text())
    content.pop("digests", None)
    beside = sorted(set(path.parent.glob(f"{path.stem}.*")) - {path})
    files = {path.name: _text(content).encode()} | {one.name: one.read_bytes() for one in beside}
    return {name: blake2b(data, digest_size=8).hexdigest() for name, data in files.items()}


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1) + "\n"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class Report:
    """What a benchmark has found.

    Args:
        text: Content of the Markdown file; nothing: none is written.
        facts: Content of the JSON file, behind the date and the machine.
        aims: Aims; the table of those that were measured stands behind the text.
        draw: Draws the chart into an SVG file.
        failed: True for the exit code 1; by default it is 1 where a case failed.
        name: Name of the files, without the suffix; by default the benchmark's.
        shown: Text that is printed where there is no Markdown.
    """

    text: str
    facts: dict[str, Any] = field(default_factory=dict)
    aims: Sequence[Aim] = ()
    draw: Callable[[Path], None] | None = None
    failed: bool | None = None
    name: str = ""
    shown: str = ""

    def write(self, output: Path, benchmark: str) -> None:
        """Write JSON, Markdown, and a chart where matplotlib is installed."""
        path = output / f"{self.name or benchmark}.json"
        on = {**machine.describe()}
        on["libraries"] |= self.facts.pop("libraries", {})
        write_json(path, {"benchmark": benchmark, "date": now(), "machine": on, **self.facts})
        if self.text:
            path.with_suffix(".md").write_text(self.text + "\n")
        if self.draw is not None:
            try:
                self.draw(path.with_suffix(".svg"))
            except ImportError:
                click.echo("No chart: matplotlib is missing; pip install 'streamrec[bench]'.")
        seal(path)


# -- the command line ------------------------------------------------------------------------------


@dataclass
class Run:
    """What the command line says, and what was measured so far.

    Args:
        repeat: Number of rounds.
        only: Texts in the titles of the cases to measure; none: all.
        data: Directory that keeps datasets from run to run.
        output: Directory of the results.
    """

    repeat: int = 1
    only: Sequence[str] = ()
    data: Path = field(default_factory=Path)
    output: Path | None = None
    results: list[Result] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Lines on what could not be measured, each with a remedy."""
    titles: list[str] = field(default_factory=list)
    """Titles of the cases that there are."""

    def selects(self, title: str) -> bool:
        self.titles.append(title)
        return not self.only or any(part in title for part in self.only)

    def check_only(self) -> None:
        """Refuse a text of ``--only`` that is in none of the titles.

        Raises:
            click.UsageError: The text, and the titles.
        """
        for part in self.only:
            if not any(part in title for title in self.titles):
                titles = "\n".join(f"  {title}" for title in dict.fromkeys(self.titles))
                raise click.UsageError(
                    f"No case has {part!r} of --only in its title. The titles are:\n{titles}"
                )

    def choose(self, cases: Sequence[Case]) -> list[Case]:
        return [case for case in cases if self.selects(case.title)]

    def measure(self, cases: Sequence[Case], judge: Judge, repeat: int | None = None) -> None:
        """Measure the selected cases, and keep their results."""
        rounds = self.repeat if repeat is None else repeat
        chosen = self.choose(cases)
        self.results += measure(chosen, judge, rounds) if chosen else []

    def finish(self, report: Report, benchmark: str) -> bool:
        """Print a report, write it, and return whether all went well."""
        skipped = list(dict.fromkeys(self.skipped))
        aims = [aim for aim in report.aims if aim.measured is not None]
        if aims:
            report.text = f"{report.text.rstrip()}\n\n### aims\n\n{table_of(AIMS, aims)}".lstrip()
            report.facts["aims"] = [aim.facts() for aim in aims]
        if self.results:
            report.facts |= {"skipped": skipped, "rows": rows_of(self.results)}
        click.echo(report.text or report.shown)
        for line in skipped:
            click.echo(f"Skipped: {line}")
        for result in self.results:
            for failure in result.failures:
                click.echo(f"{result.case.title}: {shorten(failure)}")
        if self.output is not None:
            report.write(self.output, benchmark)
        if report.failed is None:
            return not any(result.failures for result in self.results)
        return not report.failed


def shorten(failure: str) -> str:
    """Return a failure on a line, of a traceback its last line; the JSON has the whole text."""
    first, *more = failure.splitlines()
    return f"{first.partition(':')[0]}: {more[-1]}" if more else first


def default_data() -> Path:
    return Path(tempfile.gettempdir(), f"streamrec-bench-{os.getuid()}")


PATH = click.Path(path_type=Path)
OUTPUT = click.Option(["--output"], type=PATH, help="Directory that the results are written to.")
DATA = click.Option(
    ["--data"], type=PATH, default=default_data, help="Directory where the datasets are kept."
)
ONLY = click.Option(
    ["--only"], multiple=True, help="Text in the titles of the cases to measure; all by default."
)
ROUNDS = "Number of rounds; each case runs once a round."
PEERS = click.option(
    "--peers-python",
    default=sys.executable,
    help="Python interpreter that has the peers; this one by default.",
)


def benchmark(
    name: str, *, repeat: int = 0, only: bool = False, data: bool = False
) -> Callable[[Callable[..., Report]], click.Command]:
    """Return a decorator that makes a command of a function that measures.

    Args:
        name: Name of the files of results.
        repeat: Number of rounds by default; zero: the command has no ``--repeat``.
        only: True for ``--only``.
        data: True for ``--data``.
    """

    def make(main: Callable[..., Report]) -> click.Command:
        @wraps(main)
        def command(**options: Any) -> None:
            common: dict[str, Any] = {
                key: options.pop(key) for key in ("repeat", "only", "output") if key in options
            }
            if data:
                common["data"] = options.pop("data").absolute()
            run = Run(**common)
            report = main(run, **options)
            run.check_only()
            sys.exit(not run.finish(report, name))

        made = click.command(help=(sys.modules[main.__module__].__doc__ or "").partition("\n")[0])(
            command
        )
        rounds = click.Option(["--repeat"], default=repeat, show_default=True, help=ROUNDS)
        shown = {OUTPUT: True, rounds: bool(repeat), DATA: data, ONLY: only}
        made.params[:0] = [option for option, is_shown in shown.items() if is_shown]
        return made

    return make
