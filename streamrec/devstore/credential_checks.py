"""The check of requests' access: SigV4 signatures of known keys, and bearer tokens. Pure: no I/O.

Signatures are not verified. Refused are the usual mistakes of clients, as S3 refuses them: no
signature, an outdated SigV2 signature, and an expired URL. Sources: AWS, "Authenticating Requests
(AWS Signature Version 4)"; RFC 6750.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from streamrec.devstore.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

LONGEST_EXPIRY = 7 * 24 * 3600  # seconds; S3's own limit
_CREDENTIAL = re.compile(r"(?:^|Credential=)([^/,\s=]+)/[0-9]{8}/[^/,\s]+/s3/aws4_request")
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="https://accounts.google.com/"'}


def check_signature(
    headers: Mapping[str, str],
    query: Mapping[str, str],
    keys: Collection[str],
    now: float,
    *,
    anonymous: bool = False,
) -> None:
    """Check that a request of S3 is signed with a known key.

    Args:
        headers: The request's headers; case-insensitive.
        query: The request's query, decoded.
        keys: The access keys that the store knows.
        now: Seconds since 1970, to which presigned URLs' expiry is compared.
        anonymous: ``True`` accepts requests without a signature.

    Raises:
        Refusal: The request is refused.
    """
    signed = headers.get("Authorization") or query.get("X-Amz-Credential")
    if signed is None and anonymous:
        return
    if signed is None:
        raise Refusal(403, "AccessDenied")
    found = _CREDENTIAL.search(signed)
    if found is None:
        raise Refusal(400, "InvalidRequest", "The signature is not of AWS4-HMAC-SHA256.")
    if found[1] not in keys:
        raise Refusal(403, "InvalidAccessKeyId")
    if "X-Amz-Credential" in query:
        _check_expiry(query, now)


def _check_expiry(query: Mapping[str, str], now: float) -> None:
    try:
        signed = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        age, lifetime = now - signed.timestamp(), int(query["X-Amz-Expires"])
    except (KeyError, ValueError):
        age, lifetime = 0.0, 0
    if not 0 < lifetime <= LONGEST_EXPIRY:
        message = "A presigned URL needs X-Amz-Date and X-Amz-Expires, 604800 seconds at most."
        raise Refusal(400, "AuthorizationQueryParametersError", message)
    if age > lifetime:
        raise Refusal(403, "AccessDenied", "Request has expired")


def check_bearer(
    headers: Mapping[str, str],
    tokens: Mapping[str, float],
    now: float,
    *,
    anonymous: bool = False,
) -> None:
    """Check that a request of GCS carries a valid token.

    Args:
        headers: The request's headers; case-insensitive.
        tokens: The expiry of each known token, in seconds since 1970.
        now: Seconds since 1970.
        anonymous: ``True`` accepts requests without a token, though never with a wrong one.

    Raises:
        Refusal: The request is refused.
    """
    authorization = headers.get("Authorization")
    if authorization is None:
        if anonymous:
            return
        message = "Anonymous caller does not have storage access to the resource."
        raise Refusal(401, "required", message, _CHALLENGE)
    kind, _, token = authorization.partition(" ")
    if kind.lower() != "bearer" or tokens.get(token.strip(), 0.0) <= now:
        raise Refusal(401, "authError", "Invalid Credentials", _CHALLENGE)
