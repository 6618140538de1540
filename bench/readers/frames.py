"""Finds and checks the records of one shard again and again on one core."""

from __future__ import annotations

import json
import struct
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np

from bench.stopwatch import Done, repeat
from streamrec import kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
FRAME = HEADER.size + FOOTER.size
MASK_DELTA = 0xA282EAD8


def crc_alone(path: str, records: int) -> Iterator[Done]:
    """Compute the CRC of the whole file at once: the cost of checking without frames."""
    data = np.fromfile(path, np.uint8).data
    while True:
        crc32c.crc32c(data)
        yield Done(records, nbytes=len(data))


def python_loop(path: str, records: int) -> Iterator[Done]:  # noqa: ARG001 - counts itself
    """Find the frames in plain Python, and check each CRC with the ``crc32c`` package."""
    data = np.fromfile(path, np.uint8).data
    while True:
        count = at = 0
        while at < len(data):
            length, length_crc = HEADER.unpack_from(data, at)
            footer = at + HEADER.size + length
            (data_crc,) = FOOTER.unpack_from(data, footer)
            if masked(data[at : at + 8]) != length_crc or data_crc != masked(
                data[at + HEADER.size : footer]
            ):
                raise ValueError(f"corrupt record at byte {at}")
            count += 1
            at = footer + FOOTER.size
        yield Done(count, nbytes=at)


def masked(data: bytes | memoryview) -> int:
    """Return the CRC as TFRecord stores it."""
    crc = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def scanned(data: npt.NDArray[np.uint8]) -> Done:
    """Scan the frames once with streamrec's kernel."""
    found = kernel.scan_frames(data, 0, len(data), True)
    if found.fault:
        raise ValueError(f"{found.fault.name} at byte {found.stop}")
    return Done(len(found.offsets), nbytes=found.stop)


def scan(path: str, records: int) -> Iterator[Done]:  # noqa: ARG001 - counts itself
    """Scan the whole file in memory, as for the CRC alone."""
    data = np.fromfile(path, np.uint8)
    while True:
        yield scanned(data)


def read_and_scan(path: str, records: int) -> Iterator[Done]:  # noqa: ARG001 - counts itself
    """Read the file from the page cache into the same memory each time, and scan it."""
    data = np.fromfile(path, np.uint8)
    while True:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - as short as it gets
            if file.readinto(data.data) != len(data):
                raise OSError("a short read")
        yield scanned(data)


def tfrecord_package(path: str, records: int) -> Iterator[Done]:  # noqa: ARG001 - counts itself
    """Read the file with the ``tfrecord`` package, which checks no CRC."""
    from tfrecord.reader import tfrecord_iterator

    while True:
        sizes = [len(record) for record in tfrecord_iterator(path)]
        yield Done(len(sizes), nbytes=sum(sizes) + FRAME * len(sizes))


WAYS: dict[str, Callable[[str, int], Iterator[Done]]] = {
    "crc alone": crc_alone,
    "python loop": python_loop,
    "scan": scan,
    "read and scan": read_and_scan,
    "tfrecord": tfrecord_package,
}


def main() -> None:
    """Read as the arguments say, and print the report."""
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    repeat(
        partial(WAYS[arguments["way"]], arguments["paths"][0], arguments["records"]),
        arguments["seconds"],
    )


if __name__ == "__main__":
    main()
