"""Files that users name: their check before a library waits for their bytes, and their reading.

Certificates and credentials are read by OpenSSL, botocore, google-auth and others, which open a
path without a look at what it names: a FIFO waits for somebody to write it, and a terminal for
somebody at it. A file that is missing passes: the library's own error tells of it.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import stat
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from streamrec.config.places import is_file_url, local_path, split_chain
from streamrec.config.schemes import SCHEMES, prefixes_in
from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from os import PathLike
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
    data = bytearray()
    # A FIFO without a writer would make the opening wait, where no log can say so.
    with open(path, "rb", buffering=0, opener=_without_waiting) as file:
        ready = select.poll()
        ready.register(file, select.POLLIN)
        has_waited = False
        while True:
            if not ready.poll(None if has_waited else PATIENCE):
                # Said once; from then on it waits without end, as the user may want.
                has_waited = True
                log.warning("%s has nothing to read yet; waiting for somebody to write it", path)
                continue
            piece = file.read(PIECE)
            if piece is None:  # another reader of the pipe was faster
                continue
            data += piece
            # Before the end, which a device may not have.
            if len(data) > most:
                raise OSError(errno.EFBIG, f"it has more than {most} bytes")
            if not piece:
                return bytes(data)


def _without_waiting(path: str, flags: int) -> int:
    # NOCTTY: a terminal that is read must not become that of this process.
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


_OF_ALL = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NETRC")
"""Environment variables that name files which the libraries of several stores open."""


def check_file(path: str | PathLike[str], named: str) -> None:
    """Check that a library which opens a file does not wait for its bytes.

    Args:
        path: The file. ``/dev/null`` may stand for an empty one, as it often does in variables.
        named: The setting or variable that names it, for errors.

    Raises:
        ConfigError: It is a FIFO or a device.
    """
    try:
        facts = os.stat(os.path.expanduser(path))  # noqa: PTH111, PTH116 - any text may be given
    # What is missing, or cannot be a path, is told by the library that opens it.
    except (OSError, ValueError):
        return
    kind = stat.S_IFMT(facts.st_mode)
    if kind in {stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK} and not _is_null(facts):
        raise ConfigError(
            f"{named} names {os.fspath(path)}, which is a FIFO or a device; name a regular file, "
            "or copy the bytes to one first"
        )


def check_option_files(options: object, named: str = "storage_options") -> None:
    """Check each text in options of stores that is the path of a file.

    Args:
        options: The options, and in the end each value in them.
        named: The name of the option, for errors.

    Raises:
        ConfigError: One names a FIFO or a device.
    """
    if isinstance(options, str | os.PathLike):
        check_file(options, named)
    elif isinstance(options, Mapping):
        for name, value in options.items():
            check_option_files(value, f"storage_options' {name!r}")
    # Options are nested, as in client_kwargs; any text in them may be a path.
    elif isinstance(options, Sequence) and not isinstance(options, bytes | bytearray):
        for value in options:
            check_option_files(value, named)


def check_archive(url: str) -> None:
    """Check the local file that holds what a chain names, as ``/a.zip`` in ``zip://x::/a.zip``.

    Raises:
        ConfigError: It is a FIFO or a device.
    """
    holder = split_chain(url).after.rpartition("::")[2]
    # Only a local holder is opened here; that of a store is read by ranges.
    if holder and ("://" not in holder or is_file_url(holder)):
        check_file(local_path(holder), "the chain")


def check_variables(url: str = "") -> None:
    """Check the files that the environment names for the libraries of a store.

    Args:
        url: A URL of the store; without one, what all libraries read is checked.

    Raises:
        ConfigError: A variable names a FIFO or a device.
    """
    lines = (SCHEMES[prefix] for prefix in prefixes_in(url) if prefix in SCHEMES)
    for name in (*_OF_ALL, *(name for line in lines for name in line.variables)):
        if path := os.environ.get(name):
            check_file(path, name)


def _is_null(facts: os.stat_result) -> bool:
    return facts.st_rdev == os.stat(os.devnull).st_rdev  # noqa: PTH116


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
