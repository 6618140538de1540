"""Functions of the user, through every engine and a feeder."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.config import DatasetSettings, validate
from streamrec.errors import ConfigError, FunctionFailed, OtherOrder
from streamrec.feeder.server.server import Feeder
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline.dataset import Dataset
from tests.by_day import stops
from tests.pipeline import user_functions
from tests.streams.test_stream import ENGINES, engine_processes

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.config.keywords import Engine
    from streamrec.streams.stream import Stream

FEATURES = {"id": sr.FixedLenFeature((), "int64")}
OWN = "tests.pipeline.user_functions"


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
    @pytest.mark.both_kernels
    def test_map_and_transform(self, source: str, engine: Any) -> None:
        settings, take = engine
        given = {"map": user_functions.squared, "transform": f"{OWN}:summed"}
        batches = take(stream_of(source, **given, **settings))
        plain = take(stream_of(source, **settings))
        assert [list(batch) for batch in batches] == [["sum", "square"]] * 8
        for batch, ids in zip(batches, (b["id"] for b in plain), strict=True):
            assert batch["square"].tolist() == (ids**2).tolist()
            assert batch["sum"].tolist() == [ids.sum()] * len(batch)

    def test_a_failure_reaches_the_caller(self, source: str, engine: Any) -> None:
        settings, take = engine
        with pytest.raises(
            FunctionFailed, match=r"user_functions:raise_key_error raised KeyError"
        ) as caught:
            take(stream_of(source, map=user_functions.raise_key_error, **settings))
        assert caught.value.setting == "map"
        assert caught.value.record == 0

    def test_what_cannot_be_imported(self, source: str, engine: Any) -> None:
        settings, take = engine
        with pytest.raises(ConfigError, match="'map' names 'absent:f'"):
            take(stream_of(source, map="absent:f", **settings))

    def test_a_transform_of_single_records_is_refused(self, source: str, engine: Any) -> None:
        settings, take = engine
        with pytest.raises(ConfigError, match="transform takes whole batches; set batch_size"):
            take(stream_of(source, transform=user_functions.summed, batch_size=None, **settings))


@pytest.fixture
def documents(tmp_path: Path) -> str:
    for shard in range(3):
        with sr.TFRecordWriter(str(tmp_path / f"tokens-{shard}.tfrecord")) as writer:
            for i in range(12):
                first = 1000 * shard + 50 * i
                writer.write({"tokens": list(range(first, first + (5 * i + shard) % 9 + 1))})
    return f"{tmp_path}/tokens-*.tfrecord"


ALL: dict[str, Any] = {
    "batch_size": 2,
    "lanes": 3,
    "shuffle": True,
    "shuffle_window": 900,
    "filter": f"{OWN}:has_even_number",
    "map": f"{OWN}:add_doubles",
    "pack": sr.Pack(16, bins=2),
}
TOKENS = {"tokens": sr.RaggedFeature("int64")}


def arrays(batches: list[Any]) -> list[dict[str, Any]]:
    return [{name: batch[name].tolist() for name in batch} for batch in batches]


class TestAllTogether:
    def test_every_resume_is_exact(self, documents: str, engine: Any) -> None:
        settings, take = engine
        whole = arrays(take(sr.open(documents, TOKENS, **ALL, engine="thread")))
        assert len(whole) == 4
        assert sorted(whole[0]) == [
            f"{name}{suffix}"
            for name in ("doubles", "tokens")
            for suffix in ("", "_positions", "_segment_ids")
        ]
        for k in stops(range(len(whole))):
            first = sr.open(documents, TOKENS, **ALL, **settings)
            head = take(first, k) if k else []
            state = first.state_dict()
            first.close()
            second = sr.open(documents, TOKENS, **ALL, **settings)
            second.load_state_dict(state)
            assert arrays(head + take(second)) == whole
            second.close()

    def test_through_a_feeder(self, documents: str) -> None:
        """A feeder's configuration names functions and packing as plain data."""
        plain = {**ALL, "pack": {"length": 16, "bins": 2}}
        values = {"source": documents, "features": describe(TOKENS), **plain}

        async def main() -> None:
            dataset = await Dataset.open(validate(DatasetSettings, values))
            async with Feeder({"packs": dataset}) as feeder:
                address = f"{await feeder.listen('tcp://127.0.0.1:0')}/packs"
                whole = [b async for b in sr.connect(address, rank=0, world_size=1)]
                for k, batch in enumerate(whole):
                    stream = sr.connect(address, rank=0, world_size=1)
                    stream.load_state_dict(batch.next_position.to_dict())
                    tail = [b async for b in stream]
                    assert arrays(whole[: k + 1] + tail) == arrays(whole)
                    await stream.aclose()
            await dataset.aclose()
            direct = sr.open(documents, TOKENS, **ALL)
            assert arrays(whole) == arrays([b async for b in direct])
            await direct.aclose()

        asyncio.run(main())


@pytest.mark.both_kernels
def test_single_records_are_mapped(source: str) -> None:
    rows = list(stream_of(source, map=user_functions.squared, batch_size=None, engine="thread"))
    assert sorted(int(row["square"]) for row in rows) == [i * i for i in range(30)]


class TestLambdas:
    @pytest.mark.parametrize("engine", [None, "process"])
    def test_in_an_engine_process(self, source: str, engine: Engine | None) -> None:
        factor = 2
        stream = stream_of(source, map=lambda c: {"id": c["id"] * factor}, engine=engine)
        before = engine_processes()
        with stream:
            assert len(engine_processes() - before) == 1
            assert sorted(i for batch in stream for i in batch["id"].tolist()) == [*range(0, 60, 2)]

    def test_of_the_main_program(self, source: str, tmp_path: Path) -> None:
        program = tmp_path / "train.py"
        program.write_text(
            "import sys\nimport streamrec as sr\n"
            "FACTOR = 3\n"
            "def times(columns):\n    return {'id': columns['id'] * FACTOR}\n"
            "features = {'id': sr.FixedLenFeature((), 'int64')}\n"
            "with sr.open(sys.argv[1], features, batch_size=30, map=times) as s:\n"
            "    print(sum(next(s)['id']))\n"
        )
        command = [sys.executable, str(program), source]
        told = subprocess.run(command, capture_output=True, text=True, check=True)
        assert told.stdout.split() == [str(3 * sum(range(30)))]

    def test_a_thread_reads_where_one_cannot_be_sent(self, source: str) -> None:
        lock = threading.Lock()

        def locked(columns: Any) -> Any:
            with lock:
                return {"id": columns["id"]}

        before = engine_processes()
        stream = stream_of(source, map=locked)
        says = r"a thread reads.*'map' is .*locked.*lock"
        with pytest.warns(UserWarning, match=says) as warned:
            first = next(stream)
        assert [each.filename for each in warned] == [__file__]
        assert engine_processes() == before
        ids = [i for batch in (first, *stream) for i in batch["id"].tolist()]
        assert sorted(ids) == [*range(30)]
        stream.close()
        with (
            pytest.raises(ConfigError, match=r"'map' is .*locked"),
            stream_of(source, map=locked, engine="process"),
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
    with stream_of(source, map=user_functions.squared, engine="thread") as stream:
        next(stream)
        state = stream.state_dict()
    again = stream_of(source, engine="thread")
    again.load_state_dict(state)
    with pytest.raises(
        OtherOrder, match=r"stages was 'map tests.pipeline.user_functions:squared' and is ''"
    ):
        next(again)
    again.close()
