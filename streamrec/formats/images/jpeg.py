"""JPEG, decoded by libjpeg-turbo to the numbers that TensorFlow gives."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.formats.images.jpeg_region import decode_region
from streamrec.formats.images.picture import (
    Picture,
    Wanted,
    Window,
    check_channels,
    check_size,
    is_fast,
    library,
    opened,
    refusing,
)

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["read"]

_NO_END = "Premature end of JPEG file"
_BEHIND = "extraneous bytes before marker 0xd9"
"""libjpeg's first warnings of pictures that TensorFlow refuses, and of those whose pixels are
whole: something stands between them and the end."""
_PILLOWS = {1: "L", 3: "RGB", 4: "CMYK"}
"""Pillow's modes, by the number of channels."""


def read(contents: memoryview, wanted: Wanted) -> Picture:
    """Read a JPEG's header. CMYK is given as RGB, without a colour profile.

    Raises:
        MalformedImage: It is no JPEG that can be decoded, or has more pixels.
        WrongFeatureType: It is not given in so many channels.
        ConfigError: simplejpeg is not installed.
    """
    header = partial(library("simplejpeg").decode_jpeg_header, contents, strict=False)
    with refusing("JPEG"):
        *size, stored_as, _ = header()
        check_size((*size, 3), wanted.max_pixels)
        if any(wanted.least):
            # Only by halves: other fractions take longer than the whole.
            *size, _, _ = header(*wanted.least, 2)
    inks = stored_as in ("CMYK", "YCCK")
    allowed = (0, 3) if inks else (0, 1, 3)
    check_channels("CMYK JPEG" if inks else "JPEG", wanted.channels, allowed)
    channels = wanted.channels or (1 if stored_as == "Gray" else 3)

    def fill(out: npt.NDArray[Any]) -> None:
        if inks:
            _mix(contents, wanted, out)
        else:
            _decode(contents, "Gray" if channels == 1 else "RGB", wanted, out)

    def fill_part(window: Window, out: npt.NDArray[Any]) -> bool:
        return not inks and decode_region(contents, window, is_fast(wanted.dct_method), out)

    return Picture((*size, channels), fill, fill_part=fill_part)


def _decode(contents: memoryview, space: str, wanted: Wanted, out: npt.NDArray[Any]) -> None:
    decode = library("simplejpeg").decode_jpeg
    with refusing("JPEG"):
        try:
            decode(contents, space, is_fast(wanted.dct_method), False, *wanted.least, 2, out)
        except ValueError as damage:
            if _NO_END in str(damage):
                raise
            if not str(damage).endswith(_BEHIND):
                _decode_damaged(contents, out)


def _decode_damaged(contents: memoryview, out: npt.NDArray[Any]) -> None:
    """Decode as far as it goes, as TensorFlow does; by Pillow, with the accurate transform.

    After damage TurboJPEG does not tell its warnings from errors, after which pixels are missing.
    """
    mode, size = _PILLOWS[out.shape[2]], opened("JPEG", contents).size
    # By the codec alone: a program may have told Pillow to load truncated pictures.
    image = library().frombytes(mode, size, contents, "jpeg", mode, "", 1, 0)
    out[...] = np.asarray(image.resize(out.shape[1::-1])).reshape(out.shape)


def _mix(contents: memoryview, wanted: Wanted, out: npt.NDArray[Any]) -> None:
    """Decode inks, and mix them to colours."""
    stored = np.empty((*out.shape[:2], 4), np.uint8)
    _decode(contents, "CMYK", wanted, stored)
    # Adobe's marker says that CMYK is stored inverted; a shorter one is none to libjpeg.
    inverted = "adobe_transform" in opened("JPEG", contents).info
    bright = (stored if inverted else 255 - stored).astype(np.uint16)
    out[...] = bright[..., :3] * bright[..., 3:] // 255
