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
    stray=st.lists(st.text('a"|', max_size=5).map("a".__add__), max_size=3),
    size=st.integers(1, 20),
    delimiter=st.sampled_from([",", "¦"]),
)
def test_pieces_are_whole_rows(
    rows: list[list[str]],
    stray: list[str],
    size: int,
    delimiter: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    text = io.StringIO(newline="")
    # Quotes inside of a value are characters like others.
    text.writelines(f"{value}\n" for value in stray)
    csv.writer(text, lineterminator="\n", delimiter=delimiter).writerows(rows)
    path = tmp_path_factory.mktemp("d") / "x.csv"
    path.write_bytes(text.getvalue().encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_BYTES", size)
        pieces = list(text_pieces(path, delimiter=delimiter))
    parsed, line = [], 1
    for piece in pieces:
        assert piece.line == line
        line += piece.data.count(b"\n")
        read = io.StringIO(piece.data.decode(), newline="")
        parsed += list(csv.reader(read, delimiter=delimiter))
    read = io.StringIO(text.getvalue(), newline="")
    assert parsed == list(csv.reader(read, delimiter=delimiter))


def test_compressed_and_marked(tmp_path: Path) -> None:
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfa\nb"))
    assert [piece.data for piece in text_pieces(path)] == [b"a\n", b"b"]


def test_quotes_that_are_never_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 10)
    monkeypatch.setattr(module, "MOST_BYTES", 50)
    path = tmp_path / "x.csv"
    path.write_bytes(b'a\nb\n"c' + b"\n" * 100)
    pieces = [piece.data for piece in text_pieces(path, delimiter=",")]
    assert pieces[0] == b"a\nb\n"
    assert len(pieces[1]) > 50
    assert set(map(len, pieces[2:-1])) == {10}
    assert b"".join(pieces) == path.read_bytes()


def test_a_line_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 10)
    monkeypatch.setattr(module, "MOST_BYTES", 50)
    path = tmp_path / "x.csv"
    path.write_bytes(b"a\nb\n" + b"c" * 100)
    with pytest.raises(DataError, match=r"x\.csv: line 3 does not end in 0 MiB"):
        list(text_pieces(path, delimiter=","))
