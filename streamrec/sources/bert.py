"""Text as records of BERT's pre-training: pairs of sentences with masked tokens."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass
from itertools import chain, pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from streamrec.errors import ConfigError, DataError
from streamrec.formats.examples.encode import encode_examples
from streamrec.plan.order.permutation import permutation, seed_of
from streamrec.sources.documents import document_end, documents_of, listed_files
from streamrec.sources.masked_pairs import MaskedPairs
from streamrec.sources.sentence_pairs import SentencePair, SentencePairs
from streamrec.sources.source import Block, files_digest, files_of
from streamrec.sources.text_pieces import text_pieces, total_bytes
from streamrec.sources.word_pieces import WordPieces
from streamrec.values.columns import BytesColumn, offsets_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from streamrec.plan.order.splits import Splits
    from streamrec.sources.documents import Document
    from streamrec.sources.source import ReadsIn, Refuse
    from streamrec.sources.text_pieces import TextPiece
    from streamrec.stores.stored_files import StoredFile
    from streamrec.values.columns import Indices

SUFFIXES = (".txt", ".txt.gz")
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
TEXT_BYTES = 1 << 20
"""Bytes of text that one piece has, about. With ten duplicates it gives 50 MB of records, or twice
that of documents of a few sentences, whose pairs are mostly padding."""
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
class BertText:
    """Files of one sentence a line, with a blank line between documents."""

    reads_in: ClassVar[ReadsIn] = "processes"
    unit: ClassVar[str] = "bytes"
    labels: ClassVar[None] = None
    files: list[StoredFile]
    word_pieces: WordPieces
    form: BertForm
    splits: Splits | None
    """The second part of a pair comes from a document of the same split."""

    @property
    def total(self) -> int | None:
        """The bytes of all files, which of compressed ones are not known."""
        return total_bytes(self.files)

    @property
    def features(self) -> dict[str, str]:
        """The features of all records."""
        return {self._name(name): dtype for name, dtype in FEATURES.items()}

    @property
    def identity(self) -> Any:
        """The name and version of the records."""
        names = [file.name for file in self.files]
        return {
            "text": names if len(names) <= 100 else f"{len(names)} files",
            "digest": files_digest((file.name, file) for file in self.files),
            "vocabulary": self.word_pieces.digest,
            "do_lower_case": self.word_pieces.lower,
            "splits": self.splits and {n: str(part) for n, part in self.splits.fractions.items()},
            **asdict(self.form),
        }

    def pieces(self) -> Iterator[list[TextPiece]]:
        """Yield whole documents of some MB, of as many files as it takes.

        The last piece has what is left over, too: a document alone would have no other for the
        second parts of its pairs.
        """
        held: list[TextPiece] = []
        gathered: list[TextPiece] = []
        size = 0
        for file in self.files:
            for piece in text_pieces(file, end_of=document_end, what="document", size=TEXT_BYTES):
                gathered.append(piece)
                size += len(piece.data)
                if size >= TEXT_BYTES // 2:
                    if held:
                        yield held
                    held, gathered, size = gathered, [], 0
        yield held + gathered

    def read(self, piece: list[TextPiece], refuse: Refuse) -> Block:
        """Make the records of documents, in a random order."""
        amount = sum(len(part.data) for part in piece)
        documents = [document for part in piece for document in documents_of(part, refuse)]
        text = _tokenized(documents, self.word_pieces)
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
        made = [
            list(
                maker.of(number, form.dupe_factor, Random(self._seed(document.file, document.line)))
            )
            for number, document in enumerate(documents)
        ]
        pairs = np.array(list(chain.from_iterable(made)), np.int64).reshape(
            -1, len(SentencePair._fields)
        )
        origins = np.repeat(np.arange(len(made)), np.array(list(map(len, made)), np.int64))
        order = permutation(len(pairs), self._seed(piece[0].path, piece[0].line) if piece else 0)
        records = self._encoded(text.tokens, pairs[order])
        return Block(records, amount, [keys[origin] for origin in origins[order].tolist()])

    def _others(self, keys: Sequence[bytes], sentences: Sequence[range]) -> list[list[int]]:
        """Return for each document those of its split that have tokens."""
        splits = [0] * len(keys) if self.splits is None else self.splits.of(keys).tolist()
        groups: dict[int, list[int]] = {split: [] for split in splits}
        for number, split in enumerate(splits):
            if sentences[number]:
                groups[split].append(number)
        return [groups[split] for split in splits]

    def _encoded(self, text: Indices, pairs: Indices) -> BytesColumn:
        form = self.form
        masked = MaskedPairs(
            self.word_pieces,
            length=form.max_seq_length,
            most=form.max_predictions_per_seq,
            fraction=form.masked_lm_prob,
            whole_words=form.do_whole_word_mask,
        )
        step = max(1, CELLS // form.max_seq_length)
        columns = [
            encode_examples(
                {
                    self._name(name): column
                    for name, column in masked.features(text, pairs[at : at + step]).items()
                }
            )
            for at in range(0, len(pairs), step)
        ]
        return _joined(columns) if columns else BytesColumn.of([])

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


def _tokenized(documents: Sequence[Document], word_pieces: WordPieces) -> _Text:
    found = word_pieces.tokenize([s for document in documents for s in document.sentences])
    lengths = np.diff(found.row_splits)
    counts = np.array([len(document.sentences) for document in documents], np.int64)
    owners = np.repeat(np.arange(len(documents)), counts)[lengths > 0]
    ends = np.cumsum(np.bincount(owners, minlength=len(documents))).tolist()
    tokens: Any = found.values
    offsets = offsets_of(lengths[lengths > 0]).tolist()
    return _Text(tokens, offsets, [range(*bounds) for bounds in pairwise([0, *ends])])


def _joined(columns: Sequence[BytesColumn]) -> BytesColumn:
    lengths = np.concatenate([np.diff(column.offsets) for column in columns])
    return BytesColumn(np.concatenate([column.values for column in columns]), offsets_of(lengths))


def open_bert(
    place: str,
    *,
    vocab_file: str | None = None,
    do_lower_case: bool = True,
    metadata_files: Sequence[str] = (),
    input_files_prefix: str = "",
    splits: Splits | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **form: Any,
) -> BertText:
    """Open text; see :class:`BertText`.

    Args:
        place: A path, a URL, a pattern, or a directory of text; empty where lists name the files.
        vocab_file: The vocabulary's path.
        do_lower_case: The vocabulary is one of lower case.
        metadata_files: The paths of lists of files, one a line.
        input_files_prefix: The directory of listed paths that are not absolute.
        splits: The splits that the records are divided over.
        storage_options: fsspec's options, for URLs.
        form: The settings of :class:`BertForm`.

    Raises:
        ConfigError: There is no text or no vocabulary, or an argument is wrong.
    """
    if vocab_file is None:
        raise ConfigError(
            "--vocab-file is missing; give the vocabulary of the model, one word piece a line"
        )
    if bool(place) == bool(metadata_files):
        raise ConfigError("give either SOURCE or --metadata-files; both name the files to read")
    if input_files_prefix and not metadata_files:
        raise ConfigError("--input-files-prefix goes with --metadata-files; add it, or leave both")
    settings = BertForm(**form)
    settings.check()
    word_pieces = WordPieces.load(vocab_file, lower=do_lower_case)
    files = (
        listed_files(metadata_files, input_files_prefix, storage_options)
        if metadata_files
        else files_of(place, SUFFIXES, storage_options)
    )
    return BertText(files, word_pieces, settings, splits)
