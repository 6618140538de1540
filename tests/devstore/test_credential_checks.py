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

from streamrec.devstore.credential_checks import check_bearer, check_signature
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
        check_signature(CIMultiDict(headers or {}), query or {}, {"test"}, now, **options)
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


@pytest.mark.parametrize("name", ["X-Amz-Date", "X-Amz-Expires"])
def test_a_presigned_url_needs_its_life(name: str) -> None:
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
    ],
)
def test_wrong_parameters_are_refused(wrong: dict[str, str]) -> None:
    assert refusal(query=QUERY | wrong) == (400, "AuthorizationQueryParametersError")


def test_a_credential_of_another_service_is_refused() -> None:
    other = {"X-Amz-Credential": "test/20231114/us-east-1/ec2/aws4_request"}
    assert refusal(query=QUERY | other) == (400, "InvalidRequest")


def test_the_outdated_signature_is_refused() -> None:
    assert refusal({"Authorization": "AWS test:abab"}) == (400, "InvalidRequest")
    outdated = {"AWSAccessKeyId": "test", "Signature": "x", "Expires": "9999999999"}
    assert refusal(query=outdated) == (403, "AccessDenied")


@given(st.text(min_size=1, max_size=80))
def test_any_other_authorization_is_refused(text: str) -> None:
    assert refusal({"Authorization": text}) == (400, "InvalidRequest")


TOKENS = {"good": 100.0, "old": 50.0}


@pytest.mark.parametrize("header", ["Bearer good", "bearer good "])
def test_a_known_token_passes(header: str) -> None:
    check_bearer({"Authorization": header}, TOKENS, 60.0)


@pytest.mark.parametrize("anonymous", [False, True])
@pytest.mark.parametrize(
    "header", ["Bearer old", "Bearer none", "Bearer", "Basic good", "AWS4-HMAC-SHA256 good", ""]
)
def test_other_tokens_are_refused_wherever_they_come(header: str, anonymous: bool) -> None:
    with pytest.raises(Refusal) as caught:
        check_bearer({"Authorization": header}, TOKENS, 60.0, anonymous=anonymous)
    assert (caught.value.status, caught.value.code) == (401, "authError")
    assert caught.value.headers["WWW-Authenticate"].startswith("Bearer ")


def test_nobody_passes_where_anybody_may() -> None:
    check_bearer({}, TOKENS, 60.0, anonymous=True)
    with pytest.raises(Refusal) as caught:
        check_bearer({}, TOKENS, 60.0)
    assert (caught.value.status, caught.value.code) == (401, "required")
