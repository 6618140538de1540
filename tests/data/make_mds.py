"""Writes ``mds``, a small dataset of MosaicML Streaming, and the values that were given to it.

Run it with mosaicml-streaming 0.13: ``python tests/data/make_mds.py``.
"""

from __future__ import annotations

import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from streaming import MDSWriter

ROOT = Path(__file__).parent / "mds"
SCALARS = [f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)]
FLOATS = ["float16", "float32", "float64"]
COLUMNS = {
    "array": "ndarray",
    "array_float": "ndarray:float16",
    "array_fixed": "ndarray:int32:2,3",
    "bytes": "bytes",
    "int": "int",
    "jpeg_array": "jpeg_array",
    "json": "json",
    "png": "png",
    "str": "str",
    "str_decimal": "str_decimal",
    "str_float": "str_float",
    "str_int": "str_int",
    **{name: name for name in SCALARS + FLOATS},
}


def sample(number: int) -> dict[str, Any]:
    """One sample, of values that differ from the others'."""
    return {
        "array": np.arange(300 if number == 2 else number + 1, dtype=np.uint16)[None],
        "array_float": np.full((2, number + 1), number / 4, np.float16),
        "array_fixed": np.arange(6, dtype=np.int32).reshape(2, 3) - number,
        "bytes": bytes(range(number)),
        "int": -number,
        "jpeg_array": [bytes([n]) * n for n in range(number + 1)],
        "json": {"number": [number]},
        "png": PIL.Image.new("RGB", (4, 3), (number, 20, 30)),
        "str": f"käse {number}",
        "str_decimal": Decimal(number) / 8,
        "str_float": number / 2,
        "str_int": number * 10**9,
        **dict.fromkeys(SCALARS, number + 100),
        **dict.fromkeys(FLOATS, number + 0.5),
    }


def written() -> None:
    """Write the shards."""
    shutil.rmtree(ROOT, ignore_errors=True)
    with MDSWriter(out=str(ROOT), columns=COLUMNS, compression="zstd", size_limit=2500) as writer:
        for number in range(5):
            writer.write(sample(number))


def expected(name: str, values: list[Any]) -> dict[str, Any]:
    """Return the features of a column: bytes as text, arrays flat, and shapes that differ."""
    if name == "jpeg_array":
        return {name: [[one.decode("latin1") for one in sample(n)[name]] for n in range(5)]}
    if isinstance(values[0], np.ndarray):
        found = {name: [value.ravel().tolist() for value in values]}
        shapes = {} if "fixed" in name else {f"{name}/shape": [list(one.shape) for one in values]}
        return found | shapes
    if isinstance(values[0], bytes):
        return {name: [[value.decode("latin1")] for value in values]}
    if isinstance(values[0], str):
        return {name: [[value.encode().decode("latin1")] for value in values]}
    if isinstance(values[0], dict):
        return {name: [[json.dumps(value)] for value in values]}
    if name == "str_decimal" or name in FLOATS:
        return {name: [[float(value)] for value in values]}
    return {name: [[value.item() if hasattr(value, "item") else value] for value in values]}


def main() -> None:
    written()
    rows = [sample(number) for number in range(5)]
    columns: dict[str, Any] = {}
    for name in COLUMNS.keys() - {"png"}:  # which Streaming encodes
        columns |= expected(name, [row[name] for row in rows])
    text = json.dumps(columns, indent=0, sort_keys=True)
    (ROOT / "expected.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
