"""GIF, whose frames are laid on top of each other as TensorFlow does."""

from __future__ import annotations

import re
import struct
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrec.errors import PictureTooLarge
from streamrec.formats.images.picture import (
    OutputForm,
    Picture,
    check_channels,
    check_size,
    library,
    refusing,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

_SCREEN = struct.Struct("<6xHHB2x")
_DESCRIPTOR = struct.Struct("<xHHHHB")
_EXTENSION, _IMAGE, _END = 0x21, 0x2C, 0x3B
"""The first bytes of blocks. Source: www.w3.org/Graphics/GIF/spec-gif89a.txt."""
_CONTROL = 0xF9
"""The label of a graphic control extension."""
_HAS_PALETTE, _INTERLACED = 0x80, 0x40
_GRAY = bytes(number for number in range(256) for _ in range(3))
"""The palette of a frame that has none."""


MOST_FRAMES = 10_000
"""The most frames of a picture: a frame of one pixel costs 27 us, so all of them a third of a
second. The longest animations that people share have some thousands."""
_BEGINS = re.compile(b"[\x21\x2c\x3b]")
"""The first byte of any block."""
_WORK = 10
"""Bytes for each pixel of a frame: its numbers, those that are shown, and their colours."""
_CUT_OFF = (IndexError, struct.error)
"""Raised where the bytes end too early."""


class _GIFFrame(NamedTuple):
    left: int
    top: int
    width: int
    height: int
    palette: memoryview
    transparent: int
    """The number of the colour that is not shown; -1: every colour is."""
    interlaced: bool
    bits: int
    """Bits of the smallest code."""
    data: memoryview
    """The blocks of the compressed pixels."""


def read(contents: memoryview, wanted: OutputForm) -> Picture:
    """Read the descriptions of a GIF's frames.

    The canvas is as high and wide as the largest frame, and begins where the screen does, whatever
    size the screen has: as in TensorFlow.

    Raises:
        MalformedImage: The bytes are not a GIF, or it has more pixels.
        PictureTooLarge: It has more frames than are allowed.
        WrongFeatureType: It is not given in so many channels.
    """
    check_channels("GIF", wanted.channels, (0, 3))
    with refusing("GIF"):
        count, height, width = _measured(contents, wanted)
    shape = count, height, width, 3
    check_size(shape, wanted.max_pixels)

    def fill(out: npt.NDArray[Any]) -> None:
        targets = out.reshape(shape)
        targets[0] = 0  # black where the first frame has no pixel
        with refusing("GIF"):
            # Read again: a list of a million small frames would take far more than their pixels.
            for number, frame in enumerate(islice(_frames(contents), count)):
                if number:
                    targets[number] = targets[number - 1]
                _lay(frame, targets[number])

    work = _WORK * height * width
    return Picture(shape if wanted.animation else shape[1:], fill, work=work)


def _measured(contents: memoryview, wanted: OutputForm) -> tuple[int, int, int]:
    """Return the number of frames that are given, and the canvas's height and width.

    If only the first frame is wanted, those behind it may be truncated.
    """
    count = height = width = 0
    try:
        for frame in _frames(contents):
            if not (frame.width and frame.height):
                raise EOFError("a frame has no pixels")
            count, height, width = count + 1, max(height, frame.height), max(width, frame.width)
            if count > MOST_FRAMES:
                raise PictureTooLarge(
                    f"the GIF has more than the {MOST_FRAMES:,} frames that are allowed, each of "
                    "which takes time; write it anew with fewer"
                )
    except _CUT_OFF:
        if wanted.animation or not count:
            raise
    if not count:
        raise EOFError("it has no frame")
    return (count if wanted.animation else 1), height, width


def _frames(contents: memoryview) -> Iterator[_GIFFrame]:
    """Yield the frames; ``_CUT_OFF`` is raised where they end too early."""
    _, _, flags = _SCREEN.unpack_from(contents)
    at = _SCREEN.size
    shared, at = _palette(contents, at, flags)
    transparent = -1
    while at < len(contents) and contents[at] != _END:
        if contents[at] == _EXTENSION:
            if contents[at + 1] == _CONTROL and contents[at + 3] & 1 and transparent < 0:
                transparent = contents[at + 6]
            at = _behind_blocks(contents, at + 2)
        elif contents[at] == _IMAGE:
            left, top, width, height, flags = _DESCRIPTOR.unpack_from(contents, at)
            own, at = _palette(contents, at + _DESCRIPTOR.size, flags)
            end = _behind_blocks(contents, at + 1)
            yield _GIFFrame(
                left,
                top,
                width,
                height,
                palette=own or shared,
                transparent=transparent,
                interlaced=bool(flags & _INTERLACED),
                bits=contents[at],
                data=contents[at + 1 : end],
            )
            at, transparent = end, -1
        else:  # some writers leave bytes between blocks
            begin = _BEGINS.search(contents, at)
            at = begin.start() if begin else len(contents)


def _palette(contents: memoryview, at: int, flags: int) -> tuple[memoryview, int]:
    """Return the palette that begins here, if flags say so, and the place behind it."""
    size = 3 << (flags & 7) + 1 if flags & _HAS_PALETTE else 0
    return contents[at : at + size], at + size


def _behind_blocks(contents: memoryview, at: int) -> int:
    """Return the place behind blocks of data, of which an empty one is the last."""
    while contents[at]:
        at += 1 + contents[at]
    return at + 1


def _lay(frame: _GIFFrame, canvas: npt.NDArray[Any]) -> None:
    """Lay a frame's pixels on a canvas, which cuts off those beyond it."""
    size, code = (frame.width, frame.height), (frame.bits, int(frame.interlaced), -1)
    numbers = np.asarray(library().frombytes("L", size, frame.data, "gif", *code))
    target = canvas[frame.top :, frame.left :][: frame.height, : frame.width]
    numbers = numbers[: target.shape[0], : target.shape[1]]
    palette = np.frombuffer(frame.palette or _GRAY, np.uint8).reshape(-1, 3)
    shown = numbers != frame.transparent
    try:
        target[shown] = palette[numbers[shown]]  # a transparent one is not looked up
    except IndexError:
        raise ValueError("a pixel has a colour beyond its palette") from None
