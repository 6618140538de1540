"""The kernel in C, at the speed of the hardware, by the same contract as the one in Python.

Importing it raises ``ImportError`` where the extension was not built. The C sources are in
``kernel/c``; the code here allocates memory and turns codes into
:class:`~streamrec.kernel.contract.KernelFault`.
"""

from __future__ import annotations

from streamrec.kernel.native.examples import Parser
from streamrec.kernel.native.frames import (
    corrupt_row,
    crc32c,
    frame_records,
    masked_crc32c,
    scan_frames,
)
from streamrec.kernel.native.rows import gather

__all__ = [
    "Parser",
    "corrupt_row",
    "crc32c",
    "frame_records",
    "gather",
    "masked_crc32c",
    "scan_frames",
]
