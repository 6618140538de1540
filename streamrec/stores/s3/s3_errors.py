"""The meaning of errors of calls to s3fs and botocore that are not about the object."""

from __future__ import annotations

import inspect
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from botocore.exceptions import (
    BotoCoreError,
    CredentialRetrievalError,
    NoCredentialsError,
    ParamValidationError,
)
from s3fs import S3FileSystem

from streamrec.errors import ConfigError
from streamrec.stores.base.protocol import quote_option
from streamrec.stores.base.troubles import tell
from streamrec.suggestions import did_you_mean

if TYPE_CHECKING:
    from streamrec.errors import StreamrecError

_FILES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
    "AWS_CA_BUNDLE",
)
"""Variables that name files which botocore reads in a call."""
_PROGRAM = "custom-process"
"""botocore's name for the program of ``credential_process``."""
_BUCKET = "Invalid bucket name"
"""botocore's text for one."""
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_PLACES = {"Got unexpected": "config_kwargs", "create_client()": "client_kwargs"}
"""The options of which botocore's text for an unknown argument tells."""
_S3FS_NAMES = {
    "access_key": "key",
    "access_key_id": "key",
    "aws_access_key_id": "key",
    "aws_secret_access_key": "secret",
    "aws_session_token": "token",
    "config": "config_kwargs={…}",
    "credentials": "key, secret and token",
    "endpoint": "endpoint_url",
    "no_sign_request": "anon=True",
    "profile_name": "profile",
    "region": "client_kwargs={'region_name': …}",
    "region_name": "client_kwargs={'region_name': …}",
    "secret_access_key": "secret",
    "secret_key": "secret",
    "session_token": "token",
    "skip_signature": "anon=True",
    "unsigned": "anon=True",
}
"""s3fs's names for the options of boto3, obstore and the AWS command line."""


def own_meaning(
    url: str,
    error: Exception,
    *,
    writing: bool = False,
    anonymous: bool = False,  # noqa: ARG001 - its refusals have a status, which is looked at before
) -> StreamrecError | None:
    """Return the error for one of the credentials or the options; ``None`` for any other.

    Args:
        url: The object, prefix or directory whose call failed.
        error: The library's error.
        writing: True if the call writes.
        anonymous: True if no credentials were sent.
    """
    if isinstance(error, NoCredentialsError):
        return tell("no credentials", url, facts={"variable": _missing_file()})
    if isinstance(error, json.JSONDecodeError):  # the one document that a call parses by itself
        return tell("login program", url, facts={"reason": "it gave no JSON"})
    if isinstance(error, CredentialRetrievalError) and error.kwargs.get("provider") == _PROGRAM:
        return tell("login program", url, facts={"reason": "it gave no credentials"})
    if isinstance(error, ParamValidationError) and _BUCKET in str(error):
        return tell("bucket name", url, writing=writing)
    if isinstance(error, BotoCoreError):
        return None
    if isinstance(error, OSError):
        return _of_a_file(url, error)
    if isinstance(error, TypeError | ValueError | KeyError):
        return ConfigError(f"storage_options: {_option_error(error)}")
    return None


def _of_a_file(url: str, error: OSError) -> StreamrecError | None:
    """Return the error for a local file: botocore reads some for credentials, and no others."""
    if not error.errno:
        return None
    if error.filename is None:
        # uvloop does not name the program that it cannot start. s3fs's own have no number.
        is_of_a_name = isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError)
        facts = {"reason": os.strerror(error.errno)}
        return tell("login program", url, facts=facts) if is_of_a_name else None
    file = os.fsdecode(error.filename)
    named = next((name for name in _FILES if os.environ.get(name) == file), None)
    variable = f" of {named}" if named else ""
    facts = {"file": file, "reason": os.strerror(error.errno), "variable": variable}
    return tell("login file", url, facts=facts)


def _missing_file() -> str:
    """Return a hint at a variable that names a file which is not there."""
    for name in _FILES:
        if (path := os.environ.get(name)) and not Path(path).exists():
            return f", since {name} names {path}, which does not exist"
    return ""


def _option_error(error: Exception) -> str:
    """Return the message for an option that s3fs refuses."""
    if re.match(r"Invalid endpoint", str(error)):
        names = ", ".join(name for name in _ENDPOINTS if os.environ.get(name))
        variable = f" or {names}" if names else ""
        return (
            f"'endpoint_url'{variable} is not a URL ({error}); write http:// or https:// before "
            "the host"
        )
    # s3fs passes an unknown option on as a keyword argument.
    unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if not unknown:
        return f"s3fs refuses them: {error}; correct the options"
    if place := next((ours for theirs, ours in _PLACES.items() if theirs in str(error)), None):
        return f"{place!r} has no {unknown[1]!r} that botocore knows; correct its name"
    known = inspect.signature(S3FileSystem.__init__).parameters.keys() - {"self", "kwargs"} | {
        "profile"
    }
    name = unknown[1]
    theirs = _S3FS_NAMES.get(name, "")
    hint = f"it is {quote_option(theirs)}" if theirs else did_you_mean(name, known)
    return f"s3fs has no option {name!r}; {hint}"
