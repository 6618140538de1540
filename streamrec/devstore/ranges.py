"""The refusals of both APIs, and the headers that name a range, as S3 reads them. Pure: no I/O.

Sources: RFC 9110, section 14; AWS, "UploadPartCopy".
"""

from __future__ import annotations

import re
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


# Python refuses to convert more than 4,300 digits; no header needs as many.
_ONE_RANGE = re.compile(
    r"\s*bytes\s*=[ \t]*([0-9]{0,4000})-([0-9]{0,4000})[ \t]*", re.IGNORECASE | re.ASCII
)


def parse_range(header: str | None, size: int) -> range | None:
    """Return the bytes that a Range header selects; they are never none.

    As in S3, a header with several ranges is ignored, and no range of an empty object can be
    satisfied.

    Args:
        header: The header's value; None if the request has none.
        size: The object's size in bytes.

    Returns:
        The bytes; None if the header is absent or to be ignored (another unit, malformed).

    Raises:
        Refusal: The range begins past the end, asks for the last 0 bytes, or the object is empty.
    """
    match = _ONE_RANGE.fullmatch(header or "")
    first, last = match.groups() if match else ("", "")
    # RFC 9110: an invalid Range header is ignored, and the whole object is sent.
    if (not first and not last) or (first and last and int(last) < int(first)):
        return None
    if first:
        span = range(int(first), min(int(last) + 1, size) if last else size)
    else:
        # "bytes=-5" asks for the last five bytes.
        span = range(max(0, size - int(last)), size)
    if not span:
        raise Refusal(416, "InvalidRange", headers={"Content-Range": f"bytes */{size}"})
    return span


def parse_copy_range(header: str | None, size: int) -> range:
    """Return the bytes that x-amz-copy-source-range selects, all without it.

    Unlike a Range header, it names both ends, and they lie in the object.

    Args:
        header: The header's value; None if the request has none.
        size: The source's size in bytes.

    Raises:
        Refusal: It is malformed, or ends past the object's end.
    """
    if header is None:
        return range(size)
    match = re.fullmatch("bytes=([0-9]{1,20})-([0-9]{1,20})", header)
    if match is None:
        message = (
            "The x-amz-copy-source-range value must be of the form bytes=first-last where first "
            "and last are the zero-based offsets of the first and last bytes to copy"
        )
        raise Refusal(400, "InvalidArgument", message)
    first, last = map(int, match.groups())
    if not first <= last < size:
        message = f"Range specified is not valid for source object of size: {size}"
        raise Refusal(400, "InvalidArgument", message)
    return range(first, last + 1)
