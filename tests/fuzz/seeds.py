"""Writes the seed corpus and the dictionary: ``python -m tests.fuzz.seeds``.

The inputs are the shards of tests/data, which TensorFlow wrote, and messages of
tests/kernel/wire_bytes.py, which no sane writer makes, each with the bytes that steer its target
behind it. The same sources give the same files.
"""

from __future__ import annotations

import shutil
import struct
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from streamrec.kernel import reference
from tests.fuzz.building import HERE
from tests.fuzz.running import CORPUS, DICTIONARY, LONGEST
from tests.kernel.wire_bytes import (
    NAMES,
    Wild,
    delimited,
    entry,
    example,
    feature_lists,
    int64_list,
    steps,
    tag,
    varint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DATA = HERE.parent / "data"
ROOM = LONGEST - 64
"""Bytes of a payload: behind it is what steers."""


def steered(payload: bytes, *controls: int) -> bytes:
    """Return the payload with its controls behind it: the last byte is the first control."""
    return payload + bytes(reversed(controls))


def shards() -> Iterator[bytes]:
    for path in sorted(DATA.glob("*.tfrecord")):
        yield path.read_bytes()


def records() -> Iterator[bytes]:
    """Yield the records of the shards that are Examples and not too long."""
    for shard in shards():
        buffer = np.frombuffer(shard, np.uint8)
        scan = reference.scan_frames(buffer, 0, len(buffer), True)
        for offset, length in zip(scan.offsets.tolist(), scan.lengths.tolist(), strict=True):
            if length < ROOM:
                yield shard[offset : offset + length]


def crc32c() -> Iterator[bytes]:
    for size in (0, 1, 7, 8, 9, 63, 127, 384, 385, 767, 900):
        yield steered((bytes(range(256)) * 4)[:size], *range(size % 9, size % 9 + 12))


def scan() -> Iterator[bytes]:
    for shard in shards():
        for size in (0, 11, 12, 15, 16, 100, ROOM):
            yield steered(shard[:size], 1, 2)
            yield steered(shard[:size], 8 | 1, 2)
    for size in (40, 200, 900):  # no frames: they are made of it
        yield steered(bytes(7 * k % 251 for k in range(size)), 8 | 1, 3)
        yield steered(bytes(7 * k % 251 for k in range(size)), 8 | 4 | 2, 3, 5, 9)
    for length in (2**63, 2**64 - 1, 2**63 - 17, 2**63 - 16):
        yield steered(struct.pack("<Q", length) + bytes(30), 0, 1)


def packed() -> Iterator[bytes]:
    wild = Wild(3, calm=0.7)
    for size in (1, 3, 8, 60, 64, 72, 73, 150):
        values = b"".join(wild.varint(wild.integer(), 10) for _ in range(size))
        yield steered(values[-900:], 0, 70, 1)
        yield steered(values[-900:], 1, 0, 2)
    for length in range(1, 11):
        yield steered(varint(1, length) * 14, 4 * length, 64, 3)
    yield steered(b"\xff" * 100, 0, 1, 1)
    yield steered(bytes(range(200)), 0, 1, 1)


def rows() -> Iterator[bytes]:
    for count in (0, 1, 4, 12):
        row = [1, 3, 9] * count  # buffer 1, offset 3, 9 bytes
        yield steered(bytes(range(255)), 3, count, *row, 40, 50, 60)
        yield steered(bytes(range(255)), 2, count, *row[:-1], 0xE7, 40, 50)


def columns() -> Iterator[bytes]:
    integers = (0, *[1] * 12, 8, 8, 0x42, 1, 1, 1, 0, 0, 0, 0, 1, 0, 1, 2, 3)
    items = (1, 2, 0x41, 1, 40, 0, 1, 2, 3)
    texts = (2, 0x81, 1, 1, 0, 0, 5, 0, 9)
    for number, field in enumerate((integers, items, texts)):
        for room in (0, 40, 255):
            yield steered(bytes(range(250)), 1, 3, number % 2, room, 1, *field)
            yield steered(bytes(range(250)), 3, 3, 1, room, 1, *field, *field, *field)


def filters() -> Iterator[bytes]:
    for pixel in range(6):
        for width in (0, 1, 7):
            for most in (5, 7, 250):
                yield steered(bytes(11 * k % most for k in range(400)), pixel, width, 1)


# All plans of the catalogue that a plain record has, then others; see schema.c.
CATALOGUED = ((1, 0x00, 0x28), (1, 0x3F, 0xFF), (1, 0x05, 0x30), (1, 0x15, 0xD8))
DRAWN = (
    (0, 5, 0x32, 0, 3, 0x11, 1, 0x12, 0x32, 2, 0, 0x33, 2, 4, 0x50, 3, 2),
    (0, 3, 0x20, 2, 0x21, 1, 0x22, 0),
    (0, 2, 0x12, 1, 5, 0x10, 2, 10),
)


def messages(is_sequence: bool) -> Iterator[bytes]:
    """Yield records one by one, in every schema, then bytes that the composer reads."""
    wild = Wild(5, calm=0.85)
    make = wild.sequence_example if is_sequence else wild.example
    schemas = [(*schema, *((0x3F,) if is_sequence else ())) for schema in CATALOGUED]
    schemas += [(*schema, *((3, 2, 0, 0x11, 1, 0, 2) if is_sequence else ())) for schema in DRAWN]
    plain = [record for number, record in enumerate(records()) if number % 5 == 0]
    if is_sequence:
        plain = [record + feature_lists() + feature_lists(steps()) for record in plain[:8]]
    wilds = [record for record in (make() for _ in range(200)) if 20 < len(record) < 300][:30]
    for number, record in enumerate([example(), *plain, *wilds]):
        schema = schemas[number % len(schemas)]
        yield steered(record, (number % 3) << 1, *schema, 1)
        yield steered(wild.broken(record), 8 | (number % 3) << 1, *schema, 1)
    for name in ("a longer name then others", "a longer name than others"):
        # A plan's, and one that is like it at both ends.
        alike = example(entry(name, int64_list(1, 2, 3)), entry("id", int64_list(4)))
        yield steered(alike, 0, 1, 0x20, 0x00, *((0,) if is_sequence else ()), 1)
    for depth in (99, 100, 101, 102):  # of groups, of which a hundred may be nested
        groups = tag(9, 3) * depth + tag(9, 4) * depth
        yield steered(groups, 0, *schemas[0], 1)
        yield steered(example(delimited(1, groups)), 0, *schemas[0], 1)
    for number in range(12):
        drawn = bytes(wild.random.randrange(256) for _ in range(400))
        yield steered(drawn, 1 | (number % 3) << 1, *schemas[number % len(schemas)], 3)


SEEDS: dict[str, Callable[[], Iterator[bytes]]] = {
    "crc32c": crc32c,
    "scan": scan,
    "packed": packed,
    "rows": rows,
    "records": columns,
    "examples": lambda: messages(False),
    "sequences": lambda: messages(True),
    "unfilter": filters,
}


def words() -> Iterator[bytes]:
    """Return words for mutations: names with their size, tags, sizes, varints at their limits."""
    for name in NAMES:
        encoded = name.encode()
        yield b"\x0a" + varint(len(encoded)) + encoded
    for wire_types in range(1, 4):
        yield from (bytes([wire_types << 3 | wire_type]) for wire_type in range(6))
    yield from (varint(value) for value in (2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1))
    yield from (struct.pack("<Q", value) for value in (2**63 - 1, 2**63 - 17, 2**64 - 1))
    yield from (varint(0, length) for length in range(2, 11))


def dictionary() -> str:
    """Return the words in libFuzzer's notation, a line each."""
    lines = ['"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in words()]
    return "".join(dict.fromkeys(lines))


def main() -> None:
    shutil.rmtree(CORPUS, ignore_errors=True)
    for target, seeds in SEEDS.items():
        directory = CORPUS / target
        directory.mkdir(parents=True)
        for seed in seeds():
            name = sha256(seed).hexdigest()[:16]
            (directory / name).write_bytes(seed)
    DICTIONARY.write_text(dictionary())


if __name__ == "__main__":
    main()
