"""The text of BERT's pretraining: documents, and the numbers of their word pieces."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from streamrec.config.named_files import read_small_file
from streamrec.errors import ConfigError, DataError
from streamrec.masking import masked
from streamrec.suggestions import install
from streamrec.values.columns import Ragged, offsets_of, rising

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from streamrec.sources.source import Refuse
    from streamrec.sources.table import TextPiece
    from streamrec.stores.stored_files import StoredFile
    from streamrec.values.columns import Indices

MOST_LIST = 256 << 20
"""Bytes of the largest list of files."""


@dataclass(frozen=True)
class Document:
    """A document.

    Args:
        file: The path of its file.
        line: The number of its first line, from 1.
        sentences: Its lines, without white space at their ends.
    """

    file: str
    line: int
    sentences: list[str]

    @property
    def key(self) -> bytes:
        """The SHA-256 of its text, which determines its split."""
        return hashlib.sha256("\n".join(self.sentences).encode()).digest()


def document_end(data: bytes) -> int:
    """Return the place after the last blank line; 0 where there is none."""
    end = data.rfind(b"\n")
    while end > 0:
        before = data.rfind(b"\n", 0, end)
        if not data[before + 1 : end].strip():
            return end + 1
        end = before
    return 0


def documents_of(piece: TextPiece, refuse: Refuse) -> Iterator[Document]:
    """Yield the documents of a piece, without those that are not UTF-8, which are refused."""
    try:
        text = piece.data.decode()
    except UnicodeDecodeError:
        # The other documents of the piece are good.
        text = piece.data.decode(errors="surrogateescape")
    for document in _divide(piece, text):
        line = _broken_line(document)
        if line is None:
            yield document
        else:
            refuse(
                DataError(
                    f"line {line} is not UTF-8; convert the file, or leave such documents out "
                    "with --on-error skip",
                    url=piece.path,
                )
            )


def _divide(piece: TextPiece, text: str) -> Iterator[Document]:
    sentences: list[str] = []
    for line, raw in enumerate(text.split("\n"), piece.line):
        if sentence := raw.strip():
            sentences.append(sentence)
        elif sentences:
            yield Document(piece.path, line - len(sentences), sentences)
            sentences = []
    if sentences:
        yield Document(piece.path, line - len(sentences) + 1, sentences)


def _broken_line(document: Document) -> int | None:
    for line, sentence in enumerate(document.sentences, document.line):
        if not sentence.isascii() and any("\udc80" <= c <= "\udcff" for c in sentence):
            return line
    return None


def list_files(
    lists: Sequence[str], prefix: str, storage_options: Mapping[str, Any] | None = None
) -> list[StoredFile]:
    """Return the files that lists name, one a line, in their order.

    Args:
        lists: The paths of the lists.
        prefix: The directory, or the URL, of paths that are not absolute.
        storage_options: fsspec's options, for a URL.

    Raises:
        ConfigError: A list cannot be read, or names no file.
        StoreError: The store cannot be listed.
    """
    from streamrec.stores.stored_files import find_each

    names = [(place, *line) for place in lists for line in _names_in(place)]
    if not names:
        raise ConfigError(f"--metadata-files: {lists[0]} names no file; put in one path a line")
    paths = [name if "://" in name else os.path.join(prefix, name) for _, _, name in names]  # noqa: PTH118 - '' is no directory
    files = []
    for (place, number, _), path, file in zip(
        names, paths, find_each(paths, storage_options or {}), strict=True
    ):
        if file is None:
            raise ConfigError(
                f"--metadata-files: line {number} of {place} names {masked(path)}, which is "
                "not a file; correct it, or give the directory as --input-files-prefix"
            )
        files.append(file)
    return files


def _names_in(place: str) -> list[tuple[int, str]]:
    """Return the lines of a list that are not empty, with their numbers."""
    from streamrec.config.named_files import read_small_file

    try:
        lines = read_small_file(place, MOST_LIST).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--metadata-files: {place} cannot be read: {error}; give a list of paths, one a line"
        ) from None
    return [(number, name) for number, line in enumerate(lines, 1) if (name := line.strip())]


SPECIAL = ("[UNK]", "[CLS]", "[SEP]", "[MASK]")
LONGEST_WORD = 200
"""The most characters of a word that is not unknown, as in BERT's own tokenizer."""

MOST_BYTES = 64 << 20
"""Bytes of the largest vocabulary."""


@dataclass(frozen=True)
class WordPieces:
    """A vocabulary of word pieces. It can be pickled.

    Args:
        ids: The pieces' numbers: those of their lines in the file, from 0.
        lower: Text is put in lower case, and without accents.
        digest: The SHA-256 of the file.
    """

    ids: dict[str, int]
    lower: bool
    digest: str

    @classmethod
    def load(cls, path: str, *, lower: bool) -> Self:
        """Read a vocabulary file: one piece a line, in UTF-8.

        Raises:
            ConfigError: There is no such file, or it is not a vocabulary of BERT.
        """
        try:
            data = read_small_file(path, MOST_BYTES)
        except OSError as error:
            raise ConfigError(
                f"--vocab-file: {path} cannot be read: {error.strerror}; correct the path"
            ) from None
        try:
            # Not splitlines: it would divide at characters that a piece may hold, such as U+2028,
            # and shift all numbers.
            lines = data.decode().removesuffix("\n").split("\n")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise ConfigError(
                f"--vocab-file: line {line} of {path} is not UTF-8; write the file anew"
            ) from None
        ids = {line.strip(): number for number, line in enumerate(lines)}
        if missing := [piece for piece in SPECIAL if piece not in ids]:
            raise ConfigError(
                f"--vocab-file: {path} has no line {missing[0]}; give the vocabulary of a BERT, "
                f"which has {', '.join(SPECIAL)}"
            )
        return cls(ids, lower, hashlib.sha256(data).hexdigest())

    @cached_property
    def all(self) -> Indices:
        """The numbers of all pieces."""
        return np.array(list(self.ids.values()), np.int64)

    @cached_property
    def continues(self) -> npt.NDArray[np.bool_]:
        """By a piece's number: the piece goes on with the word of the piece before it."""
        marks = np.zeros(int(self.all.max()) + 1, np.bool_)
        marks[[number for piece, number in self.ids.items() if piece.startswith("##")]] = True
        return marks

    def tokenize(self, texts: Sequence[str]) -> Ragged:
        """Return the numbers of the pieces of each text, int64.

        Each distinct word is looked up once: BERT's tokenizer never looks across a space, and text
        repeats its words, so this takes a seventh of the time.
        """
        words = " ".join(texts).split(" ")
        places = {word: place for place, word in enumerate(dict.fromkeys(words))}
        pieces = self._pieces(places)
        # From distinct words back to all words: each takes the pieces of its first occurrence.
        which = np.fromiter(map(places.__getitem__, words), np.int64, len(words))
        lengths = np.diff(pieces.row_splits)[which]
        offsets = offsets_of(lengths)
        shifts = np.repeat(pieces.row_splits[which] - offsets[:-1], lengths)
        values: Any = pieces.values
        counts = np.fromiter((text.count(" ") + 1 for text in texts), np.int64, len(texts))
        return Ragged(values[rising(0, len(shifts)) + shifts], offsets[offsets_of(counts)])

    def _pieces(self, words: Sequence[str] | dict[str, int]) -> Ragged:
        encode = self._tokenizer.encode
        pieces = [encode(word).ids for word in words]
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        return Ragged(np.array([i for ids in pieces for i in ids], np.int64), offsets_of(lengths))

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
        except ImportError:
            raise ConfigError(
                f"text is cut into word pieces by tokenizers; {install('text')}"
            ) from None
        model = models.WordPiece(
            self.ids,
            unk_token="[UNK]",  # noqa: S106 - no secret
            max_input_chars_per_word=LONGEST_WORD,
        )
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizers.BertNormalizer(
            lowercase=self.lower, strip_accents=self.lower
        )
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer
