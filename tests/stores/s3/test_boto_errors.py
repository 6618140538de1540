from __future__ import annotations

import ssl
from types import SimpleNamespace

import aiohttp
import pytest
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from streamrec.errors import (
    AccessDenied,
    ConfigError,
    ObjectNotFound,
    StoreError,
    StoreMisbehaved,
    StoreUnavailable,
    StreamrecError,
)
from streamrec.stores.base.foreign_errors import translate_errors


def answer(status: int, code: str, **headers: str) -> boto.ClientError:
    response = {
        "Error": {"Code": code, "Message": "AKIDUNTOLD"},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers},
    }
    return boto.ClientError(response, "ListObjectsV2")


UNTRUSTED = aiohttp.ClientConnectorCertificateError(
    SimpleNamespace(host="h", port=1, is_ssl=True),  # type: ignore[arg-type]
    ssl.SSLCertVerificationError(1, "untold"),
)
CASES: list[tuple[Exception, type[StreamrecError]]] = [
    (answer(404, "NoSuchBucket"), ObjectNotFound),
    (answer(404, "404"), ObjectNotFound),
    (answer(403, "AccessDenied"), AccessDenied),
    (answer(503, "SlowDown"), StoreUnavailable),
    (boto.ClientError({}, "ListObjectsV2"), StoreError),
    (boto.NoCredentialsError(), AccessDenied),
    (boto.PartialCredentialsError(provider="x", cred_var="y"), ConfigError),
    (boto.CredentialRetrievalError(provider="x", error_msg="y"), AccessDenied),
    (boto.UnauthorizedSSOTokenError(), AccessDenied),
    (boto.SSLError(endpoint_url="https://h", error=UNTRUSTED), StoreError),
    (boto.SSLError(endpoint_url="https://h", error="reset"), StoreUnavailable),
    (boto.EndpointConnectionError(endpoint_url="https://h"), StoreUnavailable),
    (boto.ReadTimeoutError(endpoint_url="https://h"), StoreUnavailable),
    (boto.ConnectTimeoutError(endpoint_url="https://h"), StoreUnavailable),
    (boto.ProfileNotFound(profile="x"), ConfigError),
    (boto.ParamValidationError(report="Invalid bucket name"), ConfigError),
    (ResponseParserError("no XML"), StoreMisbehaved),
    (aiohttp.ClientPayloadError(), StoreUnavailable),
    (OSError(5, "Input/output error"), StoreUnavailable),
    (TimeoutError(), StoreUnavailable),
    (FileNotFoundError("bucket/x"), ObjectNotFound),
    (TypeError("unexpected keyword argument 'profil'"), ConfigError),
    (ValueError("Invalid endpoint: x"), ConfigError),
    (ObjectNotFound("ours already"), ObjectNotFound),
]


@pytest.mark.parametrize(
    ("error", "kind"), CASES, ids=lambda case: getattr(case, "__name__", type(case).__name__)
)
def test_meanings(error: Exception, kind: type[StreamrecError]) -> None:
    with pytest.raises(kind) as caught, translate_errors("s3://b/x"):
        raise error
    assert type(caught.value) is kind
    assert "AKIDUNTOLD" not in str(caught.value)
    if isinstance(caught.value, StoreError) and caught.value is not error:
        assert caught.value.url == "s3://b/x"


def test_what_s3fs_wraps_is_looked_into() -> None:
    wrapped = FileNotFoundError("The specified bucket does not exist")
    wrapped.__cause__ = answer(404, "NoSuchBucket")
    with pytest.raises(ObjectNotFound, match="404 NoSuchBucket"), translate_errors("s3://b/x"):
        raise wrapped


def test_time_to_wait() -> None:
    with pytest.raises(StoreUnavailable) as caught, translate_errors("s3://b/x"):
        raise answer(503, "SlowDown", **{"retry-after": "4"})
    assert caught.value.retry_after == 4.0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("endpoint", "'endpoint'; it is 'endpoint_url'"),
        ("request_pays", "did you mean 'requester_pays'"),
        ("foo", "no option 'foo'; leave it out$"),
    ],
)
def test_nearest_option(name: str, words: str) -> None:
    message = f"AioSession.__init__() got an unexpected keyword argument '{name}'"
    with pytest.raises(ConfigError, match=words), translate_errors("s3://b/x"):
        raise TypeError(message)


def test_nothing_happens_without_an_error() -> None:
    with translate_errors("s3://b/x"):
        pass
    with pytest.raises(KeyboardInterrupt), translate_errors("s3://b/x"):
        raise KeyboardInterrupt
