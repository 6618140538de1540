"""WebP, decoded by Pillow to what TensorFlow gives; and TIFF, which it lacks.

The first directory of a TIFF is checked before Pillow copies all that it lists. Sources: TIFF 6.0,
section 2; BigTIFF: www.awaresystems.be/imaging/tiff/bigtiff.html.

The frames of a GIF are laid on top of each other as TensorFlow does.
"""

from __future__ import annotations

import re
import struct
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrec.errors import MalformedImage, PictureTooLarge, UnsupportedFormat
from streamrec.formats.images.picture import (
    OutputForm,
    Picture,
    bands,
    check_channels,
    check_size,
    library,
    open_picture,
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
        count, height, width = _measure(contents, wanted)
    shape = count, height, width, 3
    check_size(shape, wanted.max_pixels)

    def fill(out: npt.NDArray[Any]) -> None:
        targets = out.reshape(shape)
        targets[0] = 0  # black where the first frame has no pixel
        with refusing("GIF"):
            # Read again: a list of a million small frames would take far more than their pixels.
            for number, frame in enumerate(islice(_frames(contents), count)):
                if number:
                    # A frame is laid over the one before; how that was to be disposed of does not
                    # count in TensorFlow.
                    targets[number] = targets[number - 1]
                _lay(frame, targets[number])

    work = _WORK * height * width
    return Picture(shape if wanted.animation else shape[1:], fill, work=work)


def _measure(contents: memoryview, wanted: OutputForm) -> tuple[int, int, int]:
    """Return the number of frames that are given, and the canvas's height and width.

    If only the first frame is wanted, those after it may be truncated.
    """
    count = height = width = 0
    try:
        for frame in _frames(contents):
            # EOFError, since the cut-off errors below are forgiven after the first frame.
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
            # A control extension holds for the next frame alone (GIF89a, section 23).
            at, transparent = end, -1
        else:  # some writers leave bytes between blocks
            begin = _BEGINS.search(contents, at)
            at = begin.start() if begin else len(contents)


def _palette(contents: memoryview, at: int, flags: int) -> tuple[memoryview, int]:
    """Return the palette that begins here, if flags say so, and the place after it."""
    # The low bits are the power of two, less one, of the colours (GIF89a, sections 18 and 20).
    size = 3 << (flags & 7) + 1 if flags & _HAS_PALETTE else 0
    return contents[at : at + size], at + size


def _behind_blocks(contents: memoryview, at: int) -> int:
    """Return the place after blocks of data, of which an empty one is the last."""
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


_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
_SIZES |= {16: 8, 17: 8, 18: 8}
"""Bytes of a value, by its type."""
_SIDES, _TILES = (257, 256), (323, 322)
"""The tags of the height and width of the picture, and of its tiles."""
_PLACES = (273, 324)
"""The tags of the offsets of strips and of tiles."""
_MOST_PARTS = 1 << 16
"""The most strips or tiles: Pillow takes some hundred bytes for each."""


def check_tiff(contents: memoryview, max_pixels: int) -> None:
    """Refuse a TIFF whose directory makes more of its bytes than there are.

    Entries may share their bytes, and each is copied: a directory of 65,536 entries makes so many
    copies of the file. A tile may be larger than the picture.

    Args:
        contents: The encoded picture.
        max_pixels: The most pixels of the picture, or of one of its tiles.

    Raises:
        MalformedImage: It does.
        PictureTooLarge: The picture or its tiles claim more pixels.
    """
    listed = 0
    sides: dict[int, int] = {}
    try:
        for tag, kind, count, value in _entries(contents):
            listed += count * _SIZES.get(kind, 1)
            if tag in _PLACES and count > _MOST_PARTS:
                raise MalformedImage(
                    f"the TIFF has {count:,} strips or tiles, but {_MOST_PARTS:,} are allowed; "
                    "write it with larger ones"
                )
            if tag in _SIDES + _TILES and count == 1 and kind in _SIZES:
                sides[tag] = value
    except struct.error:
        return  # it ends too early, which Pillow says
    if listed > len(contents):
        raise MalformedImage(
            f"the TIFF's directory lists {listed:,} bytes of values, but the file has "
            f"{len(contents):,}: it is corrupt; replace it"
        )
    for height, width in (_SIDES, _TILES):
        check_size((sides.get(height, 1), sides.get(width, 1), 1), max_pixels)


def _entries(contents: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Yield the tag, the type, the number of values, and the value, if there is one, of each entry.

    Raises:
        struct.error: The bytes end before the directory does.
    """
    head = bytes(contents[:4])
    order = "<" if head.startswith(b"I") else ">"
    # The version of BigTIFF is 43, which is "+"; that of TIFF is 42.
    is_big = b"+" in head
    offset, number, entry = ("Q", "Q", "HHQ8s") if is_big else ("I", "H", "HHI4s")
    (at,) = struct.unpack_from(order + offset, contents, 8 if is_big else 4)
    (entries,) = struct.unpack_from(order + number, contents, at)
    at += struct.calcsize(order + number)
    size = struct.calcsize(order + entry)
    for _ in range(entries):
        tag, kind, count, value = struct.unpack_from(order + entry, contents, at)
        # A value that fits the entry stands in it, at its front in either byte order.
        width = _SIZES.get(kind, 1)
        number_bytes = value[:width]
        little = "little" if order == "<" else "big"
        yield tag, kind, count, int.from_bytes(number_bytes, little)  # type: ignore[arg-type]
        at += size


_TIFF_CHANNELS = {
    **dict.fromkeys(("1", "L"), 1),
    **dict.fromkeys(("P", "RGB", "RGBX", "CMYK", "YCbCr", "LAB"), 3),
    **dict.fromkeys(("LA", "PA", "RGBA"), 4),
}
"""The channels in which a TIFF is given, by Pillow's mode of its pixels."""
_WEBP_WORK = 24
"""Bytes for each pixel of the canvas: two of libwebp's own, its copy for Pillow, Pillow's, and
four of a picture without loss."""
_TIFF_WORK = 12
"""Bytes for each pixel: Pillow's, and libtiff's of a strip that holds all."""
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's modes, by the number of channels."""


def read_webp(contents: memoryview, wanted: OutputForm) -> Picture:
    """Read a WebP's header. It has 4 channels where it is transparent or moves, else 3.

    Raises:
        MalformedImage: The bytes are not a WebP that can be decoded, or it has more pixels.
        WrongFeatureType: It is not given in so many channels.
        ConfigError: Pillow has no WebP.
    """
    sides = _webp_sides(contents)
    # Pillow sets memory aside for the canvas, of any size, before it can be asked.
    check_size((*sides, 4), wanted.max_pixels)
    image = open_picture("WebP", contents)
    held = 4 if image.mode == "RGBA" or image.is_animated else 3
    shape = image.n_frames if wanted.animation else 1, image.height, image.width, held
    check_size(shape, wanted.max_pixels)
    check_channels("WebP", wanted.channels, (0, held))

    def fill(out: npt.NDArray[Any]) -> None:
        # Opened anew: a picture that waits to be decoded must not hold the decoder's memory.
        image = open_picture("WebP", contents)
        out[..., 3:] = 255
        with refusing("WebP"):
            for number, frame in enumerate(out.reshape(shape)):
                image.seek(number)
                for rows, part in bands(image):
                    array = np.asarray(part)
                    frame[rows, :, : array.shape[2]] = array

    work = _WEBP_WORK * image.height * image.width
    return Picture(shape if wanted.animation else shape[1:], fill, work=work)


def _webp_sides(contents: memoryview) -> tuple[int, int]:
    """Return the height and width that a WebP's first chunk says; 0 of one that does not.

    Source: developers.google.com/speed/webp/docs/riff_container, RFC 6386 (9.1).
    """
    kind, body = bytes(contents[12:16]), bytes(contents[20:30])
    if kind == b"VP8X":
        # Both sides are stored less one.
        width, height = (int.from_bytes(body[at : at + 3], "little") + 1 for at in (4, 7))
    elif kind == b"VP8L":
        # Behind a byte of signature; 14 bits for each side, less one.
        bits = int.from_bytes(body[1:5], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    else:
        width, height = (int.from_bytes(body[at : at + 2], "little") & 0x3FFF for at in (6, 8))
    return height, width


def read_tiff(contents: memoryview, wanted: OutputForm) -> Picture:
    """Read a TIFF's header. Of several pages the first is given.

    Raises:
        MalformedImage: The bytes are not a TIFF that can be decoded, or it has more pixels.
        UnsupportedFormat: It is of a kind that Pillow does not decode to 8 bits a channel.
    """
    check_tiff(contents, wanted.max_pixels)
    image = open_picture("TIFF", contents)
    held = _TIFF_CHANNELS.get(image.mode)
    if held is None:
        raise UnsupportedFormat(
            f"the TIFF has pixels of Pillow's mode {image.mode}, which is not supported; write it "
            "with 8 bits a channel"
        )
    shape = image.height, image.width, wanted.channels or held
    check_size(shape, wanted.max_pixels)

    def fill(out: npt.NDArray[Any]) -> None:
        with refusing("TIFF"):
            image = open_picture("TIFF", contents)
            for rows, part in bands(image):
                out[rows] = np.asarray(part.convert(_MODES[shape[2]])).reshape(out[rows].shape)

    return Picture(shape, fill, work=_TIFF_WORK * image.height * image.width)
