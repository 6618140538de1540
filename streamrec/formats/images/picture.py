"""Pictures that Pillow has opened: their size is known, and their pixels are not decoded yet."""

from __future__ import annotations

import io
import math
import struct
import zlib
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrec.errors import ConfigError, MalformedImage, WrongFeatureType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

__all__ = ["Picture", "Wanted", "check_channels", "check_size", "library", "opened", "refusing"]

_RAISED = (
    *(ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, OSError),
    *(SyntaxError, TypeError, ValueError, Warning, struct.error, zlib.error),
)
"""By Pillow's readers, of data that are corrupt; a warning where the program makes it an error."""


class Wanted(NamedTuple):
    """How a picture is to be given."""

    channels: int
    """1, 3 or 4; 0: as many as the picture has."""
    bits: int
    """8 or 16, of a PNG's channel."""
    animation: bool
    """All frames of GIF and WebP, even of a single one; else their first."""
    most: int
    """Pixels of all frames together."""


class Picture(NamedTuple):
    """A picture that is not decoded yet."""

    shape: tuple[int, ...]
    """``(height, width, channels)``, of an animation ``(frames, height, width, channels)``."""
    decode: Callable[[], npt.NDArray[Any]]
    """Gives the pixels, in memory that may not be writable.

    It raises :class:`MalformedImage` where the pixels are corrupt or missing.
    """


def library() -> Any:
    """Return Pillow's module ``Image``, imported when it is first needed.

    Raises:
        ConfigError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError(
            "pictures are decoded by Pillow, which is not installed: pip install 'streamrec[image]'"
        ) from None
    return Image


def opened(kind: str, contents: memoryview) -> Any:
    """Open a picture with the reader of a format, which reads no more than its header.

    Image.open() would warn of large pictures and refuse larger ones, whatever ``max_pixels`` says.

    Args:
        kind: The format: JPEG, PNG, GIF, BMP or WebP.
        contents: The encoded picture.

    Raises:
        MalformedImage: The header is corrupt, or ends too early.
        ConfigError: Pillow is not installed, or without WebP.
    """
    library()
    name = kind if kind == "WebP" else kind.capitalize()
    if kind == "WebP":
        from PIL import features

        if not features.check("webp"):
            raise ConfigError("the installed Pillow has no WebP; install one that has")
    reader = getattr(import_module(f"PIL.{name}ImagePlugin"), f"{name}ImageFile")
    with refusing(kind):
        return reader(io.BytesIO(contents))


@contextmanager
def refusing(kind: str) -> Iterator[None]:
    """Turn what Pillow raises of corrupt pictures into a :class:`MalformedImage`."""
    try:
        yield
    except library().DecompressionBombError as error:
        raise MalformedImage(
            f"the {kind} is too large ({error}); raise PIL.Image.MAX_IMAGE_PIXELS, if you trust it"
        ) from None
    except _RAISED as error:
        if isinstance(error, MalformedImage):
            raise
        raise MalformedImage(
            f"the {kind} cannot be decoded ({error}): it is corrupt or truncated; replace it"
        ) from None


def check_size(shape: tuple[int, ...], most: int) -> None:
    """Refuse a picture of more pixels than a limit, all frames together.

    Raises:
        MalformedImage: It has more.
    """
    count = math.prod(shape[:-1])
    if count > most:
        sides = " x ".join(map(str, shape[:-1]))
        raise MalformedImage(
            f"the picture claims {sides} = {count:,} pixels, and {most:,} are allowed; "
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
