"""The kernel in Python: the executable specification, which runs where the one in C was not built.

It is written to be read. NumPy, ``crc32c`` and protobuf's own C code do the work on the bytes;
Python's part is per record, never per byte.
"""

from __future__ import annotations

from streamrec.kernel.reference.examples import Parser
from streamrec.kernel.reference.frames import (
    corrupt_row,
    crc32c,
    frame_records,
    masked_crc32c,
    scan_frames,
)
from streamrec.kernel.reference.rows import gather

__all__ = [
    "Parser",
    "corrupt_row",
    "crc32c",
    "frame_records",
    "gather",
    "masked_crc32c",
    "scan_frames",
]
