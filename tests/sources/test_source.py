from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from streamrec.errors import ConfigError
from streamrec.sources.source import FeatureChoice, files_digest, files_of

if TYPE_CHECKING:
    from pathlib import Path


def test_files(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "c.txt"):
        (tmp_path / name).write_text(name)
    a, b = str(tmp_path / "a.csv"), str(tmp_path / "b.csv")
    assert list(map(str, files_of(a))) == [a]
    found = files_of(str(tmp_path), (".csv",))
    assert found == files_of(f"{tmp_path}/*.csv")
    assert list(map(str, found)) == [a, b]
    with pytest.raises(ConfigError, match="there is no such file"):
        files_of(f"{tmp_path}/*.tar")


def test_a_digest_follows_names_sizes_and_times(tmp_path: Path) -> None:
    file, other = tmp_path / "a", tmp_path / "b"
    file.write_text("x")
    seen = {digest(file), digest(file.rename(other))}
    other.write_text("xy")
    seen.add(digest(other))
    os.utime(other, ns=(0, 0))
    assert len(seen | {digest(other)}) == 4


def digest(path: Path) -> str:
    return files_digest((file.name, file) for file in files_of(str(path)))


def test_a_choice() -> None:
    known = {"b": "bytes", "a": "int64"}
    assert list(FeatureChoice().of(known, "x")) == ["a", "b"]
    some = FeatureChoice({"a": "float32", "b": None})
    assert some.of(known, "x") == {"a": "float32", "b": "bytes"}
    assert FeatureChoice(types={"a": "float32"}).of(known, "x") == {"a": "float32", "b": "bytes"}
    assert FeatureChoice(drop=["b"]).of(known, "x") == {"a": "int64"}
    with pytest.raises(ConfigError, match="--features: x has no 'c'; choose among a, b"):
        FeatureChoice({"c": None}).of(known, "x")
    with pytest.raises(ConfigError, match="--type: x has no 'c'"):
        FeatureChoice(types={"c": "int64"}).of(known, "x")
    with pytest.raises(ConfigError, match="--drop: x has no 'c'"):
        FeatureChoice(drop=["c"]).of(known, "x")
    with pytest.raises(ConfigError, match="--type has no effect for 'b', which is not written"):
        FeatureChoice({"a": None}, {"b": "bytes"}).of(known, "x")
    with pytest.raises(ConfigError, match="--type has no effect for 'b'"):
        FeatureChoice(types={"b": "bytes"}, drop=["b"]).of(known, "x")
    with pytest.raises(ConfigError, match=r"--drop has no effect for 'b', .* not in --features"):
        FeatureChoice({"a": None}, drop=["b"]).of(known, "x")
    with pytest.raises(ConfigError, match="nothing of x is left"):
        FeatureChoice(drop=["a", "b"]).of(known, "x")
    with pytest.raises(ConfigError, match="--key: 'a' is not a feature; choose among b"):
        FeatureChoice({"b": None}).of(known, "x", "a")
