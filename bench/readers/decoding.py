"""Finds, checks and parses the records of one shard again and again on one core."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import crc32c
import numpy as np
import numpy.typing as npt

import streamrec as sr
from bench.readers.streams import specs
from bench.stopwatch import Arguments, Done, main, repeat
from streamrec import kernel
from streamrec.formats.examples.features import FeatureParser
from streamrec.values.record_rows import RecordBlock, RecordRows

HEADER, FOOTER = struct.Struct("<QI"), struct.Struct("<I")
FRAME = HEADER.size + FOOTER.size
MASK_DELTA = 0xA282EAD8


# -- frames ----------------------------------------------------------------------------------------


def check_crc_alone(path: str, records: int) -> Iterator[Done]:
    """Compute the CRC of the whole file at once: the cost of checking without frames."""
    data = np.fromfile(path, np.uint8).data
    while True:
        crc32c.crc32c(data)
        yield Done(records, nbytes=len(data))


def loop_in_python(path: str, _: int) -> Iterator[Done]:
    """Find the frames in plain Python, and check each CRC with the ``crc32c`` package."""
    data = np.fromfile(path, np.uint8).data
    while True:
        count = at = 0
        while at < len(data):
            length, length_crc = HEADER.unpack_from(data, at)
            body, footer = at + HEADER.size, at + HEADER.size + length
            (data_crc,) = FOOTER.unpack_from(data, footer)
            if masked_crc32c(data[at : at + 8]) != length_crc:
                raise ValueError(f"corrupt length at byte {at}")
            if masked_crc32c(data[body:footer]) != data_crc:
                raise ValueError(f"corrupt record at byte {at}")
            count += 1
            at = footer + FOOTER.size
        yield Done(count, nbytes=at)


def masked_crc32c(data: bytes | memoryview) -> int:
    """Return the CRC as TFRecord stores it."""
    crc = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def scan_once(data: npt.NDArray[np.uint8]) -> Done:
    """Scan the frames once with streamrec's kernel."""
    found = kernel.scan_frames(data, 0, len(data), True)
    if found.fault:
        raise ValueError(f"{found.fault.name} at byte {found.stop}")
    return Done(len(found.offsets), nbytes=found.stop)


def scan(path: str, _: int) -> Iterator[Done]:
    """Scan the whole file in memory, as for the CRC alone."""
    data = np.fromfile(path, np.uint8)
    while True:
        yield scan_once(data)


def iterate_tfrecord_package(path: str, _: int) -> Iterator[Done]:
    """Read the file with the ``tfrecord`` package, which checks no CRC."""
    from tfrecord.reader import tfrecord_iterator

    while True:
        sizes = [len(record) for record in tfrecord_iterator(path)]
        yield Done(len(sizes), nbytes=sum(sizes) + FRAME * len(sizes))


FRAMES: dict[str, Callable[[str, int], Iterator[Done]]] = {
    "crc alone": check_crc_alone,
    "python loop": loop_in_python,
    "scan": scan,
    "tfrecord": iterate_tfrecord_package,
}


# -- columns ---------------------------------------------------------------------------------------


def batches(arguments: Arguments) -> list[RecordRows]:
    """Return the records of a file in batches, as rows of its buffer."""
    data, size = np.fromfile(arguments["paths"][0], np.uint8), arguments["batch_size"]
    found = kernel.scan_frames(data, 0, len(data), True)
    block = RecordBlock(data, found.offsets, found.lengths, 0, 0, 0)
    starts = range(0, len(block), size)
    return [RecordRows.from_block(block, start, start + size) for start in starts]


def serialized(arguments: Arguments) -> list[list[bytes]]:
    """Return the records of a file in batches, as byte strings."""
    return [[bytes(payload) for payload in rows.payloads()] for rows in batches(arguments)]


def parse_rows(arguments: Arguments) -> Iterator[Done]:
    """Parse rows in place with a parser that is prepared once, as a stream does."""
    parser = FeatureParser(specs(arguments["features"]))
    for rows in itertools.cycle(batches(arguments)):
        columns: dict[str, Any] = parser.parse(rows)
        yield Done(len(rows), int(columns["label"].sum()))


def parse_example(arguments: Arguments) -> Iterator[Done]:
    """Parse lists of byte strings with the public function."""
    features = specs(arguments["features"])
    for records in itertools.cycle(serialized(arguments)):
        columns: dict[str, Any] = sr.parse_example(records, features)
        yield Done(len(records), int(columns["label"].sum()))


def parse_with_upb(arguments: Arguments) -> Iterator[Done]:
    """Parse each record with protobuf's messages, into a mapping of arrays."""
    readers = {name: _reader(plain) for name, plain in arguments["features"].items()}
    for records in itertools.cycle(serialized(arguments)):
        labels = 0
        for record in records:
            features = sr.Example.FromString(record).features.feature
            row = {name: read(features[name]) for name, read in readers.items()}
            labels += int(row["label"][0])
        yield Done(len(records), labels)


def _reader(plain: Mapping[str, Any]) -> Callable[[Any], Any]:
    dtype, shape = plain["dtype"], tuple(plain["shape"])
    if plain.get("raw"):
        return lambda feature: np.frombuffer(feature.bytes_list.value[0], dtype).reshape(shape)
    if dtype == "bytes":
        return lambda feature: feature.bytes_list.value[0]
    if dtype == "int64":
        return lambda feature: np.array(feature.int64_list.value, np.int64)
    return lambda feature: np.array(feature.float_list.value, np.float32)


def load_tfrecord_package(arguments: Arguments) -> Iterator[Done]:
    """Load the file with the ``tfrecord`` package, which also reads it, and checks no CRC."""
    from tfrecord.reader import tfrecord_loader

    types = {"int64": "int", "float32": "float", "bytes": "byte", "uint8": "byte"}
    names = {name: types[plain["dtype"]] for name, plain in arguments["features"].items()}
    while True:
        for row in tfrecord_loader(arguments["paths"][0], None, names):
            yield Done(1, int(row["label"][0]))


COLUMNS: dict[str, Callable[[Arguments], Iterator[Done]]] = {
    "prepared": parse_rows,
    "parse_example": parse_example,
    "upb": parse_with_upb,
    "tfrecord": load_tfrecord_package,
}


def read_frames(arguments: Arguments) -> dict[str, Any]:
    work = partial(FRAMES[arguments["way"]], arguments["paths"][0], arguments["records"])
    return repeat(work, arguments["seconds"])


def read_columns(arguments: Arguments) -> dict[str, Any]:
    return repeat(partial(COLUMNS[arguments["way"]], arguments), arguments["seconds"])


if __name__ == "__main__":
    main({"frames": read_frames, "columns": read_columns})
