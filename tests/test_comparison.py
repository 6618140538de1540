"""Holds the comparison with other loaders: each cell has its proof, and the README has its rows."""

from __future__ import annotations

import json
import re
from datetime import datetime
from os.path import normpath
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import pytest

from tests.pages import DOCS, ROOT, is_defined, named_tests

if TYPE_CHECKING:
    from pathlib import Path

PAGE = DOCS / "explanation" / "compare.md"
README = ROOT / "README.md"
_LINK = re.compile(r"\]\(([^)]+)\)")


def rows(page: Path) -> list[list[str]]:
    """Return the cells of each row of the comparison, without its heading."""
    lines = re.findall(
        r"^\|(.*)\|$", page.read_text().partition("| | streamrec |")[2], re.MULTILINE
    )
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    width = len(cells[0])
    return [row for row in cells[1:] if len(row) == width]


def at_the_root(cell: str) -> str:
    """Return a cell of the page with its links as they are in the README."""
    folder = PurePosixPath(PAGE.parent.relative_to(ROOT).as_posix())

    def link(found: re.Match[str]) -> str:
        there = found[1] if ":" in found[1] else normpath(folder / found[1])
        return f"]({there})"

    return _LINK.sub(link, cell)


ROWS = rows(PAGE)
TESTS = re.findall(r"^\| (.+) \| (`tests/.+`) \|$", PAGE.read_text(), re.MULTILINE)


def test_there_are_rows() -> None:
    assert len(ROWS) > 8
    assert len(rows(README)) > 5


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_cell_of_ours_links_to_our_page(row: list[str]) -> None:
    (page,) = _LINK.findall(row[1])  # that it exists is held for all links
    assert not page.startswith("http")


@pytest.mark.parametrize(("feature", "test"), TESTS, ids=[feature for feature, _ in TESTS])
def test_each_test_that_is_named_exists(feature: str, test: str) -> None:
    ((path, names),) = named_tests(test)
    assert is_defined(path, names), feature


def test_each_feature_has_a_test() -> None:
    assert [feature for feature, _ in TESTS] == [row[0] for row in ROWS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_cell_of_theirs_links_to_them_or_says_that_nothing_is_documented(
    row: list[str],
) -> None:
    for cell in row[2:]:
        links = _LINK.findall(cell)
        assert [link[:8] for link in links] == ["https://"] or cell == "not documented", cell


def test_the_readme_has_rows_of_the_page() -> None:
    whole = [[at_the_root(cell) for cell in row] for row in ROWS]
    for row in rows(README):
        assert row in whole


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) < 150


def test_the_readme_says_when_its_figures_were_measured() -> None:
    result = json.loads((ROOT / "bench" / "results" / "remote.json").read_text())
    day = datetime.fromisoformat(result["date"])
    assert f"measured on {day.day} {day:%B %Y}" in README.read_text()


@pytest.mark.parametrize(
    ("names", "there"),
    [
        (["is_defined"], False),
        (["test_there_are_rows"], True),
        (["test_there_are_rows", "test_inner"], False),
        (["test_nothing"], False),
    ],
)
def test_only_tests_are_proofs(names: list[str], there: bool) -> None:
    assert is_defined(ROOT / "tests" / "test_comparison.py", names) == there
