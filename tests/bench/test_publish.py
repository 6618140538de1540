from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench import suite
from bench.machine import ROOT
from bench.publish import filled, names, pages
from bench.published import TABLES, duration

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_tables_of_a_page_are_those_of_the_results(page: Path) -> None:
    text = page.read_text()
    assert filled(text) == text, "the results have changed: python -m bench.publish"


def test_each_table_stands_in_a_page() -> None:
    found = [name for page in pages() for name in names(page.read_text())]
    assert sorted(found) == sorted(TABLES)


def test_what_stands_around_a_table_is_kept() -> None:
    text = "before\n<!-- table: index -->\nold\n<!-- end of the table -->\nafter\n"
    new = filled(text)
    assert new.startswith("before\n<!-- table: index -->\n\n| shards |")
    assert new.endswith("|\n\n<!-- end of the table -->\nafter\n")
    assert filled(new) == new


def test_a_file_of_results_belongs_to_a_table() -> None:
    files = {path.stem for path in (ROOT / suite.RESULTS).glob("*.json")}
    assert files == {table.name for table in suite.TABLES}


@pytest.mark.parametrize(
    ("seconds", "text"), [(29.0, "0 min"), (515.0, "9 min"), (5155.0, "1 h 26 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
