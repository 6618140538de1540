from __future__ import annotations

import io

from rich.console import Console

from streamrec.cli.bench_progress import EVERY, POINTS, BenchmarkProgress
from streamrec.measure.figures import Limits

LIMITS = Limits(seconds=60.0, bytes=32_000_000_000, requests=20_000)


class Run:
    """A benchmark that reads 100 MB a second."""

    def __init__(self, *, terminal: bool = True) -> None:
        self.now = 0.0
        self.console = Console(
            file=io.StringIO(), force_terminal=terminal, width=80, color_system=None
        )

    def spent(self) -> Limits:
        return Limits(seconds=self.now, bytes=int(1e8 * self.now), requests=int(10 * self.now))

    def progress(self) -> BenchmarkProgress:
        return BenchmarkProgress(LIMITS, self.spent, self.console, lambda: self.now)

    @property
    def shown(self) -> str:
        assert isinstance(self.console.file, io.StringIO)
        return self.console.file.getvalue()

    def frame(self, progress: BenchmarkProgress) -> str:
        with self.console.capture() as capture:
            self.console.print(progress.frame())
        return capture.get()


def test_the_line_has_the_last_half_minute() -> None:
    run = Run()
    progress = run.progress()
    assert progress._rates() == [0.0]
    for _ in range(5):
        progress.frame()
        run.now += 0.9 * EVERY
    assert len(progress._rates()) == 2, "a point is as old as it must be"
    for _ in range(2 * POINTS):
        progress.frame()
        run.now += EVERY
    assert len(progress._rates()) == POINTS
    assert {round(rate) for rate in progress._rates()} == {100_000_000}


def test_a_frame_has_the_phase_the_rate_and_what_was_spent() -> None:
    run = Run()
    progress = run.progress()
    assert "starting" in run.frame(progress)
    progress.phase("sweep")
    progress.note("4 MiB x 16\x1b[2J")
    for _ in range(2 * POINTS):
        run.now += EVERY / 2
        progress.frame()
    text = run.frame(progress)
    for words in ("sweep  30.0 s  4 MiB x 16?[2J", "100.0 MB/s", "█", "30 of 60", "300 of 20,000"):
        assert words in text
    assert "3.0 GB of 32.0 GB" in text


def test_phases_that_are_over_stay() -> None:
    run = Run()
    with run.progress() as progress:
        progress.phase("listing")
        progress.note("1,024 shards")
        run.now = 2.0
        progress.phase("sweep")
        run.now = 5.0
    assert "✓ listing  2.0 s  1,024 shards" in run.shown
    assert "✓ sweep  3.0 s" in run.shown


def test_nothing_is_shown_where_there_is_no_terminal() -> None:
    run = Run(terminal=False)
    with run.progress() as progress:
        progress.phase("listing")
        progress.note("1,024 shards")
    assert run.shown == ""


def test_markup_has_no_effect() -> None:
    run = Run()
    progress = run.progress()
    progress.phase("[red]sweep")
    assert "[red]sweep" in run.frame(progress)
