"""fsspec's filesystems, for writing and for listing directories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrec.config.named_files import check_archive, check_option_files, check_variables
from streamrec.errors import ConfigError
from streamrec.stores.base import split_bucket
from streamrec.stores.fsspec.filesystem_calls import check_by_scheme
from streamrec.stores.source_text import split_chain

if TYPE_CHECKING:
    from collections.abc import Mapping

_GCS, _S3 = ("gs", "gcs"), ("s3", "s3a")


def filesystem_of(url: str, storage_options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the filesystem of a URL, and the object's path in it.

    Raises:
        ConfigError: The scheme or an option is not known, the URL names no bucket, or a file that
            libraries would open is a FIFO or a device.
    """
    scheme, _, path = url.partition("://")
    check_variables(url)
    check_archive(url)
    check_by_scheme(split_chain(url), storage_options)
    check_option_files(storage_options)
    if scheme.lower() in (*_GCS, *_S3):
        split_bucket(url)
    if scheme.lower() in _GCS:
        from streamrec.stores.gcs import google_credentials
        from streamrec.stores.http.transport import check_proxies

        check_proxies()
        return google_credentials.filesystem(storage_options), path
    import fsspec

    if scheme.lower() in _S3:
        from streamrec.stores.http.transport import check_proxies
        from streamrec.stores.s3.s3_options import writing_options

        check_proxies()
        from streamrec.stores.s3.login_files import check_login_files

        check_login_files(storage_options.get("profile"))
        storage_options = writing_options(storage_options)
    try:
        found: tuple[Any, str] = fsspec.url_to_fs(url, **storage_options)
    except (ValueError, ImportError) as error:
        raise ConfigError(
            f"{url}: {error}; correct the URL or storage_options, or install the scheme's package"
        ) from None
    return found


def is_anonymous(url: str, filesystem: Any) -> bool:
    """Return whether a filesystem of S3 or GCS sends no credentials."""
    scheme = url.partition("://")[0].lower()
    if scheme in _GCS:
        return filesystem.credentials.credentials is None
    return scheme in _S3 and bool(filesystem.anon)
