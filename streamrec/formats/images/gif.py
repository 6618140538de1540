"""GIF, as TensorFlow reads it. Source: Graphics Interchange Format, version 89a.

Frames are laid one over the other; where a frame has no pixel, or a transparent one, that of the
frame before stays, whatever the frame's disposal says. Below the first frame is black.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamrec.errors import MalformedImage
from streamrec.formats.images.picture import Picture, check_channels, check_size, pixels

if TYPE_CHECKING:
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
        width, height, frames = _Reader(contents).read(every=animation)
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


class _Reader:
    """Reads blocks; what ends too early is an IndexError or a struct.error."""

    def __init__(self, contents: memoryview) -> None:
        self._contents = contents
        self._at = _SCREEN.size

    def read(self, *, every: bool) -> tuple[int, int, list[_Frame]]:
        """Return the width and the height, and every frame or the first."""
        width, height, flags = _SCREEN.unpack_from(self._contents)
        colours = self._colours(flags)
        frames: list[_Frame] = []
        transparent = -1
        while (kind := self._byte()) != _TRAILER:
            if kind == _EXTENSION:
                control = self._byte() == _CONTROL
                block = self._sub_blocks()
                if control and len(block) >= 5:
                    transparent = block[4] if block[1] & 1 else -1
            elif kind == _IMAGE:
                frames.append(self._frame(colours, transparent))
                transparent = -1
                if not every:
                    break
            else:
                raise MalformedImage(f"the GIF has a block of kind {kind:#x}; replace the picture")
        return width, height, frames

    def _frame(self, colours: npt.NDArray[np.uint8], transparent: int) -> _Frame:
        left, top, width, height, flags = _DESCRIPTOR.unpack_from(self._contents, self._at)
        self._at += _DESCRIPTOR.size
        own = self._colours(flags)
        bits = self._byte()
        if not width or not height or not 1 <= bits <= 8:
            raise MalformedImage("a frame of the GIF is corrupt; replace the picture")
        used = own if len(own) else colours
        interlaced = flags >> 6 & 1
        data = self._sub_blocks()
        return _Frame(left, top, width, height, interlaced, used, transparent, bits, data)

    def _byte(self) -> int:
        self._at += 1
        return self._contents[self._at - 1]

    def _colours(self, flags: int) -> npt.NDArray[np.uint8]:
        count = 2 << (flags & 7) if flags & 0x80 else 0
        octets = self._contents[self._at : self._at + 3 * count]
        self._at += 3 * count
        if len(octets) < 3 * count:
            raise IndexError
        return np.frombuffer(octets, np.uint8).reshape(count, 3)

    def _sub_blocks(self) -> memoryview:
        """With the lengths that they begin with, and the 0 that ends them."""
        begin = self._at
        while length := self._byte():
            self._at += length
        return self._contents[begin : self._at]


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
