"""Small records that claim much memory, of every codec: what a stream of 64 MiB takes for them."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from PIL import Image as Pillow

import streamrec as sr
from streamrec.errors import BatchTooLarge, DataError, MalformedImage, PictureTooLarge
from tests.formats.pictures.encoded import header, of_chunks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MIB = 1 << 20
BUDGET = 64 * MIB
BESIDES = 200_000_000
"""Bytes beyond the budget: the process itself has a half of them."""
SECONDS = 20.0
"""CPU time of all: the limits of pixels and scans bound it."""
IMAGES = {"p": sr.Image()}
ROWS = 64


class Bomb(NamedTuple):
    """A record, the features that read it, and the error by which it is refused, if it is."""

    record: Callable[[], dict[str, Any]]
    error: type[DataError] | None
    features: dict[str, Any] = IMAGES
    rows: int = ROWS
    """The rows of a batch."""


def saved(kind: str, height: int, width: int, **options: Any) -> dict[str, Any]:
    file = io.BytesIO()
    Pillow.new("RGB" if kind == "JPEG" else "L", (width, height)).save(file, kind, **options)
    return {"p": file.getvalue()}


def jpeg(side: int) -> dict[str, Any]:
    """Return a JPEG whose header says a size that its pixels do not have."""
    picture = bytearray(saved("JPEG", 8, 8)["p"])
    at = picture.index(b"\xff\xc0")
    picture[at + 5 : at + 9] = struct.pack(">HH", side, side)
    return {"p": bytes(picture)}


def of_scans() -> dict[str, Any]:
    picture = saved("JPEG", 4000, 4000, progressive=True)["p"]
    last = picture.rindex(b"\xff\xda")
    return {"p": picture[:last] + picture[last:-2] * 1000 + picture[last:]}


def gif(frames: int, side: int) -> dict[str, Any]:
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, side, side, 0) + b"\x02\x01\x04\0"
    return {"p": b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0) + frame * frames + b";"}


def png_of_chunks() -> dict[str, Any]:
    """Return a PNG of many empty chunks of pixels, and of texts that inflate to gigabytes."""
    text = (b"zTXt", b"a\0\0" + zlib.compress(bytes(64 * MIB), 9))
    chunks = [(b"IHDR", header(2, 1, 8, 0)), *[text] * 20, *[(b"IDAT", b"")] * 2000]
    data = (b"IDAT", zlib.compress(b"\0\1\2"))
    return {"p": of_chunks(*chunks, data, (b"IEND", b""))}


def tiff() -> dict[str, Any]:
    """Return a TIFF of entries that all have the same bytes."""
    entries = b"".join(struct.pack("<HHII", tag, 7, 400_000, 8) for tag in range(30_000))
    head = struct.pack("<2sHIH", b"II", 42, 8, 30_000)
    return {"p": head + entries + bytes(40_000)}


def webp() -> dict[str, Any]:
    body = b"VP8L" + struct.pack("<IBI", 5, 0x2F, 0x0FFFFFFF) + b"\0"
    return {"p": b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body}


def long_row() -> dict[str, Any]:
    return {"v": np.zeros(2_000_000, np.int64)}


def zeros() -> dict[str, Any]:
    return {"v": np.zeros(10_000_000, np.int64)}


def empty_rows() -> dict[str, Any]:
    return {"v": [1], "ids": [1 << 16]}


def bmp() -> dict[str, Any]:
    head = struct.pack("<2sIHHIIiiHH", b"BM", 0, 0, 0, 54, 40, 1 << 16, 1 << 16, 1, 24)
    return {"p": head + bytes(24)}


PADDED = {"v": sr.FixedLenSequenceFeature((), "int64", allow_missing=True)}
ANY = {"v": sr.VarLenFeature("int64")}
FILLED = {"v": sr.FixedLenFeature((1_000_000,), "float32", bytes(4_000_000), raw=True)}
RAGGED = {"v": sr.RaggedFeature("int64", partitions=[sr.RaggedFeature.ValueRowIds("ids")])}
BOMBS = {
    "PNG of 8000 x 8000": Bomb(lambda: saved("PNG", 8000, 8000), PictureTooLarge),
    "PNG of 2000 x 2000, 64 in a batch": Bomb(lambda: saved("PNG", 2000, 2000), BatchTooLarge),
    "PNG of 2,000 chunks, texts of 1.3 GB": Bomb(png_of_chunks, None),
    "JPEG of 65,500 x 65,500": Bomb(lambda: jpeg(65_500), PictureTooLarge),
    "JPEG of 4,000 x 4,000, 64 in a batch": Bomb(lambda: jpeg(4000), BatchTooLarge),
    "JPEG of 1,000 scans": Bomb(of_scans, PictureTooLarge),
    "GIF of 65,535 x 65,535": Bomb(lambda: gif(1, 65_535), PictureTooLarge),
    "JPEG of 2,000 x 2,000, 4 in a batch": Bomb(lambda: saved("JPEG", 2000, 2000), None, rows=4),
    "GIF of 5,000 frames of 400 x 400": Bomb(lambda: gif(5000, 400), MalformedImage),
    "GIF of 20,000 frames of 1 x 1": Bomb(lambda: gif(20_000, 1), PictureTooLarge, rows=4),
    "WebP of 16,384 x 16,384": Bomb(webp, PictureTooLarge),
    "BMP of 65,536 x 65,536": Bomb(bmp, MalformedImage),
    "TIFF of 30,000 shared entries": Bomb(tiff, MalformedImage),
    "TIFF of 8000 x 8000": Bomb(
        lambda: saved("TIFF", 8000, 8000, compression="tiff_deflate"), PictureTooLarge
    ),
    "a row of 2,000,000 numbers, 64 to fill up": Bomb(long_row, BatchTooLarge, PADDED),
    "a row of 10,000,000 zeros": Bomb(zeros, BatchTooLarge, ANY),
    "65,537 empty rows, 64 times": Bomb(empty_rows, None, RAGGED),
    "an empty record, 64 defaults of 1,000,000": Bomb(dict, BatchTooLarge, FILLED),
}
PROGRAM = """
import json, re, resource, sys
from streamrec.formats.examples.descriptions import from_description
import streamrec as sr
url, features, rows = json.load(sys.stdin)
error = None
try:
    with sr.open(url, from_description(features), batch_size=rows, memory_budget="64MiB",
                 engine="thread") as stream:
        for batch in stream:
            pass
except sr.errors.DataError as raised:
    error = type(raised).__name__
used = resource.getrusage(resource.RUSAGE_SELF)  # its maxrss would be that of the parent
peak = re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())
print(json.dumps([error, int(peak[1]) * 1024, used.ru_utime + used.ru_stime]))
"""


def shard(directory: Path, bomb: Bomb) -> str:
    """Write one bomb among small records of the same kind, as many as make a batch."""
    path = str(directory / "bomb.tfrecord")
    record = bomb.record()
    lonely = "v" in record and "ids" not in record
    others: list[dict[str, Any]] = [{"v": [1]} if lonely else record] * (ROWS - 1)
    with sr.TFRecordWriter(path) as writer:
        for each in [record, *others]:
            writer.write(each)
    return path


@pytest.mark.parametrize("name", BOMBS)
def test_what_is_refused(tmp_path: Path, name: str) -> None:
    bomb = BOMBS[name]
    url = shard(tmp_path, bomb)
    settings: dict[str, Any] = {"memory_budget": "64MiB", "engine": "thread"}
    with sr.open(url, bomb.features, batch_size=bomb.rows, **settings) as stream:
        if bomb.error is None:
            assert sum(len(batch) for batch in stream) == ROWS
            return
        with pytest.raises(bomb.error) as caught:
            list(stream)
    assert type(caught.value) is bomb.error
    assert caught.value.record == 0


@pytest.mark.night
@pytest.mark.parametrize("name", BOMBS)
def test_what_is_taken(tmp_path: Path, name: str) -> None:
    """Hold the memory and the CPU time of a process that reads the bomb."""
    bomb = BOMBS[name]
    error, memory, seconds = taken(shard(tmp_path, bomb), bomb)
    assert error == (bomb.error and bomb.error.__name__)
    assert memory <= BUDGET + BESIDES
    assert seconds <= SECONDS


def taken(url: str, bomb: Bomb) -> list[Any]:
    """Return the error, the bytes and the CPU seconds of a process that reads a shard."""
    from streamrec.formats.examples.descriptions import describe

    argument = json.dumps([url, describe(bomb.features), bomb.rows])
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=argument, capture_output=True, text=True, check=True
    )
    return list(json.loads(found.stdout))
