from __future__ import annotations

import pytest

from streamrec.errors import ConfigError
from streamrec.sources.table import FeatureChoice, parse_features, parse_types


def test_a_choice() -> None:
    known = {"b": "bytes", "a": "int64"}
    assert list(FeatureChoice().choose(known, "x")) == ["a", "b"]
    some = FeatureChoice({"a": "float32", "b": None})
    assert some.choose(known, "x") == {"a": "float32", "b": "bytes"}
    assert FeatureChoice(types={"a": "float32"}).choose(known, "x") == {
        "a": "float32",
        "b": "bytes",
    }
    assert FeatureChoice(drop=["b"]).choose(known, "x") == {"a": "int64"}
    with pytest.raises(ConfigError, match="--features: x has no 'c'; choose among a, b"):
        FeatureChoice({"c": None}).choose(known, "x")
    with pytest.raises(ConfigError, match="--type: x has no 'c'"):
        FeatureChoice(types={"c": "int64"}).choose(known, "x")
    with pytest.raises(ConfigError, match="--drop: x has no 'c'"):
        FeatureChoice(drop=["c"]).choose(known, "x")
    with pytest.raises(ConfigError, match="--type has no effect for 'b', which is not written"):
        FeatureChoice({"a": None}, {"b": "bytes"}).choose(known, "x")
    with pytest.raises(ConfigError, match="--type has no effect for 'b'"):
        FeatureChoice(types={"b": "bytes"}, drop=["b"]).choose(known, "x")
    with pytest.raises(ConfigError, match=r"--drop has no effect for 'b', .* not in --features"):
        FeatureChoice({"a": None}, drop=["b"]).choose(known, "x")
    for choice in (FeatureChoice(), FeatureChoice(drop=["a"]), FeatureChoice(key="a")):
        with pytest.raises(ConfigError, match=r"^x has no columns; correct SOURCE$"):
            choice.choose({}, "x")
    with pytest.raises(ConfigError, match="x has no columns left"):
        FeatureChoice(drop=["a", "b"]).choose(known, "x")
    with pytest.raises(ConfigError, match="--key: 'a' is not a feature; choose among b"):
        FeatureChoice({"b": None}, key="a").choose(known, "x")


def test_types() -> None:
    given = ["id=int64", "a=b=float32", "x=bytes"]
    assert parse_types(given) == {"id": "int64", "a=b": "float32", "x": "bytes"}
    for wrong in ("id", "id=", "=int64", "id=int32", "=", ""):
        with pytest.raises(ConfigError, match=f"--type: '{wrong}' must be NAME=TYPE"):
            parse_types([wrong])


def test_features() -> None:
    assert parse_features("a, b = int64") == {"a": None, "b": "int64"}
    for wrong in ("", "a,,b", "a=", "a=text", "=int64", "a,=int64"):
        with pytest.raises(ConfigError, match="as in age=int64,name"):
            parse_features(wrong)
