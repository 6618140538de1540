"""Runs our side of the pages for those who come from another loader."""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.streams.stream import Take
from tests.pages import DOCS, blocks, reading_in_threads, rows_of_code, run_block

if TYPE_CHECKING:
    from pathlib import Path

PAGES = [DOCS / "how-to" / f"from-{name}.md" for name in ("webdataset", "mosaic", "grain")]


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_every_row_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with reading_in_threads():
        run(page)


@pytest.mark.parametrize("page", [PAGES[0], PAGES[2]], ids=["webdataset", "grain"])
def test_repeat_gives_each_record_twice(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = [row.ours for row in rows_of_code(page) if row.theirs == "dataset.repeat(2)"]
    with reading_in_threads():
        names = names_of(page)
        once, twice = (
            Counter(repr(sorted(row.items())) for row in eval(each, names))
            for each in (code.replace(", epochs=2", ""), code)
        )
    assert "epochs=2" in code
    assert once.total() > 4
    assert twice == once + once


def test_repeat_of_unequal_shards(tmp_path: Path) -> None:
    """Lanes with short shards begin their second epoch sooner, as the page of WebDataset says."""
    for shard, ids in enumerate([[0], [1, 2, 3]]):
        with sr.TFRecordWriter(tmp_path / f"x-{shard}.tfrecord") as writer:
            writer.write_many({"id": number} for number in ids)
    features = {"id": sr.FixedLenFeature((), "int64")}
    with sr.open(f"{tmp_path}/x-*", features, epochs=2, engine="thread") as stream:
        ids = [int(row["id"]) for row in stream]
    assert sorted(ids) == sorted(2 * [0, 1, 2, 3])
    second = ids.index(1, ids.index(1) + 1)
    assert second < ids.index(3)
    assert "lanes with short shards begin their second epoch sooner" in PAGES[0].read_text()


def run(page: Path) -> None:
    names = names_of(page)
    rows = rows_of_code(page)
    assert len(rows) > 10
    for row in rows:
        ast.parse(row.theirs, mode="eval")
        value = eval(row.ours, names)
        if isinstance(value, (sr.Stream, Take, itertools.islice)):
            assert list(value), row.ours


def names_of(page: Path) -> dict[str, Any]:
    """Run a page's blocks, and return the names that they assign."""
    names: dict[str, Any] = {}
    for block in (block for block in blocks(page) if block.info == "python"):
        run_block(block, page, names)
    return names
