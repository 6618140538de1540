"""Converts a source in one way, and prints how long it took; makes the sources, too."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.writing.bert import SETTINGS
from bench.writing.timing import timed
from streamrec.cli.write import write as streamrec_write
from streamrec.formats.images.image import encode_jpeg, read_picture
from streamrec.formats.images.picture import OutputForm

if TYPE_CHECKING:
    from collections.abc import Callable

CLASSES = 10
HEIGHT, WIDTH = 375, 500
COARSE = 25
"""Pixels of a square of one brightness in a picture, below the noise."""
QUALITY = 95
CSV_COLUMNS = 12
COPY = 1 << 20


def make_pictures(directory: Path, pictures: int) -> None:
    """Write JPEGs of some 70 KB into ten classes."""
    random = np.random.default_rng(0)
    for number in range(pictures):
        path = directory / f"class-{number % CLASSES}" / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = random.integers(0, 200, (HEIGHT // COARSE, WIDTH // COARSE, 3), np.uint8)
        pixels = coarse.repeat(COARSE, axis=0).repeat(COARSE, axis=1)
        pixels += random.integers(0, 24, pixels.shape, np.uint8)
        path.write_bytes(encode_jpeg(pixels, QUALITY))


def make_csv(path: Path, rows: int) -> None:
    """Write a table of integers, floats and words."""
    random = np.random.default_rng(0)
    whole = random.integers(0, 100_000, (rows, CSV_COLUMNS // 2))
    parts = random.random((rows, CSV_COLUMNS // 2))
    head = ",".join(f"column-{number}" for number in range(CSV_COLUMNS + 1))
    lines = (
        f"{','.join(map(str, ints))},{','.join(f'{one:.6f}' for one in floats)},word-{ints[0]}"
        for ints, floats in zip(whole.tolist(), parts.tolist(), strict=True)
    )
    path.write_text("\n".join([head, *lines, ""]))


def read_and_copy(arguments: dict[str, Any]) -> None:
    """Read the files one after the other, and copy them into one, which is flushed to the disk."""
    with Path(arguments["dest"], "x.bytes").open("wb", COPY) as copy:
        copy.writelines(path.read_bytes() for path in _files(arguments))
        copy.flush()
        os.fsync(copy.fileno())


def read_decode_and_encode(arguments: dict[str, Any]) -> None:
    """Read, decode and encode the pictures in as many threads as there are cores."""

    def encoded(path: Path) -> int:
        pixels = read_picture(path.read_bytes(), OutputForm(channels=3)).decode()
        return len(encode_jpeg(pixels, QUALITY))

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        sum(threads.map(encoded, _files(arguments)))


def converted(*options: str) -> Callable[[dict[str, Any]], None]:
    """Return a way that runs ``streamrec write``."""

    def write(arguments: dict[str, Any]) -> None:
        dest = f"{arguments['dest']}/x.tfrecord"
        command = [arguments["source"], dest, *options]
        streamrec_write.main(command, standalone_mode=False)

    return write


def write_bert(arguments: dict[str, Any]) -> None:
    """Convert text for BERT, with the vocabulary beside it."""
    vocabulary = str(Path(arguments["source"]).with_name("vocab.txt"))
    options = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    converted("--kind", "bert", "--vocab-file", vocabulary, *options, "--json")(arguments)


WAYS: dict[str, Callable[[dict[str, Any]], None]] = {
    "read and copied": read_and_copy,
    "streamrec write": converted("--json"),
    "read, decoded and encoded": read_decode_and_encode,
    "streamrec write --encode jpeg": converted("--encode", "jpeg", "--json"),
    "streamrec write --kind bert": write_bert,
    "streamrec write --workers 1": converted("--workers", "1", "--json"),
    "streamrec write --workers 2": converted("--workers", "2", "--json"),
}


def _files(arguments: dict[str, Any]) -> list[Path]:
    return sorted(Path(arguments["source"]).rglob("*.jpg"))


def main() -> None:
    """Convert as the arguments say, first a little to warm up, and print the report."""
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    timed(WAYS[arguments["way"]], arguments)


if __name__ == "__main__":
    main()
