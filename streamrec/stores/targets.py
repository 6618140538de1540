"""Writing objects: each appears whole under its name, or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from streamrec.errors import AccessDenied, ConfigError, ObjectNotFound, StoreError
from streamrec.stores.part_file import BUFFER, PartFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Target", "open_target", "translated", "write_object"]


@contextlib.contextmanager
def translated(url: str) -> Iterator[None]:
    """Raise the operating system's errors as those of the store.

    A filesystem's own may hold a signed URL, so they are not chained.
    """
    try:
        yield
    except FileNotFoundError:
        raise ObjectNotFound("no such directory or bucket; create it first", url=url) from None
    except PermissionError:
        raise AccessDenied("may not be written to", url=url) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(f"cannot be written: {reason}", url=url) from None


class Target(Protocol):
    """Where a shard's bytes go until it is complete."""

    @property
    def file(self) -> IO[bytes]:
        """Takes the bytes."""
        ...

    def commit(self) -> None:
        """Make the shard appear."""

    def discard(self) -> None:
        """Remove what is left of it, after ``commit`` too."""


def open_target(
    url: str, storage_options: Mapping[str, Any], *, make_directory: bool = False
) -> Target:
    """A new object of that name, still empty.

    Args:
        url: A URL, or a local path.
        storage_options: fsspec's, for a URL.
        make_directory: Make its directory, where the store has some and it is not there.

    Raises:
        OSError: It cannot be written; :func:`translated` makes an error of the tree of it.
        ConfigError: The scheme is not known.
    """
    path = Path(unquote(urlsplit(url).path)) if url.startswith("file://") else Path(url)
    if "://" in url and not url.startswith("file://"):
        return _RemoteTarget(url, storage_options, make_directory=make_directory)
    if make_directory:
        path.parent.mkdir(parents=True, exist_ok=True)
    return _LocalTarget(path)


def write_object(
    url: str,
    data: bytes,
    storage_options: Mapping[str, Any] | None = None,
    *,
    make_directory: bool = False,
) -> None:
    """Write one object: it appears whole, or not at all.

    Args:
        url: A URL, or a local path.
        data: All of it.
        storage_options: fsspec's, for a URL.
        make_directory: Make its directory, where the store has some and it is not there.

    Raises:
        ConfigError: The scheme is not known.
        ObjectNotFound: The directory does not exist.
        AccessDenied: It may not be written to.
        StoreError: It could not be written.
    """
    with translated(url):
        target = open_target(url, storage_options or {}, make_directory=make_directory)
        try:
            target.file.write(data)
            target.commit()
        finally:
            target.discard()


class _LocalTarget:
    """A hidden file in the same directory that is renamed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if path.is_dir():
            raise IsADirectoryError(None, "is a directory")
        self._part = PartFile(path)
        self.file = self._part.file

    def commit(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self._part.publish()
        _sync_directory(self._path.parent)

    def discard(self) -> None:
        self._part.remove()


def _sync_directory(path: Path) -> None:
    """Without it the new name may be lost in a power failure."""
    directory = os.open(path, os.O_RDONLY)
    # Some network filesystems refuse it; the shard is there all the same.
    with contextlib.suppress(OSError):
        os.fsync(directory)
    os.close(directory)


class _RemoteTarget:
    """A local temporary file that is uploaded as a whole.

    Filesystems differ in what they keep of an upload that breaks off; one that never began leaves
    nothing anywhere. The file has no name, so that nothing is left of it if the process is killed.
    """

    def __init__(
        self, url: str, storage_options: Mapping[str, Any], *, make_directory: bool = False
    ) -> None:
        self._upload = _uploader(url, storage_options, make_directory=make_directory)
        self.file: IO[bytes] = tempfile.TemporaryFile(  # noqa: SIM115 - closed by discard
            buffering=BUFFER
        )

    def commit(self) -> None:
        self.file.flush()
        try:
            self.file.seek(0)  # outside of Linux, who opens it goes on where it stands
            self._upload(f"/dev/fd/{self.file.fileno()}")
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - each SDK has a tree of errors of its own
            raise OSError(f"{type(error).__name__}: {error}") from None

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self.file.close()


def _uploader(
    url: str, storage_options: Mapping[str, Any], *, make_directory: bool
) -> Callable[[str], object]:
    """What puts a local file in the place of the URL."""
    scheme, _, path = url.partition("://")
    if scheme.lower() in ("gs", "gcs"):
        from streamrec.stores import google

        return partial(google.put_file, google.filesystem(storage_options), path=path)
    import fsspec

    try:
        filesystem, path = fsspec.url_to_fs(url, **storage_options)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"{url}: {error}") from None
    if make_directory and not scheme.lower().startswith("s3"):  # there it would make a bucket
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    return partial(filesystem.put_file, rpath=path)
