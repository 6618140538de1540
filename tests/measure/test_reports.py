from __future__ import annotations

import base64
import hashlib
import io
import re
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from streamrec.measure.comparison import ComparisonView, compare
from streamrec.measure.figures import Limits
from streamrec.measure.reports import (
    EVERY,
    POINTS,
    BenchmarkProgress,
    render,
    render_comparison,
    render_comparison_html,
    render_html,
)
from tests.documents import HOSTILE, Tags
from tests.measure.samples import bare, extreme, figures, hostile, improved

if TYPE_CHECKING:
    from streamrec.measure.figures import Figures


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


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_verdict_is_on_top() -> None:
    text = Tags(render_html(figures())).text
    places = [
        text.index(words)
        for words in (
            "The latency of the store holds this job back.",
            "480.0 MB/s",
            "x 2.4",
            "By Little's law",
            "Batches waited for a first byte during 55%",
            'memory_budget = "1GiB"',
            "Where the time goes",
            "What each resource allows (computed)",
            "Range size and requests at a time",
            "Bytes",
            "Time to the first byte",
            "Processing, on one core",
            "The job",
            "Costs",
            "Spent of the budget",
            "Machine",
            "Left out",
        )
    ]
    assert places == sorted(places)


def test_foreign_text_stays_text() -> None:
    document = render_html(hostile(HOSTILE))
    tags = Tags(document)
    assert [tag for tag, _ in tags.found].count("script") == 1
    assert not {"iframe", "img", "object"} & {tag for tag, _ in tags.found}
    assert document.count("<style>") == document.count("</style>") == 1
    assert "<script>alert(1)</script>'\"{{ 7 * 7 }}?]0;x?" in tags.text
    assert not re.search("[\x00-\x08\x0b-\x1f]", document)
    assert not any(name.startswith("on") for _, attrs in tags.found for name in attrs)


def test_secrets_are_left_out() -> None:
    document = render_html(hostile("https://me:password@host/x?X-Amz-Signature=abc"))
    assert "password" not in document
    assert "abc" not in document


@pytest.mark.parametrize("what", [figures(), bare()], ids=["whole", "bare"])
def test_nothing_is_loaded_and_only_our_script_runs(what: Figures) -> None:
    document = render_html(what)
    (script,) = re.findall(r"<script>(.*?)</script>", document, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", document, re.DOTALL)
    tags = Tags(document)
    (policy,) = [
        attributes["content"] or ""
        for tag, attributes in tags.found
        if tag == "meta" and "http-equiv" in attributes
    ]
    assert "default-src 'none';" in policy
    assert f"script-src {digest(script)};" in policy
    assert f"style-src {digest(style)};" in policy
    for tag, attributes in tags.found:
        assert tag not in ("img", "iframe", "form", "a")
        assert "src" not in attributes
        assert "style" not in attributes
        assert (attributes.get("href") or "data:image/svg+xml,").startswith("data:image/svg+xml,")
    assert "url(" not in style
    assert "@import" not in style


def test_a_report_of_little_says_what_is_missing() -> None:
    text = Tags(render_html(bare())).text
    assert "No verdict: too little was measured." in text
    assert "all of it: interrupted" in text
    for title in ("Where the time goes", "Costs", "Processing"):
        assert title not in text


@pytest.mark.parametrize("number", [0.0, -1.0, 5e-324, 1e300])
def test_no_number_is_too_strange_for_html(number: float) -> None:
    strange = extreme(number)
    for document in (render_html(strange), compared(strange, figures())):
        assert "</html>" in document
    assert "</html>" in compared(figures(), strange)


def test_a_report_is_small() -> None:
    assert len(render_html(figures())) < 100_000


def compared(one: Figures, other: Figures, name: str = "after") -> str:
    return render_comparison_html(compare(one, other, ("before", name)))


def test_a_comparison_begins_with_what_changed() -> None:
    text = Tags(compared(figures(), improved())).text
    places = [
        text.index(words)
        for words in (
            "The job is faster in after: 467.4 MB/s became 1.1 GB/s.",
            "The latency of the store holds this job back.",
            "The link holds this job back.",
            "Rates and times",
            "x 2.32",
            "▲ better",
            "Where the time goes",
            "Ratios by range size",
            "What differs",
            "A difference is noise where",
        )
    ]
    assert places == sorted(places)


def test_a_comparison_of_little_as_html() -> None:
    text = Tags(compared(bare(), bare())).text
    assert "The two have no rate in common." in text
    assert "Neither the machine nor the settings." in text


def test_foreign_text_stays_text_in_a_comparison() -> None:
    document = compared(figures(), hostile(HOSTILE), HOSTILE)
    tags = Tags(document)
    assert [tag for tag, _ in tags.found].count("script") == 1
    assert "<script>alert(1)</script>" in tags.text
    assert not re.search("[\x00-\x08\x0b-\x1f]", document)


def shown(found: Figures, width: int = 110) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    with console.capture() as capture:
        console.print(render(found))
    return capture.get()


def test_the_verdict_comes_first() -> None:
    text = shown(figures())
    places = [
        text.index(words)
        for words in (
            "The latency of the store holds this job back.",
            "480.0 MB/s now → 1.1 GB/s predicted after the change (x 2.4)",
            "By Little's law",
            "    [datasets.train]\n    max_concurrency = 32",
            "first_byte  54%  █████████████  ",
            "decoding       6.5 GB/s →  ████████████████████████  16 cores",
            "◆ 1,168",
            "20 ms       50 ms   100 ms",
            "p50 48 ms   p99 110 ms",
            "467.4 MB/s       ▇",
            "decode     410.0 MB/s",
            "One epoch          0.016 USD",
            "requests  46%",
            "CPU              AMD EPYC",
            "- 16 MiB ranges at 128 at a time",
        )
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("title", ["Where the time goes", "The job over its time", "Machine"])
def test_rows_of_a_table_lie_close_together(title: str) -> None:
    lines = [line.strip() for line in shown(figures()).splitlines()]
    begin = lines.index(title) + 1
    assert "" not in lines[begin : begin + 3]


def test_little_is_little() -> None:
    text = shown(bare())
    assert "No verdict: too little was measured." in text
    assert "- all of it: interrupted" in text
    assert "Where the time goes" not in text


@pytest.mark.parametrize("width", [60, 200])
def test_foreign_text_has_no_power_over_the_terminal(width: int) -> None:
    text = shown(hostile("[red]a[/nothing] \u202e" + HOSTILE), width)
    assert not {"\x1b", "\u202e", "\x07"} & set(text)
    assert "[red]a[/nothing]" in text
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("number", [0.0, -1.0, 5e-324, 1e300])
def test_no_number_is_too_strange_to_be_shown(number: float) -> None:
    assert "Machine" in shown(extreme(number))
    assert "What differs" in shown_comparison(compare(figures(), extreme(number)))


def test_every_level_of_the_map_has_a_style() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="256", width=110)
    with console.capture() as capture:
        console.print(render(figures()))
    assert "48;5;153" in capture.get()


def shown_comparison(found: ComparisonView) -> str:
    console = Console(file=io.StringIO(), width=110, highlight=False)
    with console.capture() as capture:
        console.print(render_comparison(found))
    return capture.get()


def test_a_comparison() -> None:
    text = shown_comparison(compare(figures(), improved(), ("before.json", "[b]after.json")))
    for words in (
        "The job is faster in [b]after.json: 467.4 MB/s became 1.1 GB/s.",
        "before.json 2026-03-14T09:26:53+00:00\nThe latency of the store holds this job",
        "[b]after.json 2026-03-14T09:41:10+00:00\nThe link holds this job back.",
        "max_concurrency   16            32",
        "x 2.32   1.96 to 2.74   ▲ better",
        "first_byte   54%",
        "A difference is noise where",
    ):
        assert words in text


def test_a_comparison_of_little() -> None:
    text = shown_comparison(compare(bare(), bare()))
    assert "The two have no rate in common." in text
    assert "What differs" not in text
