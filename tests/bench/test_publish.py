from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from bench import suite
from bench.harness import Report, digests
from bench.machine import ROOT
from bench.publish import TABLES, duration, fill, names, pages

if TYPE_CHECKING:
    from pathlib import Path


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
    assert files == {plain_table.name for plain_table in suite.TABLES}


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
