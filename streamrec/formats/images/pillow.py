"""WebP, decoded by Pillow to what TensorFlow gives; and TIFF, which it lacks.

The first directory of a TIFF is checked before Pillow copies all that it lists. Sources: TIFF 6.0,
section 2; BigTIFF: www.awaresystems.be/imaging/tiff/bigtiff.html.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import MalformedImage, UnsupportedFormat
from streamrec.formats.images.picture import (
    OutputForm,
    Picture,
    bands,
    check_channels,
    check_size,
    opened,
    refusing,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt


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
    is_big = b"+" in head
    offset, number, entry = ("Q", "Q", "HHQ8s") if is_big else ("I", "H", "HHI4s")
    (at,) = struct.unpack_from(order + offset, contents, 8 if is_big else 4)
    (entries,) = struct.unpack_from(order + number, contents, at)
    at += struct.calcsize(order + number)
    size = struct.calcsize(order + entry)
    for _ in range(entries):
        tag, kind, count, value = struct.unpack_from(order + entry, contents, at)
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
    image = opened("WebP", contents)
    held = 4 if image.mode == "RGBA" or image.is_animated else 3
    shape = image.n_frames if wanted.animation else 1, image.height, image.width, held
    check_size(shape, wanted.max_pixels)
    check_channels("WebP", wanted.channels, (0, held))

    def fill(out: npt.NDArray[Any]) -> None:
        # Opened anew: a picture that waits to be decoded must not hold the decoder's memory.
        image = opened("WebP", contents)
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
        width, height = (int.from_bytes(body[at : at + 3], "little") + 1 for at in (4, 7))
    elif kind == b"VP8L":
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
    image = opened("TIFF", contents)
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
            image = opened("TIFF", contents)
            for rows, part in bands(image):
                out[rows] = np.asarray(part.convert(_MODES[shape[2]])).reshape(out[rows].shape)

    return Picture(shape, fill, work=_TIFF_WORK * image.height * image.width)
