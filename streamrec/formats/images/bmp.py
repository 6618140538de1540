"""BMP, read as TensorFlow does: by the size of its pixels alone."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import MalformedImage, UnsupportedFormat
from streamrec.formats.images.picture import OutputForm, Picture, check_channels

if TYPE_CHECKING:
    import numpy.typing as npt

_HEADER = struct.Struct("<10xIIii2xH")
"""The place of the pixels, the size of the header behind it, width, height, and bits a pixel."""
_OLDEST = 12
"""Bytes of the header of OS/2 1.x, which has its fields at other places."""
_COMPRESSION = 30
_COMPRESSED = {1: "RLE", 2: "RLE", 4: "JPEG", 5: "PNG"}
"""Source: learn.microsoft.com, [MS-WMF] 2.1.1.7. Others stand in headers too short to say."""
_ORDERS = {8: [0], 24: [2, 1, 0], 32: [2, 1, 0, 3]}
"""The place of each channel in a pixel, by the bits of a pixel."""


def read(contents: memoryview, wanted: OutputForm) -> Picture:
    """Read a BMP's header. Pixels of 8 bits are brightness; palettes and bit masks do not count.

    Raises:
        MalformedImage: The bytes are not a BMP that can be decoded.
        UnsupportedFormat: It is compressed, or has another number of bits a pixel.
    """
    check_channels("BMP", wanted.channels, (0, 3, 4))
    if len(contents) < _COMPRESSION + 4:
        raise MalformedImage("the BMP ends inside its header: it is truncated; replace it")
    begin, head, width, height, bits = _HEADER.unpack_from(contents)
    packing = _COMPRESSED.get(int.from_bytes(contents[_COMPRESSION:][:4], "little"))
    if head == _OLDEST or packing or bits in (1, 2, 4, 16, 64):
        why = "has a header of OS/2 1.x" if head == _OLDEST else f"has {bits} bits a pixel"
        raise UnsupportedFormat(
            f"the BMP {f'is compressed as {packing}' if packing else why}, which is not "
            "supported; write it with 8, 24 or 32 bits a pixel, not compressed"
        )
    if bits not in _ORDERS or width < 1 or not height:
        raise MalformedImage(
            f"the BMP claims {width} x {abs(height)} pixels of {bits} bits: it is corrupt; "
            "replace it"
        )
    held, stride = bits // 8, (width * bits // 8 + 3) // 4 * 4
    if len(contents) < begin + stride * abs(height):
        raise MalformedImage("the BMP ends inside its pixels: it is truncated; replace it")

    def fill(out: npt.NDArray[Any]) -> None:
        rows = np.frombuffer(contents, np.uint8, stride * abs(height), begin).reshape(-1, stride)
        rows = rows[:: 1 if height < 0 else -1, : width * held]
        pixels = rows.reshape(abs(height), width, held)
        out[..., 3:] = 255
        for channel in range(out.shape[2]):
            if held == 1 and channel < 3:
                out[..., channel] = pixels[..., 0]
            elif channel < held:
                out[..., channel] = pixels[..., _ORDERS[bits][channel]]

    return Picture((abs(height), width, wanted.channels or held), fill)
