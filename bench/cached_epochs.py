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


def write(folder: Path, count: int, words: int) -> None:
    """Write JPEGs of 500 x 375 pixels, and texts of so many words."""
    random = np.random.default_rng(1)
    coarse = random.integers(0, 256, (count, 15, 20, 3), np.uint8)
    with sr.ShardedWriter(folder / "pictures.tfrecord", shards=4) as pictures:
        for each in coarse:
            picture = each.repeat(25, axis=0).repeat(25, axis=1)
            pictures.write({"image": sr.encode_jpeg(picture)})
    with sr.ShardedWriter(folder / "texts.tfrecord", shards=4) as texts:
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
@click.option("--words", default=500, show_default=True, help="Of a text that map takes apart.")
def main(_: Run, *, records: int, words: int) -> Report:
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, records, words)
        cases: dict[str, tuple[Any, dict[str, Any]]] = {
            "pictures": (PICTURES, {}),
            "mapped": (TEXTS, {"map": tokens}),
        }
        for of, (features, settings) in cases.items():
            source = folder / f"{'texts' if of == 'mapped' else of}-*.tfrecord"
            plain = second_epoch(source, features, **settings)
            cache = {"of": of, "folder": folder / of, "size": "4GiB"}
            kept = second_epoch(source, features, cache=cache, **settings)
            rows.append({"of": of, "without": plain, "with": kept, "times": kept / plain})
    return Report(table_of(COLUMNS, rows), {"rows": rows})


if __name__ == "__main__":
    main()
