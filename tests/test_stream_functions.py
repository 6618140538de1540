"""Functions of the user, through every engine and a feeder."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import ConfigError, FunctionFailed, OtherOrder
from streamrec.formats.tfrecord import frame
from tests.pipeline import own
from tests.test_stream import ENGINES

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.stream import Stream

FEATURES = {"id": sr.FixedLenFeature((), "int64")}
OWN = "tests.pipeline.own"


@pytest.fixture
def source(tmp_path: Path) -> str:
    for shard in range(3):
        records = [sr.encode_example({"id": 10 * shard + i}) for i in range(10)]
        (tmp_path / f"{shard}.tfrecord").write_bytes(b"".join(map(frame, records)))
    return f"{tmp_path}/*.tfrecord"


def stream_of(source: str, **settings: Any) -> Stream:
    return sr.open(source, FEATURES, **{"batch_size": 4, "lanes": 3, **settings})


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Any:
    return ENGINES[request.param]


class TestEveryEngine:
    def test_map_and_transform(self, source: str, engine: Any) -> None:
        settings, take = engine
        given = {"map": own.squared, "transform": f"{OWN}:summed"}
        batches = take(stream_of(source, **given, **settings))
        plain = take(stream_of(source, **settings))
        assert [list(batch) for batch in batches] == [["sum", "square"]] * 8
        for batch, ids in zip(batches, (b["id"] for b in plain), strict=True):
            assert batch["square"].tolist() == (ids**2).tolist()
            assert batch["sum"].tolist() == [ids.sum()] * len(batch)

    def test_a_failure_reaches_the_caller(self, source: str, engine: Any) -> None:
        settings, take = engine
        with pytest.raises(FunctionFailed, match=r"own:careless raised KeyError") as caught:
            take(stream_of(source, map=own.careless, **settings))
        assert caught.value.setting == "map"
        assert caught.value.record == 0

    def test_what_cannot_be_imported(self, source: str, engine: Any) -> None:
        settings, take = engine
        with pytest.raises(ConfigError, match="'map' names 'absent:f'"):
            take(stream_of(source, map="absent:f", **settings))

    def test_a_transform_of_single_records_is_refused(self, source: str, engine: Any) -> None:
        settings, take = engine
        with pytest.raises(ConfigError, match="transform takes whole batches; set batch_size"):
            take(stream_of(source, transform=own.summed, batch_size=None, **settings))


def test_single_records_are_mapped(source: str) -> None:
    rows = list(stream_of(source, map=own.squared, batch_size=None, engine="thread"))
    assert sorted(int(row["square"]) for row in rows) == [i * i for i in range(30)]


class TestLambdas:
    def test_not_in_an_engine_process(self, source: str) -> None:
        with (
            pytest.raises(ConfigError, match=r"'map' is .*<lambda>, which the engine process"),
            stream_of(source, map=lambda columns: columns),
        ):
            pass

    def test_in_a_thread_and_in_the_loop(self, source: str) -> None:
        def doubled(columns: Any) -> Any:
            return {"id": columns["id"] * 2}

        async def main() -> list[int]:
            stream = stream_of(source, map=doubled)
            return [i async for batch in stream for i in batch["id"].tolist()]

        threaded = stream_of(source, map=doubled, engine="thread")
        ids = [i for batch in threaded for i in batch["id"].tolist()]
        assert ids == asyncio.run(main())
        assert sorted(ids) == list(range(0, 60, 2))


def test_a_state_of_another_map_is_refused(source: str) -> None:
    with stream_of(source, map=own.squared, engine="thread") as stream:
        next(stream)
        state = stream.state_dict()
    again = stream_of(source, engine="thread")
    again.load_state_dict(state)
    with pytest.raises(OtherOrder, match=r"stages was 'map tests.pipeline.own:squared' and is ''"):
        next(again)
    again.close()
