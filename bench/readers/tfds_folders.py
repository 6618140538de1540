"""Reads a TFDS folder again and again, with streamrec or with tensorflow_datasets."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from bench import stopwatch
from bench.stopwatch import Arguments, Done


def streamrec(folder: str, batch_size: int) -> Iterator[Done]:
    """Stream batches, as a plain loop gets them."""
    import streamrec as sr

    with sr.open(folder, split="train", batch_size=batch_size, epochs=None) as stream:
        for batch in stream:
            yield Done(len(batch))


def tensorflow_datasets(folder: str, batch_size: int) -> Iterator[Done]:
    """Iterate as its documentation does: batched and prefetched, to NumPy."""
    tfds = import_module("tensorflow_datasets")
    dataset = tfds.builder_from_directory(folder).as_dataset(split="train").repeat()
    for batch in tfds.as_numpy(dataset.batch(batch_size).prefetch(-1)):
        yield Done(len(next(iter(batch.values()))))


READERS = {"streamrec": streamrec, "tensorflow_datasets": tensorflow_datasets}


def read(arguments: Arguments) -> dict[str, Any]:
    reader, settings = READERS[arguments["reader"]], arguments["settings"]
    return stopwatch.repeat(lambda: reader(*settings), arguments["seconds"])


if __name__ == "__main__":
    stopwatch.main({"read": read})
