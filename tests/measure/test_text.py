from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from streamrec.measure.comparison import ComparisonView, compare
from streamrec.measure.text import render, render_comparison
from tests.documents import HOSTILE
from tests.measure.samples import bare, extreme, figures, hostile, improved

if TYPE_CHECKING:
    from streamrec.measure.figures import Figures


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
        "x 2.32   ▲ better",
        "first_byte   54%",
        "A difference is noise where",
    ):
        assert words in text


def test_a_comparison_of_little() -> None:
    text = shown_comparison(compare(bare(), bare()))
    assert "The two have no rate in common." in text
    assert "What differs" not in text
