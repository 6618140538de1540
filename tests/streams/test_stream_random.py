"""Functions with random generators: the same numbers in every engine, on every number of ranks."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import numpy as np
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
from tests.pipeline.small_datasets import write_index
from tests.streams.test_stream import ENGINES

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.streams.stream import Stream

FEATURES = {"id": sr.FixedLenFeature((), "int64")}
OWN = "tests.pipeline.user_functions"
FUNCTIONS: dict[str, Any] = {
    "filter": f"{OWN}:is_drawn",
    "map": user_functions.with_draw,
    "transform": user_functions.with_noise,
}
SHARDS, RECORDS, SEED = 4, 12, 7
FILTER, MAP, TRANSFORM = 1, 2, 3


@pytest.fixture
def source(tmp_path: Path) -> str:
    for shard in range(SHARDS):
        records = [sr.encode_example({"id": 100 * shard + i}) for i in range(RECORDS)]
        (tmp_path / f"{shard}.tfrecord").write_bytes(b"".join(map(frame, records)))
    return f"{tmp_path}/*.tfrecord"


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Any:
    return ENGINES[request.param]


def stream_of(source: str, **settings: Any) -> Stream:
    given = {"batch_size": 3, "lanes": 4, "seed": SEED, "shuffle": True, "shuffle_window": 400}
    return sr.open(source, FEATURES, **{**given, **settings})


def rows(batches: list[Any], *names: str) -> list[Any]:
    return [list(zip(*(batch[name].tolist() for name in names), strict=True)) for batch in batches]


def drawn(stream: Stream) -> dict[int, int]:
    """Return the draw of each record in a run's batches."""
    return dict(pair for batch in rows(list(stream), "id", "draw") for pair in batch)


def philox(setting: int, *place: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[SEED, setting], counter=[0, *place]))


class TestEveryEngine:
    def test_each_draw_follows_from_its_place(self, source: str, engine: Any) -> None:
        settings, take = engine
        stream = stream_of(source, **FUNCTIONS, epochs=2, **settings)
        seen = set()
        for step, batch in enumerate(take(stream)):
            noise = philox(TRANSFORM, batch.epoch, step, 0).integers(1 << 62, size=len(batch))
            assert batch["noise"].tolist() == noise.tolist()
            for id_, draw in zip(batch["id"].tolist(), batch["draw"].tolist(), strict=True):
                pair = divmod(id_, 100)
                epochs = [e for e in (0, 1) if philox(MAP, e, *pair).integers(1 << 62) == draw]
                seen.add((*epochs, *pair))
        kept = {
            (epoch, shard, i)
            for epoch in range(2)
            for shard in range(SHARDS)
            for i in range(RECORDS)
            if philox(FILTER, epoch, shard, i).random() < 0.7
        }
        assert seen == kept
        assert 40 < len(kept) < 90
        stream.close()

    def test_every_resume_is_exact(self, source: str, engine: Any) -> None:
        settings, take = engine
        names = "id", "draw", "noise"
        whole = rows(list(stream_of(source, **FUNCTIONS, engine="thread")), *names)
        for k in stops(range(len(whole))):
            first = stream_of(source, **FUNCTIONS, **settings)
            head = take(first, k) if k else []
            state = json.loads(json.dumps(first.state_dict()))
            first.close()
            second = stream_of(source, **FUNCTIONS, **settings)
            second.load_state_dict(state)
            assert rows(head + take(second), *names) == whole
            second.close()

    def test_single_records(self, source: str, engine: Any) -> None:
        settings, take = engine
        given = {"map": user_functions.with_draw, "batch_size": None}
        records = take(stream_of(source, **given, **settings))
        assert {one["id"]: one["draw"] for one in records} == drawn(
            stream_of(source, map=user_functions.with_draw, engine="thread")
        )


class TestPlaces:
    def test_ranks_share_maps_and_not_transforms(self, source: str) -> None:
        write_index(source, 200)
        alone = drawn(stream_of(source, map=user_functions.with_draw, engine="thread"))
        assert len(set(alone.values())) == SHARDS * RECORDS
        for world_size in (1, 2, 3, 4):
            together: dict[int, int] = {}
            noises = []
            for rank in range(world_size):
                ranks: dict[str, Any] = {"rank": rank, "world_size": world_size, "lanes": 12}
                ranks |= {"index": True, "engine": "thread"}
                given = {"map": user_functions.with_draw, "transform": user_functions.with_noise}
                batches = list(stream_of(source, **given, **ranks))
                together |= dict(pair for b in rows(batches, "id", "draw") for pair in b)
                noises.append([n for batch in batches for n in batch["noise"].tolist()])
            assert together.items() <= alone.items()
            assert len(together) >= 45  # each rank drops a rest
            assert len({n for noise in noises for n in noise}) == sum(map(len, noises))

    @pytest.mark.parametrize(
        "settings",
        [
            {"batch_size": 7},
            {"lanes": 2},
            {"shuffle": False},
            {"index": True},
            {"memory_budget": "8MiB", "prefetch": 1},
        ],
    )
    def test_a_record_draws_the_same_in_every_order(
        self, source: str, settings: dict[str, Any]
    ) -> None:
        if "index" in settings:
            write_index(source, 200)
        given: dict[str, Any] = {"map": user_functions.with_draw, "engine": "thread"}
        assert drawn(stream_of(source, **given, **settings)) == drawn(stream_of(source, **given))

    def test_each_epoch_draws_anew(self, source: str) -> None:
        stream = stream_of(source, map=user_functions.with_draw, engine="thread")
        first, second = drawn(stream), drawn(stream)
        assert first.keys() == second.keys()
        assert not {*first.values()} & {*second.values()}
        stream.set_epoch(0)
        assert drawn(stream) == first
        stream.close()

    def test_each_pass_over_a_component_draws_anew(self, source: str) -> None:
        """Of a mix whose epoch is that of its slowest component."""
        stream = sr.mix(
            {"often": (f"{source[: -len('*.tfrecord')]}0.tfrecord", 0.9), "all": (source, 0.1)},
            FEATURES, batch_size=5, steps_per_epoch=20, map=user_functions.with_draw,
            filter=f"{OWN}:is_drawn", seed=SEED, engine="thread",
        )  # fmt: skip
        batches = list(stream)
        assert {batch.epoch for batch in batches} == {0}
        draws = [draw for batch in batches for draw in batch["draw"].tolist()]
        assert len(set(draws)) == len(draws) == 100
        stream.close()

    def test_packs(self, tmp_path: Path) -> None:
        """A record is mapped in pieces of its lane; its draw does not depend on them."""
        path = tmp_path / "tokens.tfrecord"
        with sr.TFRecordWriter(str(path)) as writer:
            writer.write_many({"tokens": [i] * (i % 5 + 1)} for i in range(40))
        tokens = {"tokens": sr.RaggedFeature("int64")}
        given: dict[str, Any] = {"map": user_functions.with_shift, "pack": sr.Pack(8)}
        batches = list(sr.open(path, tokens, batch_size=4, seed=SEED, engine="thread", **given))
        values = {v for batch in batches for v in batch["tokens"].ravel().tolist() if v}
        shifts = [int(philox(MAP, 0, 0, i).integers(1 << 40)) for i in range(40)]
        assert values == {i + shift for i, shift in enumerate(shifts)}

    def test_masked_rows(self, source: str) -> None:
        write_index(source, 200)
        settings: dict[str, Any] = {"index": True, "remainder": "pad", "batch_size": 5}
        given: dict[str, Any] = {"map": user_functions.with_draw, "engine": "thread"}
        padded = drawn(stream_of(source, **given, **settings))
        assert padded == drawn(stream_of(source, **given))


def test_through_a_feeder(source: str) -> None:
    given = {name: f"{OWN}:{getattr(f, '__name__', 'is_drawn')}" for name, f in FUNCTIONS.items()}
    plain = {"batch_size": 3, "lanes": 4, "seed": SEED, "shuffle": True, "shuffle_window": 400}
    values = {"source": source, "features": describe(FEATURES), **plain, **given}
    names = "id", "draw", "noise"

    async def main() -> list[list[Any]]:
        dataset = await Dataset.open(validate(DatasetSettings, values | {"steps_per_epoch": 4}))
        ranks = []
        async with Feeder({"data": dataset}) as feeder:
            address = f"{await feeder.listen('tcp://127.0.0.1:0')}/data"
            for rank in range(2):
                async with sr.connect(address, rank=rank, world_size=2) as stream:
                    batches = [batch async for batch in stream]
                    batches += [batch async for batch in stream]  # the next epoch
                ranks.append(rows(batches, *names))
        await dataset.aclose()
        return ranks

    direct = []
    for rank in range(2):
        where: dict[str, Any] = {"rank": rank, "world_size": 2, "steps_per_epoch": 4}
        with stream_of(source, **FUNCTIONS, **where, engine="thread") as stream:
            direct.append(rows([*stream, *stream], *names))
    assert asyncio.run(main()) == direct


class TestErrors:
    def test_a_generator_by_another_name(self, source: str) -> None:
        with pytest.raises(
            ConfigError, match="whose parameter 'generator' gets no value; if it is a random"
        ):
            list(stream_of(source, map=lambda columns, generator: columns, engine="thread"))

    def test_records_of_several_shapes(self, source: str) -> None:
        def uneven(columns: Any, rng: np.random.Generator) -> Any:
            return {"x": np.zeros((1, int(columns["id"][0]) % 5))}

        with pytest.raises(
            FunctionFailed, match=r"returned 'x' in several forms .*return sr.Arrays"
        ):
            list(stream_of(source, map=uneven, engine="thread"))

    def test_records_of_several_columns(self, source: str) -> None:
        def uneven(columns: Any, rng: np.random.Generator) -> Any:
            return {f"x{int(columns['id'][0]) % 2}": columns["id"]}

        with pytest.raises(FunctionFailed, match=r"returned the columns \['x\d'\] for one record"):
            list(stream_of(source, map=uneven, engine="thread"))

    def test_a_state_of_another_seed(self, source: str) -> None:
        settings: dict[str, Any] = {"map": user_functions.with_draw, "engine": "thread"}
        with stream_of(source, shuffle=False, **settings) as stream:
            next(stream)
            state = stream.state_dict()
        with stream_of(source, shuffle=False, **settings | {"seed": 8}) as other:
            other.load_state_dict(state)
            with pytest.raises(OtherOrder, match="seed"):
                next(other)
