"""The reader of small files that are read once, which may be pipes, as those of ``<(...)`` are."""

from __future__ import annotations

import errno
import logging
import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PIECE = 1 << 16
PATIENCE = 1000
"""Milliseconds without data after which the log says that it is waited for."""

log = logging.getLogger("streamrec")


def read_small_file(path: str | Path, most: int) -> bytes:
    """Read a file to its end, or what is written to a pipe.

    Args:
        path: The file.
        most: The most bytes that it may have.

    Raises:
        OSError: It cannot be read, or has more bytes.
        ValueError: The path is impossible.
    """
    found = bytearray()
    with open(path, "rb", buffering=0, opener=_without_waiting) as file:
        ready = select.poll()
        ready.register(file, select.POLLIN)
        has_waited = False
        while True:
            if not ready.poll(None if has_waited else PATIENCE):
                has_waited = True
                log.warning("%s has nothing to read yet; waiting for somebody to write it", path)
                continue
            piece = file.read(PIECE)
            if piece is None:  # another reader of the pipe was faster
                continue
            found += piece
            if len(found) > most:
                raise OSError(errno.EFBIG, f"it has more than {most} bytes")
            if not piece:
                return bytes(found)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
