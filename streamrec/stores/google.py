"""Google's side of the control plane: gcsfs's options and credentials, and uploads through it.

gcsfs is imported in a thread where a loop runs: it brings gRPC along, and takes most of a second.
"""

from __future__ import annotations

import difflib
import inspect
import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gcsfs.core import GCSFileSystem

__all__ = ["filesystem", "put_file"]

_FSSPEC = frozenset({"listings_expiry_time", "use_listings_cache"})
_OURS = frozenset({"self", "kwargs", "asynchronous", "loop"})
_METHODS = frozenset({"anon", "browser", "cache", "cloud", "google_default"})
"""What gcsfs takes for the name of a way to log in; any other text is a token, or a file's path."""


def filesystem(storage_options: Mapping[str, Any], *, asynchronous: bool = False) -> GCSFileSystem:
    """Make gcsfs's filesystem, and find its credentials. Blocks: on files, and on Google's servers.

    It is the one that speaks HTTP only: what ``gcsfs.GCSFileSystem`` names asks a gRPC service for
    the kind of each bucket, and waits for a minute where there is none.

    Args:
        storage_options: gcsfs's.
        asynchronous: Whether its methods are awaited in the caller's loop.

    Raises:
        ConfigError: gcsfs does not know an option, or cannot use its value.
    """
    from gcsfs.core import GCSFileSystem
    from google.auth.exceptions import GoogleAuthError

    _check_names(storage_options, GCSFileSystem)
    options = {**storage_options, "token": _credentials(storage_options.get("token"))}
    # fsspec keeps one for all writers; one for a loop of ours belongs to that loop.
    options |= {"asynchronous": asynchronous, "skip_instance_cache": asynchronous}
    try:
        return _logged_in(GCSFileSystem, options)
    except (GoogleAuthError, OSError, TypeError, ValueError, KeyError) as error:
        # The text may quote the key that it could not read.
        raise ConfigError(
            f"storage_options: gcsfs cannot use these credentials or options "
            f"({type(error).__name__}); check 'token', 'project' and 'access'"
        ) from None


def _logged_in(kind: type[GCSFileSystem], options: dict[str, Any]) -> GCSFileSystem:
    """Make the filesystem; where no way to log in is named, by the first that serves.

    gcsfs has the same ways, but goes on to ask a machine's metadata server, for a quarter of a
    minute or a half, when google-auth has just found that there is none.
    """
    from google.auth.environment_vars import CREDENTIALS
    from google.auth.exceptions import DefaultCredentialsError

    if options["token"] is not None or os.environ.get(CREDENTIALS):
        return kind(**options)
    try:
        return kind(**options | {"token": "google_default"})
    except DefaultCredentialsError:
        pass
    except ValueError:  # its project is another one than that of the options
        return kind(**options)
    try:
        return kind(**options | {"token": "cache"})
    except ValueError:
        return kind(**options | {"token": "anon"})


def put_file(target: GCSFileSystem, local: str, path: str) -> None:
    """Upload a file as a whole: the object appears with its last byte, or not at all.

    Raises:
        PermissionError: The store does not allow it.
        OSError: Anything else.
    """
    from gcsfs.retry import HttpError

    try:
        target.put_file(local, path)
    except HttpError as error:
        kind = PermissionError if error.code in (401, 403) else OSError
        raise kind(f"the store answers {error.code or 'with an error'}") from None
    except OSError as error:
        if str(error).startswith("Forbidden"):
            raise PermissionError("the store denies it (403)") from None
        raise


def _check_names(options: Mapping[str, Any], kind: type[GCSFileSystem]) -> None:
    """Name what is wrong: gcsfs swallows what it does not know."""
    known = {*inspect.signature(kind.__init__).parameters, *_FSSPEC} - _OURS
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known), n=1)
            nearest = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"storage_options: gcsfs has no option {name!r}{nearest}")


def _credentials(token: Any) -> Any:
    """Make a bare access token one of google-auth's credentials.

    gcsfs would ask a server of Google's whether it is valid; the store itself says so soon enough.
    """
    if not isinstance(token, str) or token in _METHODS or os.path.exists(token):  # noqa: PTH110 - a token is no path
        return token
    if "/" in token and token.endswith(".json"):
        raise ConfigError(f"storage_options: there is no file {token} with a token")
    return _bearer(token)


@lru_cache(maxsize=16)
def _bearer(token: str) -> Any:
    """One object for one token: fsspec knows its filesystems by their options."""
    from google.oauth2.credentials import Credentials

    return Credentials(token)
