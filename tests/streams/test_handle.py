from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import streamrec as sr
from streamrec.streams import handle
from streamrec.streams.state import Row
from tests.pipeline.small_datasets import write

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.config.keywords import Engine


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write(tmp_path / "raw", ((40,) * 4, (30,) * 4))


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_the_specs_are_those_of_the_settings(source: str, engine: Engine) -> None:
    specs = {"id": sr.FixedLenFeature((), "int64")}
    with sr.open(source, specs, engine=engine) as stream:
        features = handle.of(stream).features
        assert features == {"id": {"kind": "fixed", "shape": [], "dtype": "int64"}}
    with sr.open(source, engine=engine) as stream:
        assert handle.of(stream).features is None


def test_the_end_of_a_run_is_taken_once_all_is(source: str) -> None:
    with sr.open(source, batch_size=4, epochs=2, engine="thread") as stream:
        assert not handle.of(stream).take_end()
        assert len(list(sr.take(stream, 4))) == 4
        assert handle.of(stream).take_end()
        assert handle.of(stream).take_end()
        assert len(list(stream)) == 4


def test_a_record_that_waits_is_no_end(source: str) -> None:
    with sr.open(source, engine="thread") as stream:
        rows = [handle.of(stream).next_row() for _ in range(7)]
        assert not handle.of(stream).take_end()
        assert len({*rows, next(stream)}) == 8
        assert handle.of(stream).take_end()


def test_a_row_of_a_batch_is_not_made_a_record(tmp_path: Path) -> None:
    with sr.TFRecordWriter(str(tmp_path / "a")) as writer:
        writer.write({"id": 7})
    with sr.open(str(tmp_path / "a"), {"id": sr.FixedLenFeature((), "int64")}) as stream:
        row = handle.of(stream).next_row()
    assert isinstance(row, Row)
    assert row.record() == {"id": 7}


def test_the_state_at_a_mark_is_that_of_then(source: str) -> None:
    with sr.open(source, batch_size=3, engine="thread") as stream:
        next(stream)
        before, mark = stream.state_dict(), handle.of(stream).mark()
        following = next(stream).records.to_list()
        assert handle.of(stream).state_at(mark) == before != stream.state_dict()
        handle.of(stream).go_back(mark)
        assert stream.state_dict() == before
        assert next(stream).records.to_list() == following
