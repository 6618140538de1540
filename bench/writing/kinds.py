"""The records that writers write, made anew from a seed; needs NumPy alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

Columns = dict[str, Any]
"""Columns by feature name: arrays, or lists of byte strings."""
IMAGE_BYTES = 110_000
SEQUENCE = 512
VOCABULARY = 50_000
FRAME = 16
"""The bytes of a TFRecord besides the record."""


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
    """Return the bytes of all values."""
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
