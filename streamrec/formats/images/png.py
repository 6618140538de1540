"""PNG, decoded to what libpng gives TensorFlow. Source: the PNG specification, third edition.

Pillow's codec undoes compression and filters; it keeps 8 bits of a channel, so those of 16 bits are
read as more channels of 8, or twice.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrec.errors import MalformedImage
from streamrec.formats.images.picture import Picture, pixels

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

__all__ = ["MAGIC", "read"]

MAGIC = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">IIBBBBB")
_GRAY, _RGB, _PALETTE, _GRAY_ALPHA, _RGBA = 0, 2, 3, 4, 6
_CHANNELS = {_GRAY: 1, _RGB: 3, _PALETTE: 1, _GRAY_ALPHA: 2, _RGBA: 4}
_DEPTHS = {
    _GRAY: (1, 2, 4, 8, 16),
    _RGB: (8, 16),
    _PALETTE: (1, 2, 4, 8),
    _GRAY_ALPHA: (8, 16),
    _RGBA: (8, 16),
}
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
"""Pillow's modes by the bytes of a pixel."""
_MOST_INFLATED = 1032
"""Bytes that zlib makes of one byte, at most."""
_WEIGHTS = (9797, 19234, 3737)
"""Of red, green and blue in gray, in 1/32768: 0.299 and 0.587, as libpng rounds them."""
_SRGB = 45455
"""The gamma that libpng takes for that of sRGB, in 1/100000."""
_CLOSE = 5000
"""A gamma so close to 1 is 1 to libpng, in 1/100000."""


class _Header(NamedTuple):
    width: int
    height: int
    depth: int
    """Bits of a channel."""
    kind: int
    interlaced: int
    palette: npt.NDArray[np.uint8] | None = None
    """uint8 ``[256, 3]``."""
    transparency: bytes | None = None
    """The chunk tRNS: alphas of the palette's colours, or the one transparent colour."""
    gamma: int | None = None
    """In 1/100000, of the chunk gAMA or sRGB."""


def read(contents: memoryview, channels: int, bits: int = 8) -> Picture:
    """Read a PNG's chunks.

    Args:
        contents: The encoded picture.
        channels: 1, 3 or 4; 0: as many as the picture has, a palette's colours as RGB or RGBA.
        bits: 8 or 16 bits of a channel in the result.

    Raises:
        MalformedImage: It is no PNG that can be decoded, or a CRC is wrong.
    """
    header, data = _chunks(contents)
    if header.kind == _PALETTE:
        channels = channels or (3 if header.transparency is None else 4)
    channels = channels or _CHANNELS[header.kind]
    needed = header.height * (_row_bits(header) // 8)
    if needed > _MOST_INFLATED * sum(map(len, data)):
        raise MalformedImage(
            f"the PNG has fewer bytes than {header.width} x {header.height} pixels can take: "
            "it is truncated; replace it"
        )
    return Picture(
        (header.height, header.width, channels), lambda: _decode(header, data, channels, bits)
    )


def _row_bits(header: _Header) -> int:
    return header.width * _CHANNELS[header.kind] * header.depth


def _chunks(contents: memoryview) -> tuple[_Header, list[memoryview]]:
    """The header with its palette, and the pieces of the compressed pixels."""
    header: _Header | None = None
    data: list[memoryview] = []
    before = b""
    for kind, body in _each(contents):
        if (kind == b"IHDR") != (header is None):
            raise MalformedImage("the PNG has no header, or two; replace the picture")
        if kind == b"IHDR":
            header = _header(body)
        elif kind == b"IDAT":
            if not data or before == kind:  # libpng takes no notice of pieces further on
                data.append(body)
        elif header is not None and not data:
            header = _with(header, kind, body)
        if not kind[0] & 0x20 and kind not in (b"IHDR", b"PLTE", b"IDAT", b"IEND"):
            raise MalformedImage(f"the PNG has a chunk {kind!r}, which is not supported")
        before = kind
    if header is None or not data or (header.kind == _PALETTE and header.palette is None):
        raise MalformedImage("the PNG lacks its header, its palette or its pixels; replace it")
    return header, data


def _each(contents: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """The chunks' kinds and bodies up to the end's, their CRCs checked."""
    at, kind = len(MAGIC), b""
    while kind != b"IEND":
        if at + 12 > len(contents):
            raise _truncated()
        size = int.from_bytes(contents[at : at + 4], "big")
        if at + 12 + size > len(contents):
            raise _truncated()
        kind, body = bytes(contents[at + 4 : at + 8]), contents[at + 8 : at + 8 + size]
        crc = int.from_bytes(contents[at + 8 + size : at + 12 + size], "big")
        if crc != zlib.crc32(contents[at + 4 : at + 8 + size]):
            raise MalformedImage(f"the PNG's chunk {kind!r} has a wrong CRC: it is corrupt")
        yield kind, body
        at += 12 + size


def _truncated() -> MalformedImage:
    return MalformedImage("the PNG ends before its last chunk: it is truncated; replace it")


def _header(body: memoryview) -> _Header:
    if len(body) != _HEADER.size:
        raise MalformedImage("the PNG's header is corrupt; replace the picture")
    width, height, depth, kind, compression, filters, interlaced = _HEADER.unpack(body)
    known = depth in _DEPTHS.get(kind, ()) and not compression and not filters and interlaced < 2
    if not known or not 0 < width < 1 << 31 or not 0 < height < 1 << 31:
        raise MalformedImage(
            f"the PNG is of {width} x {height} pixels, colour type {kind} and {depth} bits, which "
            "is not supported; replace the picture"
        )
    return _Header(width, height, depth, kind, interlaced)


def _with(header: _Header, kind: bytes, body: memoryview) -> _Header:
    """The header with what a chunk before the pixels says; what does not fit says nothing."""
    if kind == b"PLTE" and header.kind == _PALETTE:
        if not body or len(body) % 3 or len(body) > 768 or header.palette is not None:
            raise MalformedImage("the PNG's palette is corrupt; replace the picture")
        octets = np.frombuffer(body, np.uint8).reshape(-1, 3)[: 1 << header.depth]
        palette = np.zeros((256, 3), np.uint8)
        palette[: len(octets)] = octets
        return header._replace(palette=palette)
    if kind == b"tRNS" and header.transparency is None:
        sizes = {_GRAY: (2,), _RGB: (6,), _PALETTE: range(1, 257)}.get(header.kind, ())
        if len(body) in sizes and (header.kind != _PALETTE or header.palette is not None):
            return header._replace(transparency=bytes(body))
    if kind == b"sRGB":
        return header._replace(gamma=_SRGB)
    if kind == b"gAMA" and header.gamma is None and len(body) == 4 and any(body):
        return header._replace(gamma=int.from_bytes(body, "big"))
    return header


def _decode(header: _Header, data: list[memoryview], channels: int, bits: int) -> npt.NDArray[Any]:
    stored = _stored(header, b"".join(data))
    alpha = channels % 2 == 0
    if header.kind == _PALETTE:
        colours, opaque = _of_palette(header, stored, alpha)
    else:
        colours, opaque = _of_channels(header, stored, alpha)
    if channels < 3 and colours.shape[2] == 3:
        curved = header.gamma is not None and abs(header.gamma - 100_000) > _CLOSE
        colours = _gray(colours, header.gamma if curved else None, bits)
    if channels > 2 and colours.shape[2] == 1:
        colours = np.broadcast_to(colours, (*colours.shape[:2], 3))
    decoded = colours if opaque is None else np.concatenate([colours, opaque], axis=2)
    if decoded.dtype == np.uint16 and bits == 8:
        return (decoded >> 8).astype(np.uint8)
    if decoded.dtype == np.uint8 and bits == 16:
        return decoded * np.uint16(257)
    return decoded


def _stored(header: _Header, data: bytes) -> npt.NDArray[Any]:
    """The stored numbers ``[height, width, channels]``, uint8 or uint16."""
    size, count = (header.width, header.height), _CHANNELS[header.kind]
    shape = header.height, header.width, count
    if header.depth < 8:
        raw = pixels("P", size, data, "zip", f"P;{header.depth}", header.interlaced)
    elif header.depth * count <= 32:
        mode = _MODES[header.depth * count // 8]
        raw = pixels(mode, size, data, "zip", mode, header.interlaced)
    else:
        # Read as if the low byte came first, the codec takes the low bytes for the high ones.
        mode = _MODES[count]
        high, low = (
            pixels(mode, size, data, "zip", f"{mode};16{order}", header.interlaced)
            for order in "BL"
        )
        return high.astype(np.uint16) << 8 | low
    if header.depth == 16:
        return raw.view(">u2").astype(np.uint16).reshape(shape)
    return raw.reshape(shape)


def _of_palette(header: _Header, stored: npt.NDArray[Any], alpha: bool) -> tuple[Any, Any]:
    """The colours, and where it is asked for, the alphas."""
    assert header.palette is not None
    indices = stored[..., 0]
    if not alpha:
        return header.palette[indices], None
    opacity = np.full((256, 1), 255 if header.transparency else _opaque(header), np.uint8)
    given = np.frombuffer(header.transparency or b"", np.uint8)
    opacity[: len(given), 0] = given
    return header.palette[indices], opacity[indices]


def _opaque(header: _Header) -> int:
    """What TensorFlow has libpng fill up with: of less than 8 bits it is hardly opaque."""
    return (1 << header.depth) - 1


def _of_channels(header: _Header, stored: npt.NDArray[Any], alpha: bool) -> tuple[Any, Any]:
    """The colours, and where it is asked for, the alphas."""
    count = stored.shape[2]
    colours, opacity = stored, None
    if count % 2 == 0:
        colours, opacity = stored[..., : count - 1], stored[..., count - 1 :]
    elif alpha and header.transparency is not None:
        key = np.frombuffer(header.transparency, ">u2").astype(stored.dtype)
        most = np.iinfo(stored.dtype).max
        opacity = np.where((stored == key).all(axis=2, keepdims=True), 0, most).astype(stored.dtype)
    elif alpha:
        opacity = np.full_like(stored[..., :1], _opaque(header))
    if header.depth < 8:
        colours = colours * np.uint8(255 // ((1 << header.depth) - 1))
    return colours, opacity if alpha else None


def _gray(colours: npt.NDArray[Any], gamma: int | None, bits: int) -> npt.NDArray[Any]:
    """As libpng does it: in linear light where the picture says what that is."""
    dropped = 5 if bits == 8 and colours.dtype == np.uint16 else 0
    if gamma is None:
        wide = colours.astype(np.uint32)
    else:
        wide = _curve((10**10 + gamma // 2) // gamma, colours.dtype, dropped)[colours]
    weighted = (wide * np.array(_WEIGHTS, np.uint32)).sum(axis=2, dtype=np.uint32, keepdims=True)
    rounding = np.uint32(1 << 14 if gamma or colours.dtype == np.uint16 else 0)
    gray = ((weighted + rounding) >> 15).astype(colours.dtype)
    if gamma is not None:
        gray = _curve(gamma, colours.dtype, dropped)[gray].astype(colours.dtype)
    # Where the three are equal, nothing is computed.
    equal = (colours == colours[..., :1]).all(axis=2, keepdims=True)
    return np.where(equal, colours[..., :1], gray)


def _curve(exponent: int, dtype: np.dtype[Any], dropped: int) -> npt.NDArray[np.uint32]:
    """The power of every number of a dtype, which is taken from 0 to 1.

    Args:
        exponent: In 1/100000.
        dtype: uint8 or uint16.
        dropped: Low bits that do not count.
    """
    most = int(np.iinfo(dtype).max)
    numbers = np.arange(most + 1) >> dropped
    return np.floor(most * (numbers / (most >> dropped)) ** (exponent * 1e-5) + 0.5).astype(
        np.uint32
    )
