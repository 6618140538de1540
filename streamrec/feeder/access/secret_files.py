"""Files of secrets: what they hold is taken anew when they change, and kept when it is unusable."""

from __future__ import annotations

import logging
import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from streamrec.errors import ConfigError
from streamrec.flow.cleanup import wait_out
from streamrec.stores.base.regular_file import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")

Signature: TypeAlias = tuple[int, int, int]

MOST_BYTES = 1 << 20
"""Bytes of the largest file of secrets that is read."""

log = logging.getLogger("streamrec.feeder")


class SecretFiles(Generic[T]):
    """The content of some files as it is now; or as it was last, where that cannot be used.

    Args:
        paths: The files.
        load: Reads all of them.
        name: What they are, for the log.

    Raises:
        ConfigError: They cannot be used.
    """

    def __init__(self, paths: Iterable[str], load: Callable[[], T], name: str) -> None:
        self._paths, self._load, self._name = tuple(paths), load, name
        self._complaint = ""
        # Before they are read, so that a change meanwhile is a change.
        self._seen = self._signatures()
        self.value = load()

    def look(self) -> None:
        """Read the files again if one has changed; the log says so, or why nothing is taken."""
        seen = self._signatures()
        if seen == self._seen and not self._complaint:
            return
        try:
            self.value = self._load()
        except ConfigError as error:
            self._complain(error.message)
        else:
            self._complaint = ""
            log.info("%s have changed: new clients need what their files hold now", self._name)
        self._seen = seen

    def _complain(self, reason: str) -> None:
        """Say once why the files cannot be used; they are tried again at every look."""
        if reason != self._complaint:
            log.error("%s stay as they were: %s", self._name, reason)
        self._complaint = reason

    def _signatures(self) -> list[Signature | None]:
        return [_signature(path) for path in self._paths]


def _signature(path: str) -> Signature | None:
    """Return what changes when a file is replaced or written; ``None``: it is not there."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_file(path: str, setting: str) -> tuple[bytes, int]:
    """Read a small file.

    Args:
        path: The file.
        setting: The setting that names it, for errors.

    Returns:
        Its bytes, and its permissions.

    Raises:
        ConfigError: It cannot be read, or is too large.
    """
    with _reading(path, setting), open(path, "rb", opener=open_regular) as file:
        data = file.read(MOST_BYTES + 1)
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    return _small(data, path, setting), mode


async def read_file_async(path: str, setting: str) -> bytes:
    """Return the bytes of a small file; arguments and errors are those of :func:`read_file`."""
    import aiofiles  # here, because few streams read such a file

    async def read() -> bytes:
        async with aiofiles.open(path, "rb", opener=open_regular) as file:
            return await file.read(MOST_BYTES + 1)

    with _reading(path, setting):
        # A client that is cancelled meanwhile leaves no open file.
        data = await wait_out(read())
    return _small(data, path, setting)


@contextmanager
def _reading(path: str, setting: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "this is not a path"
        raise ConfigError(
            f"{setting}: {path} cannot be read ({reason}); name a file that this process may read"
        ) from None


def _small(data: bytes, path: str, setting: str) -> bytes:
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{setting}: {path} has more than {MOST_BYTES} bytes; name another file")
    return data


def read_secret(path: str, setting: str) -> bytes:
    """Return the bytes of a file; the log warns if others than its owner may use it.

    Arguments and errors are those of :func:`read_file`.
    """
    data, mode = read_file(path, setting)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        log.warning(
            "%s holds secrets, and others than its owner may use it (its mode is %03o); chmod 600",
            path,
            mode,
        )
    return data
