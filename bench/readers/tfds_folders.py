"""Reads a TFDS folder again and again: its records, or windows of its episodes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import cycle
from typing import Any

from bench import stopwatch
from bench.stopwatch import Arguments, Done

THREADS, WARM = 2, 8
"""Threads of each reader, and the batches before time is taken."""
IMAGE = "steps/observation/image"


def streamrec(folder: str, batch_size: int) -> Iterator[Done]:
    """Stream batches of records, as a plain loop gets them."""
    import streamrec as sr

    with sr.open(folder, split="train", batch_size=batch_size, epochs=None) as stream:
        for batch in stream:
            yield Done(len(batch))


def tensorflow_datasets(folder: str, batch_size: int) -> Iterator[Done]:
    """Iterate as its documentation does: batched and prefetched, to NumPy."""
    dataset = _opened(folder).batch(batch_size).prefetch(-1)
    for batch in import_module("tensorflow_datasets").as_numpy(dataset):
        yield Done(len(next(iter(batch.values()))))


def streamrec_windows(
    folder: str, batch_size: int, length: int, stride: int, shuffled_bytes: int, **_: Any
) -> Iterator[Done]:
    """Stream shuffled batches of windows."""
    import streamrec as sr

    order: dict[str, Any] = {"shuffle": True, "shuffle_window": shuffled_bytes, "epochs": None}
    order["window"] = sr.Window(length, stride, pad=None)
    with sr.open(folder, split="train", batch_size=batch_size, **order) as stream:
        for batch in stream:
            yield Done(len(batch), int(batch["steps/number"].sum()))


def tensorflow_datasets_windows(
    folder: str, batch_size: int, length: int, stride: int, shuffled: int, **_: Any
) -> Iterator[Done]:
    """Decode each frame of an episode once, cut its windows, and shuffle them in a buffer."""
    tf = import_module("tensorflow")

    def windows(episode: Any) -> Any:
        whole = episode["steps"].batch(1 << 20)

        def cut(steps: Any) -> Any:
            count = tf.shape(steps["number"])[0]
            places = tf.range(0, count - length + 1, stride)[:, None] + tf.range(length)
            return tf.nest.map_structure(lambda values: tf.gather(values, places), steps)

        return whole.map(cut).unbatch()

    found = _opened(folder).interleave(windows, cycle_length=THREADS, num_parallel_calls=THREADS)
    dataset = found.shuffle(shuffled).batch(batch_size).prefetch(-1)
    for batch in import_module("tensorflow_datasets").as_numpy(dataset):
        yield Done(len(batch["number"]), int(batch["number"].sum()))


def _opened(folder: str) -> Any:
    """Return the endless records of a folder, in a pool of threads for itself."""
    os.environ.setdefault("TFDS_DISABLE_TELEMETRY", "1")
    tfds = import_module("tensorflow_datasets")
    options = import_module("tensorflow").data.Options()
    options.threading.private_threadpool_size = THREADS
    # By default the decoded pictures of so small a folder would be kept from the first epoch on.
    config = tfds.ReadConfig(try_autocache=False)
    builder = tfds.builder_from_directory(folder)
    return builder.as_dataset(split="train", read_config=config).with_options(options).repeat()


def libraries(folder: str, length: int, **_: Any) -> Iterator[Done]:
    """Decode frames that are in memory, each once, in as many threads: the decoders alone."""
    import streamrec as sr

    features = {IMAGE: sr.VarLenFeature("bytes")}
    with sr.open(folder, features, split="train", batch_size=1, engine="thread") as stream:
        encoded = [picture for batch in sr.take(stream, 8) for picture in batch[IMAGE].values]
    with ThreadPoolExecutor(THREADS) as pool:
        for at in cycle(range(0, len(encoded) - length * 8, length * 8)):
            for _picture in pool.map(sr.decode_image, encoded[at : at + length * 8]):
                pass
            yield Done(8)


READERS: dict[str, Any] = {
    "streamrec": streamrec,
    "tensorflow_datasets": tensorflow_datasets,
    "streamrec, windows": streamrec_windows,
    "tensorflow_datasets, windows": tensorflow_datasets_windows,
    "decoders alone": libraries,
}


def read(arguments: Arguments) -> dict[str, Any]:
    # One reading that goes on: its first pieces, while buffers are filled, are not timed.
    reading = READERS[arguments["reader"]](**arguments["settings"])
    for _ in range(WARM):
        next(reading)
    return stopwatch.repeat(lambda: reading, arguments["seconds"])


if __name__ == "__main__":
    stopwatch.main({"read": read})
