"""The contents that TensorFlow read from the shards here, as ``make.py`` wrote them down.

``shards.json``: by shard, its records in order: ``length`` and ``sha256`` of the payload, and
``features``: by name, ``bytes_list``, ``float_list`` or ``int64_list`` with the values, or null.
``examples.json``: by case, serialized ``records``, ``features`` in streamrec's plain form, and the
``columns`` that ``tf.io.parse_example`` gave, or the name of its error. Floats are written in
hexadecimal, strings in base64, long ones as ``sha256:`` and the digest.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

from streamrec.values.columns import BytesColumn, Ragged

HERE = Path(__file__).parent
SHARDS: dict[str, list[dict[str, Any]]] = json.loads((HERE / "shards.json").read_text())
EXAMPLES: dict[str, dict[str, Any]] = json.loads((HERE / "examples.json").read_text())


def shard_bytes(name: str) -> bytes:
    return (HERE / name).read_bytes()


def records_of(case: str) -> list[bytes]:
    return [base64.b64decode(record) for record in EXAMPLES[case]["records"]]


def decode(values: list[Any], dtype: str) -> Any:
    """Return the values as an array, or as a list of bytes."""
    if dtype == "bytes":
        return [base64.b64decode(value) for value in values]
    if dtype == "float32":
        return np.array([float.fromhex(value) for value in values], np.float32)
    return np.array(values, np.int64)


def decode_feature(feature: dict[str, list[Any]]) -> Any:
    """Return one feature's values, as an array or a list of bytes."""
    ((kind, values),) = feature.items()
    dtype = {"bytes_list": "bytes", "float_list": "float32", "int64_list": "int64"}[kind]
    return decode(values, dtype)


def assert_column(column: Any, expected: dict[str, Any], dtype: str) -> None:
    """Compare a parsed column, bit by bit, with what TensorFlow gave."""
    values = decode(expected["values"], dtype)
    if "row_lengths" in expected:
        assert isinstance(column, Ragged)
        assert np.diff(column.row_splits).tolist() == expected["row_lengths"]
        assert column.row_splits.dtype == np.int64
        assert_values(column.values, values)
    elif dtype == "bytes":
        assert isinstance(column, BytesColumn)
        assert [len(column), *column.item_shape] == expected["shape"]
        assert_values(BytesColumn(column.values, column.offsets), values)
    else:
        assert list(column.shape) == expected["shape"]
        assert_values(column.ravel(), values)


def assert_values(got: Any, expected: Any) -> None:
    if isinstance(got, BytesColumn):
        assert got.to_list() == expected
        return
    assert got.dtype == expected.dtype
    assert got.tobytes() == expected.tobytes()
    assert got.flags.writeable
    assert got.flags.c_contiguous
    assert got.flags.aligned
