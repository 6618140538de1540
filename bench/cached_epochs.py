"""The second epoch from a cache of decoded pictures, and of mapped records, beside one without.

``python -m bench.cached_epochs`` writes shards on this machine's disk and reads two shuffled epochs
of them with and without each cache. It prints the records/s of the second epoch, and their ratio.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import numpy as np

import streamrec as sr
from bench.harness import Column, Report, Run, benchmark, table_of

WORDS = [b"%d" % number for number in range(5000)]
WORDS_OF_A_TEXT = (500, 5000)
VOCABULARY = {word: number for number, word in enumerate(WORDS)}
PICTURES = {"image": sr.Image(resize=(224, 224))}
TEXTS = {"text": sr.FixedLenFeature((), bytes)}
COLUMNS = (
    Column("cache", "of", str),
    Column("records/s without", "without"),
    Column("with", "with"),
    Column("times", "times"),
)


def tokens(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Give the words of texts their numbers, as plain Python does."""
    texts = columns["text"].to_list()
    numbers = [[VOCABULARY[word] for word in text.split()] for text in texts]
    return {"tokens": np.array(numbers, np.int64)}


def write(folder: Path, count: int) -> None:
    """Write JPEGs of 500 x 375 pixels, and texts of few and of many words."""
    random = np.random.default_rng(1)
    coarse = random.integers(0, 256, (count, 15, 20, 3), np.uint8)
    with sr.ShardedWriter(folder / "pictures.tfrecord", shards=4) as pictures:
        for each in coarse:
            picture = each.repeat(25, axis=0).repeat(25, axis=1)
            pictures.write({"image": sr.encode_jpeg(picture)})
    for words in WORDS_OF_A_TEXT:
        with sr.ShardedWriter(folder / f"texts-{words}.tfrecord", shards=4) as texts:
            for numbers in random.integers(0, len(WORDS), (count, words)):
                texts.write({"text": b" ".join(WORDS[number] for number in numbers)})


def second_epoch(source: Path, features: Any, **settings: Any) -> float:
    with sr.open(source, features, batch_size=64, shuffle=True, engine="thread", **settings) as s:
        for _ in s:
            pass
        began = perf_counter()
        count = sum(len(batch) for batch in s)
        return count / (perf_counter() - began)


@benchmark("cached_epochs")
@click.option("--records", default=2048, show_default=True)
def main(_: Run, *, records: int) -> Report:
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, records)
        cases: dict[str, tuple[str, str, Any, dict[str, Any]]] = {
            "pictures": ("pictures", "pictures", PICTURES, {}),
            **{
                f"mapped, {words:,} words": ("mapped", f"texts-{words}", TEXTS, {"map": tokens})
                for words in WORDS_OF_A_TEXT
            },
        }
        for title, (of, source, features, settings) in cases.items():
            shards = folder / f"{source}-0*.tfrecord"
            plain = second_epoch(shards, features, **settings)
            cache = {"of": of, "folder": folder / f"{source} kept", "size": "4GiB"}
            kept = second_epoch(shards, features, cache=cache, **settings)
            rows.append({"of": title, "without": plain, "with": kept, "times": kept / plain})
    return Report(table_of(COLUMNS, rows), {"rows": rows})


if __name__ == "__main__":
    main()
