"""A writer of MDS, as small as the format allows; values are given as they are encoded."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SIZES = {"int": 8, "uint8": 1, "float64": 8, "uint64": 8}
COMPRESS: dict[str, Any] = {"bz2": bz2.compress, "gz": gzip.compress, "zstd": zstd.compress}


def write_mds(
    root: Path,
    columns: dict[str, str],
    shards: Sequence[Sequence[Sequence[bytes]]],
    compression: str | None = None,
    hashes: Sequence[str] = (),
) -> Path:
    """Write samples, each of the encoded values of all columns, in the order of their names."""
    root.mkdir(exist_ok=True)
    entries = []
    for number, samples in enumerate(shards):
        sizes = [SIZES.get(columns[name]) for name in sorted(columns)]
        name, data = f"shard.{number:05}.mds", shard(samples, sizes)
        entry: dict[str, Any] = {
            "column_encodings": [columns[name] for name in sorted(columns)],
            "column_names": sorted(columns),
            "column_sizes": sizes,
            "compression": compression,
            "format": "mds",
            "hashes": list(hashes),
            "raw_data": stored(name, data, hashes),
            "samples": len(samples),
            "size_limit": 1 << 26,
            "version": 2,
            "zip_data": None,
        }
        if compression is not None:
            kind = compression.partition(":")[0]
            name, data = f"{name}.{kind}", COMPRESS[kind](data)
            entry["zip_data"] = stored(name, data, hashes)
        (root / name).write_bytes(data)
        entries.append(entry)
    (root / "index.json").write_text(json.dumps({"shards": entries, "version": 2}))
    return root


def stored(name: str, data: bytes, hashes: Sequence[str]) -> dict[str, Any]:
    """Return what the index says of a file."""
    digests = {kind: hashlib.new(kind, data).hexdigest() for kind in hashes}
    return {"basename": name, "bytes": len(data), "hashes": digests}


def shard(samples: Sequence[Sequence[bytes]], sizes: Sequence[int | None]) -> bytes:
    """Return the bytes of a shard."""
    head = b'{"some": "config"}'
    rows = [b"".join([*lengths(values, sizes), *values]) for values in samples]
    offsets = np.cumsum([4 * (len(rows) + 2) + len(head), *map(len, rows)])
    return np.array([len(rows), *offsets], "<u4").tobytes() + head + b"".join(rows)


def lengths(values: Sequence[bytes], sizes: Sequence[int | None]) -> list[bytes]:
    """Return the sizes of the values that have none of their own."""
    own = [len(value) for value, size in zip(values, sizes, strict=True) if size is None]
    return [np.uint32(length).tobytes() for length in own]
