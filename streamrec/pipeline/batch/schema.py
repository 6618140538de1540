"""The description of a batch on the wire, in protobuf, and the dtypes that travel."""

from __future__ import annotations

import sys

import numpy as np

from streamrec.values.message_schema import Field, build

DTYPES = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
"""The dtypes that travel; bfloat16, of another package, does too where that is installed."""

VIEWED = {dtype for dtype in DTYPES.values() if dtype.kind in "biuf" and sys.byteorder == "little"}
"""The dtypes whose bytes travel as they are in memory, and that a memoryview knows."""

PROTO = build(
    "streamrec.feeder",
    {
        "Array": [Field("string", "dtype", 1), Field("repeated uint64", "shape", 2)],
        "Bytes": [
            Field("uint64", "size", 1),
            Field("uint64", "count", 2),
            Field("repeated uint64", "item_shape", 3),
        ],
        "Values": [
            Field("Array", "array", 1, "kind"),
            Field("Bytes", "bytes", 2, "kind"),
            Field("Ragged", "ragged", 3, "kind"),  # as the values of another Ragged alone
            Field("Arrays", "arrays", 4, "kind"),
        ],
        "Arrays": [
            Field("string", "dtype", 1),
            Field("uint64", "size", 2),
            Field("uint64", "count", 3),
            Field("uint64", "dimensions", 4),
        ],
        "Ragged": [Field("Values", "values", 1)],
        "Sparse": [
            Field("Values", "values", 1),
            Field("uint64", "count", 2),
            Field("repeated uint64", "dense_shape", 3),
        ],
        "Column": [
            Field("string", "name", 1),
            Field("Values", "values", 2, "kind"),
            Field("Ragged", "ragged", 3, "kind"),
            Field("Sparse", "sparse", 4, "kind"),
        ],
        "Position": [
            Field("uint64", "step", 1),
            Field("uint64", "run_epoch", 2),
            Field("uint64", "epoch", 3),
            Field("uint64", "skip", 4),
            Field("repeated uint64", "since", 5),
            Field("uint64", "rows", 6),
            Field("uint64", "origin", 7),
        ],
        "Batch": [
            Field("uint64", "rows", 1),
            Field("uint64", "epoch", 2),
            Field("Position", "position", 3),
            Field("bool", "mask", 4),
            Field("repeated Column", "columns", 5),
            Field("repeated string", "component_names", 6),
            Field("repeated uint64", "component_shards", 7),
        ],
    },
)
