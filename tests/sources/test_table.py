from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from streamrec.errors import ConfigError, DataError
from streamrec.sources import table as module
from streamrec.sources.source import files_of
from streamrec.sources.table import (
    FeatureChoice,
    last_end,
    parse_features,
    parse_types,
    text_pieces,
)

if TYPE_CHECKING:
    from pathlib import Path


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


def test_compressed_and_marked(tmp_path: Path) -> None:
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfa\nb"))
    assert [piece.data for piece in text_pieces(*files_of(str(path)))] == [b"a\n", b"b"]


def test_a_line_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 10)
    monkeypatch.setattr(module, "MOST_BYTES", 50)
    path = tmp_path / "x.csv"
    path.write_bytes(b"a\nb\n" + b"c" * 100)
    with pytest.raises(DataError, match=r"x\.csv: the row that begins in line 3 does not end"):
        list(text_pieces(*files_of(str(path))))


def test_a_row_without_an_end_is_looked_at_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 10)
    monkeypatch.setattr(module, "MOST_BYTES", 10_000)
    path = tmp_path / "x.csv"
    path.write_bytes(b"a" * 9_000 + b"\n" + b"b" * 20_000)
    looked = []

    def end_of(data: bytes) -> int:
        looked.append(len(data))
        return last_end(data)

    pieces = text_pieces(*files_of(str(path)), end_of=end_of)
    first = next(pieces)
    assert first.data[:9_001] == b"a" * 9_000 + b"\n"
    with pytest.raises(DataError, match="the row that begins"):
        list(pieces)
    assert sum(looked) < 4 * 30_000


@pytest.mark.parametrize("data", [gzip.compress(b"a\n" * 9)[:-9], b"\x1f\x8b\x08" * 9])
def test_what_cannot_be_decompressed(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.csv.gz"
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"x\.csv\.gz: it cannot be decompressed: .*anew"):
        list(text_pieces(*files_of(str(path))))


@pytest.mark.parametrize(
    ("name", "data"), [("x.csv", gzip.compress(b"a\n1")), ("x.csv.gz", b"a\n1"), ("x.csv.gz", b"")]
)
def test_the_bytes_tell_the_compression(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    pieces = text_pieces(*files_of(str(tmp_path / name)))
    assert b"".join(piece.data for piece in pieces) == (b"a\n1" if data else b"")
