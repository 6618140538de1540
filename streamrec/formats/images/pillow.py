"""WebP, decoded by Pillow to what TensorFlow gives; and TIFF, which it lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import UnsupportedFormat
from streamrec.formats.images.picture import (
    OutputForm,
    Picture,
    bands,
    check_channels,
    check_size,
    opened,
    refusing,
)
from streamrec.formats.images.tiff_directory import check_tiff

if TYPE_CHECKING:
    import numpy.typing as npt

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
