"""The pieces that a cache keeps: their names, and which of them make up a range of an object.

A range is cut at multiples of :data:`PIECE`. So the next epoch, whose ranges begin and end at other
bytes, still finds what this one left, whatever the sizes of both were. A
batch is an object of its own: one piece, which is not cut.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from streamrec.stores.base.protocol import bare_url
from streamrec.stores.base.versions import bare_version

if TYPE_CHECKING:
    from collections.abc import Sequence

PIECE = 2 << 20
"""Bytes of a range's largest piece. It is read and checked as a whole, even for a part of it."""

ENCODING = re.compile("[a-z-]{0,24}")
"""The Content-Encodings of objects that are cached. They are part of a file's name."""

_SIGNATURE = re.compile(r"(?i)x-(?:amz|goog)-.*|awsaccesskeyid|googleaccessid|signature|expires")
"""The parameters of signed URLs, which differ from one signing to the next."""


class Piece(NamedTuple):
    """Bytes ``[begin, end)`` of one version of an object, with the facts about the object."""

    key: str
    """The version's :func:`key_of`."""
    begin: int
    end: int
    size: int
    """Bytes of the whole object."""
    encoding: str = ""
    """The object's Content-Encoding; empty if it has none."""

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self.end - self.begin


class ShelvedPiece(NamedTuple):
    """A piece in a folder or in memory."""

    piece: Piece
    used_at: float
    """Seconds since 1970 at which it was last read or written, about."""


def key_of(url: str, etag: str, endpoint: str = "") -> str:
    """Return the digest that names a version of an object: 32 hexadecimal digits.

    Args:
        url: The object's URL. Its user and its signature are left out.
        etag: The version; a strong ETag, or a generation.
        endpoint: The store's endpoint: equal names of another one are other objects.
    """
    text = "\n".join([_strip_signature(url), bare_version(etag), endpoint])
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _strip_signature(url: str) -> str:
    bare = bare_url(url)
    if not bare.endswith("?..."):
        return bare
    pairs = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    return bare + urlencode([pair for pair in pairs if not _SIGNATURE.fullmatch(pair[0])])


def piece_at(pieces: Sequence[Piece], at: int) -> Piece | None:
    """Return the piece that has the byte ``at`` and the most bytes behind it, if any has."""
    found = [piece for piece in pieces if piece.begin <= at < piece.end]
    return max(found, key=lambda piece: piece.end, default=None)


def end_of_gap(pieces: Sequence[Piece], at: int, stop: int) -> int:
    """Return where the first piece behind ``at`` begins, or ``stop`` if none does before that."""
    return min((piece.begin for piece in pieces if at < piece.begin < stop), default=stop)
