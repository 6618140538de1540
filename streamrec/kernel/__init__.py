"""The work on bytes, by whole blocks: CRC32C, TFRecord frames, Examples and back, rows of PNGs.

Two implementations share one contract (``kernel.contract``): one in C, and one in Python, which is
the specification and runs where the one in C was not built. The environment variable
``STREAMREC_KERNEL`` chooses: ``native`` or ``python``; otherwise the one in C runs where it can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.kernel.choice import choose

__all__ = [
    "MessageEncoder",
    "Parser",
    "corrupt_row",
    "crc32c",
    "encode_plain",
    "frame_records",
    "gather",
    "implementation",
    "masked_crc32c",
    "scan_frames",
    "unfilter",
]

# At the first import and once for the process, so that a warning comes once, too.
implementation, _module = choose()
"""The name of the kernel that runs: ``"native"`` or ``"python"``."""

# Type checkers see the names of one kernel; those of the other are the same.
if TYPE_CHECKING:
    from streamrec.kernel.reference import (
        MessageEncoder,
        Parser,
        corrupt_row,
        crc32c,
        encode_plain,
        frame_records,
        gather,
        masked_crc32c,
        scan_frames,
        unfilter,
    )
else:
    MessageEncoder = _module.MessageEncoder
    Parser = _module.Parser
    corrupt_row = _module.corrupt_row
    crc32c = _module.crc32c
    encode_plain = _module.encode_plain
    frame_records = _module.frame_records
    gather = _module.gather
    masked_crc32c = _module.masked_crc32c
    scan_frames = _module.scan_frames
    unfilter = _module.unfilter
