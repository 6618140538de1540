"""Translation of the errors of fsspec's filesystems and botocore to streamrec's.

The many libraries may not be installed, so errors are recognised by name, and by the HTTP status
that most of them carry. Their texts are not repeated, as they may hold signed URLs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from aiohttp.http_exceptions import HttpProcessingError

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
_BROKEN = "the connection broke ({reason}); check the network"
_SILENT = "the server sent nothing for too long; check the server and the network"
_UNREACHABLE = "the store cannot be reached ({reason}); check the endpoint and network"
_LOGIN = "the credentials could not be fetched ({reason}); log in again"
_ARCHIVE = "the archive is damaged or of another kind; check the file and the URL's scheme"
_HTTP_URL = "this is no valid http URL; correct it"

_BY_NAME: dict[str, tuple[type[StoreError | ConfigError], str]] = {
    "aiohttp.ClientConnectorDNSError": (
        StoreUnavailable,
        "the host name {host} has no address; check the name and the network",
    ),
    "aiohttp.ClientConnectorError": (
        StoreUnavailable,
        "cannot connect to {host}:{port}: {reason}; check the endpoint and the network",
    ),
    "aiohttp.ClientError": (StoreUnavailable, _BROKEN),
    "aiohttp.ClientProxyConnectionError": (
        StoreUnavailable,
        "the proxy cannot be reached; check HTTPS_PROXY, or 'proxy' in storage_options",
    ),
    "aiohttp.ConnectionTimeoutError": (
        StoreUnavailable,
        "connecting took too long; check the endpoint and the network",
    ),
    "aiohttp.InvalidURL": (ConfigError, _HTTP_URL),
    "aiohttp.NonHttpUrlClientError": (ConfigError, _HTTP_URL),
    "aiohttp.ServerTimeoutError": (StoreUnavailable, _SILENT),
    "aiohttp.TooManyRedirects": (
        StoreMisbehaved,
        "the server redirects in circles; use the URL to which it should lead",
    ),
    "azure.ClientAuthenticationError": (AccessDenied, _DENIED),
    "azure.ServiceRequestError": (StoreUnavailable, _BROKEN),
    "azure.ServiceResponseError": (StoreUnavailable, _BROKEN),
    "botocore.BotoCoreError": (ConfigError, "{error}"),
    "botocore.ConnectionError": (StoreUnavailable, _UNREACHABLE),
    "botocore.CredentialRetrievalError": (AccessDenied, _LOGIN),
    "botocore.HTTPClientError": (StoreUnavailable, _UNREACHABLE),
    "botocore.NoCredentialsError": (
        AccessDenied,
        "no credentials were found; give key and secret in storage_options, set AWS_PROFILE, or "
        "set anon=True for a public bucket",
    ),
    "botocore.ResponseParserError": (
        StoreMisbehaved,
        "the store does not answer as S3 does; check endpoint_url",
    ),
    "botocore.SSOTokenLoadError": (AccessDenied, _LOGIN),
    "botocore.TokenRetrievalError": (AccessDenied, _LOGIN),
    "botocore.UnauthorizedSSOTokenError": (AccessDenied, _LOGIN),
    "builtins.EOFError": (StoreUnavailable, _BROKEN),
    "builtins.Exception": (
        StoreMisbehaved,
        "the filesystem failed with an unknown error ({reason}); check its library",
    ),
    "builtins.FileNotFoundError": (ObjectNotFound, _MISSING),
    "builtins.IsADirectoryError": (
        StoreError,
        "this is a directory; name its shards, as in …/*.tfrecord",
    ),
    "builtins.NotADirectoryError": (ObjectNotFound, _MISSING),
    "builtins.NotImplementedError": (
        ConfigError,
        "the filesystem cannot list objects, or cannot read ranges; name each shard, or copy the "
        "shards to another store",
    ),
    "builtins.OSError": (StoreUnavailable, _BROKEN),
    "builtins.PermissionError": (AccessDenied, _DENIED),
    "builtins.TimeoutError": (StoreUnavailable, _SILENT),
    "ftplib.error_perm": (AccessDenied, _DENIED),
    "ftplib.error_temp": (StoreUnavailable, _BROKEN),
    "google.RefreshError": (AccessDenied, _DENIED),
    "google.TransportError": (StoreUnavailable, _BROKEN),
    "httpx.TransportError": (StoreUnavailable, _BROKEN),
    "paramiko.AuthenticationException": (AccessDenied, _DENIED),
    "paramiko.SSHException": (StoreUnavailable, _BROKEN),
    "requests.SSLError": (StoreError, _UNTRUSTED),
    "smbprotocol.SMBAuthenticationError": (AccessDenied, _DENIED),
    "ssl.SSLCertVerificationError": (StoreError, _UNTRUSTED),
    "tarfile.TarError": (StoreError, _ARCHIVE),
    "zipfile.BadZipFile": (StoreError, _ARCHIVE),
}
"""Error classes by their package and name; the first of an error's bases that is here counts."""

Meaning: TypeAlias = "Callable[[str, Exception], StreamrecError]"


def meaning_of(url: str, error: Exception) -> StreamrecError:
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
    names = (f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__)
    kind, text = next(_BY_NAME[name] for name in names if name in _BY_NAME)
    host, port = getattr(error, "host", ""), getattr(error, "port", "")
    message = text.format(error=error, reason=_reason(error), host=host, port=port)
    if issubclass(kind, ConfigError):
        return ConfigError(f"{masked(url)}: {message}")
    return kind(message, url=url)


def _reason(error: Exception) -> str:
    """Return the operating system's reason, or the error's name; other texts may hold secrets."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if isinstance(number, int) and number else type(error).__name__


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


def _inner(error: Exception) -> Exception | None:
    """Return the error that another one stands for, or ``None``."""
    # fsspec's http raises FileNotFoundError for every failure, with the real one as its cause, and
    # s3fs an OSError for every response. botocore keeps aiohttp's TLS errors in an attribute.
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) or isinstance(getattr(cause, "response", None), dict):
        return cause if isinstance(cause, Exception) else None
    inner = getattr(error, "kwargs", {}).get("error")
    return inner if tls_trouble(inner) is not None else None


def _refusal(url: str, error: Exception) -> StoreError | None:
    """Return the error for a refused request; ``None`` if the error carries no response."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, Mapping):  # of botocore
        head = response.get("ResponseMetadata", {})
        code = response.get("Error", {}).get("Code", "")
        wait = head.get("HTTPHeaders", {}).get("retry-after")
        return refusal(
            url,
            int(head.get("HTTPStatusCode", 0)),
            code=None if code.isdigit() else code,
            retry_after=seconds_to_wait(wait),
        )
    if isinstance(error.__cause__, HttpProcessingError):
        return None  # not the server's status: aiohttp cannot parse the response
    # ``status`` first, since aiohttp's errors warn if they are asked for ``code``.
    named = ((error, "status"), (error, "status_code"), (error, "code"), (response, "status_code"))
    found = (getattr(holder, name, None) for holder, name in named)
    status = next((number for number in found if isinstance(number, int)), 0)
    if not 400 <= status <= 599:
        return None
    headers = getattr(error, "headers", getattr(response, "headers", None))
    wait = headers.get("Retry-After") if isinstance(headers, Mapping) else None
    return refusal(url, status, retry_after=seconds_to_wait(wait))
