"""The headers that name a range, as S3 interprets them. Pure: no I/O.

Sources: RFC 9110, section 14; AWS, "UploadPartCopy".
"""

from __future__ import annotations

import re

from streamrec.devstore.errors import Refusal

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
    if (not first and not last) or (first and last and int(last) < int(first)):
        return None
    if first:
        found = range(int(first), min(int(last) + 1, size) if last else size)
    else:
        found = range(max(0, size - int(last)), size)
    if not found:
        raise Refusal(416, "InvalidRange", headers={"Content-Range": f"bytes */{size}"})
    return found


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
