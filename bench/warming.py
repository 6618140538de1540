"""Memory that the machine has at hand, before a reading is timed; standard library only."""

from __future__ import annotations

import subprocess
import sys

__all__ = ["warm_memory"]

GIGABYTES = 2
"""Of small and of huge pages, each: more than any of the readers takes while it reads."""
TOUCH = """
import mmap, sys
size = int(sys.argv[1]) << 30
small, huge = (mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(2))
if hasattr(mmap, "MADV_HUGEPAGE"):
    huge.madvise(mmap.MADV_HUGEPAGE)
for memory in small, huge:
    for page in range(0, size, mmap.PAGESIZE):
        memory[page] = 1
"""


def warm_memory() -> None:
    """Touch memory in another process, and let go of it: who needs some next gets this.

    A virtual machine's host may have taken free memory back, and gives it again at 2 to 5 s of CPU
    time a GB. That is measured otherwise: of a reader that takes a gigabyte, more than half a
    second to several, now and then.
    """
    subprocess.run([sys.executable, "-c", TOUCH, str(GIGABYTES)], check=True)
