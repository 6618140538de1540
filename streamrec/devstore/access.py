"""The check of S3 requests' access: a SigV4 signature must name a known key. Pure: no I/O.

The signature itself is not verified. Refused are the usual mistakes of clients, as S3 refuses them:
no signature, an outdated SigV2 signature, and an expired URL. Source: AWS, "Authenticating Requests
(AWS Signature Version 4)".
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from streamrec.devstore.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["check_access"]

ALGORITHM = "AWS4-HMAC-SHA256"
LONGEST_EXPIRY = 7 * 24 * 3600  # seconds; S3's own limit
_CREDENTIAL = re.compile(r"Credential=([^/,\s]+)/[0-9]{8}/[^/,\s]+/s3/aws4_request")
_QUERY_FIELDS = ("Credential", "Date", "Expires", "SignedHeaders", "Signature")


def check_access(
    headers: Mapping[str, str],
    query: Mapping[str, str],
    keys: Collection[str],
    now: float,
    *,
    anonymous: bool = False,
) -> None:
    """Check that a request is signed with a known key.

    Args:
        headers: The request's headers; case-insensitive.
        query: The request's query, decoded.
        keys: The access keys that the store knows.
        now: Seconds since 1970, to which presigned URLs' expiry is compared.
        anonymous: ``True`` accepts requests without a signature.

    Raises:
        Refusal: The request is refused.
    """
    authorization = headers.get("Authorization")
    if authorization is not None:
        _known(_key_in_header(authorization), keys)
    elif "X-Amz-Algorithm" in query:
        _known(_key_in_query(query, now), keys)
    elif "AWSAccessKeyId" in query:
        raise _outdated()
    elif not anonymous:
        raise Refusal(403, "AccessDenied")


def _key_in_header(authorization: str) -> str:
    if authorization.startswith("AWS "):
        raise _outdated()
    match = _CREDENTIAL.search(authorization)
    complete = "SignedHeaders=" in authorization and "Signature=" in authorization
    if not authorization.startswith(ALGORITHM) or match is None or not complete:
        raise Refusal(400, "AuthorizationHeaderMalformed", "The authorization header is malformed.")
    return match[1]


def _key_in_query(query: Mapping[str, str], now: float) -> str:
    missing = [name for name in _QUERY_FIELDS if not query.get(f"X-Amz-{name}")]
    match = _CREDENTIAL.search(f"Credential={query.get('X-Amz-Credential', '')}")
    if missing or match is None or query["X-Amz-Algorithm"] != ALGORITHM:
        raise _malformed("Query-string authentication needs all of SigV4's X-Amz parameters.")
    signed, expires = _date(query["X-Amz-Date"]), query["X-Amz-Expires"]
    if not re.fullmatch("[0-9]{1,9}", expires) or not 0 < int(expires) <= LONGEST_EXPIRY:
        raise _malformed("X-Amz-Expires must be between 1 and 604800 seconds.")
    if now > signed + int(expires):
        raise Refusal(403, "AccessDenied", "Request has expired")
    return match[1]


def _date(text: str) -> float:
    try:
        return datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise _malformed("X-Amz-Date must be in the ISO8601 Long Format.") from None


def _known(key: str, keys: Collection[str]) -> None:
    if key not in keys:
        raise Refusal(403, "InvalidAccessKeyId")


def _malformed(message: str) -> Refusal:
    return Refusal(400, "AuthorizationQueryParametersError", message)


def _outdated() -> Refusal:
    message = (
        "The authorization mechanism you have provided is not supported. Use AWS4-HMAC-SHA256."
    )
    return Refusal(400, "InvalidRequest", message)
