"""BMP, as TensorFlow reads it: uncompressed pixels of 8, 24 or 32 bits, nothing else is looked at.

Pixels of 8 bits are brightness, whatever the palette says.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from streamrec.errors import MalformedImage
from streamrec.formats.images.picture import Picture, check_channels

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["MAGIC", "read"]

MAGIC = b"BM"
_HEADER = struct.Struct("<10xi4xii2xh")
"""The pixels' place, width, height and bits a pixel."""


def read(contents: memoryview, channels: int) -> Picture:
    """Read a BMP's header.

    Args:
        contents: The encoded picture.
        channels: 3 or 4; 0: as many as the picture has, of which one is possible.

    Raises:
        MalformedImage: It is no BMP that can be decoded, or its length is another.
        WrongFeatureType: It is not given in so many channels.
    """
    check_channels("BMP", channels, (0, 3, 4))
    if len(contents) < 32:
        raise MalformedImage("the BMP ends inside its header: it is truncated; replace it")
    begin, width, height, bits = _HEADER.unpack_from(contents)
    held = bits // 8
    if held not in (1, 3, 4) or width < 1 or not height or begin < 0:
        raise MalformedImage(
            f"the BMP is of {width} x {height} pixels and {bits} bits, which is not supported; "
            "write it with 8, 24 or 32 bits a pixel"
        )
    stride = (held * width + 3) // 4 * 4
    if len(contents) != begin + stride * abs(height):
        raise MalformedImage(
            f"the BMP has {len(contents)} bytes, but {width} x {height} pixels of {bits} bits "
            f"take {begin + stride * abs(height)}: it is truncated or compressed; replace it"
        )
    shape = abs(height), width, channels or held
    octets = np.frombuffer(contents, np.uint8, offset=begin).reshape(abs(height), stride)
    stored = octets[:, : held * width].reshape(abs(height), width, held)
    return Picture(shape, lambda: _decode(stored if height < 0 else stored[::-1], shape))


def _decode(stored: npt.NDArray[np.uint8], shape: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    decoded = np.full(shape, 255, np.uint8)
    if stored.shape[2] == 1:
        decoded[..., :3] = stored
    else:  # blue, green, red
        decoded[..., :3] = stored[..., 2::-1]
        if shape[2] == stored.shape[2] == 4:
            decoded[..., 3] = stored[..., 3]
    return decoded
