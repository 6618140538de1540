"""S3's multipart uploads in progress. Pure: no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streamrec.devstore.errors import Refusal
from streamrec.devstore.objects import digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Upload"]

SMALLEST_PART = 5 << 20
"""Least bytes of every part but the last: S3's own limit."""
MOST_PARTS = 10_000


@dataclass(slots=True)
class Upload:
    """One object that is being uploaded in parts."""

    name: tuple[str, str]
    """The bucket and the key."""
    headers: Mapping[str, str]
    parts: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    """The ETag and content of each part by its number, from 1."""

    def add(self, number: int, data: bytes) -> str:
        """Keep a part, in place of an earlier one of its number; return its ETag."""
        if not 1 <= number <= MOST_PARTS:
            message = f"Part number must be an integer between 1 and {MOST_PARTS}, inclusive"
            raise Refusal(400, "InvalidArgument", message)
        etag = digest(data)
        self.parts[number] = (etag, data)
        return etag

    def join(self, wanted: Sequence[tuple[int, str]]) -> tuple[bytes, str]:
        """Join the parts; return the object and its ETag."""
        # As in S3, the ETag is a digest of the parts' digests and the number of parts.
        numbers = [number for number, _ in wanted]
        if not wanted:
            raise Refusal(400, "MalformedXML")
        if numbers != sorted(set(numbers)):
            raise Refusal(400, "InvalidPartOrder", "The parts are not in ascending order.")
        if any(self.parts.get(number, ("",))[0] != etag for number, etag in wanted):
            raise Refusal(400, "InvalidPart")
        pieces = [self.parts[number][1] for number in numbers]
        if any(len(piece) < SMALLEST_PART for piece in pieces[:-1]):
            raise Refusal(400, "EntityTooSmall", "A part but the last is smaller than 5 MiB.")
        digests = b"".join(bytes.fromhex(etag) for _, etag in wanted)
        return b"".join(pieces), f"{digest(digests)}-{len(pieces)}"
