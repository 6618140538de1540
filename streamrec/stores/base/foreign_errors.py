"""The one translator of the errors of libraries and of the operating system to streamrec's.

A URL says which call failed: the errors of a local path are those of a disk, and the rooms of S3
and Google know what else their libraries do in a call, such as reading files of credentials. The
many libraries may not be installed, so their errors are recognised by name, and by the HTTP status
that most of them carry. Their texts are not repeated, as they may hold signed URLs.
"""

from __future__ import annotations

import errno
import os
import re
import ssl
from collections import Counter
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamrec.config.named_files import NotAFile
from streamrec.config.places import escape
from streamrec.config.schemes import SCHEMES, prefixes_in
from streamrec.errors import StoreError, StreamrecError
from streamrec.stores.base.troubles import refusal, seconds_to_wait, tell, with_key
from streamrec.surroundings import working_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BY_NAME = {
    "aiohttp.ClientConnectorDNSError": "no address",
    "aiohttp.ClientConnectorError": "refused",
    "aiohttp.ClientError": "broken off",
    "aiohttp.ClientProxyConnectionError": "proxy",
    "aiohttp.ConnectionTimeoutError": "no connection",
    "aiohttp.InvalidURL": "http url",
    "aiohttp.NonHttpUrlClientError": "http url",
    "aiohttp.ServerTimeoutError": "silent",
    "aiohttp.TooManyRedirects": "redirects",
    "azure.ClientAuthenticationError": "denied",
    "azure.ServiceRequestError": "broken off",
    "azure.ServiceResponseError": "broken off",
    "botocore.BotoCoreError": "sdk",
    "botocore.ConnectionError": "unreachable",
    "botocore.CredentialRetrievalError": "login failed",
    "botocore.HTTPClientError": "unreachable",
    "botocore.NoCredentialsError": "no credentials",
    "botocore.ResponseParserError": "not s3",
    "botocore.SSOTokenLoadError": "sso",
    "botocore.TokenRetrievalError": "sso",
    "botocore.UnauthorizedSSOTokenError": "sso",
    "builtins.EOFError": "broken off",
    # Every error has this base, so that the search for a trouble always finds one.
    "builtins.Exception": "unknown",
    "builtins.FileNotFoundError": "no object",
    "builtins.IsADirectoryError": "directory",
    "builtins.NotADirectoryError": "no object",
    "builtins.NotImplementedError": "no ranges",
    "builtins.OSError": "broken off",
    "builtins.PermissionError": "denied",
    "builtins.TimeoutError": "silent",
    "ftplib.error_perm": "denied",
    "ftplib.error_temp": "broken off",
    "google.GoogleAuthError": "login failed",
    "google.TransportError": "broken off",
    "httpx.TransportError": "broken off",
    "paramiko.AuthenticationException": "denied",
    "paramiko.SSHException": "broken off",
    "requests.SSLError": "untrusted",
    "smbprotocol.SMBAuthenticationError": "denied",
    "ssl.SSLCertVerificationError": "untrusted",
    "tarfile.TarError": "archive",
    "zipfile.BadZipFile": "archive",
}
"""Troubles by the package and name of an error's class; the first of its bases that is here counts.
"""

_ONE_SLASH = re.compile(rf"(?:^|/)({'|'.join(SCHEMES)}):/?(?=[^/])")
_OF_A_SHELL = re.compile(r"(?:^|/)(~\w*|\$\w+|\$\{\w+\})(?=/)")
MOST_NAMES = 1000
"""Names of a directory that are looked at for a hint."""
_SUFFIX = re.compile(r"\.tf[-_]?rec(?:ord)?s?|\.records?")
_EXPIRED = frozenset({9, 10})
_OTHER_NAME = frozenset({62, 64})
"""OpenSSL's codes (``x509_vfy.h``) for a wrong date, and for a wrong host name or address."""
# A connection that was cut during the handshake: another attempt may succeed.
_BROKEN_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
# For a writer, a quota or a limit of a file's size is as good as a full disk.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def translate_errors(url: str, *, writing: bool = False, anonymous: bool = False) -> Iterator[None]:
    """Raise streamrec's errors in place of those of libraries and of the operating system.

    Args:
        url: The object, prefix or directory of the calls inside.
        writing: True if they write.
        anonymous: True if no credentials were sent.
    """
    try:
        yield
    except StreamrecError:
        raise
    except Exception as error:  # noqa: BLE001 - there is no common root
        # ``from None``: a filesystem's own error may hold a signed URL.
        raise meaning_of(url, error, writing=writing, anonymous=anonymous) from None


def meaning_of(
    url: str, error: Exception, *, writing: bool = False, anonymous: bool = False
) -> StreamrecError:
    """Return streamrec's error for one of another library.

    Args:
        url: The object, prefix or directory whose call failed.
        error: The library's error.
        writing: True if the call writes.
        anonymous: True if no credentials were sent.
    """
    schemes = prefixes_in(url)
    # Of a chain, such as zip:// over a file, the errors are fsspec's even where the file is local.
    if set(schemes) <= {"file"} and isinstance(error, OSError):
        return local_meaning(url, error, writing=writing)
    # Wrappers come off first: class and status are those of the error inside.
    inner = _inner(error)
    if inner is not None:
        return meaning_of(url, inner, writing=writing, anonymous=anonymous)
    trouble = tls_trouble(error)
    if trouble is not None:
        return StoreError(trouble, url=url)
    refused = _refusal(url, error, writing=writing, anonymous=anonymous)
    if refused is not None:
        return refused
    how = {"writing": writing, "anonymous": anonymous}
    return _own_meaning(schemes, url, error, how) or tell(
        _name_trouble(error), url, writing=writing, facts=_facts(error)
    )


def local_meaning(url: str, error: OSError, *, writing: bool = False) -> StreamrecError:
    """Return streamrec's error for one of the operating system, of a local path."""
    facts = _facts(error) | {"where": _where(url), "hint": hint_at_place(url)}
    facts["hint"] = facts["hint"] or ("create it first" if writing else "check the name")
    trouble = file_trouble(error)
    if trouble == "directory":
        facts["example"] = pattern_in(url)
    if trouble == "no file" and url.endswith("/"):
        is_file = isinstance(error, NotADirectoryError)
        trouble = "file in the way" if is_file else "no directory"
    return tell(trouble, url, writing=writing, facts=facts)


def hint_at_place(url: str) -> str:
    """Return a hint at a scheme's second slash, or at what a shell replaces; mostly empty."""
    if found := _ONE_SLASH.search(url):
        return f"did you mean {found[1]}://?"
    if found := _OF_A_SHELL.search(url):
        return f"only a shell replaces {found[1]}; write the path in full"
    return ""


def tls_trouble(error: object) -> str | None:
    """Return the message for a permanent TLS problem of a server; ``None`` for other errors."""
    if not _is_of_aiohttp(error):
        return None
    import aiohttp  # as the error's maker did

    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return _certificate_trouble(error.certificate_error)
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        inner = error.os_error
        if isinstance(inner, _BROKEN_OFF):
            return None
        reason = getattr(inner, "reason", None) or type(inner).__name__
        return f"the server does not speak TLS as it should ({reason}); check http or https"
    return None


def _certificate_trouble(error: Exception) -> str:
    code, text = (
        getattr(error, "verify_code", 0),
        getattr(error, "verify_message", "") or "no reason",
    )
    if code in _EXPIRED:
        do = "renew it on the server, or set this machine's clock right"
    elif code in _OTHER_NAME:
        do = "use a name that the certificate holds"
    else:
        do = "name its authority's PEM file by 'verify' in storage_options, or by SSL_CERT_FILE"
    return f"the server's certificate is not trusted ({text}); {do}"


def _is_of_aiohttp(error: object) -> bool:
    return any(kind.__module__.partition(".")[0] == "aiohttp" for kind in type(error).__mro__)


def _own_meaning(
    schemes: Sequence[str], url: str, error: Exception, how: Mapping[str, bool]
) -> StreamrecError | None:
    """Return what the rooms of a URL's schemes make of an error, or ``None``."""
    # A store's own meanings come before the tables: they know which call of a library failed.
    for scheme in schemes:
        if scheme not in SCHEMES or not SCHEMES[scheme].errors:
            continue
        module = import_module(f"streamrec.stores.{SCHEMES[scheme].errors}")
        meaning: StreamrecError | None = module.own_meaning(url, error, **how)
        if meaning is not None:
            return meaning
    return None


def pattern_in(directory: str) -> str:
    """Return the pattern of the shards in a local directory, as their names there are.

    Where there are none, it is that of a directory in it that has some. For a folder of TFDS the
    text also tells of its splits, and for one above the versions of a TFDS dataset it is a version.
    """
    from streamrec.formats.tfds.dataset_info import INFO  # only an error needs it

    place = directory.rstrip("/")
    names, found = _names_in(place), ""
    for inner in ("", *sorted(names, reverse=True)):  # the latest version first
        each = f"{place}/{inner}".rstrip("/")
        inner_names = _names_in(each) if inner else names
        if inner and INFO in inner_names:
            shards = _shards_of(each, inner_names) or f"{escape(each)}/*.tfrecord*"
            return f'{shards}, or give the TFDS dataset {each} with split="train"'
        if found := _shards_of(each, inner_names):
            break
    other = ', or read this TFDS dataset with split="train"' if INFO in names else ""
    return f"{found or f'{escape(place)}/*.tfrecord'}{other}"


def _names_in(directory: str) -> list[str]:
    with suppress(OSError):
        return os.listdir(directory.removeprefix("file://"))[:MOST_NAMES]  # noqa: PTH208
    return []


def _shards_of(directory: str, names: list[str]) -> str:
    """Return the pattern of the shards among some names; without one an empty text."""
    # TensorFlow Datasets put the number after: mnist-train.tfrecord-00000-of-00001.
    common = Counter(found[0] for found in map(_SUFFIX.search, names) if found)
    if not common:
        return ""
    suffix = common.most_common(1)[0][0]
    has_more = any(suffix in name and not name.endswith(suffix) for name in names)
    return f"{escape(directory)}/*{suffix}{'*' if has_more else ''}"


def file_trouble(error: OSError) -> str:
    """Return the name of the trouble with a local file."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "no file"
    if isinstance(error, PermissionError):
        return "no permission"
    if isinstance(error, IsADirectoryError):
        return "directory"
    if isinstance(error, NotAFile):
        return "not a file"
    if error.errno in _FULL:
        return "full"
    return "read-only" if error.errno == errno.EROFS else "disk"


def _where(url: str) -> str:
    """Return where a relative path was looked for."""
    if url.startswith(("/", "file://")):
        return ""
    return f" under {working_directory() or 'the working directory, which was deleted'}"


def _name_trouble(error: Exception) -> str:
    """Return the name of the trouble that the class of an error stands for."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return "full spool"  # only a local disk is full
    names = (f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__)
    return next(_BY_NAME[name] for name in names if name in _BY_NAME)


def _facts(error: Exception) -> dict[str, object]:
    """Return what texts may say of an error: the system's reason, or the error's name."""
    number = getattr(error, "errno", None)
    has_number = isinstance(number, int) and number
    return {
        "error": " ".join(str(error).split()).rstrip("."),
        "reason": os.strerror(number) if has_number and number else type(error).__name__,
        "host": getattr(error, "host", ""),
        "port": getattr(error, "port", ""),
        "variable": "",
        "example": "…/*.tfrecord",
    }


def _inner(error: Exception) -> Exception | None:
    """Return the error that another one stands for, or ``None``."""
    # fsspec's http raises FileNotFoundError for every failure, with the real one as its cause, and
    # s3fs an OSError for every response. botocore keeps aiohttp's errors in an attribute.
    cause = error.__cause__
    if isinstance(getattr(cause, "response", None), dict):
        return cause if isinstance(cause, Exception) else None
    if isinstance(error, FileNotFoundError):
        # A lookup that failed is that of the name, in a dictionary of objects.
        return (
            cause if isinstance(cause, Exception) and not isinstance(cause, LookupError) else None
        )
    inner = getattr(error, "kwargs", {}).get("error")
    return inner if isinstance(inner, Exception) and _is_of_aiohttp(inner) else None


def _refusal(url: str, error: Exception, *, writing: bool, anonymous: bool) -> StoreError | None:
    """Return the error for a refused request; ``None`` if the error carries no response."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, Mapping):  # of botocore
        head = response.get("ResponseMetadata", {})
        told = response.get("Error", {})
        code = with_key(told.get("Code", ""), told.get("Message") or "")
        wait = head.get("HTTPHeaders", {}).get("retry-after")
        return refusal(
            url,
            int(head.get("HTTPStatusCode", 0)),
            # botocore repeats the status as the code where an answer has no body, as that to HEAD.
            code=None if code.isdigit() else code,
            retry_after=seconds_to_wait(wait),
            anonymous=anonymous,
            writing=writing,
        )
    if type(error.__cause__).__module__ == "aiohttp.http_exceptions":
        return None  # not the server's status: aiohttp cannot parse the response
    # ``status`` first, since aiohttp's errors warn if they are asked for ``code``.
    named = ((error, "status"), (error, "status_code"), (error, "code"), (response, "status_code"))
    found = (getattr(holder, name, None) for holder, name in named)
    status = next((number for number in found if isinstance(number, int)), 0)
    if not 400 <= status <= 599:
        return None
    headers = getattr(error, "headers", getattr(response, "headers", None))
    wait = headers.get("Retry-After") if isinstance(headers, Mapping) else None
    return refusal(
        url, status, retry_after=seconds_to_wait(wait), anonymous=anonymous, writing=writing
    )
