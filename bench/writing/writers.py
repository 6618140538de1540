"""Writes one kind of records in one way, and prints how long it took."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from bench.writing.kinds import KINDS, Columns, mappings

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 4 << 20
"""Bytes of columns, about, that are written at a time."""


def columns_by_block(columns: Columns, path: str) -> Callable[[], object]:
    """Write blocks of columns with streamrec."""
    import streamrec as sr

    records = len(next(iter(columns.values())))
    rows = max(1, BLOCK * records // sum(map(size_of, columns.values())))

    def write() -> None:
        with sr.TFRecordWriter(path) as writer:
            for first in range(0, records, rows):
                block = slice(first, first + rows)
                writer.write_many({name: column[block] for name, column in columns.items()})

    return write


def size_of(column: Any) -> int:
    """Return the bytes of a column's values."""
    return sum(map(len, column)) if isinstance(column, list) else int(column.nbytes)


def encode_and_write(columns: Columns, path: str) -> Callable[[], object]:
    """Write mappings one by one, as tutorials do, with streamrec."""
    import streamrec as sr

    rows = mappings(columns)

    def write() -> None:
        with sr.TFRecordWriter(path) as writer:
            for row in rows:
                writer.write(sr.encode_example(row))

    return write


def sharded(columns: Columns, path: str) -> Callable[[], object]:
    """Write mappings one by one into four shards, with their types checked and an index."""
    import streamrec as sr

    rows = mappings(columns)

    def write() -> None:
        with sr.ShardedWriter(path, shards=4, overwrite=True) as writer:
            for row in rows:
                writer.write(row)

    return write


def tensorflow(columns: Columns, path: str) -> Callable[[], object]:
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
        with tf.io.TFRecordWriter(path) as writer:
            for row in rows:
                features = {name: feature(value) for name, value in row.items()}
                example = train.Example(features=train.Features(feature=features))
                writer.write(example.SerializeToString())

    return write


def tfrecord_package(columns: Columns, path: str) -> Callable[[], object]:
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
        writer = TFRecordWriter(path)
        for row in rows:
            writer.write(row)
        writer.close()

    return write


WAYS: dict[str, Callable[[Columns, str], Callable[[], object]]] = {
    "columns by block": columns_by_block,
    "encode_example and write": encode_and_write,
    "ShardedWriter, one by one": sharded,
    "TensorFlow": tensorflow,
    "tfrecord package": tfrecord_package,
}


def main() -> None:
    """Write as the arguments say, once to warm up with a few records, and print the report."""
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    make, path = KINDS[arguments["kind"]][0], arguments["path"]
    way = WAYS[arguments["way"]]
    way(make(10), path)()
    write = way(make(arguments["records"]), path)
    began, cpu = time.perf_counter(), time.process_time()
    write()
    report = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
