"""Translation of the AWS SDK's errors to streamrec's."""

from __future__ import annotations

import difflib
import inspect
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from aiohttp import ClientError as AiohttpError
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError
from s3fs import S3FileSystem

from streamrec.errors import (
    AccessDenied,
    ConfigError,
    StoreError,
    StoreMisbehaved,
    StoreUnavailable,
    StreamrecError,
)
from streamrec.stores.http.transport import tls_trouble
from streamrec.stores.refusals import refusal, seconds_to_wait

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["translated"]

_NO_CREDENTIALS = (
    "no credentials were found; give key and secret in storage_options, set AWS_PROFILE, or set "
    "anon=True for a public bucket"
)
_CREDENTIAL_TROUBLE = (
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.UnauthorizedSSOTokenError,
    boto.SSOTokenLoadError,
)
_NETWORK_TROUBLE = (boto.ConnectionError, boto.HTTPClientError, AiohttpError, OSError)
_SDK_ERRORS = (boto.BotoCoreError, boto.ClientError, ResponseParserError, AiohttpError, OSError)
_SETTING_ERRORS = (TypeError, ValueError, KeyError)


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Raise streamrec's errors in place of those of s3fs, botocore and aiohttp.

    Args:
        url: The object, prefix or bucket, for messages.
    """
    try:
        yield
    except StreamrecError:
        raise
    except _SDK_ERRORS as error:
        # s3fs raises an OSError with botocore's error as its cause.
        cause = error.__cause__
        inner = cause if isinstance(cause, boto.ClientError) else error
        raise _meaning(url, inner) from None
    except _SETTING_ERRORS as error:
        raise ConfigError(f"storage_options: {_option_error(error)}") from None


def _option_error(error: Exception) -> str:
    """Return the message for an option that s3fs refuses."""
    # s3fs passes an unknown option on as a keyword argument.
    unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if not unknown:
        return f"s3fs refuses them: {error}; correct the options"
    known = [
        name
        for name in inspect.signature(S3FileSystem.__init__).parameters
        if name not in ("self", "kwargs")
    ]
    close = difflib.get_close_matches(unknown[1], known, n=1)
    nearest = f"did you mean {close[0]!r}?" if close else "leave it out"
    return f"s3fs has no option {unknown[1]!r}; {nearest}"


def _meaning(url: str, error: Exception) -> StreamrecError:
    if isinstance(error, boto.ClientError):
        return _response_error(url, error)
    if isinstance(error, boto.NoCredentialsError):
        return AccessDenied(_NO_CREDENTIALS, url=url)
    if isinstance(error, _CREDENTIAL_TROUBLE):
        kind = type(error).__name__
        return AccessDenied(f"the credentials could not be fetched ({kind}); log in again", url=url)
    trouble = tls_trouble(error.kwargs.get("error")) if isinstance(error, boto.SSLError) else None
    if trouble is not None:
        return StoreError(trouble, url=url)
    if isinstance(error, FileNotFoundError):  # raised by s3fs itself
        return refusal(url, 404)
    if isinstance(error, _NETWORK_TROUBLE):
        text = (
            f"the store cannot be reached ({type(error).__name__}); check the endpoint and network"
        )
        return StoreUnavailable(text, url=url)
    if isinstance(error, ResponseParserError):
        return StoreMisbehaved("the store does not answer as S3 does; check endpoint_url", url=url)
    return ConfigError(f"{url}: {error}")


def _response_error(url: str, error: boto.ClientError) -> StoreError:
    answer = error.response.get("ResponseMetadata", {})
    code = error.response.get("Error", {}).get("Code")
    headers = answer.get("HTTPHeaders", {})
    return refusal(
        url,
        int(answer.get("HTTPStatusCode", 0)),
        code=None if code is None or code.isdigit() else code,
        retry_after=seconds_to_wait(headers.get("retry-after")),
    )
