"""Other writers of the same records, and plain writers of as many bytes."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.writing.kinds import mappings, nbytes_of, shard_nbytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.writing.kinds import Columns
    from bench.writing.place import Place

PART = 8 << 20
AT_ONCE = 4
"""The size and the number of parts that a plain uploader sends at once: those of streamrec."""
CHUNK = 1 << 20
SHARDS = 4


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


def ray_data(columns: Columns, place: Place) -> Callable[[], object]:
    """Write with Ray Data's ``write_tfrecords``, a block for each core."""
    import pyarrow as pa
    import ray
    from pyarrow.fs import LocalFileSystem, S3FileSystem

    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
        ray.data.DataContext.get_current().enable_progress_bars = False
    files: Any = LocalFileSystem()
    if place.bucket:
        options = place.storage_options
        endpoint = options["endpoint_url"].removeprefix("http://")
        files = S3FileSystem(
            access_key=options["key"],
            secret_key=options["secret"],
            endpoint_override=endpoint,
            scheme="http",
        )
    table = pa.table({name: _arrow(column) for name, column in columns.items()})
    half = -(-len(table) // 2)
    path = place.directory.removeprefix("s3://")

    def write() -> None:
        dataset = ray.data.from_arrow([table.slice(0, half), table.slice(half)])
        dataset.write_tfrecords(path, filesystem=files)

    return write


def _arrow(column: Any) -> Any:
    return column if isinstance(column, list) else column.tolist()


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
