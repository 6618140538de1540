"""Documents of text to records of BERT's pre-training."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass
from itertools import chain, pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrec.errors import ConfigError, DataError
from streamrec.formats.examples.encode import encode_examples
from streamrec.plan.order.permutation import permutation, seed_of
from streamrec.sources.masked_pairs import MaskedPairs
from streamrec.sources.sentence_pairs import SentencePair, SentencePairs
from streamrec.values.columns import BytesColumn, offsets_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.plan.order.splits import Splits
    from streamrec.sources.documents import Document
    from streamrec.sources.word_pieces import WordPieces
    from streamrec.values.columns import Indices

FEATURES = {
    "input_ids": "int64",
    "input_mask": "int64",
    "segment_ids": "int64",
    "masked_lm_positions": "int64",
    "masked_lm_ids": "int64",
    "masked_lm_weights": "float32",
    "next_sentence_labels": "int64",
}
SECOND_NAMES = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
"""The names that TensorFlow's models of the second version have for features."""
SHORTEST = 2
"""The tokens that a short pair has at least, and that any pair needs."""
SPECIAL = 3
"""The tokens of a pair that are not text: [CLS] and two [SEP]."""
CELLS = 1 << 18
"""Tokens of the pairs that are made at once: their arrays stay in the processor's cache."""


@dataclass(frozen=True)
class BertForm:
    """The form of the records; the names are those of ``create_pretraining_data.py``."""

    do_whole_word_mask: bool = False
    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    random_seed: int = 12345
    dupe_factor: int = 10
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    min_short_seq_length: int = SHORTEST
    use_v2_feature_names: bool = False

    def check(self) -> None:
        """Check what the settings say together.

        Raises:
            ConfigError: They contradict each other.
        """
        most = self.max_seq_length - SPECIAL
        for name in ("max_predictions_per_seq", "min_short_seq_length"):
            if getattr(self, name) > most:
                raise ConfigError(
                    f"--{name.replace('_', '-')}: {getattr(self, name)} is more than the {most} "
                    f"tokens of text that --max-seq-length {self.max_seq_length} leaves; make it "
                    "smaller"
                )


@dataclass(frozen=True)
class BertRecords:
    """The making of records. It can be pickled."""

    word_pieces: WordPieces
    form: BertForm
    splits: Splits | None
    """The second part of a pair comes from a document of the same split."""

    @property
    def features(self) -> dict[str, str]:
        """The features of all records."""
        return {self._name(name): dtype for name, dtype in FEATURES.items()}

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that determine the records of a text."""
        return {
            "vocabulary": self.word_pieces.digest,
            "do_lower_case": self.word_pieces.lower,
            "splits": self.splits and {n: str(part) for n, part in self.splits.fractions.items()},
            **asdict(self.form),
        }

    def make(
        self, documents: Sequence[Document], place: tuple[str, int]
    ) -> tuple[BytesColumn, list[bytes]]:
        """Return the records of documents, in a random order, and the keys of their documents.

        Args:
            documents: The documents.
            place: The file and the line where they begin, which determine the order.
        """
        text = _tokenize(documents, self.word_pieces)
        _check_sentences(documents, text)
        keys = [document.key for document in documents]
        form = self.form
        maker = SentencePairs(
            text.offsets,
            text.sentences,
            self._others(keys, text.sentences),
            most=form.max_seq_length - SPECIAL,
            shortest=form.min_short_seq_length,
            short=form.short_seq_prob,
        )
        pairs_of = [
            list(maker.of(number, form.dupe_factor, Random(self._seed(one.file, one.line))))
            for number, one in enumerate(documents)
        ]
        pairs = np.array(list(chain.from_iterable(pairs_of)), np.int64).reshape(
            -1, len(SentencePair._fields)
        )
        counts = np.array(list(map(len, pairs_of)), np.int64)
        origins = np.repeat(np.arange(len(pairs_of)), counts)
        order = permutation(len(pairs), self._seed(*place))
        records = self._encode(text.tokens, pairs[order])
        return records, [keys[origin] for origin in origins[order].tolist()]

    def _others(self, keys: Sequence[bytes], sentences: Sequence[range]) -> list[list[int]]:
        """Return for each document those of its split that have tokens."""
        splits = [0] * len(keys) if self.splits is None else self.splits.of(keys).tolist()
        groups: dict[int, list[int]] = {split: [] for split in splits}
        for number, split in enumerate(splits):
            if sentences[number]:
                groups[split].append(number)
        return [groups[split] for split in splits]

    def _encode(self, text: Indices, pairs: Indices) -> BytesColumn:
        form = self.form
        masked = MaskedPairs(
            self.word_pieces,
            length=form.max_seq_length,
            most=form.max_predictions_per_seq,
            fraction=form.masked_lm_prob,
            whole_words=form.do_whole_word_mask,
        )
        step = max(1, CELLS // form.max_seq_length)
        features = (
            masked.features(text, pairs[at : at + step]) for at in range(0, len(pairs), step)
        )
        columns = [
            encode_examples({self._name(name): column for name, column in some.items()})
            for some in features
        ]
        return _join(columns) if columns else BytesColumn.of([])

    def _name(self, name: str) -> str:
        return SECOND_NAMES.get(name, name) if self.form.use_v2_feature_names else name

    def _seed(self, file: str, line: int) -> int:
        name = hashlib.sha256(os.fsencode(Path(file).name)).digest()
        return seed_of(self.form.random_seed, int.from_bytes(name[:8], "big"), line)


def _check_sentences(documents: Sequence[Document], text: _Text) -> None:
    """Check that some document has two sentences.

    Raises:
        DataError: None has: the second part of every pair would come from elsewhere, with label 1.
    """
    if documents and max(map(len, text.sentences)) == 1:
        raise DataError(
            f"line {documents[0].line}: this document and the {len(documents) - 1} behind it are "
            "of one line each, so no next sentence is in them and all labels would be 1; put each "
            "sentence on a line, and a blank line between documents",
            url=documents[0].file,
        )


class _Text(NamedTuple):
    """Documents as tokens, without sentences that have none."""

    tokens: Indices
    offsets: list[int]
    """The places of the sentences' first tokens, and the end of the last."""
    sentences: list[range]
    """The sentences of each document."""


def _tokenize(documents: Sequence[Document], word_pieces: WordPieces) -> _Text:
    pieces = word_pieces.tokenize([s for document in documents for s in document.sentences])
    lengths = np.diff(pieces.row_splits)
    counts = np.array([len(document.sentences) for document in documents], np.int64)
    owners = np.repeat(np.arange(len(documents)), counts)[lengths > 0]
    ends = np.cumsum(np.bincount(owners, minlength=len(documents))).tolist()
    tokens: Any = pieces.values
    offsets = offsets_of(lengths[lengths > 0]).tolist()
    return _Text(tokens, offsets, [range(*bounds) for bounds in pairwise([0, *ends])])


def _join(columns: Sequence[BytesColumn]) -> BytesColumn:
    lengths = np.concatenate([np.diff(column.offsets) for column in columns])
    return BytesColumn(np.concatenate([column.values for column in columns]), offsets_of(lengths))
