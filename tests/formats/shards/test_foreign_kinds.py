from __future__ import annotations

import gzip
import io
import json
import zipfile

import numpy as np
import pytest

from streamrec.formats.shards.foreign_kinds import hint_at_kind
from streamrec.formats.shards.tfrecord import frame


def zipped() -> bytes:
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("x", "y")
        return file.getvalue()


def saved() -> bytes:
    with io.BytesIO() as file:
        np.save(file, np.arange(3))
        return file.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a,b,c\n1,2,3\n", "text: `streamrec write`"),
        (json.dumps({"ä": "ö" * 9}, ensure_ascii=False).encode(), "text: `streamrec write`"),
        ("\ufeffname;größe".encode(), "text: `streamrec write`"),
        (b"<!DOCTYPE html><html>", "page of an error"),
        (b'<?xml version="1.0"?><Error>', "page of an error"),
        (b"PAR1\x15\x04\x15\x10", "Parquet file: `streamrec write`"),
        (zipped(), "zip archive: unpack it first"),
        (saved(), "NumPy file"),
        (gzip.compress(b"x", mtime=0), "gzip data: set compression"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "JPEG picture: `streamrec write`"),
        (b"\x89PNG\r\n\x1a\n", "PNG picture"),
        (b"\x28\xb5\x2f\xfd\x04\x00", "zstd data: set compression"),
    ],
    ids=lambda part: part[:8] if isinstance(part, bytes) else None,
)
def test_kinds(content: bytes, words: str) -> None:
    for length in (12, len(content)):
        assert words in hint_at_kind(content[:length])


@pytest.mark.parametrize("length", [0, 1, 32, 0x41424344])
def test_a_shard_is_none_of_them(length: int) -> None:
    head = length.to_bytes(8, "little") + bytes(frame(b"x" * 40))[8:12]
    assert hint_at_kind(head) == ""


@pytest.mark.parametrize("head", [b"", b"a,b", b"\x00" * 12, b"\xff\xfe\xfd\xfc" * 3])
def test_what_looks_like_nothing(head: bytes) -> None:
    assert hint_at_kind(head) == ""
