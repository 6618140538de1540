"""JPEG. Source: ITU-T T.81, annex B; and libjpeg-turbo's jdmarker.c for what it reads as what.

The size that is found here is the size of the memory that libjpeg's rows are written to, so the
markers are read just as libjpeg reads them, and what it would refuse is refused here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamrec.errors import MalformedImage
from streamrec.formats.images.picture import Picture, check_channels, pixels

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["MAGIC", "read"]

MAGIC = b"\xff\xd8\xff"
_FRAMES = (0xC0, 0xC1, 0xC2, 0xC9, 0xCA)
"""Baseline, extended and progressive, in Huffman and arithmetic coding."""
_WITHOUT_LENGTH = (0x01, *range(0xD0, 0xD8))
"""TEM and the restart markers."""
_SKIPPED = (0xC4, 0xCC, 0xDB, 0xDC, 0xDD, *range(0xE0, 0xF0), 0xFE)
"""DHT, DAC, DQT, DNL, DRI, APPn and COM: libjpeg's concern."""
_SCAN = 0xDA
_ADOBE = 0xEE


class _Frame(NamedTuple):
    height: int
    width: int
    components: int
    adobe: bool
    """It has Adobe's marker: CMYK is then stored inverted."""


def read(contents: memoryview, channels: int) -> Picture:
    """Read a JPEG's header.

    Args:
        contents: The encoded picture.
        channels: 1 or 3; 0: as many as the picture has, of which CMYK is given as RGB.

    Raises:
        MalformedImage: It is no JPEG that can be decoded.
        WrongFeatureType: It is not given in so many channels.
    """
    frame = _frame(contents)
    check_channels("CMYK JPEG" if frame.components == 4 else "JPEG", channels, _given(frame))
    channels = channels or min(frame.components, 3)
    return Picture(
        (frame.height, frame.width, channels), lambda: _decode(contents, frame, channels)
    )


def _given(frame: _Frame) -> tuple[int, ...]:
    return (0, 3) if frame.components == 4 else (0, 1, 3)


def _decode(contents: memoryview, frame: _Frame, channels: int) -> npt.NDArray[np.uint8]:
    mode = "CMYK" if frame.components == 4 else "L" if channels == 1 else "RGB"
    array = pixels(mode, (frame.width, frame.height), contents, "jpeg", mode, "", 1, 0)
    if mode == "CMYK":
        return _rgb(array, frame.adobe)
    return array.reshape(frame.height, frame.width, channels)


def _rgb(cmyk: npt.NDArray[np.uint8], inverted: bool) -> npt.NDArray[np.uint8]:
    """As TensorFlow does it, without a colour profile."""
    inks = cmyk.astype(np.uint16) if inverted else 255 - cmyk.astype(np.uint16)
    return (inks[..., :3] * inks[..., 3:] // 255).astype(np.uint8)


def _frame(contents: memoryview) -> _Frame:
    """The frame header, out of the markers up to the first scan."""
    at, frame, adobe = 2, None, False
    while True:
        marker, at = _next_marker(contents, at)
        if marker == _SCAN:
            break
        if marker in _WITHOUT_LENGTH:
            continue
        body = contents[at + 2 : at + _length(contents, at)]
        if marker in _FRAMES:
            if frame is not None:
                raise MalformedImage("the JPEG has two frame headers; replace the picture")
            frame = _frame_header(body)
        elif marker == _ADOBE:
            adobe = adobe or (len(body) >= 12 and bytes(body[:5]) == b"Adobe")
        elif marker not in _SKIPPED:
            raise MalformedImage(f"the JPEG has the marker {marker:#x}, which is not supported")
        at += len(body) + 2
    if frame is None:
        raise MalformedImage("the JPEG has no frame header; replace the picture")
    return frame._replace(adobe=adobe)


def _next_marker(contents: memoryview, at: int) -> tuple[int, int]:
    """The next marker and what stands behind it; other bytes between segments are passed over."""
    end = len(contents)
    while at < end:
        if contents[at] != 0xFF:
            at += 1
            continue
        while at < end and contents[at] == 0xFF:
            at += 1
        if at < end and contents[at]:
            return contents[at], at + 1
    raise _truncated()


def _length(contents: memoryview, at: int) -> int:
    """Of a segment, with the two bytes that say it; they are passed over even if it is less."""
    if at + 2 > len(contents):
        raise _truncated()
    length = max(2, contents[at] << 8 | contents[at + 1])
    if at + length > len(contents):
        raise _truncated()
    return length


def _truncated() -> MalformedImage:
    return MalformedImage("the JPEG ends before its first scan: it is truncated; replace it")


def _frame_header(body: memoryview) -> _Frame:
    if len(body) < 6 or len(body) != 6 + 3 * body[5]:
        raise MalformedImage("the JPEG's frame header is corrupt; replace the picture")
    height, width = body[1] << 8 | body[2], body[3] << 8 | body[4]
    if body[0] != 8 or not height or not width or body[5] not in (1, 3, 4):
        raise MalformedImage(
            f"the JPEG is of {width} x {height} pixels, {body[5]} components and {body[0]} bits, "
            "which is not supported; write it with 8 bits and 1, 3 or 4 components"
        )
    return _Frame(height, width, body[5], adobe=False)
