"""The error responses of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_DEFAULT_MESSAGES = {
    "AccessDenied": "Access Denied",
    "InvalidAccessKeyId": "The access key ID you provided does not exist in our records.",
    "InvalidRange": "The requested range is not satisfiable",
    "MethodNotAllowed": "The objects of this store cannot be changed.",
    "NoSuchBucket": "The specified bucket does not exist",
    "NoSuchKey": "The specified key does not exist.",
    "NoSuchUpload": "The specified multipart upload does not exist.",
    "NotImplemented": "The store does not implement what the request asks for.",
    "PreconditionFailed": "At least one of the pre-conditions you specified did not hold",
    "SlowDown": "Please reduce your request rate.",
}


class Refusal(Exception):
    """A response with a status of 400 or more.

    Args:
        status: The HTTP status.
        code: One of S3's codes, such as ``NoSuchKey``; or one of Google's reasons, such as
            ``notFound``, where it does not follow from the status.
        message: The message; by default the API's own message for the code.
        headers: Further headers, such as Retry-After.
    """

    def __init__(
        self, status: int, code: str, message: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self.status = status
        self.code = code
        self.message = message or _DEFAULT_MESSAGES.get(code, code)
        self.headers = dict(headers or {})
        super().__init__(f"{status} {code}: {self.message}")
