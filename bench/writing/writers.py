"""Writes one kind of records in one way, and prints how long it took."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from bench.usage import tree, usage
from bench.writing import peers
from bench.writing.kinds import KINDS, Columns, mappings, nbytes_of
from bench.writing.place import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCK = 4 << 20
"""Bytes of columns, about, that are written at a time."""
WARM_UP = 10
"""Records that are written before the clock starts."""


def columns_by_block(columns: Columns, place: Place) -> Callable[[], object]:
    """Write blocks of columns with streamrec."""
    import streamrec as sr

    parts = list(blocks(columns))

    def write() -> None:
        url = place.url("x.tfrecord")
        with sr.TFRecordWriter(url, storage_options=place.storage_options) as writer:
            for block in parts:
                writer.write_many(block)

    return write


def sharded_columns(columns: Columns, place: Place) -> Callable[[], object]:
    """Write blocks of columns into four shards with streamrec, and an index."""
    import streamrec as sr

    size = max(1 << 20, nbytes_of(columns) // peers.SHARDS)
    parts = list(blocks(columns))

    def write() -> None:
        url, options = place.url("x.tfrecord"), place.storage_options
        with sr.ShardedWriter(
            url, shard_bytes=size, overwrite=True, storage_options=options
        ) as writer:
            for block in parts:
                writer.write_many(block)

    return write


def blocks(columns: Columns) -> Iterator[Columns]:
    """Yield the columns of some rows at a time."""
    records = len(next(iter(columns.values())))
    rows = max(1, BLOCK * records // nbytes_of(columns))
    for first in range(0, records, rows):
        yield {name: column[first : first + rows] for name, column in columns.items()}


def encode_and_write(columns: Columns, place: Place) -> Callable[[], object]:
    """Write mappings one by one, as tutorials do, with streamrec."""
    import streamrec as sr

    rows = mappings(columns)

    def write() -> None:
        url = place.url("x.tfrecord")
        with sr.TFRecordWriter(url, storage_options=place.storage_options) as writer:
            for row in rows:
                writer.write(sr.encode_example(row))

    return write


def sharded(columns: Columns, place: Place) -> Callable[[], object]:
    """Write mappings one by one into four shards, with their types checked and an index."""
    import streamrec as sr

    rows = mappings(columns)

    def write() -> None:
        url, options = place.url("x.tfrecord"), place.storage_options
        with sr.ShardedWriter(
            url, shards=peers.SHARDS, overwrite=True, storage_options=options
        ) as writer:
            for row in rows:
                writer.write(row)

    return write


WRITERS: dict[str, Callable[[Columns, Place], Callable[[], object]]] = {
    "columns by block": columns_by_block,
    "ShardedWriter, columns": sharded_columns,
    "encode_example and write": encode_and_write,
    "ShardedWriter, one by one": sharded,
    "TensorFlow": peers.tensorflow,
    "tfrecord package": peers.tfrecord_package,
    "WebDataset": peers.webdataset,
    "MosaicML MDS": peers.mosaic,
    "Ray Data": peers.ray_data,
    "plain files": peers.plain_files,
    "plain upload, boto3": peers.plain_upload,
}


def helpers_seconds() -> float:
    """Return the CPU time of all processes that this one has started."""
    return sum(usage(pid).cpu_seconds for pid in tree(os.getpid())[1:])


def main() -> None:
    """Write as the arguments say, once to warm up with a few records, and print the report."""
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    make, way = KINDS[arguments["kind"]].make, WRITERS[arguments["way"]]
    for name in ("directory", "warm_up"):
        if not arguments["storage_options"]:
            os.makedirs(arguments[name], exist_ok=True)  # noqa: PTH103
    place = Place(arguments["directory"], arguments["storage_options"])
    few = Place(arguments["warm_up"], arguments["storage_options"])
    way(make(WARM_UP), few)()
    columns = make(arguments["records"])
    write = way(columns, place)
    helpers = helpers_seconds()  # which takes some CPU time itself
    began, cpu = time.perf_counter(), time.process_time()
    write()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    cpu += helpers_seconds() - helpers
    report = {"seconds": seconds, "cpu_seconds": cpu, "nbytes": nbytes_of(columns)}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
