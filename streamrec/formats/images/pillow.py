"""GIF, BMP and WebP, decoded by Pillow to what TensorFlow gives; and TIFF, which it lacks."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import MalformedImage
from streamrec.formats.images.picture import (
    Picture,
    Wanted,
    check_channels,
    check_size,
    library,
    opened,
    refusing,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

__all__ = ["read_bmp", "read_gif", "read_tiff", "read_webp"]

_BMP_MODES = {8: ("L", "L"), 24: ("RGB", "BGR"), 32: ("RGBA", "BGRA")}
"""Pillow's modes of pixels and of what is stored, by the bits of a pixel."""
_TIFF_CHANNELS = {"1": 1, "L": 1, "P": 3, "RGB": 3, "CMYK": 3, "YCbCr": 3, "RGBA": 4}
"""The channels in which a TIFF is given, by Pillow's mode of its pixels."""
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's modes, by the number of channels."""


def read_gif(contents: memoryview, wanted: Wanted) -> Picture:
    """Read a GIF's header, and those of its frames where all are wanted.

    Raises:
        MalformedImage: It is no GIF, or has more pixels.
        WrongFeatureType: It is not given in so many channels.
    """
    check_channels("GIF", wanted.channels, (0, 3))
    image = opened("GIF", contents)
    width, height = struct.unpack_from("<HH", contents, 6)  # Pillow's grows with larger frames
    if not width or not height:
        raise MalformedImage(f"the GIF has {width} x {height} pixels; replace it")
    with refusing("GIF"):
        shape = (image.n_frames if wanted.animation else 1), height, width, 3
    check_size(shape, wanted.max_pixels)

    def fill(out: npt.NDArray[Any]) -> None:
        with refusing("GIF"):
            for target, frame in zip(
                out.reshape(shape), _frames(image, wanted.max_pixels), strict=False
            ):
                target[...] = np.asarray(frame)[:height, :width, :3]

    return Picture(shape if wanted.animation else shape[1:], fill)


def _frames(image: Any, most: int) -> Iterator[Any]:
    """Yield the frames, each on top of the one before, whatever its disposal says."""
    check_size((*image.size, 3), most)
    extent = image.tile[0][1]
    first = image.convert("RGBA").crop(extent)
    canvas = library().new("RGB", image.size)  # black where the first frame has no pixel
    canvas.paste(first, extent, first)
    yield canvas
    image.im, image._mode = canvas.im, "RGB"  # noqa: SLF001 (as Pillow's own readers do)
    while True:
        image.dispose = None
        image.seek(image.tell() + 1)
        check_size((*image.size, 3), most)
        yield image


def read_bmp(contents: memoryview, wanted: Wanted) -> Picture:
    """Read a BMP's header. Pixels of 8 bits are brightness, whatever the palette says.

    Raises:
        MalformedImage: It is no BMP that can be decoded.
        WrongFeatureType: It is not given in so many channels.
    """
    check_channels("BMP", wanted.channels, (0, 3, 4))
    image = opened("BMP", contents)
    with refusing("BMP"):
        codec, _, _, (_, *layout) = image.tile[0]
        begin, bits = struct.unpack_from("<10xI14xH", contents)
    if codec != "raw" or bits not in _BMP_MODES:
        raise MalformedImage(
            f"the BMP is compressed, or has {bits} bits a pixel, which is not supported; write it "
            "with 8, 24 or 32 bits a pixel"
        )
    if len(contents) < begin + layout[0] * image.height:
        raise MalformedImage("the BMP ends inside its pixels: it is truncated; replace it")
    mode, stored_as = _BMP_MODES[bits]
    held = bits // 8

    def fill(out: npt.NDArray[Any]) -> None:
        with refusing("BMP"):
            pixels = library().frombytes(
                mode, image.size, contents[begin:], "raw", stored_as, *layout
            )
        out[..., 3:] = 255
        out[..., : max(held, 3)] = np.asarray(pixels).reshape(*image.size[::-1], held)[
            ..., : out.shape[2]
        ]

    return Picture((image.height, image.width, wanted.channels or held), fill)


def read_webp(contents: memoryview, wanted: Wanted) -> Picture:
    """Read a WebP's header. It has 4 channels where it is transparent or moves, else 3.

    Raises:
        MalformedImage: It is no WebP that can be decoded, or has more pixels.
        WrongFeatureType: It is not given in so many channels.
        ConfigError: Pillow has no WebP.
    """
    if bytes(contents[12:16]) == b"VP8X":
        # Older Pillows set memory aside for the canvas, of any size, before they can be asked.
        sides = (int.from_bytes(contents[at : at + 3], "little") + 1 for at in (27, 24))
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
                array = np.asarray(image)
                frame[..., : array.shape[2]] = array

    return Picture(shape if wanted.animation else shape[1:], fill)


def read_tiff(contents: memoryview, wanted: Wanted) -> Picture:
    """Read a TIFF's header. Of several pages the first is given.

    Raises:
        MalformedImage: It is no TIFF that can be decoded, or has more pixels.
    """
    image = opened("TIFF", contents)
    held = _TIFF_CHANNELS.get(image.mode)
    if held is None:
        raise MalformedImage(
            f"the TIFF has pixels of Pillow's mode {image.mode}, which is not supported; write it "
            "with 8 bits a channel"
        )
    shape = image.height, image.width, wanted.channels or held
    check_size(shape, wanted.max_pixels)

    def fill(out: npt.NDArray[Any]) -> None:
        with refusing("TIFF"):
            pixels = opened("TIFF", contents).convert(_MODES[shape[2]])
        out[...] = np.asarray(pixels).reshape(shape)

    return Picture(shape, fill)
