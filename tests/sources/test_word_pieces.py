from __future__ import annotations

import pickle
import re
import sys
import unicodedata
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError
from streamrec.sources.word_pieces import WordPieces
from tests.sources.texts import SPECIAL, TEXT, vocabulary, vocabulary_file

if TYPE_CHECKING:
    from pathlib import Path


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
