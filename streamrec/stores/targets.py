"""Targets to write objects to; an object appears complete under its name, or not at all."""

from __future__ import annotations

import contextlib
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from streamrec.config.places import check_no_archive, check_url, local_path
from streamrec.stores.base import split_object
from streamrec.stores.filesystems import filesystem_of, is_anonymous
from streamrec.stores.foreign_errors import translated
from streamrec.stores.part_file import BUFFER, PartFile
from streamrec.stores.part_upload import PartUpload, Session
from streamrec.stores.troubles import tell
from streamrec.surroundings import hold_standard_descriptors, temporary_file

if TYPE_CHECKING:
    from collections.abc import Mapping


class Upload:
    """A local temporary file that is uploaded as a whole.

    Some filesystems show parts of a broken upload, so that it begins only when the object is
    complete. The temporary file has no name: the kernel removes it when the process ends.
    """

    def __init__(
        self, url: str, storage_options: Mapping[str, Any], *, make_directory: bool = False
    ) -> None:
        filesystem, path = filesystem_of(url, storage_options)
        self._upload = partial(filesystem.put_file, rpath=path)
        self.anonymous = is_anonymous(url, filesystem)
        """True if the requests hold no credentials."""
        if (
            make_directory and url.partition("://")[0].lower() not in _SESSIONS
        ):  # s3fs would create a bucket
            filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
        self.file = temporary_file(f"an upload to {url.partition('://')[0]}", buffering=BUFFER)

    def commit(self) -> None:
        """Make the object visible."""
        self.file.flush()
        self.file.seek(0)  # outside of Linux, /dev/fd shares the position
        self._upload(f"/dev/fd/{self.file.fileno()}")

    def discard(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self.file.close()


_S3, _GCS = ("s3.s3_upload", "S3Session"), ("gcs.gcs_upload", "GCSSession")
_SESSIONS = {"s3": _S3, "s3a": _S3, "gs": _GCS, "gcs": _GCS}
"""The module and the name of each scheme's session of an upload in parts."""

Target: TypeAlias = PartFile | PartUpload | Upload
"""A new object that is not visible until it is committed. ``discard`` follows in any case."""


def open_target(
    url: str,
    storage_options: Mapping[str, Any],
    *,
    make_directory: bool = False,
    spooled: bool = False,
) -> Target:
    """Return a target for a new object.

    S3 and Google Cloud Storage get it in parts while it is written.

    Args:
        url: A URL, or a local path.
        storage_options: fsspec's options, for a URL.
        make_directory: Create a missing directory, if the store has directories.
        spooled: Keep it in a local temporary file until it is complete: for many objects at once,
            which would take much memory.

    Raises:
        Exception: Any of a library's; :func:`~streamrec.stores.foreign_errors.translated` turns
            it into streamrec's.
        ConfigError: The scheme is not known.
    """
    hold_standard_descriptors()  # else this object may become standard error
    path = Path(local_path(url))
    scheme = url.partition("://")[0].lower()
    if "://" in url and scheme != "file":
        check_url(url)
        check_no_archive(url)
    if scheme in _SESSIONS:
        _check_object(url)
    if scheme in _SESSIONS and not spooled:
        return PartUpload(_session(url, storage_options))
    if "://" in url and not url.startswith("file://"):
        return Upload(url, storage_options, make_directory=make_directory)
    if make_directory:
        path.parent.mkdir(parents=True, exist_ok=True)
    return PartFile(path)


def _check_object(url: str) -> None:
    """Check that a URL of S3 or GCS names an object.

    Raises:
        ConfigError: It names a bucket alone.
        StoreError: It names a directory.
    """
    _, name = split_object(url)
    if name.endswith("/"):
        raise tell("directory", url, writing=True)


def write_object(
    url: str,
    data: bytes,
    storage_options: Mapping[str, Any] | None = None,
    *,
    make_directory: bool = False,
) -> None:
    """Write one object, which appears complete, or not at all.

    Args:
        url: A URL, or a local path.
        data: The object's content.
        storage_options: fsspec's options, for a URL.
        make_directory: Create a missing directory, if the store has directories.

    Raises:
        ConfigError: The scheme is not known.
        ObjectNotFound: The directory does not exist.
        AccessDenied: The object may not be written.
        StoreError: The object could not be written.
    """
    with translated(url, writing=True):
        target = open_target(url, storage_options or {}, make_directory=make_directory)
    with translated(url, writing=True, anonymous=target.anonymous):
        try:
            target.file.write(data)
            target.commit()
        finally:
            target.discard()


def _session(url: str, storage_options: Mapping[str, Any]) -> Session:
    """Return the session of an upload in parts."""
    module, name = _SESSIONS[url.partition("://")[0].lower()]
    filesystem, path = filesystem_of(url, storage_options)
    session: Session = getattr(import_module(f"streamrec.stores.{module}"), name)(filesystem, path)
    session.anonymous = is_anonymous(url, filesystem)
    return session
