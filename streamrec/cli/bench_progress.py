"""The live progress of a benchmark."""

from __future__ import annotations

import sys
import time
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from streamrec.measure.view import spent_of
from streamrec.report.terminal import Sparkline, bar_of
from streamrec.report.words import clip, rate, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.measure.figures import Limits

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
        self._points: deque[tuple[float, int]] = deque(maxlen=POINTS + 1)
        self._live = Live(
            get_renderable=self.frame,
            console=self._console,
            refresh_per_second=4,
            transient=True,
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
        if self._phase is not None and self._live.is_started:
            self._console.print(Text("✓ ", "green").append_text(self._line(self._phase)))
        self._phase = None

    def _line(self, phase: str) -> Text:
        lasted = seconds(self._clock() - self._since)
        return Text.assemble((phase, "bold"), f"  {lasted}", (f"  {self._note}", "dim"))

    def frame(self) -> Group:
        """Return what is shown now."""
        spent = self._spent()
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
