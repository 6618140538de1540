"""GIF, as TensorFlow reads it. Source: Graphics Interchange Format, version 89a.

Frames are laid one over the other; where a frame has no pixel, or a transparent one, that of the
frame before stays, whatever the frame's disposal says. Below the first frame is black.
"""

from __future__ import annotations

import io
import struct
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamrec.errors import MalformedImage
from streamrec.formats.images.picture import Picture, check_channels, check_size, pixels

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

__all__ = ["MAGIC", "read"]

MAGIC = b"GIF8"
_SCREEN = struct.Struct("<6xHHBxx")
_DESCRIPTOR = struct.Struct("<HHHHB")
_EXTENSION, _IMAGE, _TRAILER, _CONTROL = 0x21, 0x2C, 0x3B, 0xF9


class _Frame(NamedTuple):
    left: int
    top: int
    width: int
    height: int
    interlaced: int
    colours: npt.NDArray[np.uint8]
    """uint8 ``[colours, 3]``."""
    transparent: int
    """The colour of pixels that are none; -1: there is none."""
    bits: int
    data: memoryview


def read(contents: memoryview, channels: int, *, animation: bool, most: int) -> Picture:
    """Read a GIF's blocks.

    Args:
        contents: The encoded picture.
        channels: 0 or 3.
        animation: Give all frames, even of a single one; else the first.
        most: Pixels of all frames together.

    Raises:
        MalformedImage: It is no GIF, is truncated, or has more pixels.
        WrongFeatureType: It is not given in so many channels.
    """
    check_channels("GIF", channels, (0, 3))
    try:
        width, height, _ = _SCREEN.unpack_from(contents)
        frames = list(islice(_frames(contents), None if animation else 1))
    except (IndexError, struct.error):
        raise MalformedImage("the GIF ends too early: it is truncated; replace it") from None
    if not frames or not width or not height:
        raise MalformedImage(f"the GIF has {width} x {height} pixels and {len(frames)} frames")
    # A frame's own size may be beyond that of the whole.
    check_size((sum(frame.width * frame.height for frame in frames), 3), most)
    shape = (len(frames), height, width, 3)
    if not animation:
        return Picture(shape[1:], lambda: _decode(frames, shape)[0])
    return Picture(shape, lambda: _decode(frames, shape))


def _frames(contents: memoryview) -> Iterator[_Frame]:
    """Yield the frames; what ends too early is an IndexError or a struct.error."""
    file = io.BytesIO(contents)
    *_, screen = _SCREEN.unpack(file.read(_SCREEN.size))
    colours, transparent = _colours(file, screen), -1
    while (kind := file.read(1)[0]) != _TRAILER:
        if kind == _EXTENSION:
            control = file.read(1)[0] == _CONTROL
            block = _sub_blocks(file, contents)
            if control and len(block) >= 5:
                transparent = block[4] if block[1] & 1 else -1
        elif kind == _IMAGE:
            left, top, width, height, flags = _DESCRIPTOR.unpack(file.read(_DESCRIPTOR.size))
            own, bits = _colours(file, flags), file.read(1)[0]
            if not width or not height or not 1 <= bits <= 8:
                raise MalformedImage("a frame of the GIF is corrupt; replace the picture")
            data = _sub_blocks(file, contents)
            used, interlaced = own if len(own) else colours, flags >> 6 & 1
            yield _Frame(left, top, width, height, interlaced, used, transparent, bits, data)
            transparent = -1
        else:
            raise MalformedImage(f"the GIF has a block of kind {kind:#x}; replace the picture")


def _colours(file: io.BytesIO, flags: int) -> npt.NDArray[np.uint8]:
    count = 2 << (flags & 7) if flags & 0x80 else 0
    octets = file.read(3 * count)
    if len(octets) < 3 * count:
        raise IndexError
    return np.frombuffer(octets, np.uint8).reshape(count, 3)


def _sub_blocks(file: io.BytesIO, contents: memoryview) -> memoryview:
    """Return blocks with the lengths that they begin with, and the 0 that ends them."""
    begin = file.tell()
    while length := file.read(1)[0]:
        file.seek(length, io.SEEK_CUR)
    return contents[begin : file.tell()]


def _decode(frames: list[_Frame], shape: tuple[int, int, int, int]) -> npt.NDArray[np.uint8]:
    decoded = np.zeros(shape, np.uint8)
    for number, frame in enumerate(frames):
        if number:
            decoded[number] = decoded[number - 1]
        _draw(frame, decoded[number])
    return decoded


def _draw(frame: _Frame, canvas: npt.NDArray[np.uint8]) -> None:
    size = frame.width, frame.height
    indices = pixels("P", size, frame.data, "gif", frame.bits, frame.interlaced)
    target = canvas[frame.top : frame.top + frame.height, frame.left : frame.left + frame.width]
    indices = indices[: target.shape[0], : target.shape[1]]
    if indices.size and indices.max() >= len(frame.colours):
        raise MalformedImage("a pixel of the GIF has a colour that is not there; replace it")
    drawn = indices != frame.transparent
    target[drawn] = frame.colours[indices[drawn]]
