"""Translation of the errors of fsspec's filesystems and botocore to streamrec's.

The many libraries may not be installed, so errors are recognised by name, and by the HTTP status
that most of them carry. Their texts are not repeated, as they may hold signed URLs.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

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
from streamrec.stores.http.transport import tls_trouble
from streamrec.stores.refusals import refusal, seconds_to_wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["meaning_of", "translated"]

_MISSING = "there is no such object; check its name"
_DENIED = "access is denied; check the credentials in storage_options"
_UNTRUSTED = "the server's certificate is not trusted; have the machine trust its authority"
_BROKEN = "the connection broke; check the network"
_SILENT = "the server sent nothing for too long; check the server and the network"
_DIRECTORY = "this is a directory; name its shards, as in …/*.tfrecord"
_UNREACHABLE = "the store cannot be reached; check the endpoint and network"
_NO_CREDENTIALS = (
    "no credentials were found; give key and secret in storage_options, set AWS_PROFILE, or set "
    "anon=True for a public bucket"
)
_LOGIN = "the credentials could not be fetched; log in again"
_NO_S3 = "the store does not answer as S3 does; check endpoint_url"
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
    ("aiohttp", "ClientError"): (StoreUnavailable, _BROKEN),
    ("azure", "ClientAuthenticationError"): (AccessDenied, _DENIED),
    ("azure", "ServiceRequestError"): (StoreUnavailable, _BROKEN),
    ("azure", "ServiceResponseError"): (StoreUnavailable, _BROKEN),
    ("botocore", "ConnectionError"): (StoreUnavailable, _UNREACHABLE),
    ("botocore", "CredentialRetrievalError"): (AccessDenied, _LOGIN),
    ("botocore", "HTTPClientError"): (StoreUnavailable, _UNREACHABLE),
    ("botocore", "NoCredentialsError"): (AccessDenied, _NO_CREDENTIALS),
    ("botocore", "ResponseParserError"): (StoreMisbehaved, _NO_S3),
    ("botocore", "SSOTokenLoadError"): (AccessDenied, _LOGIN),
    ("botocore", "TokenRetrievalError"): (AccessDenied, _LOGIN),
    ("botocore", "UnauthorizedSSOTokenError"): (AccessDenied, _LOGIN),
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


Meaning: TypeAlias = "Callable[[str, Exception], StreamrecError]"


def meaning_of(url: str, error: BaseException) -> StreamrecError:
    """Return streamrec's error for one of another library.

    Args:
        url: The object, prefix or directory, for messages.
        error: The library's error.
    """
    inner = _inner(error)
    if inner is not None:
        return meaning_of(url, inner)
    trouble = tls_trouble(error)
    if trouble is not None:
        return StoreError(trouble, url=url)
    refused = _refusal(url, error)
    if refused is not None:
        return refused
    if isinstance(error, NotImplementedError):
        hint = f"{masked(url)}: the filesystem cannot list objects, or cannot read ranges"
        return ConfigError(f"{hint}; name each shard, or copy the shards to another store")
    found = _by_name(error)
    if found is None and ("botocore", "BotoCoreError") in _names(error):
        return ConfigError(f"{masked(url)}: {error}")
    kind, text = found or _by_type(error)
    return kind(f"{text} ({type(error).__name__})", url=url)


@contextmanager
def translated(url: str, meaning: Meaning = meaning_of) -> Iterator[None]:
    """Raise streamrec's errors in place of another library's.

    Args:
        url: The object, prefix or directory, for messages.
        meaning: Returns streamrec's error for another one.
    """
    try:
        yield
    except StreamrecError:
        raise
    except Exception as error:  # noqa: BLE001 - there is no common root
        raise meaning(url, error) from None


def _inner(error: BaseException) -> Exception | None:
    """Return the error that another one stands for, or ``None``."""
    # fsspec's http raises FileNotFoundError for every failure, with the real one as its cause, and
    # s3fs an OSError for every response. botocore keeps aiohttp's TLS errors in an attribute.
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) or isinstance(getattr(cause, "response", None), dict):
        return cause if isinstance(cause, Exception) else None
    inner = getattr(error, "kwargs", {}).get("error")
    return inner if tls_trouble(inner) is not None else None


def _names(error: BaseException) -> list[tuple[str, str]]:
    return [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__]


def _by_name(error: BaseException) -> tuple[type[StoreError], str] | None:
    return next((_BY_NAME[name] for name in _names(error) if name in _BY_NAME), None)


def _by_type(error: BaseException) -> tuple[type[StoreError], str]:
    for kind, meaning, text in _BY_TYPE:
        if isinstance(error, kind):
            return meaning, text
    return StoreMisbehaved, "the filesystem failed with an unknown error; check its library"


def _refusal(url: str, error: BaseException) -> StoreError | None:
    """Return the error for a refused request; ``None`` if the error carries no response."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, Mapping):  # of botocore
        head = response.get("ResponseMetadata", {})
        code = response.get("Error", {}).get("Code", "")
        wait = seconds_to_wait(head.get("HTTPHeaders", {}).get("retry-after"))
        code = None if code.isdigit() else code
        return refusal(url, int(head.get("HTTPStatusCode", 0)), code=code, retry_after=wait)
    # ``status`` first, since aiohttp's errors warn if they are asked for ``code``.
    named = ((error, "status"), (error, "status_code"), (error, "code"), (response, "status_code"))
    for holder, name in named:
        status: object = getattr(holder, name, None)
        if isinstance(status, int) and 400 <= status <= 599:
            headers = getattr(error, "headers", getattr(response, "headers", None))
            after = headers.get("Retry-After") if isinstance(headers, Mapping) else None
            return refusal(url, status, retry_after=seconds_to_wait(after))
    return None
