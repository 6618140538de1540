"""The check that a local path names a regular file, before anything waits for its bytes.

A FIFO has no size and waits for a writer, a device may have no end. Neither has a version that
could be read again.
"""

from __future__ import annotations

import errno
import os
import stat

_NOT_OPENED = frozenset({errno.ENXIO, errno.ENODEV})
"""The errors of opening a socket, or a device that is not there."""


class NotAFile(OSError):
    """A path names a FIFO, a device or a socket."""

    def __init__(self) -> None:
        super().__init__(None, "it is a FIFO, a device or a socket")


def check_regular(status: os.stat_result) -> None:
    """Check what a path names; directories pass, as reading them fails with an error of its own.

    Raises:
        NotAFile: It is neither a file nor a directory.
    """
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise NotAFile


def open_regular(path: str, flags: int) -> int:
    """Open a file without waiting; an ``opener`` for :func:`open`.

    Raises:
        NotAFile: It is not a regular file.
        OSError: It cannot be opened.
    """
    try:
        # Else a FIFO would wait for its writer, and a terminal could become this process's own.
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno in _NOT_OPENED:
            raise NotAFile from None
        raise
    try:
        check_regular(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
