"""The messages about each trouble with a store: one table, for reading and writing alike.

A trouble is named where it is met: by a status or a code of the store (:func:`refusal`), by
the class of a library's error (``foreign_errors``), or by the call that failed (S3's and Google's
rooms).

The codes are those of https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html and of
https://cloud.google.com/storage/docs/json_api/v1/status-codes. The store's own message is not
repeated: it may quote keys, tokens and signatures.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from streamrec.errors import (
    AccessDenied,
    ConfigError,
    ObjectChanged,
    ObjectNotFound,
    StoreError,
    StoreMisbehaved,
    StoreUnavailable,
)
from streamrec.masking import masked

if TYPE_CHECKING:
    from collections.abc import Mapping


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


class Told(NamedTuple):
    """The error of one trouble; texts may name ``{facts}``."""

    kind: type[StoreError | ConfigError]
    text: str
    writing: str = ""
    """The text for a writer, where that has something else to do; empty: the same."""
    throttled: bool = False
    """True if the store asks to slow down."""


_RESTART = "start a new run"

TROUBLES = {
    # -- the object --------------------------------------------------------------------------------
    "no object": Told(
        ObjectNotFound,
        "there is no such object; check its name",
        "there is no such bucket or directory; create it first",
    ),
    "no bucket": Told(
        ObjectNotFound,
        "there is no such bucket; check its name",
        "there is no such bucket; check its name, or create it first",
    ),
    "deleted": Told(ObjectNotFound, "the object was deleted; check its name"),
    "directory": Told(
        StoreError,
        "this is a directory; name its shards, as in {example}",
        "this is a directory; name a file in it",
    ),
    "not a file": Told(
        StoreError,
        "this is a FIFO, a device or a socket; name a regular file, or copy the bytes to one first",
        "this is a FIFO, a device or a socket; name another file",
    ),
    "changed": Told(
        ObjectChanged,
        f"the object is no longer the version that this run reads; {_RESTART}",
        "the object was changed while it was written; write it again",
    ),
    "archived": Told(StoreError, "the object is archived; restore it before it is read"),
    "archive": Told(
        StoreError,
        "the archive is damaged or of another kind; check the file and the URL's scheme",
    ),
    "key": Told(
        StoreError,
        "the store cannot use the KMS key that encrypts the object; enable the key, or have its "
        "policy allow these credentials",
    ),
    "quota": Told(
        StoreError,
        "a quota of the store is used up; raise it",
        "a quota of the store, or its space, is used up; raise it, or delete objects, and write "
        "the object again",
    ),
    # -- credentials -------------------------------------------------------------------------------
    "denied": Told(
        AccessDenied,
        "the store denies access with these credentials; check them and the bucket's policy",
    ),
    "anonymous": Told(
        AccessDenied,
        "no credentials were sent, and the store denies access without; give some in "
        "storage_options, or make the objects public",
    ),
    "not accepted": Told(
        AccessDenied,
        "the store does not accept these credentials; check key, secret, token and endpoint_url",
    ),
    "expired": Told(AccessDenied, "the credentials have expired; renew them"),
    "url expired": Told(AccessDenied, "the signed URL has expired; sign a new one"),
    "clock": Told(
        AccessDenied,
        "this machine's clock and the store's differ too much; set this machine's clock right",
    ),
    "log in": Told(
        AccessDenied,
        "the store requires other credentials; log in again, or give them in storage_options",
    ),
    "login failed": Told(
        AccessDenied, "the credentials could not be fetched ({reason}); log in again"
    ),
    "login file": Told(
        AccessDenied,
        "the credentials cannot be used, since the file {file}{variable} cannot be read "
        "({reason}); mount or create it, or give other credentials",
    ),
    "login program": Told(
        AccessDenied,
        "the program of credential_process failed ({reason}); run it by hand, and correct it or "
        "the AWS configuration",
    ),
    "no credentials": Told(
        AccessDenied,
        "no credentials were found{variable}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
        "AWS_PROFILE, or give key and secret in storage_options, or anon=True for a public bucket",
    ),
    "payer": Told(
        AccessDenied,
        "requesters pay for this bucket; name the project in storage_options' requester_pays",
    ),
    "sso": Told(
        AccessDenied,
        "the AWS SSO session has expired, or there is none; run aws sso login, with --profile if "
        "you use one",
    ),
    "proxy login": Told(
        AccessDenied, "the proxy requires credentials; put them into its URL"
    ),
    # -- the way to the store ----------------------------------------------------------------------
    "slow down": Told(
        StoreUnavailable,
        "the store asks to slow down; read with fewer connections if this goes on",
        "the store asks to slow down; write with fewer processes if this goes on",
        throttled=True,
    ),
    "internal": Told(
        StoreUnavailable,
        "the store reports an internal error; check the store's status if this goes on",
    ),
    "too slow": Told(
        StoreUnavailable,
        "the store gave up on a request that arrived too slowly; check the network",
    ),
    "broken off": Told(StoreUnavailable, "the connection broke ({reason}); check the network"),
    "silent": Told(
        StoreUnavailable,
        "the server sent nothing for too long; check the server and the network",
    ),
    "unreachable": Told(
        StoreUnavailable,
        "the store cannot be reached ({reason}); check the endpoint and network",
    ),
    "no address": Told(
        StoreUnavailable, "the host name {host} has no address; check the name and the network"
    ),
    "refused": Told(
        StoreUnavailable,
        "cannot connect to {host}:{port}: {reason}; check the endpoint and the network",
    ),
    "no connection": Told(
        StoreUnavailable,
        "connecting took too long; check the endpoint and the network",
    ),
    "proxy": Told(
        StoreUnavailable,
        "the proxy cannot be reached; check HTTPS_PROXY, or 'proxy' in storage_options",
    ),
    "untrusted": Told(
        StoreError,
        "the server's certificate is not trusted; have the machine trust its authority",
    ),
    "redirects": Told(
        StoreMisbehaved,
        "the server redirects in circles; use the URL to which it should lead",
    ),
    "region": Told(
        StoreError,
        "the bucket is in another region; set region_name in storage_options' client_kwargs",
    ),
    # -- what does not fit -------------------------------------------------------------------------
    "http url": Told(ConfigError, "this is not a valid http URL; correct it"),
    "sdk": Told(
        ConfigError, "the AWS SDK refuses its settings ({error}); correct the one that it names"
    ),
    "bucket name": Told(
        ConfigError,
        "this is not a valid name of an S3 bucket; write a name of letters, digits, dots and "
        "hyphens, as in s3://bucket/object",
    ),
    "not s3": Told(StoreMisbehaved, "the store does not answer as S3 does; check endpoint_url"),
    "no ranges": Told(
        ConfigError,
        "the filesystem cannot list objects, or cannot read ranges; name each shard, or copy the "
        "shards to another store",
        "the filesystem cannot write objects; write to another store, and copy them",
    ),
    "protocol": Told(
        StoreError, "the store refuses the request; check that it speaks this protocol"
    ),
    "unknown": Told(
        StoreMisbehaved,
        "the filesystem failed with an unknown error ({reason}); check its library",
    ),
    # -- disks -------------------------------------------------------------------------------------
    "no file": Told(
        ObjectNotFound,
        "there is no such file{where}; {hint}",
        "there is no such directory; {hint}",
    ),
    "no directory": Told(ObjectNotFound, "there is no such directory{where}; create it first"),
    "file in the way": Told(
        ObjectNotFound, "a file stands where a directory is needed{where}; choose another place"
    ),
    "no permission": Told(
        AccessDenied,
        "this user may not read the file; change its permissions",
        "the object may not be written; check the permissions",
    ),
    "read-only": Told(
        AccessDenied,
        "the file cannot be opened: {reason}; mount the disk so that it can be written",
        "the object cannot be written: {reason}; mount the disk so that it can be written, and "
        "write it again",
    ),
    "full": Told(
        StoreError,
        "the object cannot be read: {reason}; free space on the disk",
        "the object cannot be written: {reason}; free space there and write it again",
    ),
    "full spool": Told(
        StoreError,
        "the temporary files cannot be written: {reason}; free space there, or set TMPDIR",
    ),
    "disk": Told(
        StoreUnavailable,
        "the file cannot be read: {reason}; check the disk or the mount",
        "the object cannot be written: {reason}; check the disk or the mount",
    ),
}  # fmt: skip


def tell(
    trouble: str,
    url: str,
    *,
    writing: bool = False,
    note: str = "",
    retry_after: float | None = None,
    facts: Mapping[str, object] | None = None,
) -> StoreError | ConfigError:
    """Return the error for a trouble.

    Args:
        trouble: Its name in the table.
        url: The object, prefix or directory.
        writing: True if the object is written.
        note: Text for the end of the message, such as a status.
        retry_after: Seconds that the store asks to wait.
        facts: Those that the text names.
    """
    told = TROUBLES[trouble]
    text = (writing and told.writing) or told.text
    message = text.format_map(facts or {}) + note
    if issubclass(told.kind, ConfigError):
        return ConfigError(f"{masked(url)}: {message}")
    if told.kind is StoreUnavailable:
        return StoreUnavailable(message, url=url, retry_after=retry_after, throttled=told.throttled)
    return told.kind(message, url=url)


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
    "AccessDenied by KMS": "key",
    "KMS.DisabledException": "key",
    "KMS.InvalidStateException": "key",
    "KMS.KMSInvalidStateException": "key",
    "KMS.NotFoundException": "key",
    "QuotaExceeded": "quota",
    "ServiceQuotaExceededException": "quota",
    "XMinioAdminBucketQuotaExceeded": "quota",
    "XMinioStorageFull": "quota",
    "quotaExceeded": "quota",
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
    # The status of S3's SlowDown; an answer to HEAD has no body that would name the code.
    503: "slow down",
    504: "internal",
    507: "quota",
}
_ANONYMOUS = {"denied": "anonymous", "log in": "anonymous"}
"""Troubles that are others where no credentials were sent."""
# S3 redirects to the bucket's region; a signature for another region gets 400 instead.
_REDIRECTING = frozenset({301, 307, 400})
_XML_CODE = re.compile(rb"<Error>.*?<Code>([\w.]{1,64})</Code>", re.DOTALL)
_JSON_REASON = re.compile(rb'"error":.*?"reason":\s*"(\w{1,64})"', re.DOTALL)
_PAYS = re.compile(rb"requester pays bucket but no user project", re.IGNORECASE)
_EXPIRED_URL = re.compile(rb"<Message>Request (?:has expired|is not (?:yet valid|valid yet))")
_LATE = "RequestExpired"
_KEY = re.compile(r"\bkms:[A-Z]")
"""The permission that a message of S3 names where the key of the object is not allowed."""
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
    return with_key(found[1].decode(), document.decode(errors="replace")) if found else None


def with_key(code: str, message: str) -> str:
    """Return the code, with what the message alone tells: that KMS refuses, not the bucket."""
    return f"{code} by KMS" if code == "AccessDenied" and _KEY.search(message) else code


def seconds_to_wait(header: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds in ``Retry-After`` (RFC 9110, 10.2.3), or ``None`` if it is not valid."""
    if not header:
        return None
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", header.strip()):
        return float(header.strip())
    from email.utils import (
        parsedate_to_datetime,  # it is imported slowly, and few stores name a date
    )

    try:
        then = parsedate_to_datetime(header)
    except ValueError:
        return None
    aware = then if then.tzinfo else then.replace(tzinfo=UTC)
    return max(0.0, (aware - (now or datetime.now(UTC))).total_seconds())
