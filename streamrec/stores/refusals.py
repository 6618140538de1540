"""Translation of a store's error codes and HTTP statuses to streamrec's errors.

The codes are those of https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html and of
https://cloud.google.com/storage/docs/json_api/v1/status-codes. The store's own message is not
repeated: it may quote keys, tokens and signatures.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from streamrec.errors import (
    AccessDenied,
    ObjectChanged,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
)

__all__ = ["Expired", "WrongRegion", "code_of", "plain", "refusal", "seconds_to_wait"]


class Meaning(NamedTuple):
    """The error class and the message of one code or status."""

    kind: type[StoreError]
    text: str


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


_DENIED = "the store denies access with these credentials; check them and the bucket's policy"
_NO_KEY = "the store does not accept these credentials; check key, secret, token and endpoint_url"
_EXPIRED = "the credentials have expired; renew them"
_SLOW = "the store asks to slow down; read with fewer connections if this goes on"
_BROKEN = "the store reports an internal error; check the store's status if this goes on"
_CLOCK = "this machine's clock and the store's differ too much; set this machine's clock right"
_REGION = "the bucket is in another region; set region_name in storage_options' client_kwargs"
_ARCHIVED = "the object is archived; restore it before it is read"
_PAYER = "requesters pay for this bucket; name the project in storage_options' requester_pays"
_LOGIN = "the store requires other credentials; log in again, or give them in storage_options"
_CHANGED = "the object is no longer the version that this run reads; start a new run"
_STALLED = "the store gave up on a request that arrived too slowly; check the network"

_BY_CODE = {
    "NoSuchBucket": Meaning(ObjectNotFound, "there is no such bucket; check its name"),
    "NoSuchKey": Meaning(ObjectNotFound, "there is no such object; check its name"),
    "AccessDenied": Meaning(AccessDenied, _DENIED),
    "AllAccessDisabled": Meaning(AccessDenied, _DENIED),
    "InvalidAccessKeyId": Meaning(AccessDenied, _NO_KEY),
    "SignatureDoesNotMatch": Meaning(AccessDenied, _NO_KEY),
    "InvalidToken": Meaning(AccessDenied, _NO_KEY),
    "ExpiredToken": Meaning(AccessDenied, _EXPIRED),
    "TokenRefreshRequired": Meaning(AccessDenied, _EXPIRED),
    "RequestTimeTooSkewed": Meaning(AccessDenied, _CLOCK),
    "InvalidObjectState": Meaning(StoreError, _ARCHIVED),
    "AuthorizationHeaderMalformed": Meaning(StoreError, _REGION),
    "AuthorizationQueryParametersError": Meaning(StoreError, _REGION),
    "PermanentRedirect": Meaning(StoreError, _REGION),
    "TemporaryRedirect": Meaning(StoreError, _REGION),
    "IllegalLocationConstraintException": Meaning(StoreError, _REGION),
    "PreconditionFailed": Meaning(ObjectChanged, _CHANGED),
    "SlowDown": Meaning(StoreUnavailable, _SLOW),
    "RequestTimeout": Meaning(StoreUnavailable, _STALLED),
    "InternalError": Meaning(StoreUnavailable, _BROKEN),
    "ServiceUnavailable": Meaning(StoreUnavailable, _BROKEN),
    "rateLimitExceeded": Meaning(StoreUnavailable, _SLOW),
    "userRateLimitExceeded": Meaning(StoreUnavailable, _SLOW),
    "UserProjectMissing": Meaning(AccessDenied, _PAYER),
}

_BY_STATUS = {
    401: Meaning(AccessDenied, _LOGIN),
    403: Meaning(AccessDenied, _DENIED),
    404: Meaning(ObjectNotFound, "there is no such object; check its name"),
    407: Meaning(AccessDenied, "the proxy requires credentials; put them into its URL"),
    408: Meaning(StoreUnavailable, _STALLED),
    410: Meaning(ObjectNotFound, "the object was deleted; check its name"),
    412: Meaning(ObjectChanged, _CHANGED),
    425: Meaning(StoreUnavailable, _SLOW),
    429: Meaning(StoreUnavailable, _SLOW),
    500: Meaning(StoreUnavailable, _BROKEN),
    502: Meaning(StoreUnavailable, _BROKEN),
    503: Meaning(StoreUnavailable, _SLOW),
    504: Meaning(StoreUnavailable, _BROKEN),
}
_REDIRECTING = frozenset({301, 307, 400})
_XML_CODE = re.compile(rb"<Error>.*?<Code>(\w{1,64})</Code>", re.DOTALL)
_JSON_REASON = re.compile(rb'"error":.*?"reason":\s*"(\w{1,64})"', re.DOTALL)
_PAYS = re.compile(rb"requester pays bucket but no user project", re.IGNORECASE)
_EXPIRING = frozenset({"ExpiredToken", "TokenRefreshRequired"})

_UNKNOWN = Meaning(StoreError, "the store refuses the request; check that it speaks this protocol")


def refusal(
    url: str,
    status: int,
    *,
    code: str | None = None,
    region: str | None = None,
    retry_after: float | None = None,
    signed: bool = False,
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
    """
    meaning = _BY_CODE.get(code or "") or _BY_STATUS.get(status) or _UNKNOWN
    name = f"{status} {code}" if code else str(status)
    message = f"{meaning.text} ({name})"
    if signed and region and status in _REDIRECTING:
        return WrongRegion(message, url=url, region=region)
    if signed and (code in _EXPIRING or status == 401):
        return Expired(message, url=url)
    if meaning.kind is StoreUnavailable:
        slow = meaning.text is _SLOW
        return StoreUnavailable(message, url=url, retry_after=retry_after, throttled=slow)
    return meaning.kind(message, url=url)


def code_of(document: bytes) -> str | None:
    """Return the code in the beginning of an error document of S3 or GCS, or ``None``."""
    if _PAYS.search(document):
        # GCS's JSON has only "required" as its reason, and a download only this text.
        return "UserProjectMissing"
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
