"""Pictures whose size is known, and whose pixels are not decoded yet."""

from __future__ import annotations

import io
import math
import struct
import zlib
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrec.errors import ConfigError, MalformedImage, WrongFeatureType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

__all__ = ["Picture", "check_channels", "check_size", "library", "opened", "pixels", "refusing"]

_RAISED = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, OSError, SyntaxError, TypeError),
    *(ValueError, struct.error, zlib.error),
)
"""By Pillow's readers, of data that are corrupt."""


class Picture(NamedTuple):
    """A picture that is not decoded yet."""

    shape: tuple[int, ...]
    """``(height, width, channels)``, of an animation ``(frames, height, width, channels)``."""
    decode: Callable[[], npt.NDArray[Any]]
    """Gives the pixels, in memory that may not be writable.

    It raises :class:`MalformedImage` where the pixels are corrupt or missing.
    """


def library() -> Any:
    """Pillow's module ``Image``, imported when it is first needed.

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


def opened(name: str, contents: memoryview) -> Any:
    """Open a picture with the reader of a format, which reads no more than its header.

    Image.open() would warn of large pictures and refuse larger ones, whatever ``max_pixels`` says.

    Args:
        name: The format's, as Pillow's classes have it.
        contents: The encoded picture.

    Raises:
        MalformedImage: The header is corrupt, or ends too early.
        ConfigError: Pillow is not installed.
    """
    library()
    reader = getattr(import_module(f"PIL.{name}ImagePlugin"), f"{name}ImageFile")
    with refusing(name if name == "WebP" else name.upper()):
        return reader(io.BytesIO(contents))


@contextmanager
def refusing(kind: str) -> Iterator[None]:
    """Turn what Pillow raises of corrupt pictures into a :class:`MalformedImage`."""
    try:
        yield
    except MalformedImage:
        raise
    except library().DecompressionBombError as error:
        raise MalformedImage(
            f"the {kind} is too large ({error}); raise PIL.Image.MAX_IMAGE_PIXELS, if you trust it"
        ) from None
    except _RAISED as error:
        raise MalformedImage(
            f"the {kind} cannot be decoded ({error}): it is corrupt or truncated; replace it"
        ) from None


def pixels(
    mode: str, size: tuple[int, int], data: Any, codec: str, *arguments: Any
) -> npt.NDArray[np.uint8]:
    """Decode pixels with one of Pillow's codecs, without the GIL.

    Args:
        mode: Pillow's mode of the result.
        size: Width and height. The data must not hold wider rows.
        data: What the codec reads.
        codec: The codec's name.
        arguments: The codec's own, from the raw mode on.

    Raises:
        MalformedImage: The data are corrupt, or end too early.
        ConfigError: Pillow is not installed.
    """
    with refusing("picture"):
        return np.asarray(library().frombytes(mode, size, data, codec, arguments))


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
