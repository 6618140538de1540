"""The second epoch from a cache of decoded pictures, and of mapped records, beside one without.

``python -m bench.cached_epochs`` writes shards on this machine's disk and reads two shuffled epochs
of them with and without each cache. It prints the records/s of the second epoch, and their ratio.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

import streamrec as sr

if TYPE_CHECKING:
    from collections.abc import Mapping

WORDS = [b"%d" % number for number in range(5000)]
VOCABULARY = {word: number for number, word in enumerate(WORDS)}
PICTURES = {"image": sr.Image(resize=(224, 224))}
TEXTS = {"text": sr.FixedLenFeature((), bytes)}


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
    """Return the records/s of a second shuffled epoch."""
    with sr.open(source, features, batch_size=64, shuffle=True, engine="thread", **settings) as s:
        for _ in s:
            pass
        began = perf_counter()
        count = sum(len(batch) for batch in s)
        return count / (perf_counter() - began)


def main() -> None:
    """Measure both caches, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2048)
    parser.add_argument("--words", type=int, default=500, help="of a text that map takes apart")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, arguments.records, arguments.words)
        cases: dict[str, tuple[Any, dict[str, Any]]] = {
            "pictures": (PICTURES, {}),
            "mapped": (TEXTS, {"map": tokens}),
        }
        for of, (features, settings) in cases.items():
            source = folder / f"{'texts' if of == 'mapped' else of}-*.tfrecord"
            plain = second_epoch(source, features, **settings)
            cache = {"of": of, "folder": folder / of, "size": "4GiB"}
            kept = second_epoch(source, features, cache=cache, **settings)
            print(f"{of}: {plain:,.0f} without, {kept:,.0f} with: {kept / plain:.2f} times")


if __name__ == "__main__":
    main()
