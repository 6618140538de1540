"""Windows of episodes beside those that NumPy cuts out of each whole episode."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.errors import (
    ConfigError,
    DataError,
    MalformedImage,
    MalformedPosition,
    WrongFeatureType,
)
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.examples.episode_windows import first_steps
from streamrec.plan.state.position import Position
from streamrec.values.record_rows import RecordRows
from tests.by_day import each_once, stops
from tests.feeder.support import serving
from tests.pipeline.small_datasets import settings_of

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = (5, 1, 0, 9, 3, 7, 2, 8, 4, 6)
"""The steps of each episode; they are in three shards."""
UNIFORM = sr.RaggedFeature.UniformRowLength
FEATURES: dict[str, Any] = {
    "episode": sr.FixedLenFeature((), "int64"),
    "task": sr.FixedLenFeature((), "bytes"),
    "image": sr.Image((4, 5), sequence=True),
    "action": sr.RaggedFeature("float32", partitions=[UNIFORM(2)]),
    "text": sr.VarLenFeature("bytes"),
}
FEW: dict[str, Any] = {
    "memory_budget": "32MiB",
    "shuffle_window": 3000,
    "max_concurrency": 8,
    "engine": "thread",
    "lanes": 2,
    "batch_size": 3,
}


def episode(number: int) -> dict[str, Any]:
    rng, steps = np.random.default_rng(number), LENGTHS[number]
    return {
        "episode": number,
        "task": f"task {number}",
        "image": rng.integers(0, 256, (steps, 4, 5, 3)).astype(np.uint8),
        "action": rng.normal(size=(steps, 2)).astype(np.float32),
        "text": [f"{number}/{step}".encode() for step in range(steps)],
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("episodes")
    for shard, numbers in enumerate((range(4), range(4, 7), range(7, 10))):
        with sr.TFRecordWriter(place / f"e-{shard}.tfrecord") as writer:
            for number in numbers:
                one = episode(number)
                pictures = [sr.encode_png(picture) for picture in one["image"]]
                writer.write({**one, "image": pictures, "action": one["action"].reshape(-1)})
    return f"{place}/e-*.tfrecord"


def expected(number: int, first: int, setting: sr.Window) -> dict[str, Any]:
    """Cut one window out of an episode."""
    one, last = episode(number), LENGTHS[number] - 1
    count = {name: setting.steps_of(name) for name in ("image", "action", "text")}
    steps = {n: [min(max(first + k, 0), last) for k in range(count[n])] for n in count}
    return {
        "episode": number,
        "task": f"task {number}".encode(),
        "image": one["image"][steps["image"]],
        "action": one["action"][steps["action"]],
        "text": [one["text"][step] for step in steps["text"]],
        "window/first": first,
        "window/mask": np.array([0 <= first + k <= last for k in range(setting.length)]),
    }


def rows(stream: Any) -> list[dict[str, Any]]:
    return [
        {name: column[row] for name, column in batch.items()}
        for batch in stream
        for row in range(len(batch))
    ]


def names(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(int(row["episode"]), int(row["window/first"])) for row in found]


SETTINGS = {
    "end": sr.Window(3),
    "start": sr.Window(3, stride=2, pad="start"),
    "inside": sr.Window(3, stride=2, pad=None, future={"action": 2}),
    "one": sr.Window(1, pad=None),
}


@pytest.mark.parametrize(("name", "shuffle"), each_once([*SETTINGS], [False, True]))
def test_windows_are_those_of_numpy(source: str, name: str, shuffle: bool) -> None:
    setting = SETTINGS[name]
    with sr.open(source, FEATURES, window=setting, shuffle=shuffle, **FEW) as stream:
        found = rows(stream)
    wanted = [
        (number, int(first))
        for number, steps in enumerate(LENGTHS)
        for first in first_steps(steps, setting)
    ]
    assert sorted(names(found)) == sorted(wanted)
    for row in found:
        window = expected(int(row["episode"]), int(row["window/first"]), setting)
        assert row.keys() == window.keys()
        for column, value in window.items():
            np.testing.assert_array_equal(row[column], value, err_msg=column)


@given(steps=st.integers(0, 30), length=st.integers(1, 9), stride=st.integers(1, 9))
def test_first_steps(steps: int, length: int, stride: int) -> None:
    inside = first_steps(steps, sr.Window(length, stride, pad=None)).tolist()
    assert inside == [k for k in range(0, steps, stride) if k + length <= steps]
    end = first_steps(steps, sr.Window(length, stride)).tolist()
    assert end == list(range(0, steps, stride))
    start = first_steps(steps, sr.Window(length, stride, pad="start")).tolist()
    assert start == [k - length + 1 for k in end]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_resume_goes_on_at_each_step(source: str, shuffle: bool, mixed: bool) -> None:
    settings: dict[str, Any] = {**FEW, "window": sr.Window(3), "shuffle": shuffle}

    def opened() -> Any:
        if not mixed:
            return sr.open(source, FEATURES, epochs=2, **settings)
        parts = {"a": (source, 0.7), "b": (source, 0.3)}
        return sr.mix(parts, FEATURES, epochs=None, **settings)

    with opened() as stream:
        whole = names(rows(sr.take(stream, 24)))
    for stop in stops(range(1, 24)):
        with opened() as stream:
            first = names(rows(sr.take(stream, stop)))
            state = json.loads(json.dumps(stream.state_dict()))
        with opened() as stream:
            stream.load_state_dict(state)
            assert first + names(rows(sr.take(stream, 24 - stop))) == whole


def test_global_batches_do_not_depend_on_the_ranks(source: str) -> None:
    settings: dict[str, Any] = {**FEW, "window": sr.Window(2), "shuffle": True}
    settings |= {"steps_per_epoch": 5}
    with sr.open(source, FEATURES, **{**settings, "batch_size": 4}) as stream:
        alone = [sorted(names(rows([batch]))) for batch in stream]
    settings["batch_size"] = 2
    with (
        sr.open(source, FEATURES, rank=0, world_size=2, **settings) as one,
        sr.open(source, FEATURES, rank=1, world_size=2, **settings) as two,
    ):
        both = [sorted(names(rows(pair))) for pair in zip(one, two, strict=True)]
    assert both == alone


def test_a_filter_sees_whole_episodes(source: str) -> None:
    def long(columns: Any) -> Any:
        return np.diff(columns["text"].row_splits) > 7

    with sr.open(source, FEATURES, window=sr.Window(2), filter=long, **FEW) as stream:
        assert {number for number, _ in names(rows(stream))} == {3, 7}


@pytest.mark.parametrize(
    ("features", "setting", "why"),
    [
        ({**FEATURES, "image": sr.Image(sequence=True)}, sr.Window(2), "need one size"),
        (FEATURES, sr.Window(2, future={"actoin": 2}), "did you mean 'action'"),
        ({"episode": FEATURES["episode"]}, sr.Window(2), "no feature holds a step's values"),
    ],
)
def test_features_that_cannot_be_cut(source: str, features: Any, setting: Any, why: str) -> None:
    with (
        pytest.raises(ConfigError, match=why),
        sr.open(source, features, window=setting, **FEW) as stream,
    ):
        next(stream)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"length": 0}, "takes integers from 1 up"),
        ({"length": 2, "stride": True}, "takes integers from 1 up"),
        ({"length": 2, "pad": "both"}, 'choose "end", "start" or None'),
        ({"length": 2, "future": {"a": 0}}, "takes integers from 1 up"),
    ],
)
def test_wrong_arguments(values: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        sr.Window(**values)


def test_settings_that_do_not_go_together(source: str) -> None:
    with pytest.raises(ConfigError, match="'window' needs the features of the steps"):
        sr.open(source, window=sr.Window(2))
    with pytest.raises(ConfigError, match="which need no pack"):
        sr.open(source, FEATURES, window=sr.Window(2), pack=sr.Pack(8))


def test_features_of_different_lengths(tmp_path: Path) -> None:
    with sr.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        writer.write({"a": [1, 2], "b": [1, 2, 3]})
    features = {"a": sr.VarLenFeature("int64"), "b": sr.VarLenFeature("int64")}
    with (
        pytest.raises(WrongFeatureType, match="the episode has 3 steps here, and 2 in feature 'a'"),
        sr.open(tmp_path / "x.tfrecord", features, window=sr.Window(2), **FEW) as stream,
    ):
        next(stream)


def test_a_damaged_picture_names_its_record(tmp_path: Path) -> None:
    good = sr.encode_png(np.zeros((4, 5, 3), np.uint8))
    with sr.TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        writer.write_many([{"image": [good]}, {"image": [good, b"x", good]}])
    features = {"image": FEATURES["image"]}
    with (
        pytest.raises(MalformedImage) as caught,
        sr.open(tmp_path / "x.tfrecord", features, window=sr.Window(1), **FEW) as stream,
    ):
        list(stream)
    assert (caught.value.record, caught.value.feature) == (1, "image")


def test_a_state_of_more_windows_than_an_episode_has(source: str) -> None:
    settings: dict[str, Any] = {**FEW, "lanes": 1, "window": sr.Window(2), "batch_size": 2}
    with sr.open(source, FEATURES, **settings) as stream:
        next(stream)
        position = Position.from_dict(stream.state_dict())
    lanes = position.lanes.copy()
    lanes["row"] = 7
    with sr.open(source, FEATURES, **settings) as stream:
        stream.load_state_dict(replace(position, lanes=lanes).to_dict())
        with pytest.raises(MalformedPosition, match="7 windows of an episode were delivered, but"):
            next(stream)


@pytest.mark.parametrize("engine", ["process", None])
def test_each_engine_cuts_windows(source: str, engine: Any) -> None:
    settings: dict[str, Any] = {**FEW, "window": sr.Window(2, future={"action": 1})}
    with sr.open(source, FEATURES, **settings) as stream:
        expected = names(rows(stream))
    with sr.open(source, FEATURES, **{**settings, "engine": engine}) as stream:
        assert names(rows(stream)) == expected


def test_a_feeder_cuts_windows(source: str) -> None:
    plain: dict[str, Any] = {"length": 2, "stride": 2, "future": {"text": 1}}
    settings = {n: value for n, value in FEW.items() if n not in ("engine", "batch_size")}
    dataset = settings_of(source, features=describe(FEATURES), window=plain, **settings)
    with serving(dataset) as address, sr.connect(f"{address}/data", batch_size=3) as stream:
        found = names(rows(stream))
    with sr.open(source, FEATURES, window=sr.Window(**plain), **FEW) as stream:
        assert names(rows(stream)) == found


def test_the_bytes_of_rows_that_share_a_record() -> None:
    rows = RecordRows.of([b"x" * 10, b"y" * 30]).pick(np.array([0, 0, 1]))
    assert rows.nbytes == 50
    windows = replace(rows, steps=np.array([0, 1, 0]))
    assert windows.shares.tolist() == [5, 5, 30]
    assert windows.nbytes == 40


def test_no_audit_log_of_windows(source: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {**FEW, "window": sr.Window(2), "audit": str(tmp_path)}
    with sr.open(source, FEATURES, **settings) as stream:
        with pytest.raises(ConfigError, match="an audit log does not go with episodes"):
            next(stream)


def test_episodes_that_give_no_window(source: str) -> None:
    settings: dict[str, Any] = {**FEW, "window": sr.Window(50, pad=None), "epochs": None}
    with sr.open(source, FEATURES, **settings) as stream:
        with pytest.raises(DataError, match="episodes gave no window"):
            next(stream)


def test_a_cache_of_mapped_windows_tells_them_apart(source: str, tmp_path: Path) -> None:
    def mapped(columns: Any) -> Any:
        return {"first": columns["window/first"], "text": columns["text"]}

    cache = {"of": "mapped", "folder": str(tmp_path), "key": "first"}
    for length in (2, 3):
        settings: dict[str, Any] = {**FEW, "window": sr.Window(length), "map": mapped}
        with sr.open(source, FEATURES, **settings) as stream:
            wanted = [(row["first"], row["text"]) for row in rows(stream)]
        for is_filled in (False, True):
            with sr.open(source, FEATURES, cache=cache, **settings) as stream:
                assert [(row["first"], row["text"]) for row in rows(stream)] == wanted
                cached = stream.statistics()["cached_mapped"]
                assert cached == len(wanted) or not is_filled
