"""JPEG, decoded by libjpeg as TensorFlow has it do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streamrec.formats.images.picture import Picture, check_channels, opened, pixels

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["MAGIC", "read"]

MAGIC = b"\xff\xd8\xff"


def read(contents: memoryview, channels: int) -> Picture:
    """Read a JPEG's header.

    Args:
        contents: The encoded picture.
        channels: 1 or 3; 0: as many as the picture has, of which CMYK is given as RGB.

    Raises:
        MalformedImage: It is no JPEG that can be decoded.
        WrongFeatureType: It is not given in so many channels.
    """
    # libjpeg writes rows of its own size: it refuses a JPEG in which Pillow could find another.
    image = opened("Jpeg", contents)
    (width, height), inks = image.size, image.mode == "CMYK"
    check_channels("CMYK JPEG" if inks else "JPEG", channels, (0, 3) if inks else (0, 1, 3))
    channels = channels or (1 if image.mode == "L" else 3)
    # Adobe's marker says that CMYK is stored inverted; a shorter one is none to libjpeg.
    inverted = "adobe_transform" in image.info

    def decode() -> npt.NDArray[np.uint8]:
        mode = "CMYK" if inks else "L" if channels == 1 else "RGB"
        array = pixels(mode, (width, height), contents, "jpeg", mode, "", 1, 0)
        return _rgb(array, inverted) if inks else array.reshape(height, width, channels)

    return Picture((height, width, channels), decode)


def _rgb(cmyk: npt.NDArray[np.uint8], inverted: bool) -> npt.NDArray[np.uint8]:
    """Mix colours as TensorFlow does, without a colour profile."""
    inks = cmyk.astype(np.uint16) if inverted else 255 - cmyk.astype(np.uint16)
    return (inks[..., :3] * inks[..., 3:] // 255).astype(np.uint8)
