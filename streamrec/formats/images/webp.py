"""WebP. Source: the container's specification, for the size of the canvas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import ConfigError
from streamrec.formats.images.picture import (
    Picture,
    check_channels,
    check_size,
    library,
    opened,
    refusing,
)

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
    if bytes(contents[12:16]) == b"VP8X":
        # Older Pillows set memory aside for the canvas, of any size, before they can be asked.
        sides = (int.from_bytes(contents[at : at + 3], "little") + 1 for at in (27, 24))
        check_size((*sides, 4), most)
    image = _open(contents)
    width, height = image.size
    frames = image.n_frames if animation else 1
    held = 4 if image.mode == "RGBA" or image.is_animated else 3
    shape = (frames, height, width, held)
    check_size(shape, most)
    check_channels("WebP", channels, (0, held))
    if not animation:
        return Picture(shape[1:], lambda: _decode(contents, shape)[0])
    return Picture(shape, lambda: _decode(contents, shape))


def _open(contents: memoryview) -> Any:
    library()
    from PIL import features

    if not features.check("webp"):
        raise ConfigError("the installed Pillow has no WebP; install one that has")
    return opened("WebP", contents)


def _decode(contents: memoryview, shape: tuple[int, int, int, int]) -> npt.NDArray[np.uint8]:
    # Opened anew: a picture that waits to be decoded must not hold the decoder's memory.
    image = _open(contents)
    decoded = np.full(shape, 255, np.uint8)
    with refusing("WebP"):
        for number in range(len(decoded)):
            image.seek(number)
            array = np.asarray(image)
            decoded[number, ..., : array.shape[2]] = array
    return decoded
