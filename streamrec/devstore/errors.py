"""What the store answers instead of an object, by S3's codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["S3Error"]

_DEFAULT_MESSAGES = {
    "AccessDenied": "Access Denied",
    "BadDigest": "The digest that you specified did not match what was received.",
    "BucketNotEmpty": "The bucket you tried to delete is not empty.",
    "InvalidAccessKeyId": "The access key ID you provided does not exist in our records.",
    "InvalidPart": "One or more of the specified parts could not be found.",
    "InvalidRange": "The requested range is not satisfiable",
    "MalformedXML": "The XML you provided was not well-formed.",
    "MethodNotAllowed": "The specified method is not allowed against this resource.",
    "NoSuchBucket": "The specified bucket does not exist",
    "NoSuchKey": "The specified key does not exist.",
    "NoSuchUpload": "The specified multipart upload does not exist.",
    "NotImplemented": "The store does not implement what the request asks for.",
    "PreconditionFailed": "At least one of the pre-conditions you specified did not hold",
    "SlowDown": "Please reduce your request rate.",
}


class S3Error(Exception):
    """An answer with a status of 400 or more.

    Args:
        status: HTTP's.
        code: S3's, such as ``NoSuchKey``.
        message: In words; by default S3's own for the code.
        headers: Besides the usual ones, such as Retry-After.
    """

    def __init__(
        self, status: int, code: str, message: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self.status = status
        self.code = code
        self.message = message or _DEFAULT_MESSAGES.get(code, code)
        self.headers = dict(headers or {})
        super().__init__(f"{status} {code}: {self.message}")
