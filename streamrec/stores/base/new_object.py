"""New objects whose errors are translated, and those that are uploaded as a whole."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from streamrec.stores.base.foreign_errors import translate_errors
from streamrec.surroundings import temporary_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from streamrec.stores.base.protocol import NewObject
    from streamrec.values.columns import Bytes


BUFFER = 1 << 17
"""Bytes collected before they are written to the file, because records are often small. A dataset
may have a thousand shards open at once."""


class GuardedObject:
    """A new object of a library, with streamrec's errors in place of the library's.

    Args:
        url: The object's URL.
        target: What is written to.
        anonymous: True if its requests hold no credentials.
    """

    def __init__(self, url: str, target: NewObject, *, anonymous: bool = False) -> None:
        self._url, self._anonymous = url, anonymous
        self.target = target

    def write(self, data: Bytes) -> int:
        """Append bytes; see :class:`NewObject`."""
        with self._guard():
            return self.target.write(data)

    def flush(self) -> None:
        """Hand bytes to the operating system, where the object is a file."""
        with self._guard():
            self.target.flush()

    def commit(self) -> None:
        """Make the object visible."""
        with self._guard():
            self.target.commit()

    def discard(self) -> None:
        """Remove what was written, unless it is committed."""
        self.target.discard()

    def _guard(self) -> AbstractContextManager[None]:
        return translate_errors(self._url, writing=True, anonymous=self._anonymous)


class SpooledObject:
    """A local temporary file that is uploaded as a whole.

    Some filesystems show parts of a broken upload, so that it begins only when the object is
    complete. The temporary file has no name: the kernel removes it when the process ends.

    Args:
        url: The object's URL.
        upload: Sends the file of a path.
    """

    def __init__(self, url: str, upload: Callable[[str], object]) -> None:
        self._upload = upload
        self._file = temporary_file(f"an upload to {url.partition('://')[0]}", buffering=BUFFER)

    def write(self, data: Bytes) -> int:
        """Append bytes."""
        return self._file.write(data)

    def flush(self) -> None:
        """Hand the bytes to the operating system."""
        self._file.flush()

    def commit(self) -> None:
        """Make the object visible."""
        self._file.flush()
        self._file.seek(0)  # outside of Linux, /dev/fd shares the position
        self._upload(f"/dev/fd/{self._file.fileno()}")

    def discard(self) -> None:
        """Remove the file."""
        with suppress(OSError):
            self._file.close()
