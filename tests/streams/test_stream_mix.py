"""Mixes through every engine, and a feeder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.config import DatasetSettings, validate
from streamrec.errors import ConfigError
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline.batch.batch import Batch
from streamrec.pipeline.batch.origin import Components, Origin
from tests.by_day import stops
from tests.feeder.support import serving
from tests.streams.test_stream import ENGINES

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.streams.stream import Stream

FEATURES = {"id": sr.FixedLenFeature((), "int64")}
ORDER: dict[str, Any] = {"batch_size": 5, "shuffle": True, "steps_per_epoch": 12, "lanes": 2}


@pytest.fixture
def components(tmp_path: Path) -> dict[str, str]:
    for number, name in enumerate(["code", "web"]):
        (tmp_path / name).mkdir()
        for shard in range(3):
            first = 1000 * number + 100 * shard
            records = [sr.encode_example({"id": first + i}) for i in range(10)]
            (tmp_path / name / f"{shard}.tfrecord").write_bytes(b"".join(map(frame, records)))
    return {name: f"{tmp_path}/{name}/*.tfrecord" for name in ("web", "code")}


def mix_of(components: dict[str, str], **settings: Any) -> Stream:
    web, code = components["web"], components["code"]
    return sr.mix({"web": (web, 0.6), "code": (code, 0.4)}, FEATURES, **{**ORDER, **settings})


def rows(batches: list[Batch]) -> list[tuple[int, str]]:
    return [
        (int(number), str(name))
        for batch in batches
        for number, name in zip(batch["id"], batch.source, strict=True)
    ]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Any:
    return ENGINES[request.param]


class TestEveryEngine:
    def test_the_same_mix(self, components: dict[str, str], engine: Any) -> None:
        settings, take = engine
        seen = rows(take(mix_of(components, **settings)))
        assert seen == rows(list(mix_of(components, engine="thread")))
        assert len(seen) == 60
        assert all((number >= 1000) == (name == "web") for number, name in seen)

    def test_stop_at_every_k(self, components: dict[str, str], engine: Any) -> None:
        settings, take = engine
        whole = take(mix_of(components, **settings))
        for k in (1, 4, 9):
            resumed = mix_of(components, **settings)
            resumed.load_state_dict(json.loads(json.dumps(whole[k - 1].next_position.to_dict())))
            assert rows(whole[:k] + take(resumed)) == rows(whole)


def test_through_a_feeder(components: dict[str, str]) -> None:
    weights = {"web": 0.6, "code": 0.4}
    given = {"source": components, "weights": weights, "features": describe(FEATURES), **ORDER}
    with serving(validate(DatasetSettings, given)) as place:
        address = f"{place}/data"
        with sr.connect(address) as stream:
            whole = list(stream)
            counts = dict.fromkeys(components, 0)
            for _, name in rows(whole):
                counts[name] += 1
            assert stream.statistics()["components"] == counts
        assert rows(whole) == rows(list(mix_of(components, engine="thread")))
        for k in stops(range(1, 12)):
            resumed = sr.connect(address)
            resumed.load_state_dict(whole[k - 1].next_position.to_dict())
            with resumed:
                assert rows(whole[:k] + list(resumed)) == rows(whole)


def test_single_records_and_runs_one_after_the_other(components: dict[str, str]) -> None:
    values = {"batch_size": None, "steps_per_epoch": None, "exhausted": "rest", "engine": "thread"}
    with mix_of(components, **values) as stream:
        for _ in range(2):
            assert len({row["id"] for row in stream}) == 60


def test_a_schedule_goes_with_sources_alone(components: dict[str, str]) -> None:
    weights = [(0, {"web": 1, "code": 0}), (30, {"web": 0, "code": 1})]
    given = {**ORDER, "shuffle": False, "engine": "thread"}
    with sr.mix(components, FEATURES, weights=weights, **given) as stream:
        assert [set(batch.source.tolist()) for batch in stream] == [{"web"}] * 6 + [{"code"}] * 6


class TestRefusals:
    def test_weights_are_given_once(self, components: dict[str, str]) -> None:
        pairs = {name: (source, 1) for name, source in components.items()}
        wrong: list[tuple[Any, Any]] = [
            (components, None),
            (pairs, [(0, {"web": 1, "code": 1})]),
            ({**components, "web": pairs["web"]}, None),
        ]
        for parts, weights in wrong:
            with pytest.raises(ConfigError, match="a mix takes a weight with each source"):
                sr.mix(parts, FEATURES, weights=weights, steps_per_epoch=1)

    def test_open_takes_no_components(self, components: dict[str, str]) -> None:
        with pytest.raises(ConfigError, match=r"mix them with streamrec\.mix"):
            sr.open(components)  # type: ignore[call-overload]

    def test_two_urls_are_no_pair(self, components: dict[str, str]) -> None:
        urls = tuple(components.values())
        with sr.mix({"all": (urls, 1)}, FEATURES, **ORDER, engine="thread") as stream:
            assert len(list(stream)) == 12

    def test_a_name_that_is_wrong(self, components: dict[str, str]) -> None:
        with pytest.raises(ConfigError, match="did you mean 'exhausted'"):
            mix_of(components, exhaust="stop")


def test_where_the_rows_of_a_batch_came_from() -> None:
    components = Components(("a", "empty", "z"), (0, 3, 3))
    shards = np.array([0, 2, 3, 9, -1], np.int32)
    origin = Origin(shards, np.zeros(5, np.int64))
    batch = Batch({}, 5, 0, origin, None, components=components)  # type: ignore[arg-type]
    assert batch.source.tolist() == ["a", "a", "z", "z", ""]
    assert components.rows_of(shards) == {"a": 2, "empty": 0, "z": 2}
    plain = Batch({}, 5, 0, origin, None)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match=r"only streams of streamrec\.mix"):
        _ = plain.source
