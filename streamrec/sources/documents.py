"""Documents of text: a sentence a line, and a blank line between documents."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamrec.errors import ConfigError, DataError
from streamrec.masking import masked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from streamrec.sources.source import Refuse
    from streamrec.sources.text_pieces import TextPiece
    from streamrec.stores.stored_files import StoredFile

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
