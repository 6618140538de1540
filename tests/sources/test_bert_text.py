from __future__ import annotations

import pickle
import re
import sys
import unicodedata
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.devstore import DevStore
from streamrec.errors import ConfigError, DataError
from streamrec.sources import table as pieces_module
from streamrec.sources.bert_text import Document, WordPieces, document_end, documents_of, list_files
from streamrec.sources.source import files_of
from streamrec.sources.table import TextPiece, text_pieces
from tests.sources.test_delimited import fail
from tests.sources.texts import SPECIAL, TEXT, vocabulary, vocabulary_file

if TYPE_CHECKING:
    from pathlib import Path

PARAGRAPHS = " One. \r\nTwo.\r\n \t\r\n\r\nThree.\n\n\nFour.\nFive."


def documents(data: bytes, line: int = 1) -> list[tuple[int, list[str]]]:
    found = documents_of(TextPiece("x.txt", line, data), fail)
    return [(document.line, document.sentences) for document in found]


def test_blank_lines_divide() -> None:
    expected = [(7, ["One.", "Two."]), (11, ["Three."]), (14, ["Four.", "Five."])]
    assert documents(PARAGRAPHS.encode(), 7) == expected
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
    path.write_text(PARAGRAPHS, newline="")
    (file,) = files_of(str(path))
    pieces = list(text_pieces(file, end_of=document_end, what="document", size=10))
    assert len(pieces) > 2
    found = [document for piece in pieces for document in documents_of(piece, fail)]
    assert [(one.line, one.sentences) for one in found] == documents(PARAGRAPHS.encode())
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


def pieces_of(vocabulary: list[str], *, lower: bool = True) -> WordPieces:
    return WordPieces({piece: number for number, piece in enumerate(vocabulary)}, lower, "")


def basic_words(text: str, lower: bool) -> list[str]:
    """Return the words that BERT's paper and tokenizer name: at white space and punctuation."""
    kept = []
    for character in text:
        if character in "\t\n\r" or unicodedata.category(character) == "Zs":
            kept.append(" ")
        elif character not in "\0\ufffd" and unicodedata.category(character)[0] != "C":
            is_chinese = "\u4e00" <= character <= "\u9fff"
            kept.append(f" {character} " if is_chinese else character)
    plain = "".join(kept)
    if lower:
        decomposed = unicodedata.normalize("NFD", plain.lower())
        plain = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
    apart = [f" {c} " if is_punctuation(c) else c for c in plain]
    return "".join(apart).split()


def is_punctuation(character: str) -> bool:
    return (
        bool(re.match(r"[!-/:-@\[-`{-~]", character)) or unicodedata.category(character)[0] == "P"
    )


def word_pieces(word: str, ids: dict[str, int]) -> list[int]:
    """Return the longest piece that fits, again and again; ``[UNK]`` where none does."""
    found: list[int] = []
    start = 0
    while start < len(word):
        head = "##" if start else ""
        for end in range(len(word), start, -1):
            if head + word[start:end] in ids:
                found.append(ids[head + word[start:end]])
                start = end
                break
        else:
            return [ids["[UNK]"]]
    return found


def expected(text: str, pieces: WordPieces) -> list[int]:
    words = basic_words(text, pieces.lower)
    return [number for word in words for number in word_pieces(word, pieces.ids)]


@pytest.mark.parametrize("lower", [True, False])
def test_real_text(lower: bool) -> None:
    pieces = pieces_of(vocabulary(), lower=lower)
    lines = TEXT.split("\n")[:1500]
    assert pieces.tokenize(lines).to_list() == [expected(line, pieces) for line in lines]


LETTERS = ["a", "b", "Ä", "é", "\u0301", "ﬀ", "中", ".", "[", "_", "$", "—", "\x1c", "\u200b"]
SPACES = [" ", "\t", "\u00a0", "\u3000", "\0"]


@given(
    st.lists(st.text(st.sampled_from([*LETTERS, *SPACES])), max_size=5),
    st.lists(st.text("abä.é", min_size=1, max_size=3), max_size=12),
    st.booleans(),
)
def test_any_text_and_vocabulary(texts: list[str], words: list[str], lower: bool) -> None:
    every = dict.fromkeys([*SPECIAL, *words, *(f"##{word}" for word in words)])
    pieces = pieces_of(list(every), lower=lower)
    assert pieces.tokenize(texts).to_list() == [expected(text, pieces) for text in texts]


def test_a_word_of_200_characters_is_the_longest() -> None:
    pieces = pieces_of([*SPECIAL, "a", "##a"])
    assert pieces.tokenize(["a" * 200, "a" * 201]).to_list() == [[5] + [6] * 199, [1]]


def test_special_names_in_text_are_text() -> None:
    pieces = pieces_of([*SPECIAL, "[", "]", "mask"])
    assert pieces.tokenize(["[MASK]"]).to_list() == [[5, 7, 6]]


def test_a_file(tmp_path: Path) -> None:
    pieces = WordPieces.load(vocabulary_file(tmp_path), lower=True)
    assert list(pieces.ids) == vocabulary()
    assert len(pieces.digest) == 64
    ends = {piece for piece, number in pieces.ids.items() if pieces.continues[number]}
    assert ends == {piece for piece in vocabulary() if piece.startswith("##")}
    again = pickle.loads(pickle.dumps(pieces))
    assert again.tokenize(["Records"]).to_list() == pieces.tokenize(["Records"]).to_list()


def test_pieces_are_counted_by_line(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes("\r\n".join([*SPECIAL, "", "twice", "twice"]).encode())
    pieces = WordPieces.load(str(path), lower=False)
    assert pieces.ids["twice"] == 7  # as in BERT's own, the last line
    assert sorted(pieces.all) == [0, 1, 2, 3, 4, 5, 7]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "cannot be read: No such file or directory; correct the path"),
        (b"[UNK]\n\xff\n", "line 2 of .* is not UTF-8"),
        (b"[UNK]\n[CLS]\n[SEP]\n", r"has no line \[MASK\]; give the vocabulary of a BERT"),
    ],
)
def test_files_that_are_no_vocabulary(data: bytes | None, words: str, tmp_path: Path) -> None:
    if data is not None:
        (tmp_path / "v").write_bytes(data)
    with pytest.raises(ConfigError, match=f"--vocab-file: .*{words}"):
        WordPieces.load(f"{tmp_path}/v", lower=True)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[text\]'"):
        pieces_of(SPECIAL).tokenize(["a"])
