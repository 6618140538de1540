"""Pictures of any size, resized."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.formats.images.picture import library

if TYPE_CHECKING:
    import numpy.typing as npt

    from streamrec.formats.images.picture import Picture

_GAP = 2
"""Times the size to which a picture is resized that a JPEG is decoded at, at least: as Pillow's
thumbnails. By 1, it is up to 5 of 255 off the whole's on average; by 2, up to 2."""


def at_least(size: tuple[int, int] | None) -> tuple[int, int]:
    """Return the ``(height, width)`` at least to decode for a size; without one, ``(0, 0)``."""
    return (_GAP * size[0], _GAP * size[1]) if size else (0, 0)


def work_of(picture: Picture, shape: tuple[int, ...]) -> int:
    """Return the bytes that :func:`fill_resized` takes besides an array of this shape, at most."""
    if picture.shape == shape:
        return picture.work
    # The whole picture, and Pillow's copies of it and of what it makes, of four bytes a pixel.
    pixels = math.prod(picture.shape[:2]) + 2 * math.prod(shape[:2])
    return picture.work + picture.nbytes + 4 * pixels


def fill_resized(picture: Picture, out: npt.NDArray[np.uint8]) -> None:
    """Decode a picture into an array of another height and width.

    Pillow resizes by bilinear interpolation, over all pixels below one of a smaller picture
    (antialiasing), as torchvision and ``tf.image.resize(..., antialias=True)`` do. Colours are
    weighted by their opacity.

    Args:
        picture: One of 1, 3 or 4 channels.
        out: uint8 ``[height, width, channels]``, C-contiguous.

    Raises:
        MalformedImage: The pixels are corrupt or missing.
    """
    if picture.shape == out.shape:
        picture.fill(out)
        return
    pillow: Any = library()
    pixels = picture.decode()
    image = pillow.fromarray(pixels[..., 0] if out.shape[2] == 1 else pixels)
    resized = image.resize(out.shape[1::-1], pillow.Resampling.BILINEAR)
    out[...] = np.asarray(resized).reshape(out.shape)
