"""Translation of a store's error codes and HTTP statuses to streamrec's errors.

The codes are those of https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html and of
https://cloud.google.com/storage/docs/json_api/v1/status-codes. The store's own message is not
repeated: it may quote keys, tokens and signatures.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from streamrec.errors import AccessDenied, StoreError
from streamrec.stores.base.troubles import tell


class WrongRegion(StoreError):
    """The bucket is in ``region``, for which to sign again. Never leaves its store."""

    def __init__(self, message: str, *, url: str, region: str) -> None:
        super().__init__(message, url=url)
        self.region = region


class Expired(AccessDenied):
    """The credentials have expired and must be looked up again. Never leaves its store."""


def plain(error: StoreError) -> StoreError:
    """Return the error that may leave the store in place of the two above."""
    kind = AccessDenied if isinstance(error, AccessDenied) else StoreError
    return kind(error.message, url=error.url)


_BY_CODE = {
    "NoSuchBucket": "no bucket",
    "NoSuchKey": "no object",
    "AccessDenied": "denied",
    "AllAccessDisabled": "denied",
    "InvalidAccessKeyId": "not accepted",
    "SignatureDoesNotMatch": "not accepted",
    "InvalidToken": "not accepted",
    "ExpiredToken": "expired",
    "TokenRefreshRequired": "expired",
    "RequestExpired": "expired",
    "ExpiredTokenException": "expired",
    "InvalidIdentityToken": "log in",
    "RequestTimeTooSkewed": "clock",
    "InvalidObjectState": "archived",
    "AuthorizationHeaderMalformed": "region",
    "AuthorizationQueryParametersError": "region",
    "PermanentRedirect": "region",
    "TemporaryRedirect": "region",
    "IllegalLocationConstraintException": "region",
    "PreconditionFailed": "changed",
    "SlowDown": "slow down",
    "RequestTimeout": "too slow",
    "InternalError": "internal",
    "ServiceUnavailable": "internal",
    "rateLimitExceeded": "slow down",
    "userRateLimitExceeded": "slow down",
    "UserProjectMissing": "payer",
}

_BY_STATUS = {
    401: "log in",
    403: "denied",
    404: "no object",
    407: "proxy login",
    408: "too slow",
    410: "deleted",
    412: "changed",
    425: "slow down",
    429: "slow down",
    500: "internal",
    502: "internal",
    503: "slow down",
    504: "internal",
}
_ANONYMOUS = {"denied": "anonymous", "log in": "anonymous"}
"""Troubles that are others where no credentials were sent."""
_REDIRECTING = frozenset({301, 307, 400})
_XML_CODE = re.compile(rb"<Error>.*?<Code>(\w{1,64})</Code>", re.DOTALL)
_JSON_REASON = re.compile(rb'"error":.*?"reason":\s*"(\w{1,64})"', re.DOTALL)
_PAYS = re.compile(rb"requester pays bucket but no user project", re.IGNORECASE)
_EXPIRED_URL = re.compile(rb"<Message>Request (?:has expired|is not (?:yet valid|valid yet))")
_LATE = "RequestExpired"
_EXPIRING = frozenset({"ExpiredToken", "TokenRefreshRequired"})


def refusal(
    url: str,
    status: int,
    *,
    code: str | None = None,
    region: str | None = None,
    retry_after: float | None = None,
    signed: bool = False,
    anonymous: bool = False,
    writing: bool = False,
) -> StoreError:
    """Return the error for a refused request; a known code takes precedence over the status.

    Args:
        url: The object or bucket.
        status: The HTTP status.
        code: The store's error code, such as ``NoSuchKey``.
        region: The bucket's region, if the store names it.
        retry_after: Seconds that the store asks to wait.
        signed: ``True`` if streamrec signed the request. The result is :class:`WrongRegion` or
            :class:`Expired` where a new signature may succeed.
        anonymous: ``True`` if no credentials were sent.
        writing: ``True`` if the object is written.
    """
    trouble = _BY_CODE.get(code or "") or _BY_STATUS.get(status) or "protocol"
    if code == _LATE:
        # Ours are signed now, for an hour: one that is too old was so by this machine's clock.
        trouble = "clock" if signed else "url expired"
    trouble = _ANONYMOUS.get(trouble, trouble) if anonymous else trouble
    note = f" ({status} {code})" if code else f" ({status})"
    error = tell(trouble, url, writing=writing, note=note, retry_after=retry_after)
    assert isinstance(error, StoreError)
    if signed and region and status in _REDIRECTING:
        return WrongRegion(error.message, url=url, region=region)
    if signed and not anonymous and (code in _EXPIRING or status == 401):
        return Expired(error.message, url=url)
    return error


def code_of(document: bytes) -> str | None:
    """Return the code in the beginning of an error document of S3 or GCS, or ``None``."""
    if _PAYS.search(document):
        # GCS's JSON has only "required" as its reason, and a download only this text.
        return "UserProjectMissing"
    if _EXPIRED_URL.search(document):
        return _LATE  # S3 has AccessDenied for it
    found = _XML_CODE.search(document) or _JSON_REASON.search(document)
    return found[1].decode() if found else None


def seconds_to_wait(header: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds in ``Retry-After`` (RFC 9110, 10.2.3), or ``None`` if it is not valid."""
    if not header:
        return None
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", header.strip()):
        return float(header.strip())
    try:
        then = parsedate_to_datetime(header)
    except ValueError:
        return None
    aware = then if then.tzinfo else then.replace(tzinfo=UTC)
    return max(0.0, (aware - (now or datetime.now(UTC))).total_seconds())
