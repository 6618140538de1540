"""Gives the machine free memory before a reading is timed; standard library only."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

GIGABYTES = 2
"""Size of small and of huge pages, each: more than any reader takes while it reads."""


def warm_memory() -> None:
    """Touch memory in another process and free it, so that the reader gets that memory.

    A virtual machine's host may have taken free memory back, and returns it at 2 to 5 s of CPU time
    a GB. A reader that takes a gigabyte would be slower by up to several seconds now and then.
    """
    command = [sys.executable, "-m", "bench.warming", str(GIGABYTES)]
    subprocess.run(command, cwd=Path(__file__).parents[1], check=True)


def touch(size: int) -> None:
    """Write to each page of so many bytes of small pages, and of as many of huge ones."""
    small, huge = (
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(2)
    )
    if hasattr(mmap, "MADV_HUGEPAGE"):
        huge.madvise(mmap.MADV_HUGEPAGE)
    for memory in small, huge:
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1


if __name__ == "__main__":
    touch(int(sys.argv[1]) << 30)
