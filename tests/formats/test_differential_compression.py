"""Compressed shards beside TensorFlow's: each reads what the other writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import streamrec as sr
from tests.formats.beside_tensorflow import IN_ONE_WORKER, tf

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [IN_ONE_WORKER, pytest.mark.both_kernels]

RECORDS = [b"", b"one", bytes(100_000), *(str(i).encode() * i for i in range(300))]
TYPES = ["", "GZIP", "ZLIB"]


@pytest.mark.parametrize("compression", TYPES)
def test_tensorflow_reads_ours(tmp_path: Path, compression: str) -> None:
    with sr.TFRecordWriter(tmp_path / "x", compression) as writer:
        writer.write_many(RECORDS)
    dataset = tf.data.TFRecordDataset(str(tmp_path / "x"), compression_type=compression)
    assert list(dataset.as_numpy_iterator()) == RECORDS


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("compression", TYPES)
def test_we_read_tensorflows(tmp_path: Path, compression: str, named: bool) -> None:
    path = str(tmp_path / "x")
    with tf.io.TFRecordWriter(path, options=compression) as writer:
        for record in RECORDS:
            writer.write(record)
    setting = compression if named else "auto"
    assert list(sr.read_records(path, compression=setting)) == RECORDS


def test_streams_end_to_end_are_one_shard(tmp_path: Path) -> None:
    """With gzip both agree; of zlib streams TensorFlow reads the first, and drops the others."""
    for name in ("a", "b"):
        with sr.TFRecordWriter(tmp_path / name, "GZIP") as writer:
            writer.write_many(RECORDS)
    both = tmp_path / "both"
    both.write_bytes((tmp_path / "a").read_bytes() + (tmp_path / "b").read_bytes())
    dataset = tf.data.TFRecordDataset(str(both), compression_type="GZIP")
    assert list(dataset.as_numpy_iterator()) == RECORDS * 2
    assert list(sr.read_records(str(both))) == RECORDS * 2
