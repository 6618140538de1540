"""Translation of obstore's errors to streamrec's.

Status and code are read from an error's text. The text itself is not repeated.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)

from streamrec.errors import (
    AccessDenied,
    ConfigError,
    ObjectChanged,
    StoreError,
    StoreMisbehaved,
    StoreUnavailable,
    StreamrecError,
)
from streamrec.masking import masked
from streamrec.stores.foreign_errors import meaning_of
from streamrec.stores.foreign_errors import translated as translated_by
from streamrec.stores.refusals import code_of, refusal

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["PastTheEnd", "translated"]

_STATUS = re.compile(r"status code: (\d{3})")
_MISBEHAVING = re.compile(
    r"non-partial response|CONTENT_RANGE|CONTENT_LENGTH|Requested [\d.]+, got|ETag Header missing"
)
_UNTRUSTED = re.compile(r"(?i)invalid peer certificate|certificate verify failed|UnknownIssuer")


_SETTING_ERRORS = (UnknownConfigurationKeyError, InvalidPathError, ValueError, TypeError)


class PastTheEnd(StoreError):
    """The range begins at or past the end (416). Never leaves the store."""


def translated(url: str) -> AbstractContextManager[None]:
    """Return a context that raises streamrec's errors in place of obstore's.

    Args:
        url: The object, prefix or bucket, for messages.
    """
    return translated_by(url, _meaning)


def _meaning(where: str, error: Exception) -> StreamrecError:
    if isinstance(error, _SETTING_ERRORS):
        text = str(error).partition("\n")[0]
        return ConfigError(
            f"{masked(where)}: obstore refuses the URL or the options: {text}; correct them"
        )
    if not isinstance(error, BaseError | OSError):
        return meaning_of(where, error)
    text = str(error)
    status = _STATUS.search(text)
    if status and status[1] == "416":
        return PastTheEnd("the range begins past the end", url=where)
    if status:
        return refusal(where, int(status[1]), code=code_of(text.encode()))
    if isinstance(error, FileNotFoundError):
        return refusal(where, 404)
    if isinstance(error, PreconditionError):
        return ObjectChanged(
            "the object is no longer the version that this run reads; start a new run", url=where
        )
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return AccessDenied("the store denies access; check the credentials", url=where)
    if _UNTRUSTED.search(text):
        hint = "the server's certificate is not trusted; name its authority's PEM file by 'verify'"
        return StoreError(f"{hint} in storage_options, or by SSL_CERT_FILE", url=where)
    if _MISBEHAVING.search(text):
        return StoreMisbehaved(
            "the response does not match the requested range; check the server and any proxy "
            "before it",
            url=where,
        )
    return StoreUnavailable(
        "the store cannot be reached, or the connection broke; check the endpoint and the network",
        url=where,
    )
