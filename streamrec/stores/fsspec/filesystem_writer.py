"""The writing half of a store over the blocking calls of an fsspec filesystem."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from streamrec.errors import ConfigError, ObjectNotFound
from streamrec.stores.base.foreign_errors import translate_errors
from streamrec.stores.base.new_object import GuardedObject, PartUpload, SpooledObject, upload
from streamrec.stores.base.protocol import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from streamrec.stores.base.new_object import UploadSession
    from streamrec.stores.base.protocol import NewObject

AT_ONCE = 8
"""Calls of a filesystem at the same time."""


def never(_files: Any) -> bool:
    """Return that requests hold credentials, if the filesystem does not say."""
    return False


class FilesystemWriter:
    """Writes, copies and deletes objects; each call looks the filesystem up, as fsspec keeps it.

    Args:
        find: Returns the filesystem of a URL and the path in it; blocks.
        session: Makes the session of an upload in parts; ``None``: uploads are whole.
        is_anonymous: Returns whether the filesystem's requests hold no credentials.
    """

    def __init__(
        self,
        find: Callable[[str], tuple[Any, str]],
        *,
        session: Callable[[Any, str], UploadSession] | None = None,
        is_anonymous: Callable[[Any], bool] = never,
    ) -> None:
        self._find, self._session, self._is_anonymous = find, session, is_anonymous
        # Not asyncio's threads: on two cores they are six, and who looks up a host waits for one.
        self._threads = ThreadPoolExecutor(AT_ONCE, "streamrec-writes")

    def put(self, url: str, *, make_directory: bool = False, spooled: bool = False) -> NewObject:
        """Begin a new object; see :class:`Store`."""
        with translate_errors(url, writing=True):
            files, path = self._find(url)
            anonymous = self._is_anonymous(files)
            target = self._begin(url, files, path, make_directory=make_directory, spooled=spooled)
        return GuardedObject(url, target, anonymous=anonymous)

    def _begin(
        self, url: str, files: Any, path: str, *, make_directory: bool, spooled: bool
    ) -> NewObject:
        if self._session is None and make_directory:  # s3fs would create a bucket
            files.makedirs(path.rpartition("/")[0], exist_ok=True)
        session = self._session
        if session is None:
            # By position: filesystems give the arguments other names.
            return SpooledObject(url, lambda file: files.put_file(file, path))
        if spooled:
            return SpooledObject(url, lambda file: upload(file, session(files, path)))
        return PartUpload(session(files, path))

    async def delete(self, url: str) -> None:
        """Delete an object; see :class:`Store`."""
        with suppress(ObjectNotFound):
            await self.call(url, lambda files, path: files.rm_file(path))

    async def copy(self, url: str, other: str) -> None:
        """Copy an object; see :class:`Copying`."""
        await self.call(other, lambda files, path: files.cp_file(self._find(url)[1], path))

    async def call(self, url: str, function: Callable[[Any, str], object]) -> None:
        """Call a function with the filesystem and the path of a URL, in a thread."""
        await in_thread(self._call, url, function, executor=self._threads)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False)

    def _call(self, url: str, function: Callable[[Any, str], object]) -> None:
        with translate_errors(url, writing=True):
            files, path = self._find(url)
            # Only the filesystem knows it, so the call gets a guard of its own.
            anonymous = self._is_anonymous(files)
        with translate_errors(url, writing=True, anonymous=anonymous):
            function(files, path)


def shared_filesystem(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the filesystem of a URL that fsspec keeps, and the path in it.

    Raises:
        ConfigError: The scheme or an option is not known, or a package is missing.
    """
    import fsspec

    try:
        found: tuple[Any, str] = fsspec.url_to_fs(url, **options)
    except (ValueError, ImportError) as error:
        raise ConfigError(
            f"{url}: {error}; correct the URL or storage_options, or install the scheme's package"
        ) from None
    return found
