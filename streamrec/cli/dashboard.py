"""The views of one or several feeders in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from streamrec.report.terminal import Sparkline, bar_of, table_of
from streamrec.report.words import percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from streamrec.feeder.page.view import FleetView, PathStage, View

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


def fleet_dashboard(fleet: FleetView, trouble: str | None = None) -> Group:
    """Return one frame of several feeders.

    Args:
        fleet: The feeders. Their text is shown as it is.
        trouble: The reason why the view is an old one.
    """
    head = Text(f"streamrec, {len(fleet.feeders)} feeders", "bold")
    parts = (Group(head, *_old(trouble)), _feeders(fleet), _late(fleet.late), *_all_errors(fleet))
    return Group(*(line for part in parts for line in (part, Text())))


def _feeders(fleet: FleetView) -> Group:
    names = ("feeder", "state", "throughput", "records", "first byte", "clients")
    table = table_of(*_columns(names, left=("feeder", "state")))
    lines = []
    for where, view in fleet.feeders:
        if isinstance(view, str):
            table.add_row(Text(where), Text("no answer", "red"))
            lines.append(Text(view, "red"))
            continue
        state = Text(view.state, "green" if view.is_ready else "red")
        table.add_row(Text(where), state, *(Text(summary) for _, summary in view.facts))
        lines.append(Text.assemble((f"{where}  ", "dim"), view.verdict))
    return Group(table, Text(), *lines)


def _late(lines: Sequence[str]) -> Group:
    if not lines:
        return Group(Text("no rank waits much longer than the others of its job", "dim"))
    return Group(*(Text(line, "bold yellow") for line in lines))


def _all_errors(fleet: FleetView) -> list[Group]:
    """Return the last errors of each feeder that has any."""
    views = [(where, view) for where, view in fleet.feeders if not isinstance(view, str)]
    return [Group(Text(where, "dim"), _errors(view)) for where, view in views if view.errors]


def _old(trouble: str | None) -> list[Text]:
    # The old frame stays on the screen, so it must say that it is old.
    return [Text(f"{trouble}; this is old, and is tried again", "red")] if trouble else []


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
    return Group(head, *_old(trouble))


def _lines(view: View) -> Group:
    table = Table.grid(padding=(0, 2))
    for line in view.series:
        table.add_row(line.title, Text(line.summary, "bold", no_wrap=True), Sparkline(line.values))
    memory = Text.assemble("Memory of sessions  ", (view.memory.text, "bold"))
    return Group(table, memory)


def _path(view: View) -> Group:
    table = table_of(("stage", "left"), ("wait", "right"), ("", "left"), ("now", "left"))
    for stage in view.path:
        style = _style(stage)
        table.add_row(
            Text(stage.name, style),
            Text(percent(stage.share), style),
            bar_of(stage.share, style.rpartition(" ")[2] or "blue", BAR),
            Text.assemble(stage.fill.text if stage.fill else "", "  ", (stage.detail, "dim")),
        )
    late = [Text(line, "bold yellow") for line in view.late]
    return Group(Text(view.verdict, "bold"), *late, Text(), table)


def _style(stage: PathStage) -> str:
    if not stage.is_limit:
        return ""
    # The client as the limit is as it should be: the feeder keeps up with it.
    return "bold green" if stage.name == "client" else "bold yellow"


def _datasets(view: View) -> Group:
    names = ("dataset", "state", "shards", "clients", "rate", "requests", "retries")
    table = table_of(*_columns(names, left=("dataset", "state")))
    for one in view.datasets:
        cells = [one[name] for name in ("name", *names[1:])]
        # As Text: rich would read markup in the name of a dataset.
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
    table = table_of(*_columns(names, left=("dataset", "peer")))
    for each in view.subscriptions:
        table.add_row(*(Text(each[name]) for name in names))
    if not view.subscriptions:
        return Group(Text("No client reads now.", "dim"))
    return Group(table, *_more(view.more_subscriptions, "subscriptions"))


def _columns(names: Iterable[str], left: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(name, "left" if name in left else "right") for name in names]


def _more(count: int, what: str) -> list[Text]:
    return [Text(f"and {count:,} more {what}: all are in /status.json", "dim")] if count else []
