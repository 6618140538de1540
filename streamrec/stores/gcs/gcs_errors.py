"""The meaning of errors of calls to gcsfs and google-auth that the tables do not know."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from google.auth.exceptions import GoogleAuthError, TransportError

from streamrec.errors import ConfigError
from streamrec.stores.base.troubles import refusal, tell
from streamrec.stores.gcs.google_credentials import CREDENTIALS, missing_file

if TYPE_CHECKING:
    from streamrec.errors import StreamrecError

_BAD_REQUEST = "Bad Request"
_FORBIDDEN = "Forbidden"


def own_meaning(
    url: str, error: Exception, *, writing: bool = False, anonymous: bool = False
) -> StreamrecError | None:
    """Return the error for one of the credentials or the options; ``None`` for any other.

    Args:
        url: The object, prefix or directory whose call failed.
        error: The library's error.
        writing: True if the call writes.
        anonymous: True if no credentials were sent.
    """
    if isinstance(error, GoogleAuthError) and not isinstance(error, TransportError):
        return _of_credentials(url, error)
    if isinstance(error, OSError) and error.filename is not None and error.errno:
        return _of_a_file(url, os.fsdecode(error.filename), os.strerror(error.errno))
    # gcsfs has classes of its own for some statuses, and only a text for these.
    if str(error).startswith(_FORBIDDEN):
        return refusal(url, 403, writing=writing, anonymous=anonymous)
    if isinstance(error, ValueError) and str(error).startswith(_BAD_REQUEST):
        return refusal(url, 400, writing=writing)
    if isinstance(error, TypeError | ValueError | KeyError):
        return ConfigError(
            f"storage_options: gcsfs cannot use these credentials or options "
            f"({type(error).__name__}); check 'token', 'project' and 'access'"
        )
    return None


def _of_credentials(url: str, error: GoogleAuthError) -> StreamrecError | None:
    file = missing_file(error)
    return None if file is None else _of_a_file(url, file, os.strerror(2))


def _of_a_file(url: str, file: str, reason: str) -> StreamrecError:
    """Return the error for a local file: gcsfs reads some for credentials, and no others."""
    variable = f" of {CREDENTIALS}" if os.environ.get(CREDENTIALS) == file else ""
    facts = {"file": file, "reason": reason, "variable": variable}
    return tell("login file", url, facts=facts)
