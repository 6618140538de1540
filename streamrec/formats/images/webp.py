"""WebP. Source: the container's specification, and RFC 6386 and RFC 9649 for the sizes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import ConfigError, MalformedImage
from streamrec.formats.images.picture import Picture, check_channels, check_size, library

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["MAGIC", "read"]

MAGIC = b"WEBP"
"""Behind ``RIFF`` and a length."""


def read(contents: memoryview, channels: int, *, animation: bool, most: int) -> Picture:
    """Read a WebP's header.

    Args:
        contents: The encoded picture.
        channels: As many as the picture has: 4 with transparency, else 3; or 0.
        animation: Give all frames, even of a single one; else the first.
        most: Pixels of all frames together.

    Raises:
        MalformedImage: It is no WebP that can be decoded, or has more pixels.
        WrongFeatureType: It is not given in so many channels.
        ConfigError: Pillow is not installed, or without WebP.
    """
    width, height = _size(contents)
    check_size((height, width, 4), most)  # the decoder sets memory aside for two such pictures
    image = _open(contents)
    if image.size != (width, height):
        raise MalformedImage("the WebP's headers name two sizes; replace the picture")
    held = 4 if image.mode == "RGBA" or image.is_animated else 3
    check_channels("WebP", channels, (0, held))
    frames = image.n_frames if animation else 1
    shape = (frames, height, width, held)
    check_size(shape, most)
    if not animation:
        return Picture(shape[1:], lambda: _decode(contents, shape)[0])
    return Picture(shape, lambda: _decode(contents, shape))


def _size(contents: memoryview) -> tuple[int, int]:
    kind, header = bytes(contents[12:16]), bytes(contents[20:30])
    if len(header) < 10:
        raise MalformedImage("the WebP ends inside its header: it is truncated; replace it")
    if kind == b"VP8X":
        return _number(header[4:7]) + 1, _number(header[7:10]) + 1
    if kind == b"VP8L":
        bits = _number(header[1:5])
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return _number(header[6:8]) & 0x3FFF, _number(header[8:10]) & 0x3FFF
    raise MalformedImage(f"the WebP begins with a chunk {kind!r}; replace the picture")


def _number(octets: bytes) -> int:
    return int.from_bytes(octets, "little")


def _open(contents: memoryview) -> Any:
    bomb = library().DecompressionBombError  # where ``most`` is beyond Pillow's own limit
    from PIL import WebPImagePlugin, features

    if not features.check("webp"):
        raise ConfigError("the installed Pillow has no WebP; install one that has")
    try:
        return WebPImagePlugin.WebPImageFile(io.BytesIO(contents))
    except (SyntaxError, OSError, ValueError, bomb) as error:
        raise _corrupt(error) from None


def _decode(contents: memoryview, shape: tuple[int, int, int, int]) -> npt.NDArray[np.uint8]:
    # Opened anew: a picture that waits to be decoded must not hold the decoder's memory.
    image = _open(contents)
    decoded = np.full(shape, 255, np.uint8)
    try:
        for number in range(len(decoded)):
            image.seek(number)
            array = np.asarray(image)
            decoded[number, ..., : array.shape[2]] = array
    except (EOFError, OSError, SyntaxError, ValueError) as error:
        raise _corrupt(error) from None
    return decoded


def _corrupt(error: Exception) -> MalformedImage:
    return MalformedImage(f"the WebP cannot be decoded ({error}); replace the picture")
