from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from streamrec.errors import DataError
from streamrec.sources import text_pieces as module
from streamrec.sources.source import files_of
from streamrec.sources.text_pieces import last_end, text_pieces

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.parametrize("data", [gzip.compress(b"a\n" * 9)[:-9], b"no gzip", b"\x1f\x8b\x08" * 9])
def test_what_cannot_be_decompressed(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.csv.gz"
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"x\.csv\.gz: it cannot be decompressed: .*anew"):
        list(text_pieces(*files_of(str(path))))
