"""Writing of objects by blocking calls: each appears complete under its name, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrec.config.named_files import check_option_files, check_variables
from streamrec.config.places import FILE, check_no_archive, check_url, is_file_url, local_path
from streamrec.config.schemes import line_of
from streamrec.stores.open import make_store
from streamrec.surroundings import hold_standard_descriptors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.stores.base.protocol import NewObject


def new_object(
    url: str,
    storage_options: Mapping[str, Any],
    *,
    make_directory: bool = False,
    spooled: bool = False,
) -> NewObject:
    """Begin a new object in the store of a URL; see :class:`Store`.

    Args:
        url: A URL, or a local path.
        storage_options: The store's options, for a URL.
        make_directory: Make a missing directory, if the store has directories.
        spooled: Keep it in a local temporary file until it is complete.

    Raises:
        ConfigError: The scheme is not known, or the URL names no object.
        StoreError: The object cannot be begun.
    """
    hold_standard_descriptors()  # else this object may become standard error
    if line_of(url).name != "file":
        check_url(url)
        check_no_archive(url)
        check_variables(url)
        check_option_files(storage_options)
    elif is_file_url(url):
        url = FILE + local_path(url)
    store = make_store(url, storage_options)
    return store.put(url, make_directory=make_directory, spooled=spooled)


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
        storage_options: The store's options, for a URL.
        make_directory: Make a missing directory, if the store has directories.

    Raises:
        ConfigError: The scheme is not known.
        ObjectNotFound: The directory does not exist.
        AccessDenied: The object may not be written.
        StoreError: The object could not be written.
    """
    target = new_object(url, storage_options or {}, make_directory=make_directory)
    try:
        target.write(data)
        target.commit()
    finally:
        target.discard()
