"""What the store answers instead of an object, by the codes of S3 and of Google."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GCSError", "Refusal", "S3Error"]

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


class Refusal(Exception):
    """An answer with a status of 400 or more.

    Args:
        status: HTTP's.
        code: The store's word for it.
        message: In words; by default the store's own for the code.
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


class S3Error(Refusal):
    """A refusal in S3's words: ``NoSuchKey``, ...; what both sides share speaks so, too."""


class GCSError(Refusal):
    """A refusal in Google's words, which are reasons: ``notFound``, ``authError``, ..."""
