"""The work on bytes: CRC32C, TFRecord frames, Examples to columns. Whole blocks, never records."""

from __future__ import annotations

from streamrec.kernel.reference import (
    crc32c,
    frame_records,
    gather,
    masked_crc32c,
    parse_examples,
    scan_frames,
)

__all__ = [
    "crc32c",
    "frame_records",
    "gather",
    "implementation",
    "masked_crc32c",
    "parse_examples",
    "scan_frames",
]

implementation = "python"
"""Which kernel runs."""
