"""A request and its answer, as the S3 API sees them: no HTTP library, no socket."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from streamrec.devstore.faults import FaultEffects
    from streamrec.devstore.objects import Content

__all__ = ["Call", "ObjectBody", "Reply"]


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    method: str
    path: str
    """Decoded: ``/bucket/key``."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Case-insensitive."""
    read: Callable[[], Awaitable[bytes]]
    """The body, as it came."""
    effects: FaultEffects
    """What goes wrong with this one."""

    @property
    def bucket(self) -> str:
        """The first part of the path; empty for the service itself."""
        return self.path[1:].partition("/")[0]

    @property
    def key(self) -> str:
        """What follows the bucket; empty for the bucket itself."""
        return self.path[1:].partition("/")[2]


@dataclass(frozen=True, slots=True)
class ObjectBody:
    """Bytes ``[start, stop)`` of an object, to be read as they are sent."""

    content: Content
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer; Content-Length follows from the body."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | ObjectBody = b""
    bare: bool = False
    """An answer to HEAD: the body is measured, but not sent."""

    @property
    def size(self) -> int:
        """Bytes of the body."""
        body = self.body
        return len(body) if isinstance(body, bytes) else body.stop - body.start

    def with_faults(self, effects: FaultEffects) -> Reply:
        """This answer with what faults change about its head."""
        status, headers = self.status, self.headers | effects.headers
        if effects.content_range is not None:
            headers["Content-Range"] = effects.content_range
        if effects.content_range == "":
            del headers["Content-Range"]
        if status == 206 and effects.partial_status is not None:
            status = effects.partial_status
        return replace(self, status=status, headers=headers)
