"""Write the shards that the other examples read. They are small, and real.

``python examples/write_shards.py photos s3://train/photos``

photos: squares of 32 pixels, cut from eight photographs. Which photograph is a square from?
text:   the paragraphs of the documentation and the licence, as bytes.
lines:  lines of Markdown, Python and C, a character a step. Which language is a line?

All are made of files of this repository. The photographs are in the public domain, see
streamrec/datasets/pictures. The bucket is made if it does not exist.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import fsspec
import numpy as np

import streamrec as sr

ROOT = Path(__file__).parents[1]
SHARDS = 8
SQUARES, SIDE = 2048, 32
LINES = 700  # of each language
LANGUAGES = ["docs/**/*.md", "streamrec/plan/**/*.py", "streamrec/**/*.[ch]"]


def photos() -> Iterator[bytes]:
    """Yield Examples of a JPEG and of the number of the photograph that it was cut from."""
    choose = random.Random(1)
    paths = sorted(ROOT.glob("streamrec/datasets/pictures/*.jpg"))
    photographs = [sr.decode_jpeg(path.read_bytes()) for path in paths]
    for number in range(SQUARES):
        label = number % len(photographs)
        height, width, _ = photographs[label].shape
        top, left = choose.randrange(height - SIDE), choose.randrange(width - SIDE)
        square = photographs[label][top : top + SIDE, left : left + SIDE]
        image = sr.encode_jpeg(np.ascontiguousarray(square))
        yield sr.encode_example({"image": image, "label": label})


def text() -> Iterator[bytes]:
    """Yield Examples of a paragraph's bytes."""
    for path in [ROOT / "LICENSE", *sorted(ROOT.glob("docs/**/*.md"))]:
        for paragraph in path.read_text().split("\n\n"):
            yield sr.encode_example({"tokens": list(paragraph.encode())})


def lines() -> Iterator[bytes]:
    """Yield SequenceExamples of a line's characters; the number of its language is the context."""
    choose = random.Random(1)
    languages = []
    for pattern in LANGUAGES:
        found = (path.read_text().splitlines() for path in sorted(ROOT.glob(pattern)))
        long = [line.strip()[:60] for some in found for line in some if len(line.strip()) > 20]
        languages.append(choose.sample(long, LINES))
    for row in zip(*languages, strict=True):
        for label, line in enumerate(row):
            characters = [[byte] for byte in line.encode()]
            yield sr.encode_sequence_example({"label": label}, {"characters": characters})


KINDS = {"photos": photos, "text": text, "lines": lines}


@click.command()
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.argument("prefix")
def main(kind: str, prefix: str) -> None:
    """Write shards of a KIND of records, whose names begin with PREFIX, and their index."""
    records = list(KINDS[kind]())
    filesystem, path = fsspec.url_to_fs(prefix)
    filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    for shard in range(SHARDS):
        first, end = (n * len(records) // SHARDS for n in (shard, shard + 1))
        with sr.TFRecordWriter(f"{prefix}-{shard:05}-of-{SHARDS:05}.tfrecord") as writer:
            writer.write_many(records[first:end])
    index = [sys.executable, "-m", "streamrec", "index", f"{prefix}-*.tfrecord"]
    subprocess.run(index, check=True)


if __name__ == "__main__":
    main()
