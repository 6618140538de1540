"""Mixes of sources that name features differently, beside those that name them alike."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.errors import ConfigError, MissingFeature
from streamrec.formats.examples import renaming
from streamrec.formats.examples.descriptions import describe
from tests.by_day import stops
from tests.feeder.support import serving
from tests.pipeline.made_folders import FEATURES as OF_A_FOLDER
from tests.pipeline.made_folders import make_folder
from tests.pipeline.small_datasets import settings_of, write_index

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.both_kernels

NAMES = {"obs/photo": "obs/image", "motion": "action", "word": "text"}
"""The names in the component ``b``, as long as those in ``a``: windows are cut by bytes."""
RENAME = {"b": NAMES}
FEATURES: dict[str, Any] = {
    "id": sr.FixedLenFeature((), "int64"),
    "obs/image": sr.Image((2, 3), sequence=True),
    "action": sr.RaggedFeature("float32", partitions=[sr.RaggedFeature.UniformRowLength(2)]),
    "words": sr.VarLenFeature("bytes", key="text"),
}
FEW: dict[str, Any] = {
    "memory_budget": "32MiB",
    "shuffle_window": 3000,
    "max_concurrency": 8,
    "engine": "thread",
    "lanes": 2,
    "batch_size": 4,
    "steps_per_epoch": 6,
}


def record(number: int, names: Mapping[str, str]) -> dict[str, Any]:
    rng, steps = np.random.default_rng(number), number % 5
    values = {
        "id": number,
        "obs/image": [
            sr.encode_png(rng.integers(0, 256, (2, 3, 3)).astype(np.uint8)) for _ in range(steps)
        ],
        "action": rng.normal(size=2 * steps).astype(np.float32),
        "text": [f"{number}/{step}".encode() for step in range(steps)],
    }
    stored = {new: old for old, new in names.items()}
    return {stored.get(name, name): value for name, value in values.items()}


def write(place: Path, first: int, names: Mapping[str, str]) -> str:
    place.mkdir(parents=True)
    for shard in range(2):
        with sr.TFRecordWriter(place / f"s-{shard}.tfrecord") as writer:
            writer.write_many(record(first + 10 * shard + k, names) for k in range(10))
    write_index(f"{place}/s-*.tfrecord", 900)
    return f"{place}/s-*.tfrecord"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    place = tmp_path_factory.mktemp("collections")
    named: dict[str, Mapping[str, str]] = {"a": {}, "b": NAMES, "alike": {}}
    firsts = {"a": 0, "b": 100, "alike": 100}
    return {name: write(place / name, firsts[name], names) for name, names in named.items()}


def rows(stream: Any) -> list[dict[str, Any]]:
    return [
        {name: np.asarray(column[row], dtype=None).tolist() for name, column in batch.items()}
        for batch in stream
        for row in range(len(batch))
    ]


def mixed(sources: Mapping[str, str], second: str, features: Any = FEATURES, **more: Any) -> Any:
    parts = {"a": (sources["a"], 0.6), "b": (sources[second], 0.4)}
    rename = RENAME if second == "b" else None
    return sr.mix(parts, features, rename=rename, **{**FEW, **more})


def long(columns: Mapping[str, Any]) -> Any:
    return np.diff(columns["words"].row_splits) > 1


def joined(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": columns["id"], "all": sr.BytesColumn.of(list(map(b" ".join, columns["words"])))}


STAGES: dict[str, dict[str, Any]] = {
    "records": {"shuffle": True},
    "an index": {"shuffle": True, "index": True},
    "windows": {"shuffle": True, "window": sr.Window(2, future={"action": 1})},
    "functions": {"filter": long, "map": joined},
    "dtypes": {"dtypes": {"id": "int32"}},
}


@pytest.mark.parametrize("name", STAGES)
def test_batches_are_those_of_equal_names(sources: dict[str, str], name: str) -> None:
    with mixed(sources, "alike", **STAGES[name]) as stream:
        wanted = rows(stream)
    with mixed(sources, "b", **STAGES[name]) as stream:
        assert rows(stream) == wanted
    assert {row["id"] >= 100 for row in wanted} == {True, False}


def test_packs(sources: dict[str, str]) -> None:
    features = {"n": sr.VarLenFeature("float32", key="action")}
    more = {"pack": sr.Pack(5), "batch_size": 2, "steps_per_epoch": 4}
    with mixed(sources, "alike", features, **more) as stream:
        wanted = rows(stream)
    with mixed(sources, "b", features, **more) as stream:
        assert rows(stream) == wanted


def test_a_resume_goes_on_with_or_without_other_names(sources: dict[str, str]) -> None:
    settings = {"window": sr.Window(2), "shuffle": True, "epochs": None, "steps_per_epoch": None}
    with mixed(sources, "b", **settings) as stream:
        whole = rows(sr.take(stream, 12))
    for stop in stops(range(1, 12)):
        with mixed(sources, "b", **settings) as stream:
            first = rows(sr.take(stream, stop))
            state = json.loads(json.dumps(stream.state_dict()))
        with mixed(sources, "b", **settings) as stream:
            stream.load_state_dict(state)
            assert first + rows(sr.take(stream, 12 - stop)) == whole


@pytest.mark.parametrize(("ranks", "engine"), [(1, "process"), (2, "thread")])
def test_ranks_and_engines(sources: dict[str, str], ranks: int, engine: Any) -> None:
    settings = {"shuffle": True, "batch_size": 4 // ranks, "engine": engine}
    found, fingerprints = [], []
    for rank in range(ranks):
        with mixed(sources, "b", rank=rank, world_size=ranks, **settings) as stream:
            found += rows(stream)
            fingerprints.append(stream.fingerprint)
    with mixed(sources, "alike", shuffle=True) as stream:
        wanted = rows(stream)
        # Names of features determine no order.
        assert fingerprints == [stream.fingerprint] * ranks
    assert sorted(found, key=str) == sorted(wanted, key=str)


def test_a_feeder_serves_one_set_of_columns(sources: dict[str, str]) -> None:
    parts: Any = {"a": sources["a"], "b": sources["b"]}
    settings = settings_of(
        parts,
        weights={"a": 0.6, "b": 0.4},
        features=describe(FEATURES),
        rename=RENAME,
        shuffle=True,
        **{name: value for name, value in FEW.items() if name not in ("engine", "memory_budget")},
    )
    with mixed(sources, "b", shuffle=True) as stream:
        wanted = rows(stream)
    with serving(settings) as address, sr.connect(f"{address}/data") as stream:
        assert rows(stream) == wanted


def test_one_source(sources: dict[str, str]) -> None:
    settings = {**FEW, "steps_per_epoch": None}
    with sr.open(sources["alike"], FEATURES, **settings) as stream:
        wanted = rows(stream)
    with sr.open(sources["b"], FEATURES, rename=NAMES, **settings) as stream:
        assert rows(stream) == wanted
    typo = sr.open(sources["b"], "infer", rename={**NAMES, "motoin": "z"}, **settings)
    with pytest.raises(ConfigError, match="rename names the feature 'motoin', and the first"):
        next(typo)
    with sr.open(sources["b"], "infer", rename=NAMES, **settings) as stream:
        assert sorted(next(stream)) == ["action", "id", "obs/image", "text"]


def test_names_of_groups_and_folders(tmp_path: Path) -> None:
    one, two = make_folder(tmp_path, name="one"), make_folder(tmp_path, name="two")
    scalar = OF_A_FOLDER["featuresDict"]["features"]["id"]  # type: ignore[index]
    text = (two / "features.json").read_text().replace('"id"', '"number"')
    (two / "features.json").write_text(text.replace('"label"', '"meta/class"'))
    assert json.dumps(scalar)[:20] in text
    for path in two.glob("*.tfrecord-*"):
        records = [sr.Example.FromString(bytes(each)) for each in sr.read_records(path)]
        with sr.TFRecordWriter(path) as writer:
            for each in records:
                values = each.features.feature
                number, label = values["id"].int64_list, values["label"].int64_list
                writer.write({"number": number.value[0], "meta/class": label.value[0]})
    parts = {"one": (str(one), 0.5), "two": (str(two), 0.5)}
    settings: dict[str, Any] = {**FEW, "split": "train", "steps_per_epoch": 4}
    with pytest.raises(ConfigError, match="another feature"), sr.mix(parts, **settings) as stream:
        next(stream)
    rename = {"two": {"number": "id", "meta/class": "label"}}
    with sr.mix(parts, rename=rename, **settings) as stream:
        for batch in stream:
            assert sorted(batch) == ["id", "label"]
            assert (batch["label"] == batch["id"] % 2).all()
    wrong = {"two": {"numbre": "id"}}
    with (
        pytest.raises(ConfigError, match="'numbre'; did you mean 'number'"),
        sr.mix(parts, rename=wrong, **settings) as stream,
    ):
        next(stream)


def test_a_feature_that_is_missing_has_the_name_of_its_record(sources: dict[str, str]) -> None:
    features = {"x": sr.FixedLenFeature((), "int64", key="text/x"), **FEATURES}
    rename = {"b": {**NAMES, "wordy": "text/x"}}
    parts = {"a": (sources["a"], 0.0), "b": (sources["b"], 1.0)}
    with (
        pytest.raises(MissingFeature, match=r"feature wordy: column 'x': .* no such feature"),
        sr.mix(parts, features, rename=rename, **FEW) as stream,
    ):
        next(stream)


@pytest.mark.parametrize(
    ("rename", "why"),
    [
        (NAMES, "'motion', which is not a component|'obs/photo', which is not a component"),
        ({"c": NAMES}, "'c', which is not a component with names of its own"),
        ({"b": {"x": "action", "y": "action"}}, "several features the name 'action'"),
        ({"b": {"action": "text"}}, "features read 'action', which rename calls 'text'"),
        ({"b": {"": "text"}}, "an empty name"),
        ({"b": 3}, "rename"),
    ],
)
def test_names_that_do_not_fit(sources: dict[str, str], rename: Any, why: str) -> None:
    parts = {"a": (sources["a"], 0.5), "b": (sources["b"], 0.5)}
    with pytest.raises(ConfigError, match=why):
        sr.mix(parts, FEATURES, rename=rename, **FEW)


def test_a_name_that_nobody_reads_is_told(
    sources: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    settings = {**FEW, "steps_per_epoch": None}
    rename = {**NAMES, "typo": "nothing", "text": "old text"}
    with sr.open(sources["b"], {"id": FEATURES["id"]}, rename=rename, **settings) as stream:
        next(stream)
    told = [record.getMessage() for record in caplog.records if "rename" in record.getMessage()]
    assert "rename gives 'typo' the name 'nothing', which features does not read" in told
    assert not any("'old text'" in text for text in told)  # it makes room


def test_an_old_name_that_is_mistyped_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its default would stand in each record without a word. A rare feature has one, too."""
    monkeypatch.setattr(renaming, "_told", set())
    path = str(tmp_path / "t.tfrecord")
    with sr.TFRecordWriter(path) as writer:
        writer.write_many({"label": n, **({"weight": n} if n == 5 else {})} for n in range(9))
    spec = sr.FixedLenFeature((), "int64", default_value=0)
    for rename in ({"lable": "y", "weight": "z"}, {"label": "y", "other": "z"}):
        with sr.open(path, {"y": spec, "z": spec}, rename=rename, **{**FEW, "lanes": 1}) as stream:
            next(stream)
    told = [record.getMessage() for record in caplog.records]
    assert [text for text in told if "rename" in text] == [
        "rename names the feature 'lable', which the first records do not have; did you mean "
        "'label'?"
    ]


def test_names_without_a_mix(sources: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="names for 'b' alone"):
        sr.open(sources["a"], FEATURES, rename=RENAME)
    with pytest.raises(ConfigError, match="no effect on raw records"):
        sr.open(sources["a"], rename=NAMES)


def test_a_cache_of_mapped_records_tells_names_apart(
    sources: dict[str, str], tmp_path: Any
) -> None:
    features = {"first": FEATURES["id"], "words": sr.VarLenFeature("bytes", key="text")}
    settings = {**FEW, "steps_per_epoch": None, "map": lambda columns: {"n": _counts(columns)}}
    cache = {"of": "mapped", "folder": str(tmp_path), "key": "counts"}
    features["first"] = sr.FixedLenFeature((), "int64", key="id")
    found = []
    for names in (None, {"word": "text"}):
        with sr.open(sources["b"], features, rename=names, cache=cache, **settings) as stream:
            found.append(sum(row["n"] for row in rows(stream)))
    assert found == [0, sum(number % 5 for number in range(20))]


def _counts(columns: Mapping[str, Any]) -> Any:
    return np.diff(columns["words"].row_splits)
