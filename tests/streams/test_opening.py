from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.config import DatasetSettings, StreamSettings
from streamrec.errors import ConfigError
from streamrec.formats.examples.specs import FixedLenFeature
from streamrec.streams import opening
from streamrec.streams.start import FeederSettings

if TYPE_CHECKING:
    from streamrec.streams.stream import Stream


def described(stream: Stream) -> StreamSettings:
    assert isinstance(stream._description, StreamSettings)
    return stream._description


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("s3://bucket/x-*", "s3://bucket/x-*"),
        (Path("/data/x"), "/data/x"),
        (["/a", Path("/b")], ["/a", "/b"]),
    ],
)
def test_sources_are_texts_and_paths_and_lists(source: Any, expected: Any) -> None:
    assert described(opening.open(source)).source == expected


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("features", "the feeder's configuration decides it; set it there"),
        ("shuffle", "the feeder's configuration decides it; set it there"),
        ("batch", "has no setting 'batch': it is batch_size"),
        ("worldsize", "has no setting 'worldsize'; did you mean 'world_size'"),
    ],
)
def test_what_a_client_does_not_decide_is_said(name: str, says: str) -> None:
    connect: Any = opening.connect
    with pytest.raises(ConfigError, match=says):
        connect("tcp://127.0.0.1:1/data", **{name: 3})


def test_nothing_is_read_before_it_is_iterated() -> None:
    assert "closed, step 0" in repr(opening.open("/nothing/here-*"))


def test_features_are_described_as_plain_data() -> None:
    stream = opening.open("/x", {"label": FixedLenFeature((), "int64")}, batch_size=4)
    dataset = described(stream).dataset()
    assert isinstance(dataset, DatasetSettings)
    assert isinstance(dataset.features, dict)
    assert DatasetSettings(**dataset.model_dump(mode="json")).features == dataset.features


def test_settings_may_be_paths(tmp_path: Path) -> None:
    assert described(opening.open("/x", index=tmp_path / "i")).index == f"{tmp_path}/i"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"source": {"a": "/x"}}, "mix them with streamrec.mix"),
        ({"source": "/x", "batch_sise": 4}, "batch_size"),
        ({"source": "/x", "batch_size": 0}, "batch_size"),
        ({"source": 7}, "source|URL"),
    ],
)
def test_what_is_wrong_is_said_at_once(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        opening.open(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"components": {"a": ("/x", 0.7), "b": ("/y", 0.3)}},
        {"components": {"a": "/x", "b": "/y"}, "weights": [(0, {"a": 0.7, "b": 0.3})]},
    ],
)
def test_a_mix_names_its_sources_and_weights(arguments: dict[str, Any]) -> None:
    settings = described(opening.mix(**arguments, exhausted="stop"))
    assert settings.source == {"a": "/x", "b": "/y"}
    assert settings.weights is not None
    assert [dict(weights) for _, weights in settings.weights] == [{"a": 0.7, "b": 0.3}]


@pytest.mark.parametrize(
    ("components", "weights"),
    [
        (["/x", "/y"], None),
        ({"a": "/x"}, None),
        ({"a": ("/x", 1.0), "b": "/y"}, None),
        ({"a": ("/x", 1.0)}, [(0, {"a": 1.0})]),
    ],
)
def test_a_mix_takes_each_weight_once(components: Any, weights: Any) -> None:
    with pytest.raises(ConfigError, match="a mix"):
        opening.mix(components, weights=weights)


def test_a_feeder_is_described_and_not_called() -> None:
    stream = opening.connect("tcp://feeder:7070/train", rank=1, world_size=2, token="secret")
    assert isinstance(stream._description, FeederSettings)
    assert stream._description.stall_timeout == 300
    assert stream._description.connect_timeout == 10
    assert stream._description.retry_for == 600
    assert "secret" not in repr(stream._description)
    with pytest.raises(ConfigError, match="is not an address of a feeder"):
        opening.connect("feeder:7070")
