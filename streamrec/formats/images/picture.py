"""Pictures whose size is known and whose pixels are not decoded yet: refused, or resized."""

from __future__ import annotations

import io
import math
import struct
import zlib
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrec.config.machine import MOST_PIXELS
from streamrec.errors import (
    ConfigError,
    DataError,
    MalformedImage,
    PictureTooLarge,
    WrongFeatureType,
)
from streamrec.suggestions import install
from streamrec.surroundings import has_gil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt


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


_RAISED = (
    *(ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, OSError),
    *(SyntaxError, TypeError, ValueError, Warning, struct.error, zlib.error),
)
"""By the readers, of data that are corrupt; a warning where the program makes it an error."""
_TELLING = (OSError, SyntaxError, ValueError, Warning)
"""Those whose texts are of the picture; others tell of the reader's own code."""
_DCT_METHODS = {"": True, "INTEGER_FAST": True, "INTEGER_ACCURATE": False}
"""TensorFlow's names of a JPEG's inverse transforms, and whether it is libjpeg's fast one."""


class CropWindow(NamedTuple):
    """A part of a picture, in pixels."""

    top: int
    left: int
    height: int
    width: int


class OutputForm(NamedTuple):
    """The form in which a picture is to be given."""

    channels: int = 0
    """1, 3 or 4; 0: as many as the picture has."""
    bits: int = 8
    """8 or 16, of a PNG's channel."""
    animation: bool = False
    """All frames of GIF and WebP, even of a single one, in four dimensions; else their first."""
    dct_method: str = ""
    """A JPEG's inverse transform, by TensorFlow's name."""
    least: tuple[int, int] = (0, 0)
    """A JPEG may be decoded at a fraction of at least this ``(height, width)``; 0 sets no limit."""
    window: CropWindow | None = None
    """The part of a still picture that is given; ``None``: all of it."""
    max_pixels: int = MOST_PIXELS
    """Pixels of all frames together."""


class Picture(NamedTuple):
    """A picture that is not decoded yet."""

    shape: tuple[int, ...]
    """``(height, width, channels)``, of an animation ``(frames, height, width, channels)``."""
    fill: Callable[[npt.NDArray[Any]], None]
    """Decodes into a C-contiguous array of this shape and dtype.

    It raises :class:`MalformedImage` where the pixels are corrupt or missing.
    """
    dtype: type[np.uint8 | np.uint16] = np.uint8
    fill_part: Callable[[CropWindow, npt.NDArray[Any]], bool] = lambda *_: False
    """Decodes a window alone into an array of its shape; returns False where it cannot."""
    work: int = 0
    """Bytes that the decoder takes besides the array that it fills, at most."""

    @property
    def nbytes(self) -> int:
        """Bytes of the decoded picture."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def decode(self) -> npt.NDArray[Any]:
        """Return the pixels, in memory of their own.

        Raises:
            MalformedImage: The pixels are corrupt or missing.
        """
        decoded = np.empty(self.shape, self.dtype)
        self.fill(decoded)
        return decoded


def take_window(picture: Picture, window: CropWindow) -> Picture:
    """Return a window of a picture, which is decoded without the rest where that can be done.

    Raises:
        WrongFeatureType: The window is not inside of the picture.
    """
    held, (top, left, height, width) = picture.shape[:2], window
    bottom, right = top + height, left + width
    if min(top, left) < 0 or min(height, width) < 1 or bottom > held[0] or right > held[1]:
        raise WrongFeatureType(
            f"the picture has {held[0]} x {held[1]} pixels, which do not hold the window "
            f"{list(window)} (top, left, height, width); ask for a window inside"
        )

    def fill(out: npt.NDArray[Any]) -> None:
        if not picture.fill_part(window, out):
            out[...] = picture.decode()[top:bottom, left:right]

    work = picture.work + picture.nbytes
    return picture._replace(shape=(height, width, picture.shape[2]), fill=fill, work=work)


def bands(image: Any) -> Iterator[tuple[slice, Any]]:
    """Yield the parts of a Pillow image, of some rows each, and these rows.

    To turn an image into an array takes two more copies of what is turned.
    """
    height = max(1, BAND // max(1, image.width))
    if height >= image.height:
        yield slice(0, image.height), image
        return
    # Below, rows are cut from the core image, which is there once pixels are loaded.
    image.load()
    for top in range(0, image.height, height):
        bottom = min(top + height, image.height)
        # image.crop() would compare with Pillow's own limit, which a program may have lowered.
        part = image.im.crop((0, top, image.width, bottom))
        yield slice(top, bottom), image._new(part)  # noqa: SLF001


BAND = 1 << 18
"""Pixels of a band: all of a picture of 512 x 512, which is not cut."""


def library(name: str = "PIL.Image") -> Any:
    """Return a module of the extra ``image``, imported when it is first needed.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(
            f"pictures are decoded by {name.partition('.')[0]}, which is not installed; "
            f"{install('image' if has_gil() else 'image-nogil')}"
        ) from None


def turbo() -> Any:
    """Return the binding of libjpeg-turbo.

    Without a GIL it is a fork of simplejpeg that needs none; simplejpeg would bring it back.

    Raises:
        ConfigError: It is not installed.
    """
    return (None if has_gil() else optional("leanjpeg_simple")) or library("simplejpeg")


# Kept: an import that fails searches the whole path each time.
@cache
def optional(name: str) -> Any | None:
    """Return a module that makes decoding faster; ``None`` where it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        return None


def open_picture(kind: str, contents: memoryview) -> Any:
    """Open a picture with Pillow's reader of a format, which reads no more than its header.

    Image.open() would warn of large pictures and refuse larger ones, whatever ``max_pixels`` says.

    Args:
        kind: The format: JPEG, PNG, GIF, BMP, WebP or TIFF.
        contents: The encoded picture.

    Raises:
        MalformedImage: The header is corrupt, or ends too early.
        ConfigError: Pillow is not installed, or without WebP.
    """
    if kind == "WebP" and not library("PIL.features").check("webp"):
        raise ConfigError("the installed Pillow has no WebP; install one that has")
    name = kind if kind == "WebP" else kind.capitalize()
    # The format's own reader: Pillow would try others on what does not begin as it expects.
    reader = getattr(library(f"PIL.{name}ImagePlugin"), f"{name}ImageFile")
    with refusing(kind):
        return reader(io.BytesIO(contents))


@contextmanager
def refusing(kind: str) -> Iterator[None]:
    """Turn what a reader raises of corrupt pictures into a :class:`MalformedImage`."""
    try:
        yield
    except library().DecompressionBombError as error:
        # By Pillow's own limit, which holds inside of its readers whatever max_pixels says.
        raise MalformedImage(
            f"the {kind} is too large ({error}); raise PIL.Image.MAX_IMAGE_PIXELS, if you trust it"
        ) from None
    except _RAISED as error:
        if isinstance(error, DataError):
            raise
        first = error.args[0] if error.args else None
        cause = first if isinstance(first, Exception) else error  # Pillow wraps what it caught
        why = f" ({error})" if isinstance(cause, _TELLING) else ""
        raise MalformedImage(
            f"the {kind} cannot be decoded{why}: it is corrupt or truncated; replace it"
        ) from None


def check_size(shape: tuple[int, ...], most: int) -> None:
    """Refuse a picture of more pixels than a limit, all frames together.

    Raises:
        PictureTooLarge: It has more.
    """
    count = math.prod(shape[:-1])
    if count > most:
        sides = " x ".join(map(str, shape[:-1]))
        raise PictureTooLarge(
            f"the picture claims {sides} = {count:,} pixels, but {most:,} are allowed; "
            "raise max_pixels, if you trust it"
        )


def check_channels(kind: str, channels: int, allowed: tuple[int, ...]) -> None:
    """Refuse numbers of channels in which a format's pictures are not given.

    Raises:
        WrongFeatureType: ``channels`` is not one of those allowed.
    """
    if channels not in allowed:
        raise WrongFeatureType(
            f"this {kind} picture gives channels {' or '.join(map(str, allowed))}, not {channels}; "
            "ask for one of these"
        )


def is_fast(dct_method: Any) -> bool:
    """Return whether a JPEG's inverse transform is the fast one, as TensorFlow's default is.

    Raises:
        ConfigError: TensorFlow has no such ``dct_method``.
    """
    if not isinstance(dct_method, str) or dct_method not in _DCT_METHODS:
        raise ConfigError(
            f"dct_method is {' or '.join(map(repr, _DCT_METHODS))}, not {dct_method!r}"
        )
    return _DCT_METHODS[dct_method]
