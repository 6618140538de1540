"""Translation of the errors of fsspec's filesystems to streamrec's.

Their many libraries may not be installed, so errors are recognised by name, and by the HTTP status
that most of them carry. Their texts are not repeated, as they may hold signed URLs.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from streamrec.errors import (
    AccessDenied,
    ConfigError,
    ObjectNotFound,
    StoreError,
    StoreMisbehaved,
    StoreUnavailable,
    StreamrecError,
)
from streamrec.masking import masked
from streamrec.stores.refusals import refusal, seconds_to_wait

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["meaning_of", "translated"]

_MISSING = "there is no such object; check its name"
_DENIED = "access is denied; check the credentials in storage_options"
_UNTRUSTED = "the server's certificate is not trusted; have the machine trust its authority"
_BROKEN = "the connection broke; check the network"
_SILENT = "the server sent nothing for too long; check the server and the network"
_DIRECTORY = "this is a directory; name its shards, as in …/*.tfrecord"
_NO_ARCHIVE = "the archive is damaged or of another kind; check the file and the URL's scheme"

_BY_TYPE: tuple[tuple[type[BaseException], type[StoreError], str], ...] = (
    (FileNotFoundError, ObjectNotFound, _MISSING),
    (NotADirectoryError, ObjectNotFound, _MISSING),
    (PermissionError, AccessDenied, _DENIED),
    (IsADirectoryError, StoreError, _DIRECTORY),
    (ssl.SSLCertVerificationError, StoreError, _UNTRUSTED),
    (TimeoutError, StoreUnavailable, _SILENT),
    (EOFError, StoreUnavailable, _BROKEN),
    (OSError, StoreUnavailable, _BROKEN),
)

_BY_NAME: dict[tuple[str, str], tuple[type[StoreError], str]] = {
    ("aiohttp", "ClientConnectorCertificateError"): (StoreError, _UNTRUSTED),
    ("aiohttp", "ClientError"): (StoreUnavailable, _BROKEN),
    ("azure", "ClientAuthenticationError"): (AccessDenied, _DENIED),
    ("azure", "ServiceRequestError"): (StoreUnavailable, _BROKEN),
    ("azure", "ServiceResponseError"): (StoreUnavailable, _BROKEN),
    ("ftplib", "error_temp"): (StoreUnavailable, _BROKEN),
    ("ftplib", "error_perm"): (AccessDenied, _DENIED),
    ("google", "RefreshError"): (AccessDenied, _DENIED),
    ("google", "TransportError"): (StoreUnavailable, _BROKEN),
    ("httpx", "TransportError"): (StoreUnavailable, _BROKEN),
    ("paramiko", "AuthenticationException"): (AccessDenied, _DENIED),
    ("paramiko", "SSHException"): (StoreUnavailable, _BROKEN),
    ("requests", "SSLError"): (StoreError, _UNTRUSTED),
    ("smbprotocol", "SMBAuthenticationError"): (AccessDenied, _DENIED),
    ("tarfile", "TarError"): (StoreError, _NO_ARCHIVE),
    ("zipfile", "BadZipFile"): (StoreError, _NO_ARCHIVE),
}


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Raise streamrec's errors in place of a filesystem's.

    Args:
        url: The object, prefix or directory, for messages.
    """
    try:
        yield
    except StreamrecError:
        raise
    except Exception as error:  # noqa: BLE001 - there is no common root
        raise meaning_of(url, error) from None


def meaning_of(url: str, error: BaseException) -> StreamrecError:
    """Return streamrec's error for a filesystem's."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and isinstance(cause, Exception):
        # fsspec's http raises FileNotFoundError for every failure, with the real one as its cause.
        return meaning_of(url, cause)
    status = _status_of(error)
    if status is not None:
        return refusal(url, status, retry_after=_wait_of(error))
    if isinstance(error, NotImplementedError):
        hint = f"{masked(url)}: the filesystem cannot list objects, or cannot read ranges"
        return ConfigError(f"{hint}; name each shard, or copy the shards to another store")
    kind, text = _by_name(error) or _by_type(error)
    return kind(f"{text} ({type(error).__name__})", url=url)


def _by_name(error: BaseException) -> tuple[type[StoreError], str] | None:
    names = ((kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__)
    return next((_BY_NAME[name] for name in names if name in _BY_NAME), None)


def _by_type(error: BaseException) -> tuple[type[StoreError], str]:
    for kind, meaning, text in _BY_TYPE:
        if isinstance(error, kind):
            return meaning, text
    return StoreMisbehaved, "the filesystem failed with an unknown error; check its library"


def _status_of(error: BaseException) -> int | None:
    """Return the HTTP status of a refusal, or ``None``; each library has its own attribute."""
    found = (one for one in _statuses(error) if isinstance(one, int) and 400 <= one <= 599)
    return next(found, None)


def _statuses(error: BaseException) -> Iterator[object]:
    yield getattr(error, "status", None)  # first, since aiohttp's errors warn if asked for ``code``
    yield getattr(error, "status_code", None)
    yield getattr(error, "code", None)
    answer: Any = getattr(error, "response", None)
    yield getattr(answer, "status_code", None)
    if isinstance(answer, Mapping):
        yield answer.get("ResponseMetadata", {}).get("HTTPStatusCode")


def _wait_of(error: BaseException) -> float | None:
    """Return the seconds of ``Retry-After``, if the error carries the response's headers."""
    for holder in (error, getattr(error, "response", None)):
        headers = getattr(holder, "headers", None)
        if isinstance(headers, Mapping):
            return seconds_to_wait(headers.get("Retry-After"))
    return None
