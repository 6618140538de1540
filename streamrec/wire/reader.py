"""Frames from the bytes of a socket; of a large one nearly every byte is written once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streamrec.errors import RemoteProtocolError
from streamrec.wire.frame import HEADER, TRAILER, Header, allocate_aligned, check_trailer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STAGING = 64 << 10
"""Bytes of a read whose frames are not known yet. Small frames come many at a time; of a large one,
at most this much is copied: 1 % of a batch of some MiB."""


class Frame(NamedTuple):
    """One frame whose checksums are right."""

    header: Header
    metadata: bytes
    payload: tuple[memoryview, ...]


class FrameReader:
    """A parser of frames that provides the memory into which the socket writes.

    A header is read into staging memory. The rest of a frame has memory of exactly its size: it is
    filled from the bytes that came along with the header, and then by the socket itself.

    Args:
        admit: Called with each header before memory is allocated for it; raises to refuse it.
    """

    def __init__(self, admit: Callable[[Header], None]) -> None:
        self._admit = admit
        self._staging = memoryview(bytearray(STAGING))
        self._begin = self._end = 0
        self._header: Header | None = None
        self._segments: list[memoryview] = []
        """The present frame's metadata and padding, then its payload; the trailer ends the last."""
        self._current = 0
        self._filled = 0

    @property
    def inside(self) -> str | None:
        """The present, incomplete frame in words, or ``None`` between two frames."""
        if self._header is not None:
            return f"a {self._header.kind.name} of {self._header.size} bytes"
        return "a header" if self._begin < self._end else None

    @property
    def exact(self) -> bool:
        """``True`` while :meth:`get_buffer` returns exactly the missing bytes of a known size."""
        return self._header is not None

    def get_buffer(self) -> memoryview:
        """Return the memory for the next bytes; never empty."""
        if self._header is not None:
            return self._segments[self._current][self._filled :]
        return self._staging[self._end :]

    def buffer_updated(self, count: int) -> None:
        """Note that ``count`` bytes were written to the start of :meth:`get_buffer`."""
        if self._header is not None:
            self._filled += count
        else:
            self._end += count

    def frames(self) -> Iterator[Frame]:
        """Yield the complete frames; the caller acts on each before the next header is read.

        Raises:
            RemoteProtocolError: The bytes are not a frame, or ``admit`` refused one.
        """
        while self._begin_frame():
            frame = self._fill()
            if frame is None:
                return
            yield frame

    def _begin_frame(self) -> bool:
        if self._header is not None:
            return True
        if self._end - self._begin < HEADER:
            self._compact()
            return False
        header = Header.unpack(bytes(self._staging[self._begin : self._begin + HEADER]))
        # Before memory is allocated: a stranger could ask for gigabytes by 24 bytes.
        self._admit(header)
        self._segments = _allocate(header)
        self._begin += HEADER
        self._header, self._current, self._filled = header, 0, 0
        return True

    def _compact(self) -> None:
        left = self._end - self._begin
        # To the front, so that the rest of a header always has room. At most a header's bytes move.
        self._staging[:left] = bytes(self._staging[self._begin : self._end])
        self._begin, self._end = 0, left

    def _fill(self) -> Frame | None:
        """Move staged bytes into the frame, and return it once it is complete."""
        while True:
            segment = self._segments[self._current]
            count = min(len(segment) - self._filled, self._end - self._begin)
            segment[self._filled : self._filled + count] = self._staging[
                self._begin : self._begin + count
            ]
            self._begin += count
            self._filled += count
            if self._filled < len(segment):
                self._compact()
                return None
            if self._current == len(self._segments) - 1:
                return self._complete()
            self._current, self._filled = self._current + 1, 0

    def _complete(self) -> Frame:
        header, segments = self._header, self._segments
        assert header is not None
        # The payload is the message's from now on: a later frame must not write into it.
        self._header, self._segments = None, []
        size = header.metadata_size
        metadata, padding = segments[0][:size], segments[0][size : size + header.padding]
        payload = (segments[1][:-TRAILER],) if header.payload_size else ()
        check_trailer(header.kind, segments[-1][-TRAILER:], metadata, payload)
        if any(padding):
            raise RemoteProtocolError(
                f"the padding of {header.kind.name} is not zero; install the same streamrec on "
                "both sides"
            )
        return Frame(header, bytes(metadata), payload)


def _allocate(header: Header) -> list[memoryview]:
    head = header.metadata_size + header.padding
    if not header.payload_size:
        return [memoryview(bytearray(head + TRAILER))]
    try:
        # The trailer comes into the payload's memory: one buffer less to receive into.
        return [memoryview(bytearray(head)), allocate_aligned(header.payload_size + TRAILER)]
    except MemoryError:
        raise RemoteProtocolError(
            f"there is no memory for a batch of {header.payload_size} bytes; lower batch_size"
        ) from None
