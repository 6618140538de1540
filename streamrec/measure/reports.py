"""The reports of a benchmark, in a terminal and as HTML, and its progress while it runs."""

from __future__ import annotations

import sys
import time
from collections import deque
from itertools import pairwise, zip_longest
from textwrap import indent
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from streamrec.measure.comparison import NOISE
from streamrec.measure.view import spent_of, view_of
from streamrec.report.charts import COLUMNS, WIDTH, chart_of
from streamrec.report.html import environment, policy, read_text
from streamrec.report.terminal import BLOCKS, Sparkline, bar_of, table_of
from streamrec.report.words import clip, percent, rate, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from streamrec.measure.comparison import ComparisonView
    from streamrec.measure.figures import Figures, Limits
    from streamrec.measure.view import FiguresView, VerdictText
    from streamrec.report.charts import BarRow, Grid, HistogramChart, Line, Square


DARK, LIGHT = (236, 237, 24, 25, 31), (38, 74, 116, 153)
"""The numbers of colours of a terminal, slow to fast."""
SHADES = {
    **{f"h{level}": f"white on color({color})" for level, color in enumerate(DARK)},
    **{f"h{level}": f"black on color({color})" for level, color in enumerate(LIGHT, len(DARK))},
    "better": "bold green",
    "worse": "bold red",
    "noise": "dim",
}
"""The styles of a table's squares."""


def render(figures: Figures) -> Group:
    """Return what the report shows, for a terminal; rich's markup in texts has no effect."""
    view = view_of(figures)
    return Group(*_render_parts(view))


def _render_parts(view: FiguresView) -> Iterator[RenderableType]:
    yield Text.assemble(("streamrec bench ", "bold"), view.title, (f"  {view.taken}", "dim"))
    yield from _section("", _advice(view.advice))
    if view.facts:
        yield from _section("", _facts(view.facts))
    yield from _rows("Where the time goes", view.waits)
    yield from _rows("What each resource allows (computed)", view.ceilings)
    if view.grid:
        yield from _section("MB/s by range size and requests at a time", _grid(view.grid))
        if view.grid.has_plateau:
            yield Text("◆ the fewest requests at a time with the best rate, but for 5%", "dim")
    if view.histogram:
        yield from _section("Time to the first byte", _histogram(view.histogram))
    if view.series:
        yield from _section("The job over its time", _series(view.series))
    if view.job:
        yield from _section("The job", _pairs(view.job))
    yield from _rows("Processing, on one core", view.steps)
    if view.costs:
        yield from _section("Costs", _pairs([*view.costs, ("Prices", view.prices)]))
    yield from _rows("Spent of the budget", view.spent)
    yield from _section("Machine", _pairs([*view.machine, *view.settings]))
    if view.unfinished:
        yield from _section("Left out", _bullets(view.unfinished))


def render_comparison(view: ComparisonView) -> Group:
    """Return what the report of two benchmarks shows, for a terminal."""
    return Group(*_render_compared(view))


def _render_compared(view: ComparisonView) -> Iterator[RenderableType]:
    yield Text(view.headline, SHADES[view.judgement] if view.judgement != "noise" else "bold")
    for name, date, advice in zip(view.names, view.taken, view.verdicts, strict=True):
        head = Text.assemble((name, "bold"), (f" {date}\n", "dim"), advice.headline)
        yield from _section("", head, *_now(advice))
    if view.differences:
        yield from _section("What differs", _table(("", *view.names), view.differences))
    if view.ratios:
        rows = [
            (one.name, one.one, one.other, one.ratio, one.interval, one.verdict)
            for one in view.ratios
        ]
        styles = [SHADES[one.judgement] for one in view.ratios]
        columns = ("", *view.names, "ratio", "its interval", "")
        yield from _section("Rates and times", _table(columns, rows, styles))
    if view.grid:
        yield from _section("Ratios by range size and requests at a time", _grid(view.grid))
    if view.waits:
        parts = [(name, percent(one), percent(other)) for name, one, other in view.waits]
        yield from _section("Where the time goes", _table(("", *view.names), parts))
    yield from _section("", Text(NOISE, "dim"))


def _now(advice: VerdictText) -> list[Text]:
    return [_gain(advice)] if advice.now else []


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> Table:
    table = table_of(*((name, "left") for name in head))
    for row, style in zip_longest(rows, styles, fillvalue=""):
        table.add_row(*map(Text, row), style=style)
    return table


def _section(title: str, *parts: RenderableType) -> Iterator[RenderableType]:
    yield Text()
    if title:
        yield Text(title, "bold")
    yield from parts


def _advice(advice: VerdictText) -> Group:
    lines: list[RenderableType] = [
        Text(advice.headline, "bold green" if advice.is_good else "bold yellow")
    ]
    if advice.now:
        lines.append(_gain(advice))
    if advice.summary:
        lines += [Text(), Text(advice.summary)]
    if advice.evidence:
        lines += [Text(), _bullets(advice.evidence)]
    if advice.changes:
        lines += [Text(), Text("What to change", "bold")]
        lines += [Text.assemble((what, "bold"), f"  {why}") for what, why in advice.changes]
    if advice.paste:
        lines += [Text(), Text(indent(advice.paste.rstrip(), "    "), "cyan")]
    return Group(*lines)


def _gain(advice: VerdictText) -> Text:
    line = Text(advice.now, "bold")
    if advice.then:
        line.append(" → ").append(advice.then, "bold")
        line.append(" predicted after the change (").append(advice.gain, "bold green").append(")")
    if advice.next:
        line.append(f", then the limit is: {advice.next}", "dim")
    return line


def _facts(facts: Iterable[tuple[str, str]]) -> Text:
    # A name is not divided from its value at the end of a line.
    words = [(f"{name} ".replace(" ", "\xa0"), value.replace(" ", "\xa0")) for name, value in facts]
    parts = [Text.assemble((name, "dim"), (value, "bold")) for name, value in words]
    return Text("   ").join(parts)


def _rows(title: str, rows: Sequence[BarRow]) -> Iterator[RenderableType]:
    if not rows:
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    for row in rows:
        style = "bold yellow" if row.is_most else ""
        bar = bar_of(row.part, "yellow" if row.is_most else "blue")
        table.add_row(
            Text(row.name, style),
            Text(f"{row.text}{' →' if row.is_cut else ''}", style),
            bar,
            Text(row.detail, "dim"),
        )
    yield from _section(title, table)


def _grid(grid: Grid) -> Group:
    return Group(_squares(grid), *([Text(grid.gap, "dim")] if grid.gap else []))


def _squares(grid: Grid) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    table.add_column("", justify="right", style="dim", no_wrap=True)
    for column in grid.columns:
        table.add_column(Text(column), justify="right", no_wrap=True, min_width=7)
    for name, squares in grid.rows:
        table.add_row(Text(name), *map(_square, squares))
    return table


def _square(square: Square | None) -> Text:
    if square is None:
        return Text("·", "dim")
    mark = "◆ " if square.is_plateau else ""
    return Text(f" {mark}{square.text} ", SHADES[square.shade])


def _histogram(histogram: HistogramChart) -> Group:
    blocks = [" "] * COLUMNS
    for column in histogram.columns:
        blocks[round(column.left * COLUMNS)] = BLOCKS[round(column.part * (len(BLOCKS) - 1))]
    marks = "   ".join(mark.text for mark in histogram.marks)
    return Group(Text("".join(blocks), "blue", no_wrap=True), _axis(histogram), Text(marks, "bold"))


def _axis(histogram: HistogramChart) -> Text:
    """Return the round times below their places, without those that have no room."""
    line = ""
    for tick in histogram.ticks:
        place = round(tick.place * COLUMNS)
        if place > len(line) or not line:
            line = f"{line.ljust(place)}{tick.text} "
    return Text(line.rstrip(), "dim", no_wrap=True)


def _series(series: Sequence[Line]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for line in series:
        table.add_row(line.title, Text(line.summary, "bold", no_wrap=True), Sparkline(line.values))
    return table


def _pairs(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    return table


def _bullets(lines: Iterable[str]) -> Group:
    return Group(*(Text(f"- {line}") for line in lines))


EVERY = 0.5
"""Seconds between two points of the line."""
POINTS = 60


class BenchmarkProgress:
    """The progress of a benchmark on standard error; nothing where that is not a terminal.

    A context manager: lines of phases that are over stay, and what moves goes away at the end.

    Args:
        limits: What the benchmark may spend.
        spent: Gives what it has spent; it is called from another thread, a few times a second.
        console: Where to show it.
        clock: Gives the time in seconds.
    """

    def __init__(
        self,
        limits: Limits,
        spent: Callable[[], Limits],
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self._spent, self._clock = limits, spent, clock
        self._console = console or Console(stderr=True)
        self._phase: str | None = None
        self._note = ""
        self._since = clock()
        # The line shows differences, of which there is one fewer.
        self._points: deque[tuple[float, int]] = deque(maxlen=POINTS + 1)
        self._live = Live(
            get_renderable=self.frame,
            console=self._console,
            refresh_per_second=4,
            transient=True,
            # Figures that go to a file must not pass through the terminal's frames.
            redirect_stdout=sys.stdout.isatty(),
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_phase()
        self._live.stop()

    def phase(self, name: str) -> None:
        """Note that a part begins, and the one before it is over."""
        self._end_phase()
        self._phase, self._note, self._since = name, "", self._clock()

    def note(self, text: str) -> None:
        """Note what the part does now, or has found."""
        self._note = clip(text, 80)

    def _end_phase(self) -> None:
        # Not a terminal: lines of phases would stand among the errors in a log.
        if self._phase is not None and self._live.is_started:
            self._console.print(Text("✓ ", "green").append_text(self._line(self._phase)))
        self._phase = None

    def _line(self, phase: str) -> Text:
        lasted = seconds(self._clock() - self._since)
        return Text.assemble((phase, "bold"), f"  {lasted}", (f"  {self._note}", "dim"))

    def frame(self) -> Group:
        """Return what is shown now."""
        spent = self._spent()
        # Frames are drawn by a thread of rich, so a point is taken with the frame and not by a
        # timer.
        self._sample(spent.bytes)
        table = Table.grid(padding=(0, 2, 0, 0))
        rates = self._rates()
        table.add_row("rate", Text(rate(rates[-1]), no_wrap=True), Sparkline(rates))
        for row in spent_of(spent, self._limits):
            table.add_row(row.name, row.detail, bar_of(row.part))
        return Group(Text("  ").append_text(self._line(self._phase or "starting")), table)

    def _sample(self, count: int) -> None:
        now = self._clock()
        # Frames come more often than points, so that the line moves evenly.
        if not self._points or now - self._points[-1][0] >= EVERY:
            self._points.append((now, count))

    def _rates(self) -> list[float]:
        pairs = pairwise(self._points)
        return [(c - b) / (after - before) for (before, b), (after, c) in pairs] or [0.0]


PACKAGE = "streamrec.measure"


def render_html(figures: Figures) -> str:
    """Return the report of a benchmark as one HTML document; all text in it is escaped."""
    view = view_of(figures)
    charts = [(line, chart_of(line.values, WIDTH / len(line.values))) for line in view.series]
    return _render("report.html", view=view, lines=charts)


def render_comparison_html(view: ComparisonView) -> str:
    """Return the report of two benchmarks as one HTML document; all text in it is escaped."""
    return _render("comparison.html", found=view, noise=NOISE)


def _render(template: str, **values: Any) -> str:
    # In the document itself, whose policy allows no script or style but these, by their hashes.
    script, style = read_text("copy.js"), read_text("page.css") + read_text("report.css")
    return (
        environment(PACKAGE)
        .get_template(template)
        .render(policy=policy(style=style, script=script), script=script, style=style, **values)
    )
