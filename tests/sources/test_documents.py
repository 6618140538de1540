from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.devstore import DevStore
from streamrec.errors import ConfigError, DataError
from streamrec.sources import text_pieces as pieces_module
from streamrec.sources.documents import Document, document_end, documents_of, list_files
from streamrec.sources.source import files_of
from streamrec.sources.text_pieces import TextPiece, text_pieces
from tests.sources.test_delimited import fail

if TYPE_CHECKING:
    from pathlib import Path

TEXT = " One. \r\nTwo.\r\n \t\r\n\r\nThree.\n\n\nFour.\nFive."


def documents(data: bytes, line: int = 1) -> list[tuple[int, list[str]]]:
    found = documents_of(TextPiece("x.txt", line, data), fail)
    return [(document.line, document.sentences) for document in found]


def test_blank_lines_divide() -> None:
    expected = [(7, ["One.", "Two."]), (11, ["Three."]), (14, ["Four.", "Five."])]
    assert documents(TEXT.encode(), 7) == expected
    assert documents(b"\n \n") == []
    assert documents("a\n\u00a0\nb".encode()) == [(1, ["a"]), (3, ["b"])]


@given(
    st.lists(st.sampled_from([b"a", b"bc", b"", b" ", b"\r", "ä".encode()])).map(b"\n".join),
    st.integers(1, 10),
)
def test_files_are_cut_between_documents(data: bytes, size: int) -> None:
    end = document_end(data)
    assert documents(data[:end]) + documents(data[end:], 1 + data.count(b"\n", 0, end)) == (
        documents(data)
    )
    assert not any(not line.strip() for line in data[end:].split(b"\n")[1:-1])


def test_pieces_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.txt"
    path.write_text(TEXT, newline="")
    (file,) = files_of(str(path))
    pieces = list(text_pieces(file, end_of=document_end, what="document", size=10))
    assert len(pieces) > 2
    found = [document for piece in pieces for document in documents_of(piece, fail)]
    assert [(one.line, one.sentences) for one in found] == documents(TEXT.encode())
    monkeypatch.setattr(pieces_module, "MOST_BYTES", 12)
    path.write_text("a\n" * 20)
    (file,) = files_of(str(path))
    with pytest.raises(DataError, match=r"the document that begins in line 1 .* put a blank line"):
        list(text_pieces(file, end_of=document_end, what="document", size=10))


def test_documents_that_are_not_utf8_are_refused() -> None:
    errors: list[DataError] = []
    piece = TextPiece("d/x.txt", 1, b"a\nb\n\nc\n\xff\nd\n\n\xc3\xa4\n")
    found = list(documents_of(piece, errors.append))
    assert [document.sentences for document in found] == [["a", "b"], ["ä"]]
    assert [str(error) for error in errors] == [
        "d/x.txt: line 5 is not UTF-8; convert the file, or leave such documents out with "
        "--on-error skip"
    ]


def test_keys_are_those_of_the_text() -> None:
    one, same, other = (
        Document(file, line, sentences)
        for file, line, sentences in [("a", 1, ["x", "y"]), ("b", 2, ["x", "y"]), ("a", 1, ["xy"])]
    )
    assert one.key == same.key != other.key
    assert len(one.key) == 32


def test_lists_of_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.txt"):
        (tmp_path / name).write_text("text")
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("b.txt\n\n a.txt \n")
    second.write_text(f"{tmp_path}/c.txt")
    found = list_files([str(first), str(second)], str(tmp_path))
    assert [file.name for file in found] == ["b.txt", "a.txt", "c.txt"]
    with pytest.raises(ConfigError, match=r"line 1 of .*first names b\.txt, .*input-files-prefix"):
        list_files([str(first)], "")
    with pytest.raises(ConfigError, match=r"none cannot be read: .*give a list of paths"):
        list_files([f"{tmp_path}/none"], "")
    with DevStore() as store:
        store.put("bucket/text/b.txt", b"b")
        store.put("bucket/text/a.txt", b"a")
        in_store = list_files([str(first)], "s3://bucket/text", store.storage_options)
        assert list(map(str, in_store)) == ["s3://bucket/text/b.txt", "s3://bucket/text/a.txt"]
        first.write_text("s3://bucket/text/c.txt")
        with pytest.raises(ConfigError, match=r"line 1 of .* names s3://bucket/text/c\.txt"):
            list_files([str(first)], "", store.storage_options)
    second.write_text("\n")
    with pytest.raises(ConfigError, match="second names no file"):
        list_files([str(second)], "")
