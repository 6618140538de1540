from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamrec.errors import ConfigError
from streamrec.shard_tools.sources.source import files_digest, files_of, selected

if TYPE_CHECKING:
    from pathlib import Path


def test_files(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "c.txt"):
        (tmp_path / name).write_text(name)
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    assert files_of(str(a)) == [a]
    assert files_of(str(tmp_path), (".csv",)) == files_of(f"{tmp_path}/*.csv") == [a, b]
    for place, words in [
        (f"{tmp_path}/*.tar", "there is no such file"),
        ("s3://bucket/a.csv", "copy it here"),
    ]:
        with pytest.raises(ConfigError, match=words):
            files_of(place)


def test_a_digest_follows_names_sizes_and_times(tmp_path: Path) -> None:
    file, other = tmp_path / "a", tmp_path / "b"
    file.write_text("x")
    first = files_digest([file])
    assert files_digest([file.rename(other)]) != first
    other.write_text("xy")
    second = files_digest([other], tmp_path)
    other.write_text("xyz")
    assert files_digest([other], tmp_path) != second


def test_selected() -> None:
    known = {"b": "bytes", "a": "int64"}
    assert list(selected(known, None, "x")) == ["a", "b"]
    assert selected(known, {"a": "float32", "b": None}, "x") == {"a": "float32", "b": "bytes"}
    with pytest.raises(ConfigError, match="x has no 'c'; choose among a, b"):
        selected(known, {"c": None}, "x")
