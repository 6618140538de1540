from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.sources import row_ends, text_pieces
from streamrec.sources.row_ends import RowEnds
from streamrec.sources.source import files_of

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
    (file,) = files_of(str(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_pieces, "PIECE_BYTES", size)
        pieces = list(text_pieces.text_pieces(file, end_of=RowEnds(delimiter)))
    parsed, line = [], 1
    for piece in pieces:
        assert piece.line == line
        line += piece.data.count(b"\n")
        read = io.StringIO(piece.data.decode(), newline="")
        parsed += list(csv.reader(read, delimiter=delimiter))
    read = io.StringIO(text.getvalue(), newline="")
    assert parsed == list(csv.reader(read, delimiter=delimiter))


def test_quotes_that_are_never_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_pieces, "PIECE_BYTES", 10)
    monkeypatch.setattr(row_ends, "MOST_BYTES", 50)
    path = tmp_path / "x.csv"
    path.write_bytes(b'a\nb\n"c' + b"\n" * 100)
    (file,) = files_of(str(path))
    pieces = [piece.data for piece in text_pieces.text_pieces(file, end_of=RowEnds(","))]
    assert pieces[0] == b"a\nb\n"
    assert len(pieces[1]) > 50
    assert set(map(len, pieces[2:-1])) == {10}
    assert b"".join(pieces) == path.read_bytes()
