from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamrec.errors import (
    AccessDenied,
    ObjectChanged,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
)
from streamrec.stores.base.refusals import Expired, WrongRegion, code_of, refusal, seconds_to_wait


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, StoreError),
        (401, AccessDenied),
        (403, AccessDenied),
        (404, ObjectNotFound),
        (405, StoreError),
        (407, AccessDenied),
        (408, StoreUnavailable),
        (410, ObjectNotFound),
        (412, ObjectChanged),
        (429, StoreUnavailable),
        (500, StoreUnavailable),
        (501, StoreError),
        (502, StoreUnavailable),
        (503, StoreUnavailable),
        (504, StoreUnavailable),
    ],
)
def test_statuses(status: int, kind: type[StoreError]) -> None:
    error = refusal("s3://b/x", status)
    assert type(error) is kind
    assert error.retryable == (kind is StoreUnavailable)
    assert error.url == "s3://b/x"
    assert f"({status})" in str(error)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "RequestTimeout", StoreUnavailable),
        (400, "ExpiredToken", AccessDenied),
        (403, "InvalidObjectState", StoreError),
        (404, "NoSuchBucket", ObjectNotFound),
        (404, "NoSuchElephant", ObjectNotFound),
        (503, "Elephant", StoreUnavailable),
        (400, "Elephant", StoreError),
    ],
)
def test_codes_say_more_than_statuses(status: int, code: str, kind: type[StoreError]) -> None:
    error = refusal("s3://b/x", status, code=code)
    assert type(error) is kind
    assert f"({status} {code})" in str(error)


def test_time_to_wait_is_kept() -> None:
    error = refusal("s3://b/x", 503, retry_after=7.0)
    assert isinstance(error, StoreUnavailable)
    assert error.retry_after == 7.0


@pytest.mark.parametrize(
    ("status", "kind"), [(301, WrongRegion), (400, WrongRegion), (403, AccessDenied)]
)
def test_regions(status: int, kind: type[StoreError]) -> None:
    error = refusal("s3://b/x", status, region="eu-west-3", signed=True)
    assert type(error) is kind
    assert getattr(error, "region", "eu-west-3") == "eu-west-3"
    assert type(refusal("s3://b/x", status, region="eu-west-3")) in (StoreError, AccessDenied)


@pytest.mark.parametrize("code", ["ExpiredToken", "TokenRefreshRequired"])
def test_expired_credentials(code: str) -> None:
    assert type(refusal("s3://b/x", 400, code=code, signed=True)) is Expired
    assert type(refusal("s3://b/x", 400, code=code)) is AccessDenied


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (
            b'<?xml version="1.0"?><Error><Code>NoSuchKey</Code><Message>m</Message></Error>',
            "NoSuchKey",
        ),
        (b"<Error>\n  <Code>SlowDown</Code>", "SlowDown"),
        (b"<Error><Code>Slow", None),
        (b"<html><Code>x</Code></html>", None),
        (b"", None),
        (b'{"error": {"code": 404, "errors": [{"reason": "notFound"}]}}', "notFound"),
        (
            b'{"error": {"code": 403, "errors": [{\n"reason":"rateLimitExceeded"',
            "rateLimitExceeded",
        ),
        (b'{"reason": "notFound"}', None),
        (
            b"Bucket is a requester pays bucket but no user project provided.",
            "UserProjectMissing",
        ),
    ],
)
def test_code_of(document: bytes, code: str | None) -> None:
    assert code_of(document) == code


@given(st.binary())
def test_any_document(document: bytes) -> None:
    code_of(document)
    code_of(b"<Error><Code>" + document)


NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("3", 3.0),
        (" 0 ", 0.0),
        ("1.5", 1.5),
        ("-1", None),
        ("inf", None),
        ("soon", None),
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 12:00:30 -0000", 30.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
    ],
)
def test_seconds_to_wait(header: str | None, seconds: float | None) -> None:
    assert seconds_to_wait(header, NOW) == seconds


@given(st.text())
@example("0\x1f")
def test_any_header(header: str) -> None:
    assert (seconds_to_wait(header, NOW) or 0.0) >= 0
