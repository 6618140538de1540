"""A feeder's view in a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.bar import Bar
from rich.console import Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from streamrec.feeder.page.words import percent
from streamrec.feeder.samples import MOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

    from streamrec.feeder.page.path import Stage
    from streamrec.feeder.page.view import View

__all__ = ["dashboard", "sparkline"]

BLOCKS = "▁▂▃▄▅▆▇█"
LINE = MOST
"""The most characters of a line: one for each sample."""
SHOWN_ERRORS = 3
BAR = 20
"""The characters of a bar."""


def dashboard(view: View, where: str, trouble: str | None = None) -> Group:
    """Return one frame.

    Args:
        view: The feeder. Its text is shown as it is: rich's markup in it has no effect.
        where: The address of its status port.
        trouble: The reason why the view is an old one.
    """
    above = [_head(view, where, trouble), _lines(view), _path(view), _datasets(view), _errors(view)]
    # The subscriptions are the last, because there may be more than a screen has room for.
    parts = (*above, _subscriptions(view))
    return Group(*(line for part in parts for line in (part, Text())))


def sparkline(values: Sequence[float | None], width: int = LINE) -> str:
    """Return the last values as a line of blocks; a gap where there is none."""
    some = values[-width:]
    top = max((value for value in some if value is not None), default=0.0)
    blocks = (" " if value is None else _block(value, top) for value in some)
    return "".join(blocks).rjust(width)


def _block(value: float, top: float) -> str:
    return BLOCKS[min(int(len(BLOCKS) * value / top), len(BLOCKS) - 1)] if top > 0 else BLOCKS[0]


@dataclass(frozen=True)
class _Spark:
    """A line of blocks that is as wide as there is room."""

    values: Sequence[float | None]

    def __rich_measure__(self, _: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(10, options.max_width), min(LINE, options.max_width))

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(sparkline(self.values, min(LINE, options.max_width)), "blue", no_wrap=True)


def _head(view: View, where: str, trouble: str | None) -> Group:
    state = "green" if view.is_ready else "red"
    kernel = "red" if view.is_slow else ""
    head = Text.assemble(
        ("streamrec feeder ", "bold"),
        where,
        "  ",
        (f"● {view.state}", f"bold {state}"),
        (f"\nup {view.up} · {view.workers} · version {view.build['version']} · kernel ", "dim"),
        (view.build["kernel"], kernel or "dim"),
        (f" · {view.taken} UTC", "dim"),
    )
    old = [Text(f"{trouble}; this is old, and is tried again", "red")] if trouble else []
    return Group(head, *old)


def _lines(view: View) -> Group:
    table = Table.grid(padding=(0, 2))
    for line in view.series:
        table.add_row(line.title, Text(line.now, "bold", no_wrap=True), _Spark(line.values))
    memory = Text.assemble("Memory of sessions  ", (view.memory.text, "bold"))
    return Group(table, memory)


def _path(view: View) -> Group:
    table = _table(("stage", "left"), ("wait", "right"), ("", "left"), ("now", "left"))
    for stage in view.path:
        style = _style(stage)
        table.add_row(
            Text(stage.name, style),
            Text(percent(stage.share), style),
            Bar(1, 0, stage.share, width=BAR, color=style.rpartition(" ")[2] or "blue"),
            Text.assemble(stage.fill.text if stage.fill else "", "  ", (stage.detail, "dim")),
        )
    return Group(Text(view.verdict, "bold"), Text(), table)


def _style(stage: Stage) -> str:
    if not stage.is_limit:
        return ""
    return "bold green" if stage.name == "client" else "bold yellow"


def _datasets(view: View) -> Group:
    names = ("dataset", "state", "shards", "clients", "rate", "requests", "retries")
    table = _table(*_columns(names, left=("dataset", "state")))
    for one in view.datasets:
        cells = [one[name] for name in ("name", *names[1:])]
        table.add_row(*map(Text, cells), style="red" if one["problem"] else "")
    problems = [Text(f"{o['name']}: {o['problem']}", "red") for o in view.datasets if o["problem"]]
    return Group(table, *problems, *_more(view.more_datasets, "datasets"))


def _errors(view: View) -> Group:
    lines = [
        Text.assemble(
            (f"{error['time']} UTC  ", "dim"), (error["type"], "bold"), f"  {error['message']}"
        )
        for error in view.errors[:SHOWN_ERRORS]
    ]
    return Group(Text("last errors" if lines else "no errors", "dim"), *lines)


def _subscriptions(view: View) -> Group:
    names = ("dataset", "rank", "step", "rate", "records", "stalled", "peer")
    table = _table(*_columns(names, left=("dataset", "peer")))
    for each in view.subscriptions:
        table.add_row(*(Text(each[name]) for name in names))
    if not view.subscriptions:
        return Group(Text("No client reads now.", "dim"))
    return Group(table, *_more(view.more_subscriptions, "subscriptions"))


def _columns(names: Iterable[str], left: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(name, "left" if name in left else "right") for name in names]


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        header_style="dim",
        padding=(0, 2, 0, 0),
    )
    for name, justify in columns:
        right = justify == "right"
        table.add_column(name, justify="right" if right else "left", no_wrap=right)
    return table


def _more(count: int, what: str) -> list[Text]:
    return [Text(f"and {count:,} more {what}: all are in /status.json", "dim")] if count else []
