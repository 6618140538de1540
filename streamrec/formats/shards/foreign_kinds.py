"""The kinds of files that are not TFRecord shards, known by their first bytes. Pure: no I/O."""

from __future__ import annotations

import codecs

_WRITE = "`streamrec write` converts it"
_UNPACK = "unpack it first"
_MAGIC = (
    (b"PAR1", f"a Parquet file: {_WRITE}"),
    (b"ARROW1", f"an Arrow file: {_WRITE}"),
    (b"PK\x03\x04", f"a zip archive: {_UNPACK}, or read a member as zip://name::archive.zip"),
    (b"\xff\xd8\xff", "a JPEG picture: `streamrec write` converts a folder of pictures"),
    (b"\x89PNG", "a PNG picture: `streamrec write` converts a folder of pictures"),
    (b"\x93NUMPY", "a NumPy file: write its rows by streamrec.TFRecordWriter"),
    (b"\x89HDF", "an HDF5 file: write its rows by streamrec.TFRecordWriter"),
    (b"\x80\x04\x95", "a pickle: write its values by streamrec.TFRecordWriter"),
    (b"SQLite format", "an SQLite database: write its rows by streamrec.TFRecordWriter"),
    (b"\x1f\x8b", "gzip data: set compression to 'gzip'"),
    (b"\x28\xb5\x2f\xfd", "zstd data: set compression to 'zstd'"),
    (b"BZh", f"bzip2 data: {_UNPACK}"),
    (b"\xfd7zXZ", f"xz data: {_UNPACK}"),
)
_TEXT = f"text: {_WRITE}, where it is CSV, JSON lines or text"
_MARKUP = "markup, such as the page of an error: check the URL, or fetch the shard again"
_WHITE = frozenset(b"\t\n\r")
LEAST_TEXT = 4
"""Bytes from which on text is recognised. The first eight bytes of a shard are the length of its
first record, whose upper bytes are 0."""


def hint_at_kind(head: bytes) -> str:
    """Return half a sentence about what the bytes look like, and what to do; or an empty text.

    Args:
        head: The first bytes of a file, 12 of them if it has so many.
    """
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return f"this looks like {kind}"
    if not _is_text(head):
        return ""
    is_markup = head.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"<")
    return f"this looks like {_MARKUP if is_markup else _TEXT}"


def _is_text(head: bytes) -> bool:
    if len(head) < LEAST_TEXT or any(byte < 32 and byte not in _WHITE for byte in head):
        return False
    try:
        # The last character may be cut off.
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True
