from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.config.validation import Settings
from streamrec.devstore.refusals import FaultRule
from streamrec.errors import ConfigError
from streamrec.measure.simulation import (
    DEFAULT_FEATURES,
    ByteRate,
    Bytes,
    Part,
    Rate,
    Seconds,
    Simulation,
    Stall,
    _frames_bytes,
    parse_settings,
    parse_simulation,
    sample_records,
    simulated,
)
from streamrec.values.columns import BytesColumn

if TYPE_CHECKING:
    from collections.abc import Mapping

FEATURES = {
    "label": sr.FixedLenFeature((), "int64"),
    "flag": sr.FixedLenFeature((), "bool"),
    "small": sr.FixedLenFeature((3,), "int8"),
    "vector": sr.FixedLenFeature((2, 3), "float32"),
    "half": sr.FixedLenFeature((4,), "float16"),
    "name": sr.FixedLenFeature((), "bytes"),
    "names": sr.FixedLenFeature((2,), "bytes"),
    "grid": sr.FixedLenFeature((2, 2), "uint16", raw=True),
    "tokens": sr.VarLenFeature("int64"),
    "words": sr.VarLenFeature("bytes"),
    "steps": sr.FixedLenSequenceFeature((2,), "float32", allow_missing=True),
    "pairs": sr.FixedLenSequenceFeature((2,), "bytes", allow_missing=True),
    "ragged": sr.RaggedFeature("int64"),
    "picture": sr.Image(channels=3, resize=(8, 8)),
}


def read(tmp_path: Path, features: Mapping[str, Any], number: int) -> Any:
    with sr.TFRecordWriter(tmp_path / "shard") as writer:
        writer.write_many(sample_records(features, number))
    with sr.open(tmp_path / "shard", features, batch_size=number, engine="thread") as stream:
        return next(iter(stream))


def test_records_hold_the_features(tmp_path: Path) -> None:
    batch = read(tmp_path, FEATURES, 10)
    assert set(batch) == set(FEATURES)
    assert {len(batch[name]) for name in FEATURES} == {10}
    assert len(set(batch["label"].tolist())) > 1
    assert batch["picture"].shape == (10, 8, 8, 3)


def test_the_default_is_pictures(tmp_path: Path) -> None:
    records = sample_records(DEFAULT_FEATURES, 16)
    assert 60_000 < int(records.offsets[-1]) / 16 < 120_000
    assert len(read(tmp_path, DEFAULT_FEATURES, 16)["image"]) == 16


def test_they_are_the_same_each_time() -> None:
    features = {name: FEATURES[name] for name in ("vector", "words")}
    first, again = sample_records(features, 5), sample_records(features, 5)
    assert list(first) == list(again)


@pytest.mark.parametrize(
    "spec",
    [
        sr.SparseFeature("i", "v", "float32", 10),
        sr.Image(shape=(8, 8)),
        sr.RaggedFeature("int64", partitions=[sr.RaggedFeature.RowSplits("splits")]),
    ],
)
def test_what_cannot_be_made_up_is_refused(spec: Any) -> None:
    with pytest.raises(ConfigError, match=r"'x' is .* can make no values; name a local shard"):
        sample_records({"x": spec}, 1)


EVERYTHING = (
    "latency=50ms,jitter=30%,bandwidth=60MB/s,stall=1%:10s,link=10Gbit,requests=3500/s,"
    "listing=2s,errors=0.1%,seed=7"
)


def test_a_text() -> None:
    assert parse_simulation(EVERYTHING) == Simulation(
        latency=0.05,
        jitter=0.3,
        bandwidth=60_000_000,
        stall=Stall(probability=0.01, seconds=10.0),
        link=1_250_000_000,
        requests=3500.0,
        listing=2.0,
        errors=0.001,
        seed=7,
    )
    assert parse_simulation("") == Simulation()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("latancy=50ms", "^the simulation: there is no setting 'latancy'; did you mean 'latency'"),
        ("stall=10s", r"'stall' is '10s'; write how many and how long, such as 1%:10s"),
        ("stall=1%:ten", "'stall' is 'ten'; write a time"),
        ("stall=200%:1s", "'stall' is .*less than or equal to 1"),
        ("errors=2", "'errors' is '2' but must be less than or equal to 1"),
        ("seed=x", "'seed' is 'x' but must be a valid integer"),
    ],
)
def test_a_wrong_text(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_simulation(text)


def test_the_documentation_names_each_setting() -> None:
    page = Path(sr.__file__).parents[1] / "docs/how-to/plan-and-simulate.md"
    assert set(re.findall(r"^\| `(\w+)` \|", page.read_text(), re.MULTILINE)) == set(
        Simulation.model_fields
    )


def test_faults_are_rules_of_the_store() -> None:
    assert FaultRule.from_json(parse_simulation(EVERYTHING).faults()) == [
        FaultRule(ranged=True, probability=0.01, stall_after=16 << 10, stall=10.0),
        FaultRule(ranged=True, probability=0.001, status=503),
    ]
    assert parse_simulation("latency=1s").faults() == []


def statistics(endpoint: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{endpoint}/_devstore/statistics", timeout=30) as answer:
        plain: dict[str, Any] = json.loads(answer.read())
    return plain


def test_ten_thousand_shards_that_can_be_read() -> None:
    with simulated(EVERYTHING, 10_000, 128_000_000) as store:
        assert store.shard_bytes == pytest.approx(128_000_000, rel=0.01)
        options = store.storage_options
        shards = "s3://simulation/shard-{00000..00001}-of-10000.tfrecord"
        with sr.open(
            shards, store.features, batch_size=8, lanes=2, storage_options=options, engine="thread"
        ) as stream:
            batch = next(iter(stream))
        seen = statistics(store.endpoint)
    assert len(batch["image"]) == 8
    assert seen["by_kind"].keys() == {"GetObject"}


def test_records_of_given_features_and_shards_of_a_template(tmp_path: Path) -> None:
    features = {"x": sr.FixedLenFeature((4,), "float32")}
    with simulated("", 2, 10_000, features=features) as store:
        source, options = store.source, store.storage_options
        with sr.open(
            source, features, batch_size=4, storage_options=options, engine="thread"
        ) as stream:
            assert sum(len(batch["x"]) for batch in stream) * 32 == pytest.approx(20_000, rel=0.5)
    template = tmp_path / "mine{}.tfrecord"
    with sr.TFRecordWriter(template) as writer:
        writer.write_many([b"one", b"two"])
    with simulated("", 3, 100, template=template) as store:
        source, options = store.source, store.storage_options
        with sr.open(source, None, storage_options=options, lanes=1, engine="thread") as stream:
            assert [bytes(record) for record in stream] == [b"one", b"two"] * 9
        assert store.shard_bytes == 3 * template.stat().st_size
        assert store.features is None


def test_the_bytes_of_frames() -> None:
    assert _frames_bytes(BytesColumn.of([b"a", b"bcd"])) == 1 + 3 + 2 * 16


def test_a_template_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"/none cannot be repeated as a shard .*No such file"):
        with simulated("", 1, 1, template=Path("/none")):
            pass


class Given(Settings):
    time: Seconds = 1.0
    part: Part = 0.0
    rate: Rate | None = None
    size: Bytes = 1
    speed: ByteRate | None = None


def given_by(text: str) -> Given:
    return parse_settings(Given, text, where="--given")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        (" , ", {}),
        ("time=50ms", {"time": 0.05}),
        ("time = 2s , part=30%", {"time": 2.0, "part": 0.3}),
        ("time=.5us", {"time": 5e-7}),
        ("time=8µs", {"time": 8e-6}),
        ("time=5min", {"time": 300.0}),
        ("time=1.5h", {"time": 5400.0}),
        ("time=0s", {"time": 0.0}),
        ("part=0.25", {"part": 0.25}),
        ("rate=3500/s", {"rate": 3500.0}),
        ("rate=0.5", {"rate": 0.5}),
        ("size=128MB", {"size": 128_000_000}),
        ("size=1MiB", {"size": 1 << 20}),
        ("speed=60MB/s", {"speed": 60_000_000}),
        ("speed=10Gbit", {"speed": 1_250_000_000}),
        ("speed=100 Mbit/s", {"speed": 12_500_000}),
    ],
)
def test_quantities(text: str, values: dict[str, float]) -> None:
    assert given_by(text) == Given(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("time", r"^--given: 'time' has no value; write it like NAME=VALUE$"),
        ("time=1s,time=2s", "'time' is there twice; leave one of them out"),
        ("tme=1s", "there is no setting 'tme'; did you mean 'time'"),
        ("time=50", "'time' is '50'; write a time and its unit, such as 50ms or 2s"),
        ("time=-1s", "write a time and its unit"),
        ("time=1d", "write a time and its unit"),
        ("part=many", "'part' is 'many'; write a part, such as 30% or 0.3"),
        ("rate=fast", "write a number a second, such as 3500/s"),
        ("rate=0/s", "'rate'.*greater than 0"),
        ("size=big", "write bytes and their unit, such as 128MB"),
        ("size=0", "'size'.*greater than 0"),
        ("speed=60MB/m", "write a rate such as 60MB/s or 10Gbit"),
        ("speed=10Gb", "write a rate such as 60MB/s or 10Gbit"),
        ("speed=10Gbps", "write a rate such as 60MB/s or 10Gbit"),
        ("time=1,part=x", "'time'.*; the setting 'part'"),
    ],
)
def test_wrong_texts_end_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        given_by(text)


@given(st.integers(0, 10**9))
def test_numbers_of_python_are_taken_as_they_are(number: int) -> None:
    assert Given(time=number, speed=number + 1) == given_by(f"time={number}s,speed={number + 1}B/s")


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        given_by(text)
    except ConfigError as error:
        assert str(error).startswith("--given: ")
