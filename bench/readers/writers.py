"""Writes one kind of records in one way, and reports how long it took; needs NumPy alone.

The writers of others need their packages: each is imported by the way that has it, and so is
streamrec.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from bench.stopwatch import Arguments, main, tree, usage

Columns = dict[str, Any]
"""Columns by feature name: arrays, or lists of byte strings."""
IMAGE_BYTES = 110_000
SEQUENCE = 512
VOCABULARY = 50_000
FRAME = 16
"""The bytes of a TFRecord besides the record."""
BLOCK = 4 << 20
"""Bytes of columns, about, that are written at a time."""
WARM_UP = 10
"""Records that are written before the clock starts."""
PART = 8 << 20
AT_ONCE = 4
"""The size and the number of parts that a plain uploader sends at once: those of streamrec."""
CHUNK = 1 << 20
SHARDS = 4
REGION = "us-east-1"

# -- records ---------------------------------------------------------------------------------------


def small(records: int) -> Columns:
    """Return a label, a weight, a vector of 16 floats and a short name."""
    random = np.random.default_rng(1)
    return {
        "label": random.integers(0, 1000, records),
        "name": [b"name-%d" % number for number in range(records)],
        "vector": random.random((records, 16), np.float32),
        "weight": random.random(records, np.float32),
    }


def tokens(records: int) -> Columns:
    """Return sequences of 512 ids, most of which take two or three bytes."""
    random = np.random.default_rng(2)
    shape = (records, SEQUENCE)
    return {"tokens": (VOCABULARY * random.random(shape) ** 1.5).astype(np.int64)}


def pictures(records: int) -> Columns:
    """Return strings of the size of encoded pictures, and labels."""
    random = np.random.default_rng(3)
    return {
        "image": [random.bytes(IMAGE_BYTES) for _ in range(records)],
        "label": random.integers(0, 1000, records),
    }


class Kind(NamedTuple):
    """Records of one kind."""

    make: Callable[[int], Columns]
    """Makes the columns of so many records."""
    records: int
    """The number of records where ``--size`` is 1."""


KINDS = {
    "small": Kind(small, 200_000),
    "tokens": Kind(tokens, 20_000),
    "pictures": Kind(pictures, 2_000),
}


def nbytes_of(columns: Columns) -> int:
    return sum(
        sum(map(len, column)) if isinstance(column, list) else int(column.nbytes)
        for column in columns.values()
    )


def shard_nbytes(columns: Columns) -> int:
    """Return the bytes of all records as Examples in TFRecord frames."""
    entries: Any = 0
    for name, column in columns.items():
        feature = _framed(_framed(_value_sizes(column)))
        entries = entries + _framed(_framed(np.array(len(name))) + _framed(feature))
    return int((_framed(entries) + FRAME).sum())


def _value_sizes(column: Any) -> Any:
    """Return the bytes of each row's values in protobuf's wire format."""
    if isinstance(column, list):
        return np.fromiter(map(len, column), np.int64)
    values = column.reshape(len(column), -1)
    sizes = _varint_sizes(values) if values.dtype.kind == "i" else np.full(values.shape, 4)
    return sizes.sum(axis=1)


def _framed(sizes: Any) -> Any:
    """Return the bytes of messages behind a tag and their length."""
    return 1 + _varint_sizes(sizes) + sizes


def _varint_sizes(values: Any) -> Any:
    return 1 + np.searchsorted(1 << np.arange(7, 63, 7), values, "right")


def mappings(columns: Columns) -> list[dict[str, Any]]:
    """Return a mapping of plain Python values for each record."""
    plain = {name: _plain(column) for name, column in columns.items()}
    return [dict(zip(plain, values, strict=True)) for values in zip(*plain.values(), strict=True)]


def _plain(column: Any) -> Any:
    return column if isinstance(column, list) else column.tolist()


def blocks(columns: Columns) -> Iterator[Columns]:
    """Yield the columns of some rows at a time."""
    records = len(next(iter(columns.values())))
    rows = max(1, BLOCK * records // nbytes_of(columns))
    for first in range(0, records, rows):
        yield {name: column[first : first + rows] for name, column in columns.items()}


@dataclass(frozen=True)
class Place:
    """A local directory, or a bucket of a store."""

    directory: str
    """A path, or ``s3://`` and the bucket's name."""
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    """s3fs's options; of a local directory, none."""

    @property
    def bucket(self) -> str:
        """The bucket's name; empty for a local directory."""
        return urlsplit(self.directory).netloc

    def url(self, name: str) -> str:
        """Return the path or URL of an object."""
        return f"{self.directory}/{name}"

    def create(self, url: str) -> Any:
        """Return a new file; in a store, s3fs's, which uploads in parts."""
        if not self.bucket:
            return open(url, "wb")  # noqa: PTH123 - the caller closes it
        from s3fs import S3FileSystem

        return S3FileSystem(**self.storage_options).open(url, "wb")

    def variables(self) -> dict[str, str]:
        """Return the variables that tell boto3 where the store is, and the keys."""
        options = self.storage_options
        if not options:
            return {}
        return {
            "AWS_ACCESS_KEY_ID": options["key"],
            "AWS_SECRET_ACCESS_KEY": options["secret"],
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": options["endpoint_url"],
            "S3_ENDPOINT_URL": options["endpoint_url"],
            # Arrow's client would send checksums behind the body, which the store does not read.
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        }


# -- streamrec -------------------------------------------------------------------------------------


def columns_by_block(columns: Columns, place: Place) -> Callable[[], object]:
    import streamrec as sr

    parts = list(blocks(columns))

    def write() -> None:
        url, options = place.url("x.tfrecord"), place.storage_options
        with sr.TFRecordWriter(url, storage_options=options) as writer:
            for block in parts:
                writer.write_many(block)

    return write


def sharded_columns(columns: Columns, place: Place) -> Callable[[], object]:
    """Write blocks of columns into four shards with streamrec, and an index."""
    parts, size = list(blocks(columns)), max(1 << 20, nbytes_of(columns) // SHARDS)

    def write() -> None:
        with _sharded_writer(place, shard_bytes=size) as writer:
            for block in parts:
                writer.write_many(block)

    return write


def encode_and_write(columns: Columns, place: Place) -> Callable[[], object]:
    """Write mappings one by one, as tutorials do, with streamrec."""
    import streamrec as sr

    rows = mappings(columns)

    def write() -> None:
        url, options = place.url("x.tfrecord"), place.storage_options
        with sr.TFRecordWriter(url, storage_options=options) as writer:
            for row in rows:
                writer.write(sr.encode_example(row))

    return write


def sharded(columns: Columns, place: Place) -> Callable[[], object]:
    """Write mappings one by one into four shards, with their types checked and an index."""
    rows = mappings(columns)

    def write() -> None:
        with _sharded_writer(place, shards=SHARDS) as writer:
            for row in rows:
                writer.write(row)

    return write


def _sharded_writer(place: Place, **how: Any) -> Any:
    import streamrec as sr

    url, options = place.url("x.tfrecord"), place.storage_options
    return sr.ShardedWriter(url, overwrite=True, storage_options=options, **how)


# -- others ----------------------------------------------------------------------------------------


def plain_files(columns: Columns, place: Place) -> Callable[[], object]:
    """Write as many bytes as the shards have into four files, and flush each to the disk."""
    data = os.urandom(shard_nbytes(columns) // SHARDS)

    def write() -> None:
        for number in range(SHARDS):
            with open(place.url(f"x{number}.bytes"), "wb", 0) as file:  # noqa: PTH123
                file.writelines(data[begin : begin + CHUNK] for begin in range(0, len(data), CHUNK))
                os.fsync(file.fileno())

    return write


def plain_upload(columns: Columns, place: Place) -> Callable[[], object]:
    """Upload as many bytes as the shard has, which are in memory, in parts with boto3."""
    import boto3
    from boto3.s3.transfer import TransferConfig

    data = os.urandom(shard_nbytes(columns))
    client = boto3.client("s3")
    config = TransferConfig(
        multipart_threshold=PART, multipart_chunksize=PART, max_concurrency=AT_ONCE
    )
    return lambda: client.upload_fileobj(io.BytesIO(data), place.bucket, "x.bytes", Config=config)


def tensorflow(columns: Columns, place: Place) -> Callable[[], object]:
    """Write with TensorFlow's classes in a loop, as its tutorial does."""
    import tensorflow as tf

    rows = mappings(columns)
    train = tf.train

    def feature(value: Any) -> Any:
        values = value if isinstance(value, list) else [value]
        if isinstance(values[0], bytes):
            return train.Feature(bytes_list=train.BytesList(value=values))
        if isinstance(values[0], float):
            return train.Feature(float_list=train.FloatList(value=values))
        return train.Feature(int64_list=train.Int64List(value=values))

    def write() -> None:
        with tf.io.TFRecordWriter(place.url("x.tfrecord")) as writer:
            for row in rows:
                features = {name: feature(value) for name, value in row.items()}
                example = train.Example(features=train.Features(feature=features))
                writer.write(example.SerializeToString())

    return write


def tfrecord_package(columns: Columns, place: Place) -> Callable[[], object]:
    """Write with the ``tfrecord`` package."""
    from tfrecord.writer import TFRecordWriter

    words = {bytes: "byte", float: "float", int: "int"}
    rows = [
        {
            name: (value, words[type(value[0] if isinstance(value, list) else value)])
            for name, value in row.items()
        }
        for row in mappings(columns)
    ]

    def write() -> None:
        writer = TFRecordWriter(place.url("x.tfrecord"))
        for row in rows:
            writer.write(row)
        writer.close()

    return write


def webdataset(columns: Columns, place: Place) -> Callable[[], object]:
    """Write tar files with WebDataset's ``ShardWriter``: a member for each feature."""
    from webdataset import ShardWriter

    rows = [
        {"__key__": f"{number:08}", **{f"{name}.{_member(v)}": v for name, v in row.items()}}
        for number, row in enumerate(_arrays(columns))
    ]
    size = max(CHUNK, nbytes_of(columns) // SHARDS)

    def write() -> None:
        pattern = place.url("x-%05d.tar")
        opener = place.create
        with ShardWriter(pattern, maxcount=1 << 30, maxsize=size, opener=opener, verbose=0) as out:
            for row in rows:
                out.write(row)

    return write


def mosaic(columns: Columns, place: Place) -> Callable[[], object]:
    """Write MDS shards with MosaicML's ``MDSWriter``."""
    from streaming import MDSWriter

    rows = list(_arrays(columns))
    types = {name: _mds_type(value) for name, value in rows[0].items()}
    size = max(CHUNK, nbytes_of(columns) // SHARDS)

    def write() -> None:
        out = place.url("mds")
        with MDSWriter(out=out, columns=types, size_limit=size, exist_ok=True) as writer:
            for row in rows:
                writer.write(row)

    return write


def _arrays(columns: Columns) -> Any:
    """Yield a mapping for each record: arrays, integers and byte strings."""
    plain = {
        name: column if isinstance(column, list) or column.ndim > 1 else column.tolist()
        for name, column in columns.items()
    }
    for values in zip(*plain.values(), strict=True):
        yield dict(zip(plain, values, strict=True))


def _member(value: Any) -> str:
    """Return the suffix by which WebDataset chooses the encoding of a value."""
    return "npy" if isinstance(value, np.ndarray) else "bin" if isinstance(value, bytes) else "json"


def _mds_type(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"ndarray:{value.dtype}:{','.join(map(str, value.shape))}"
    return {bytes: "bytes", int: "int", float: "float64"}[type(value)]


WRITERS: dict[str, Callable[[Columns, Place], Callable[[], object]]] = {
    "columns by block": columns_by_block,
    "ShardedWriter, columns": sharded_columns,
    "encode_example and write": encode_and_write,
    "ShardedWriter, one by one": sharded,
    "TensorFlow": tensorflow,
    "tfrecord package": tfrecord_package,
    "WebDataset": webdataset,
    "MosaicML MDS": mosaic,
    "plain files": plain_files,
    "plain upload, boto3": plain_upload,
}


def helpers_seconds() -> float:
    """Return the CPU time of all processes that this one has started."""
    return sum(usage(pid).cpu_seconds for pid in tree(os.getpid())[1:])


def write_records(arguments: Arguments) -> dict[str, Any]:
    """Write as the arguments say, once to warm up with a few records, and return the report."""
    make, way = KINDS[arguments["kind"]].make, WRITERS[arguments["way"]]
    options = arguments["storage_options"]
    for name in ("directory", "warm_up"):
        if not options:
            os.makedirs(arguments[name], exist_ok=True)  # noqa: PTH103
    way(make(WARM_UP), Place(arguments["warm_up"], options))()
    columns = make(arguments["records"])
    write = way(columns, Place(arguments["directory"], options))
    helpers = helpers_seconds()  # which takes some CPU time itself
    began, cpu = time.perf_counter(), time.process_time()
    write()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    cpu += helpers_seconds() - helpers
    return {"seconds": seconds, "cpu_seconds": cpu, "nbytes": nbytes_of(columns)}


if __name__ == "__main__":
    main({"write": write_records})
