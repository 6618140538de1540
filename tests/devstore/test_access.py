from __future__ import annotations

from typing import Any

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict
from yarl import URL

from streamrec.devstore.access import check_access
from streamrec.devstore.errors import Refusal

SIGNED = 1_700_000_000.0  # 2023-11-14T22:13:20Z
QUERY = {
    "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
    "X-Amz-Credential": "test/20231114/us-east-1/s3/aws4_request",
    "X-Amz-Date": "20231114T221320Z",
    "X-Amz-Expires": "60",
    "X-Amz-SignedHeaders": "host",
    "X-Amz-Signature": "ab" * 32,
}
HEADER = (
    "AWS4-HMAC-SHA256 Credential=test/20231114/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=abab"
)


def refusal(
    headers: dict[str, str] | None = None, query: dict[str, str] | None = None, **options: Any
) -> tuple[int, str] | None:
    now = options.pop("now", SIGNED)
    try:
        check_access(CIMultiDict(headers or {}), query or {}, {"test"}, now, **options)
    except Refusal as error:
        return error.status, error.code
    return None


def test_a_signature_in_the_header_passes() -> None:
    assert refusal({"authorization": HEADER}) is None


def test_a_signature_in_the_query_passes() -> None:
    assert refusal(query=QUERY) is None


def test_what_botocore_signs_passes() -> None:
    request = AWSRequest("GET", "http://127.0.0.1/bucket/key")
    S3SigV4Auth(Credentials("test", "testsecret"), "s3", "us-east-1").add_auth(request)
    assert refusal(dict(request.headers)) is None


def test_what_botocore_presigns_passes() -> None:
    request = AWSRequest("GET", "http://127.0.0.1/bucket/key")
    signer = S3SigV4QueryAuth(Credentials("test", "testsecret"), "s3", "us-east-1", expires=60)
    signer.add_auth(request)
    assert refusal(query=dict(URL(request.url).query), now=0.0) is None


def test_anonymous_is_refused_unless_switched_on() -> None:
    assert refusal() == (403, "AccessDenied")
    assert refusal(anonymous=True) is None


@pytest.mark.parametrize("options", [{}, {"anonymous": True}])
def test_an_unknown_key_is_refused_even_where_anonymous_passes(options: dict[str, Any]) -> None:
    wrong = {"Authorization": HEADER.replace("=test/", "=guest/")}
    assert refusal(wrong, **options) == (403, "InvalidAccessKeyId")


def test_a_presigned_url_passes_until_it_expires() -> None:
    assert refusal(query=QUERY, now=SIGNED + 60) is None
    assert refusal(query=QUERY, now=SIGNED + 60.5) == (403, "AccessDenied")


@pytest.mark.parametrize("name", [name for name in QUERY if name != "X-Amz-Algorithm"])
def test_every_parameter_of_a_presigned_url_is_needed(name: str) -> None:
    query = {key: value for key, value in QUERY.items() if key != name}
    assert refusal(query=query) == (400, "AuthorizationQueryParametersError")


@pytest.mark.parametrize(
    "wrong",
    [
        {"X-Amz-Expires": "0"},
        {"X-Amz-Expires": "-1"},
        {"X-Amz-Expires": "604801"},
        {"X-Amz-Expires": "9" * 5000},
        {"X-Amz-Expires": "soon"},
        {"X-Amz-Date": "2023-11-14T22:13:20Z"},
        {"X-Amz-Algorithm": "AWS4-HMAC-SHA1"},
        {"X-Amz-Credential": "test/20231114/us-east-1/ec2/aws4_request"},
    ],
)
def test_wrong_parameters_are_refused(wrong: dict[str, str]) -> None:
    assert refusal(query=QUERY | wrong) == (400, "AuthorizationQueryParametersError")


def test_the_outdated_signature_is_refused() -> None:
    assert refusal({"Authorization": "AWS test:abab"}) == (400, "InvalidRequest")
    outdated = {"AWSAccessKeyId": "test", "Signature": "x", "Expires": "9999999999"}
    assert refusal(query=outdated) == (400, "InvalidRequest")


@given(st.text(max_size=80))
def test_any_other_authorization_is_refused(text: str) -> None:
    assert refusal({"Authorization": text}) in (
        (400, "AuthorizationHeaderMalformed"),
        (400, "InvalidRequest"),
    )


@pytest.mark.parametrize(
    "part", ["SignedHeaders=", "Signature=", "AWS4-HMAC-SHA256", "Credential="]
)
def test_every_part_of_the_header_is_needed(part: str) -> None:
    wrong = HEADER.replace(part, "")
    assert refusal({"Authorization": wrong}) == (400, "AuthorizationHeaderMalformed")
