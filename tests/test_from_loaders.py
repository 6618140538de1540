"""Runs our side of the pages for those who come from another loader."""

from __future__ import annotations

import ast
import itertools
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.streams.take import Take
from tests.pages import DOCS, blocks, reading_in_threads, rows_of_code, run_block

if TYPE_CHECKING:
    from pathlib import Path

PAGES = [DOCS / "how-to" / f"from-{name}.md" for name in ("webdataset", "mosaic", "grain")]


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_every_row_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with reading_in_threads():
        run(page)


def run(page: Path) -> None:
    names: dict[str, Any] = {}
    for block in (block for block in blocks(page) if block.info == "python"):
        run_block(block, page, names)
    rows = rows_of_code(page)
    assert len(rows) > 10
    for row in rows:
        ast.parse(row.theirs, mode="eval")
        value = eval(row.ours, names)
        if isinstance(value, (sr.Stream, Take, itertools.islice)):
            assert list(value), row.ours
