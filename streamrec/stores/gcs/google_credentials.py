"""Options and credentials of gcsfs, and uploads through it.

gcsfs imports gRPC and takes most of a second, so it is imported in a thread if a loop runs.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrec.config.named_files import check_file
from streamrec.errors import AccessDenied, ConfigError, StreamrecError
from streamrec.stores.base.protocol import quote_option
from streamrec.stores.base.source_text import fsspec_is_configured
from streamrec.suggestions import did_you_mean
from streamrec.surroundings import home

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gcsfs.core import GCSFileSystem

_FSSPEC = frozenset({"listings_expiry_time", "use_listings_cache"})
_OURS = frozenset({"self", "kwargs", "asynchronous", "loop"})
_NOT_FOUND = re.compile(r"^\W*File '?([^']+?)'? was not found")
"""google-auth's text for a missing file, of credentials or of a workload's token."""
CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS"
_NAMES = {
    "anon": "token='anon'",
    "anonymous": "token='anon'",
    "credentials": "token",
    "endpoint": "endpoint_url",
    "google_service_account": "token",
    "project_id": "project",
    "service_account": "token",
    "service_account_file": "token",
    "skip_signature": "token='anon'",
}
"""gcsfs's names for options of Google's libraries, obstore and s3fs."""
_METHODS = frozenset({"anon", "browser", "cache", "cloud", "google_default"})
"""Values of ``token`` that name a login method; any other text is a token or a file's path."""


_PLAIN = frozenset({"endpoint_url", "token"})
"""Options of which this module knows what gcsfs makes of them."""
_PREFIXES = ("FSSPEC_", "GCSFS_", "GOOGLE_API_", "GOOGLE_CLOUD_UNIVERSE", "STORAGE_EMULATOR_HOST")
"""The beginnings of variables that change what gcsfs makes of them."""
_SCOPE = "https://www.googleapis.com/auth/devstorage.full_control"
_HOST = "https://storage.googleapis.com"
_TOKENS = ".gcs_tokens"
"""The file at home in which gcsfs keeps tokens."""


class Login(NamedTuple):
    """The end of a connection, and who reads."""

    credentials: Any
    """google-auth's; ``None``: nobody."""
    endpoint: str

    def __repr__(self) -> str:
        return f"<Login at {self.endpoint}>"


def plain_login(storage_options: Mapping[str, Any]) -> Login | None:
    """Log in without gcsfs, whose import takes 0.3 s of CPU time; ``None``: it has to.

    What is wrong is left to gcsfs as well. Blocks on files and on Google's servers.

    Args:
        storage_options: gcsfs's options.
    """
    token, endpoint = (storage_options.get(name) for name in ("token", "endpoint_url"))
    is_set = any(name.startswith(_PREFIXES) for name in os.environ)
    if not storage_options.keys() <= _PLAIN or is_set or fsspec_is_configured():
        return None
    if not isinstance(endpoint, str | None):
        return None
    _check_endpoint(endpoint)
    place = (endpoint or _HOST).rstrip("/")
    if token == "anon":  # noqa: S105 - a method
        return Login(None, place)
    if token is not None:
        found = _credentials(token) if isinstance(token, str) else None
        return None if found is None or isinstance(found, str) else Login(found, place)
    at_home = home()
    is_more = bool(os.environ.get(CREDENTIALS)) or (at_home and (at_home / _TOKENS).exists())
    with suppress(Exception):  # gcsfs meets it again, and it is told there
        found = _default_credentials()
        # As in _log_in: without any credentials, and other places to look, nobody reads.
        return None if found is None and is_more else Login(found, place)
    return None


def _default_credentials() -> Any:
    """Return google-auth's default credentials, as gcsfs asks for them; ``None``: there are none.

    Raises:
        GoogleAuthError: They cannot be used.
    """
    import google.auth
    import requests
    from google.auth.exceptions import DefaultCredentialsError
    from google.auth.transport.requests import Request

    with requests.Session() as session, suppress(DefaultCredentialsError):
        return google.auth.default(scopes=[_SCOPE], request=Request(session))[0]
    return None


def filesystem(storage_options: Mapping[str, Any], *, asynchronous: bool = False) -> GCSFileSystem:
    """Make gcsfs's filesystem, and find its credentials. Blocks on files and on Google's servers.

    Args:
        storage_options: gcsfs's options.
        asynchronous: ``True`` if its methods are awaited in the caller's loop.

    Raises:
        ConfigError: gcsfs does not know an option, or cannot use its value.
    """
    # Not gcsfs.GCSFileSystem: that one asks a gRPC service for the type of each bucket, and waits
    # for a minute if there is no such service. The class in gcsfs.core uses HTTP only.
    from gcsfs.core import GCSFileSystem
    from google.auth.exceptions import GoogleAuthError

    _check_names(storage_options, GCSFileSystem)
    _check_endpoint(storage_options.get("endpoint_url"))
    _check_sources(storage_options.get("token") or os.environ.get(CREDENTIALS))
    options = {**storage_options, "token": _credentials(storage_options.get("token"))}
    # Writers share fsspec's cached instance; an asynchronous instance belongs to one loop.
    options |= {"asynchronous": asynchronous, "skip_instance_cache": asynchronous}
    try:
        return _log_in(GCSFileSystem, options)
    except StreamrecError:
        raise
    except (GoogleAuthError, OSError, TypeError, ValueError, KeyError) as error:
        # The error's text may quote a key.
        if (file := missing_file(error)) is not None:
            raise AccessDenied(
                f"the credentials cannot be used, since the file {file} cannot be read (No such "
                "file or directory); mount or create it, or give other credentials"
            ) from None
        raise ConfigError(
            f"storage_options: gcsfs cannot use these credentials or options "
            f"({type(error).__name__}); check 'token', 'project' and 'access'"
        ) from None


def _log_in(kind: type[GCSFileSystem], options: dict[str, Any]) -> GCSFileSystem:
    """Make the filesystem; if no login method is named, with the first one that succeeds."""
    # gcsfs tries the same methods, but also asks a machine's metadata server for 15 to 30 s after
    # google-auth has found that there is none.
    from google.auth.exceptions import DefaultCredentialsError

    if options["token"] is not None:
        return kind(**options)
    if path := os.environ.get(CREDENTIALS):
        _check_readable(path)
    try:
        return kind(**options | {"token": "google_default"})
    except DefaultCredentialsError:
        if path:
            raise AccessDenied(
                f"{CREDENTIALS} names {path}, but google-auth cannot use what this file holds; "
                "name another file, or unset the variable"
            ) from None
    except ValueError:  # the credentials' project is not that of the options
        return kind(**options)
    try:
        # As gcsfs goes on, but for "cloud", which asks the metadata server.
        return kind(**options | {"token": "cache"})
    except ValueError:
        # Without any credentials, public buckets can still be read.
        return kind(**options | {"token": "anon"})


def missing_file(error: Exception) -> str | None:
    """Return the file that google-auth misses, or ``None``."""
    found = _NOT_FOUND.match(str(error))
    return found[1] if found else None


def _check_readable(path: str) -> None:
    """Raise for a file of credentials that the environment names and that cannot be read."""
    try:
        with open(path, "rb"):  # noqa: PTH123 - as google-auth does
            return
    except OSError as error:
        raise AccessDenied(
            f"the credentials cannot be used, since {CREDENTIALS} names {path}, which cannot be "
            f"read ({error.strerror}); mount or create that file, or leave the variable out"
        ) from None


def _check_sources(token: object) -> None:
    """Check the file that a file of a workload's identity names, before google-auth opens it."""
    if not isinstance(token, str):
        return
    source = ""
    with suppress(OSError, ValueError, LookupError, TypeError):  # google-auth tells what is wrong
        source = json.loads(Path(token).read_bytes())["credential_source"]["file"]
    check_file(source, f"the credential_source in {token}")


def _check_endpoint(endpoint: object) -> None:
    """Raise for an endpoint that is not a URL, which would be taken for a wrong object's URL."""
    if endpoint is not None and not str(endpoint).startswith(("http://", "https://")):
        raise ConfigError(
            f"storage_options: 'endpoint_url' must be a URL such as http://host:4443, not "
            f"{endpoint!r}"
        )


def _check_names(options: Mapping[str, Any], kind: type[GCSFileSystem]) -> None:
    """Raise for an unknown option, which gcsfs would ignore."""
    known = {*inspect.signature(kind.__init__).parameters, *_FSSPEC} - _OURS
    for name in options:
        if name not in known:
            hint = (
                f"it is {quote_option(_NAMES[name])}"
                if name in _NAMES
                else did_you_mean(name, known)
            )
            raise ConfigError(f"storage_options: gcsfs has no option {name!r}; {hint}")


def _credentials(token: Any) -> Any:
    """Return google-auth's credentials for a bare access token; return any other value as it is."""
    # gcsfs itself would ask a Google server whether the token is valid; the store reports that too.
    if not isinstance(token, str) or token in _METHODS or os.path.exists(token):  # noqa: PTH110 - a token is no path
        return token
    if "/" in token and token.endswith(".json"):
        raise ConfigError(f"storage_options: there is no token file {token}; check 'token'")
    return _bearer(token)


@lru_cache(maxsize=16)
def _bearer(token: str) -> Any:
    """Return the credentials of a token, the same object each time."""
    # fsspec caches filesystems by their options, so that equal tokens need equal objects.
    from google.oauth2.credentials import Credentials

    return Credentials(token)
