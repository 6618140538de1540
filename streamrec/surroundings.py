"""The process as its platform made it: interpreter, home, temporary files, descriptors.

Containers run with a read-only root, without a home or an entry in the user database, and with
standard input closed. This file decides what is used instead; all others ask it.
"""

from __future__ import annotations

import _thread
import contextlib
import io
import os
import re
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

STANDARD = ("stdin", "stdout", "stderr")


def has_gil() -> bool:
    """Return whether one thread at a time runs Python, as in most builds of the interpreter."""
    # Asked each time: an extension that needs the lock may bring it back when it is imported.
    # Of the dictionary, since an attribute that is missing takes ten times as long.
    ask = vars(sys).get("_is_gil_enabled")
    return ask is None or bool(ask())


def has_threads() -> bool:
    """Return whether threads are the system's: gevent and eventlet can replace them by greenlets.

    A greenlet that waits for a socket or a lock of the system stops all others.
    """
    # By the name of the package: debuggers put functions of theirs in this place, too.
    package = str(getattr(_thread.start_new_thread, "__module__", "")).partition(".")[0]
    return package not in ("gevent", "eventlet")


def allowed_cores() -> int:
    """Return the number of cores of the affinity mask, or of the machine where there is no mask."""
    # Not cpu_count alone: a container, taskset or a scheduler of jobs may allow fewer.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


_INTERPRETER = re.compile(r"\.?(python|pypy|graalpy)", re.IGNORECASE)
"""How the names of interpreters begin; some packagers put a dot before that of a wrapped one."""


def has_interpreter() -> bool:
    """Return whether ``sys.executable`` is a Python interpreter that this user may run.

    In a program that embeds Python it is empty, or it is that program, which would run once more.
    """
    name = sys.executable or ""
    names = (Path(name).name, Path(os.path.realpath(name)).name)  # a link may have any name
    is_one = any(map(_INTERPRETER.match, names)) and not hasattr(sys, "frozen")
    return is_one and os.access(name, os.X_OK)


def home() -> Path | None:
    """Return the user's home directory, or ``None`` if neither HOME nor the system names one."""
    # Not Path.home(), which raises RuntimeError for a user without an entry, and takes HOME="".
    named = os.path.expanduser("~")  # noqa: PTH111 - it returns "~" where there is no home
    return Path(named) if named.startswith("/") else None


def expand_user(place: str) -> Path:
    """Return a path with the home directory in place of a leading ``~``.

    Raises:
        ConfigError: The user has no home directory.
    """
    path = os.path.expanduser(place)  # noqa: PTH111 - it returns "~" where there is no home
    if path.startswith("~"):
        raise ConfigError(f"{place}: this user has no home directory; write the path in full")
    return Path(path)


def working_directory() -> Path | None:
    """Return the working directory, or ``None`` if it was deleted or may not be read."""
    with contextlib.suppress(OSError):
        return Path.cwd()
    return None


def absolute(path: Path) -> Path:
    """Return a path that does not depend on the working directory.

    Raises:
        ConfigError: The path is relative, and the working directory was deleted.
    """
    base = Path("/") if path.is_absolute() else working_directory()
    if base is None:
        raise ConfigError(
            f"{path}: the working directory was deleted; change to another one, or write the path "
            "in full"
        )
    return base / path


def temporary_file(purpose: str, *, buffering: int = -1, directory: str | None = None) -> IO[bytes]:
    """Create a file without a name, which the system removes when the process ends.

    Args:
        purpose: What needs the file, for the error.
        buffering: Bytes, as for ``open``.
        directory: Where; by default that of ``TMPDIR``, or the system's.

    Raises:
        ConfigError: No directory for temporary files can be written.
    """
    where = directory or temporary_place(purpose)
    file = tempfile.TemporaryFile(buffering=buffering, dir=where)  # noqa: SIM115 - the caller's
    return cast("IO[bytes]", file)


@contextmanager
def temporary_directory(purpose: str) -> Iterator[Path]:
    """Create a directory, and remove it and all that is in it.

    Raises:
        ConfigError: No directory for temporary files can be written.
    """
    with tempfile.TemporaryDirectory(prefix="streamrec-", dir=temporary_place(purpose)) as name:
        yield Path(name)


def scratch_file() -> IO[bytes]:
    """Create a file without a name for some KB: in memory, else on a disk, else the null device."""
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):  # a filter of system calls may forbid it
            return os.fdopen(os.memfd_create("streamrec-scratch"), "w+b", buffering=0)
    with contextlib.suppress(OSError, ConfigError):
        return temporary_file("a log", buffering=0)
    return open(os.devnull, "w+b", buffering=0)  # noqa: PTH123 - the caller closes it


def hold_standard_descriptors() -> None:
    """Open the null device as each of the descriptors 0 to 2 that is closed.

    Whatever is opened next would get that number. libuv ends a process that closes such a socket,
    a child would find its own standard input in its place, and what a library prints to standard
    error would go into a shard that is being written.
    """
    for number in range(len(STANDARD)):
        try:
            os.fstat(number)
        except OSError:
            _open_null(number)


def hold_standard_streams() -> None:
    """Open closed descriptors and the missing streams of ``sys``, in a process of streamrec's."""
    hold_standard_descriptors()
    for number, name in enumerate(STANDARD):
        if getattr(sys, name) is None:
            # Standard error is never closed by the interpreter, so the file keeps its descriptor.
            file = open(number, "w" if number else "r", closefd=False, encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, file)


def show_all_text() -> None:
    r"""Let the standard streams, in a process of streamrec's, write what their coding lacks.

    In a locale without UTF-8, names and signs would end the command; they become ``\u65e5``.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _open_null(number: int) -> None:
    with contextlib.suppress(OSError):  # without /dev, or without a free descriptor
        null = os.open(os.devnull, os.O_RDWR)
        if null != number:  # another thread has taken that number
            os.close(null)


def temporary_place(purpose: str) -> str:
    """Return the directory for temporary files: that of ``TMPDIR``, or the system's.

    Raises:
        ConfigError: None can be written.
    """
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        raise ConfigError(
            f"{purpose} needs a directory for temporary files, and none can be written; set TMPDIR "
            "to one"
        ) from None
