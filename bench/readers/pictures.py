"""Decodes the pictures of a shard again and again, in two threads, with one library."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import cycle, islice, repeat
from typing import Any

import numpy as np

from bench import stopwatch
from bench.stopwatch import Arguments, Done

THREADS = 2
BATCH_SIZE = 32


def streamrec(path: str, shape: Any, resize: Any) -> Iterator[Done]:
    """Stream batches of decoded pictures; reading, CRC and parsing are included."""
    import streamrec as sr

    features = {"image": sr.Image(shape, resize=resize)}
    with sr.open(path, features, batch_size=BATCH_SIZE, epochs=None, engine="thread") as stream:
        for batch in stream:
            yield Done(len(batch))


def tf_data(path: str, shape: Any, resize: Any) -> Iterator[Done]:
    """Iterate over a tf.data pipeline; reading, CRC and parsing are included."""
    import tensorflow as tf

    spec = {"image": tf.io.FixedLenFeature((), tf.string)}

    def decode(record: Any) -> Any:
        contents = tf.io.parse_single_example(record, spec)["image"]
        if path.endswith("png.tfrecord"):
            picture = tf.io.decode_png(contents, 3)
        else:
            picture = tf.io.decode_jpeg(contents, 3)
        if resize:
            resized = tf.image.resize(picture, resize, antialias=True)
            return tf.cast(tf.round(resized), tf.uint8)
        return tf.ensure_shape(picture, (*shape, 3)) if shape else picture

    dataset = tf.data.TFRecordDataset(path).repeat().map(decode, num_parallel_calls=THREADS)
    dense = bool(shape or resize)
    dataset = (dataset.batch(BATCH_SIZE) if dense else dataset).prefetch(2)
    options = tf.data.Options()
    options.threading.private_threadpool_size = THREADS
    for batch in dataset.with_options(options).as_numpy_iterator():
        yield Done(len(batch) if dense else 1)


def encoded(path: str) -> Iterator[bytes]:
    """Return the encoded pictures of a shard without end, from memory."""
    import streamrec as sr

    spec = {"image": sr.FixedLenFeature((), bytes)}
    parsed = [sr.parse_single_example(record, spec) for record in sr.read_records(path)]
    return cycle([bytes(columns["image"]) for columns in parsed])


def dali(path: str, _: Any, resize: Any) -> Iterator[Done]:
    """Run a pipeline with the CPU decoder, which does what TensorFlow's default does."""
    library = import_module("nvidia.dali")
    operators, types = library.fn, library.types
    endless = map(np.frombuffer, encoded(path), repeat(np.uint8))

    @library.pipeline_def(batch_size=BATCH_SIZE, num_threads=THREADS, device_id=None)  # type: ignore[untyped-decorator]
    def decoded() -> Any:
        contents = operators.external_source(source=lambda: list(islice(endless, BATCH_SIZE)))
        picture = operators.decoders.image(
            contents, device="cpu", jpeg_fancy_upsampling=True, use_fast_idct=True
        )
        if not resize:
            return picture
        return operators.resize(picture, size=resize, interp_type=types.INTERP_LINEAR)

    pipeline = decoded()
    while True:
        (batch,) = pipeline.run()
        yield Done(len(batch))


def _threads(decode: Callable[[bytes, Any], Any]) -> Callable[[str, Any, Any], Iterator[Done]]:
    """Return a reader that decodes pictures that are in memory, in a pool of threads."""

    def read(path: str, _: Any, resize: Any) -> Iterator[Done]:
        endless = encoded(path)
        with ThreadPoolExecutor(THREADS) as pool:
            pending = [pool.submit(some, endless, resize) for _ in range(2 * THREADS)]
            while True:
                pending.pop(0).result()
                pending.append(pool.submit(some, endless, resize))
                yield Done(BATCH_SIZE)

    def some(endless: Iterator[bytes], resize: Any) -> list[Any]:
        return [decode(contents, resize) for contents in list(islice(endless, BATCH_SIZE))]

    return read


def pillow(contents: bytes, resize: Any) -> Any:
    """Decode, and resize, as its documentation does: draft() for JPEG, then bilinear."""
    from PIL import Image

    image: Any = Image.open(io.BytesIO(contents))
    if resize:
        image.draft("RGB", tuple(2 * side for side in resize[::-1]))
        image = image.convert("RGB").resize(resize[::-1], Image.Resampling.BILINEAR)
    return np.asarray(image.convert("RGB"))


def cv2(contents: bytes, resize: Any) -> Any:
    """Decode to RGB, and resize by areas."""
    library = import_module("cv2")
    library.setNumThreads(1)
    picture = library.imdecode(np.frombuffer(contents, np.uint8), library.IMREAD_COLOR_RGB)
    return (
        library.resize(picture, resize[::-1], interpolation=library.INTER_AREA)
        if resize
        else picture
    )


def simplejpeg(contents: bytes, resize: Any) -> Any:
    """Decode with the transform that TensorFlow's default is, and resize with Pillow."""
    from PIL import Image

    library = import_module("simplejpeg")
    height, width = (2 * side for side in resize) if resize else (0, 0)
    picture = library.decode_jpeg(
        contents, fastdct=True, min_height=height, min_width=width, min_factor=2
    )
    if not resize:
        return picture
    return np.asarray(Image.fromarray(picture).resize(resize[::-1], Image.Resampling.BILINEAR))


def torchvision(contents: bytes, resize: Any) -> Any:
    """Decode with torchvision's own codec, and resize with antialiasing."""
    import torch

    library = import_module("torchvision.io")
    torch.set_num_threads(1)
    encoded = torch.frombuffer(bytearray(contents), dtype=torch.uint8)
    picture = library.decode_image(encoded, library.ImageReadMode.RGB)
    if not resize:
        return picture
    functional = import_module("torchvision.transforms.v2.functional")
    return functional.resize(picture, resize, antialias=True)


READERS = {
    "streamrec": streamrec,
    "tf.data": tf_data,
    "torchvision": _threads(torchvision),
    "DALI": dali,
    "Pillow": _threads(pillow),
    "cv2": _threads(cv2),
    "simplejpeg": _threads(simplejpeg),
}


def decode(arguments: Arguments) -> dict[str, Any]:
    read, settings = READERS[arguments["reader"]], arguments["settings"]
    return stopwatch.repeat(lambda: read(*settings), arguments["seconds"])


if __name__ == "__main__":
    stopwatch.main({"decode": decode})
