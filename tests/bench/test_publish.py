from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from bench import suite
from bench.cases import RATE
from bench.harness import Report, digests
from bench.machine import ROOT
from bench.publish import (
    BLOCK,
    SLOWER,
    STORE,
    TABLES,
    Pair,
    duration,
    fill,
    median,
    names,
    pages,
    row_of,
    rows_of,
    without_spreads,
)

if TYPE_CHECKING:
    from pathlib import Path


PLAIN = f"{STORE}, plain"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_tables_of_a_page_are_those_of_the_results(page: Path) -> None:
    text = page.read_text()
    assert fill(text) == text, "the results have changed: python -m bench.publish"


def test_each_table_stands_in_a_page() -> None:
    found = [name for page in pages() for name in names(page.read_text())]
    assert sorted(found) == sorted(TABLES)


def test_what_stands_around_a_table_is_kept() -> None:
    text = "before\n<!-- table: index -->\nold\n<!-- end of the table -->\nafter\n"
    new = fill(text)
    assert new.startswith("before\n<!-- table: index -->\n\n| shards |")
    assert new.endswith("|\n\n<!-- end of the table -->\nafter\n")
    assert fill(new) == new


def test_a_file_of_results_belongs_to_a_table() -> None:
    files = {path.stem for path in (ROOT / suite.RESULTS).glob("*.json")}
    assert files <= {"all", *(one.name for one in suite.TABLES)}


@pytest.mark.parametrize(
    "path", sorted((ROOT / suite.RESULTS).glob("*.json")), ids=lambda p: p.name
)
def test_what_was_measured_is_as_it_was_written(path: Path) -> None:
    assert json.loads(path.read_text())["digests"] == digests(path), (
        "figures come by measuring alone"
    )


def test_each_file_of_results_is_held_by_its_digest() -> None:
    files = {path for path in (ROOT / suite.RESULTS).iterdir() if path.name != "README.md"}
    held = {
        path.parent / name for path in files if path.suffix == ".json" for name in digests(path)
    }
    assert held == files


def test_a_figure_that_was_rewritten_is_noticed(tmp_path: Path) -> None:
    Report("| 1.5 |", {"rows": [1.5]}).write(tmp_path, "x")
    path = tmp_path / "x.json"
    assert json.loads(path.read_text())["digests"] == digests(path)
    for name in ("x.json", "x.md"):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text.replace("1.5", "9.5"))
        assert json.loads(path.read_text())["digests"] != digests(path)
        (tmp_path / name).write_text(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(29.0, "0 min"), (515.0, "9 min"), (5155.0, "1 h 26 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_table_that_was_not_measured_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLES, "index", lambda: rows_of("none"))
    text = fill("<!-- table: index -->\nold\n<!-- end of the table -->\n")
    assert text == "<!-- table: index -->\n\n<!-- end of the table -->\n"
    assert fill(text) == text


@pytest.mark.parametrize(
    ("head", "cells", "is_kept"),
    [
        ("MB/s, min-max", ["72-72", "1,312-1,312", "-"], False),
        ("least to most", ["81.4 to 81.4"], False),
        ("min-max", ["72-72", "71-72"], True),
        ("MB/s", ["72", "72"], True),
    ],
)
def test_the_spread_of_a_single_round_is_left_out(
    head: str, cells: list[str], is_kept: bool
) -> None:
    rows = "".join(f"| row | {cell} |\n" for cell in cells)
    table = f"| | {head} |\n| --- | ---: |\n{rows}"
    expected = table if is_kept else "| |\n| --- |\n" + "| row |\n" * len(cells)
    assert re.sub(r"(?s).+", without_spreads, table) == expected


def test_the_ends_of_a_single_round_are_left_out() -> None:
    one = "| | x | least | most |\n| --- | --- | --- | --- |\n| a | 1 | 1 | 1 |\n"
    assert re.sub(r"(?s).+", without_spreads, one) == "| | x |\n| --- | --- |\n| a | 1 |\n"
    several = one + "| b | 2 | 1 | 3 |\n"
    assert re.sub(r"(?s).+", without_spreads, several) == several


@pytest.mark.parametrize("pair", SLOWER, ids=lambda pair: pair.about)
def test_where_streamrec_is_slower_it_was_slower(pair: Pair) -> None:
    *_, ratio = pair.cells()
    is_slower = float(ratio) > 1 if pair.figure.endswith("_seconds") else float(ratio) < 1
    assert is_slower, "measured anew, it is not slower: take the row out of the list"


def test_a_row_stands_beside_the_best_of_several() -> None:
    _, mine, other, ratio = Pair("x", "y", "remote", PLAIN, "for", "download").cells()
    downloads = [one for one in rows_of("remote", PLAIN) if one["case"].startswith("download")]
    best = max(median(one, RATE) or 0 for one in downloads)
    assert other.endswith(f"{best:,.0f} MB/s")
    assert mine.startswith("for: ")
    assert float(ratio) == pytest.approx(
        (median(row_of("remote", PLAIN, "for"), RATE) or 0) / best, abs=0.01
    )


WRITTEN = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
RATE_BY_HAND = re.compile(
    r"\d ?(?:[kMG]i?B/s|Gbit/s|s/GB|(?:records|pictures|samples|batches)/s)"
    r"|\d (?:times (?:as (?:fast|slow)|faster|slower|(?:the|its|their) (?:rate|speed))"
    r"|% (?:faster|slower|of the (?:rate|speed)))"
)
NOT_MEASURED = (
    "at most 750 MB/s in requests of 1 MiB, and 330 MB/s",  # arithmetic
    "60 MB/s",  # a connection of the store on loopback
    "bandwidth=60MB/s",
    "10 Gbit/s",  # a link that is assumed
    "measured in bytes: at 2 GB/s",  # an example
    "core=500MB/s",  # a setting of a plan, and its correction
    "core=190MB/s",
)
"""Settings, and what follows from them."""


def by_hand(text: str) -> list[str]:
    """Return the lines outside code and published tables that name a rate."""
    plain = re.sub(r"^```.*?^```", "", BLOCK.sub("", text), flags=re.DOTALL | re.MULTILINE)
    for known in NOT_MEASURED:
        plain = re.sub(re.escape(known), "", plain, flags=re.IGNORECASE)
    return [line for line in plain.splitlines() if RATE_BY_HAND.search(line)]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_rates_come_from_the_results(page: Path) -> None:
    assert by_hand(page.read_text()) == [], "let bench.publish fill a table, or link to one"


@pytest.mark.parametrize(
    "line",
    ["It has 75 MB/s.", "1,500 records/s", "0.4 s/GB", "7.2 times as fast", "3 times the rate"],
)
def test_a_rate_that_was_written_by_hand_is_noticed(line: str) -> None:
    table = "<!-- table: index -->\n9 MB/s\n<!-- end of the table -->\n"
    assert by_hand(f"{line}\n{table}```\n8 MB/s\n```\nat 60 MB/s a connection") == [line]
