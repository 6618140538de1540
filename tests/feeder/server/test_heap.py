from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from streamrec.feeder.server.heap import Heap, release
from tests.feeder.support import eventually, on_both_loops

MIB = 1 << 20


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def leave_holes() -> bytearray:
    """Fill 60 MiB of the heap, free all but its end, and return that."""
    pieces = [bytearray(100_000) for _ in range(600)]
    for piece in pieces:
        piece[::4096] = b"x" * len(piece[::4096])
    return pieces[-1]


@pytest.mark.skipif(release is None, reason="the C library is not glibc")
@on_both_loops
async def test_freed_memory_goes_back_to_the_system_once_sessions_have_ended() -> None:
    heap = Heap(after=0.0)
    end = leave_holes()
    gc.collect()
    before = resident()
    for _ in range(3):
        heap.shrink_soon()
    assert resident() > before - 30 * MIB
    await eventually(lambda: not heap.is_due)
    assert resident() < before - 30 * MIB
    assert len(end) == 100_000
