from __future__ import annotations

import csv
import gzip
import io
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import DataError
from streamrec.shard_tools.sources import text_pieces as module
from streamrec.shard_tools.sources.text_pieces import text_pieces

if TYPE_CHECKING:
    from pathlib import Path


@given(
    rows=st.lists(st.lists(st.text('a", \n', max_size=5), min_size=1, max_size=3), max_size=9),
    size=st.integers(1, 20),
)
def test_pieces_are_whole_rows(
    rows: list[list[str]], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    path = tmp_path_factory.mktemp("d") / "x.csv"
    path.write_bytes(text.getvalue().encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_BYTES", size)
        pieces = list(text_pieces(path, quoted=True))
    parsed, line = [], 1
    for piece in pieces:
        assert piece.line == line
        line += piece.data.count(b"\n")
        parsed += list(csv.reader(io.StringIO(piece.data.decode(), newline="")))
    assert parsed == list(csv.reader(io.StringIO(text.getvalue(), newline="")))


def test_compressed_and_marked(tmp_path: Path) -> None:
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfa\nb"))
    assert [piece.data for piece in text_pieces(path)] == [b"a\n", b"b"]


def test_quotes_that_are_never_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 10)
    monkeypatch.setattr(module, "MOST_BYTES", 50)
    path = tmp_path / "x.csv"
    path.write_bytes(b'a\nb\n"c' + b"\n" * 100)
    with pytest.raises(DataError, match=r"x\.csv: from line 3 on no row ends"):
        list(text_pieces(path, quoted=True))
