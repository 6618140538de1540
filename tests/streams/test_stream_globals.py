"""Functions read the program's globals as they are when a loop begins, in every engine."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.errors import ConfigError
from tests.streams.test_stream import engine_processes

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.streams.stream import Stream

FEATURES = {"x": sr.FixedLenFeature((), "int64")}
ENGINES = "process", "thread", "loop"
limit = 100
generator = np.random.default_rng(3)


def is_easy(columns: Any) -> Any:
    return columns["x"] < limit


def as_told(columns: Any) -> Any:
    return {"x": columns["x"], "limit": np.full(len(columns["x"]), limit)}


def augmented(batch: Any) -> Any:
    return {"draw": generator.integers(1 << 62, size=len(batch))}


@pytest.fixture
def source(tmp_path: Path) -> str:
    with sr.TFRecordWriter(str(tmp_path / "t.tfrecord")) as writer:
        writer.write_many({"x": i} for i in range(300))
    return str(tmp_path / "t.tfrecord")


class Taking:
    """Takes batches as a loop over a stream does, in one engine."""

    def __init__(self, engine: str) -> None:
        self._runner = asyncio.Runner() if engine == "loop" else None
        self.settings: dict[str, Any] = {} if self._runner else {"engine": engine}

    def __call__(self, stream: Stream, most: int | None = None) -> list[Any]:
        if self._runner is None:
            return [*islice(stream, most)]

        async def take() -> list[Any]:
            out = []
            async for batch in stream:
                out.append(batch)
                if len(out) == most:
                    break
            return out

        return self._runner.run(take())

    def close(self, stream: Stream) -> None:
        if self._runner is None:
            stream.close()
        else:
            self._runner.run(stream.aclose())
            self._runner.close()


@pytest.fixture(params=ENGINES)
def take(request: pytest.FixtureRequest) -> Taking:
    return Taking(request.param)


def test_a_curriculum_changes_between_epochs(
    source: str, take: Taking, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = sr.open(source, FEATURES, batch_size=10, filter=is_easy, **take.settings)
    for most in (100, 300, 200):
        monkeypatch.setattr(sys.modules[__name__], "limit", most)
        assert sorted(x for batch in take(stream) for x in batch["x"].tolist()) == [*range(most)]
    take.close(stream)


def test_a_change_behind_a_break_is_seen_at_once(
    source: str, take: Taking, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = sr.open(source, FEATURES, batch_size=10, map=as_told, **take.settings)
    batches = []
    for most in (1, 2, 3):
        monkeypatch.setattr(sys.modules[__name__], "limit", most)
        batches += take(stream, 5)
    assert [x for batch in batches for x in batch["x"].tolist()] == [*range(150)]
    assert [batch["limit"].tolist() for batch in batches] == [
        [k] * 10 for k in (1, 2, 3) for _ in range(5)
    ]
    take.close(stream)


def test_a_vocabulary_is_set_by_the_program(
    source: str, take: Taking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_data.py").write_text(
        "vocabulary = None\n"
        "def tokens(c): return {'y': c['x'] * 0 + (0 if vocabulary is None else len(vocabulary))}\n"
        "def has_three(c): return tokens(c)['y'] == 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    data: Any = importlib.import_module("own_data")
    data.vocabulary = ["a", "b", "c"]
    named: dict[str, Any] = {"map": data.tokens, "filter": "own_data:has_three"}
    stream = sr.open(source, FEATURES, batch_size=4, **named, **take.settings)
    assert {y for batch in take(stream, 3) for y in batch["y"].tolist()} == {3}
    take.close(stream)
    del sys.modules["own_data"]


def test_a_process_stays_as_long_as_nothing_changes(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = engine_processes()
    with sr.open(source, FEATURES, batch_size=10, map=as_told) as stream:
        first = engine_processes() - before
        for _ in range(2):
            list(stream)
            assert engine_processes() - before == first
        monkeypatch.setattr(sys.modules[__name__], "limit", 7)
        list(stream)
        second = engine_processes() - before
        assert len(first) == len(second) == 1
        assert not first & second


def test_a_generator_of_the_program_is_not_copied(source: str) -> None:
    before = engine_processes()
    stream = sr.open(source, FEATURES, batch_size=100, transform=augmented)
    with pytest.warns(UserWarning, match=r"draws from generator; .* as in `def augment\(batch"):
        first = list(stream)
    second = list(stream)  # it is said once: a second warning would be an error
    stream.close()
    draws = [draw for batch in (*first, *second) for draw in batch["draw"].tolist()]
    assert len(set(draws)) == 600
    assert engine_processes() == before
    with (
        pytest.raises(ConfigError, match="draws from generator"),
        sr.open(source, FEATURES, batch_size=100, transform=augmented, engine="process"),
    ):
        pass


def test_a_function_that_cannot_be_sent_for_a_while(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, before = sys.modules[__name__], engine_processes()

    class Locked(int):
        lock = threading.Lock()

    with sr.open(source, FEATURES, batch_size=100, map=as_told) as stream:
        assert len(engine_processes() - before) == 1
        list(stream)
        monkeypatch.setattr(module, "limit", Locked(5))
        with pytest.warns(UserWarning, match=r"a thread reads.* reads 'limit' of .*lock"):
            batches = list(stream)
        assert engine_processes() == before
        monkeypatch.setattr(module, "limit", 6)
        batches += stream
        assert len(engine_processes() - before) == 1
    limits = [{*batch["limit"].tolist()} for batch in batches]
    assert limits == [{5}] * 3 + [{6}] * 3
