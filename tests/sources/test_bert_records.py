from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamrec.errors import ConfigError
from streamrec.sources.bert_records import BertForm, _tokenize
from streamrec.sources.documents import Document
from streamrec.sources.word_pieces import WordPieces
from tests.sources.texts import vocabulary_file

if TYPE_CHECKING:
    from pathlib import Path


def test_sentences_without_tokens_are_left_out(tmp_path: Path) -> None:
    """A line may hold control characters alone, and a document such lines alone."""
    pieces = WordPieces.load(vocabulary_file(tmp_path), lower=True)
    one, two, three = (len(row) for row in pieces.tokenize(["a", "a b", "a b c"]).to_list())
    lines = [["\x01", "a", "\x01", "a b"], ["\x01"], ["a b c", "\x01"]]
    documents = [Document("x", number, sentences) for number, sentences in enumerate(lines)]
    text = _tokenize(documents, pieces)
    assert text.offsets == [0, one, one + two, one + two + three] == [0, 1, 3, 6]
    assert text.sentences == [range(2), range(2, 2), range(2, 3)]
    assert len(text.tokens) == 6


def test_what_leaves_no_room_for_text_is_refused() -> None:
    BertForm(max_seq_length=23).check()
    with pytest.raises(ConfigError, match="--max-predictions-per-seq: 20 is more than the 19 "):
        BertForm(max_seq_length=22).check()
