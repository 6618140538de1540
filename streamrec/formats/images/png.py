"""PNG, decoded to what libpng gives TensorFlow. Source: the PNG specification, third edition.

Pillow's own reader does not check the CRCs of pixels, keeps 8 bits of a channel of colours, and is
half as fast with small pictures; so the chunks are read here, and the pixels by its codec.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrec.errors import MalformedImage
from streamrec.formats.images.picture import Picture, pixels

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["MAGIC", "read"]

MAGIC = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">IIBBBBB")
_RANKS = {b"IHDR": 0, b"gAMA": 1, b"sRGB": 1, b"PLTE": 2, b"tRNS": 3, b"IDAT": 4, b"IEND": 5}
"""The order of the chunks that count. Of all but IDAT there is one."""
_GRAY, _RGB, _PALETTE, _GRAY_ALPHA, _RGBA = 0, 2, 3, 4, 6
_CHANNELS = {_GRAY: 1, _RGB: 3, _PALETTE: 1, _GRAY_ALPHA: 2, _RGBA: 4}
_DEPTHS = {_GRAY: (1, 2, 4, 8, 16), _PALETTE: (1, 2, 4, 8), **dict.fromkeys((2, 4, 6), (8, 16))}
"""Bits of a channel, by kind."""
_INTENTS = (b"\0", b"\1", b"\2", b"\3")
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
    palette: npt.NDArray[np.uint8]
    """uint8 ``[colours, 3]``."""
    transparency: bytes
    """The alphas of the palette's colours, or the one transparent colour."""
    gamma: int
    """In 1/100000; 0: the picture does not say it."""


def read(contents: memoryview, channels: int, bits: int = 8) -> Picture:
    """Read a PNG's chunks.

    Args:
        contents: The encoded picture.
        channels: 1, 3 or 4; 0: as many as the picture has, a palette's colours as RGB or RGBA.
        bits: 8 or 16 bits of a channel in the result.

    Raises:
        MalformedImage: It is no PNG that can be decoded, or a CRC is wrong.
    """
    chunks = _chunks(contents)
    header, data = _header(chunks), chunks[b"IDAT"]
    if header.kind == _PALETTE:
        channels = channels or (4 if header.transparency else 3)
    channels = channels or _CHANNELS[header.kind]
    shape = header.height, header.width, channels
    needed = header.height * (header.width * _CHANNELS[header.kind] * header.depth // 8)
    if needed > _MOST_INFLATED * sum(map(len, data)):
        raise MalformedImage(
            f"the PNG has fewer bytes than {header.width} x {header.height} pixels can take: "
            "it is truncated; replace it"
        )
    return Picture(shape, lambda: _decode(header, data, channels, bits))


def _chunks(contents: memoryview) -> dict[bytes, list[memoryview]]:
    """Return the chunks that count, by kind, after the CRCs of all are checked."""
    chunks: dict[bytes, list[memoryview]] = {}
    at, kind, rank = len(MAGIC), b"", -1
    while kind != b"IEND":
        end = at + 8 + int.from_bytes(contents[at : at + 4], "big")
        if end + 4 > len(contents):
            raise MalformedImage("the PNG ends before its last chunk: it is truncated; replace it")
        before, kind = kind, bytes(contents[at + 4 : at + 8])
        if int.from_bytes(contents[end : end + 4], "big") != zlib.crc32(contents[at + 4 : end]):
            raise MalformedImage(f"the PNG's chunk {kind!r} has a wrong CRC: it is corrupt")
        if kind not in _RANKS:
            if not kind[0] & 0x20:
                raise MalformedImage(f"the PNG has a chunk {kind!r}, which is not supported")
        elif _RANKS[kind] < rank or (kind in chunks and kind != b"IDAT"):
            raise MalformedImage(f"the PNG's chunk {kind!r} stands too late, or twice; replace it")
        elif kind not in chunks or before == kind:  # libpng ignores pieces of pixels further on
            rank = _RANKS[kind]
            chunks.setdefault(kind, []).append(contents[at + 8 : end])
        at = end + 4
    return chunks


def _header(chunks: dict[bytes, list[memoryview]]) -> _Header:
    header, gamma, intent, palette, transparency = (
        b"".join(chunks.get(kind, ())) for kind in (b"IHDR", b"gAMA", b"sRGB", b"PLTE", b"tRNS")
    )
    if len(header) != _HEADER.size or b"IDAT" not in chunks:
        raise MalformedImage("the PNG lacks its header or its pixels; replace the picture")
    width, height, depth, kind, compression, filters, interlaced = _HEADER.unpack(header)
    known = depth in _DEPTHS.get(kind, ()) and not compression and not filters and interlaced < 2
    if not known or not 0 < width < 1 << 31 or not 0 < height < 1 << 31:
        raise MalformedImage(
            f"the PNG is of {width} x {height} pixels, colour type {kind} and {depth} bits, which "
            "is not supported; replace the picture"
        )
    if len(gamma) not in (0, 4) or (b"sRGB" in chunks and intent not in _INTENTS):
        raise MalformedImage("the PNG's chunk gAMA or sRGB is corrupt; replace the picture")
    if len(palette) % 3 or len(palette) > 768 or (kind == _PALETTE and not palette):
        raise MalformedImage("the PNG's palette is corrupt, or is not there; replace the picture")
    fitting = {_GRAY: (2,), _RGB: (6,), _PALETTE: range(1, len(palette) // 3 + 1)}.get(kind, ())
    if b"tRNS" in chunks and len(transparency) not in fitting:
        raise MalformedImage("the PNG's chunk tRNS is corrupt; replace the picture")
    colours = np.frombuffer(palette, np.uint8).reshape(-1, 3)
    curve = _SRGB if b"sRGB" in chunks else int.from_bytes(gamma, "big")
    return _Header(width, height, depth, kind, interlaced, colours, transparency, curve)


def _decode(header: _Header, data: list[memoryview], channels: int, bits: int) -> npt.NDArray[Any]:
    stored = _stored(header, b"".join(data))
    alpha = channels % 2 == 0
    if header.kind == _PALETTE:
        colours, opaque = _of_palette(header, stored, alpha)
    else:
        colours, opaque = _of_channels(header, stored, alpha)
    if channels < 3 and colours.shape[2] == 3:
        curved = header.gamma and abs(header.gamma - 100_000) > _CLOSE
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
    """Return the stored numbers ``[height, width, channels]``, uint8 or uint16."""
    count = _CHANNELS[header.kind]
    shape = header.height, header.width, count

    def stored(mode: str, stored_as: str) -> npt.NDArray[Any]:
        size = header.width, header.height
        return pixels(mode, size, data, "zip", stored_as, header.interlaced)

    if header.depth < 8:
        return stored("P", f"P;{header.depth}").reshape(shape)
    if header.depth * count > 32:
        # Read as if the low byte came first, the codec takes the low bytes for the high ones.
        high, low = (stored(_MODES[count], f"{_MODES[count]};16{order}") for order in "BL")
        wide: npt.NDArray[np.uint16] = high.astype(np.uint16) << 8 | low
        return wide
    mode = _MODES[header.depth * count // 8]
    raw = stored(mode, mode)
    return (raw if header.depth == 8 else raw.view(">u2").astype(np.uint16)).reshape(shape)


def _of_palette(header: _Header, stored: npt.NDArray[Any], alpha: bool) -> tuple[Any, Any]:
    """Return the colours, and where it is asked for, the alphas."""
    colours = np.zeros((256, 3), np.uint8)  # black where the picture has no colour
    colours[: len(header.palette)] = header.palette
    opacity = np.full((256, 1), 255 if header.transparency else _opaque(header), np.uint8)
    alphas = np.frombuffer(header.transparency, np.uint8)
    opacity[: len(alphas), 0] = alphas
    indices = stored[..., 0]
    return colours[indices], opacity[indices] if alpha else None


def _opaque(header: _Header) -> int:
    """Return the alpha that TensorFlow has libpng fill up with: it depends on the bits."""
    return (1 << header.depth) - 1


def _of_channels(header: _Header, stored: npt.NDArray[Any], alpha: bool) -> tuple[Any, Any]:
    """Return the colours, and where it is asked for, the alphas."""
    count = stored.shape[2]
    colours, opacity = stored, None
    if count % 2 == 0:
        colours, opacity = stored[..., : count - 1], stored[..., count - 1 :]
    elif alpha and header.transparency:
        key = np.frombuffer(header.transparency, ">u2") & _opaque(header)
        most = np.iinfo(stored.dtype).max
        opacity = np.where((stored == key).all(axis=2, keepdims=True), 0, most).astype(stored.dtype)
    elif alpha:
        opacity = np.full_like(stored[..., :1], _opaque(header))
    if header.depth < 8:
        colours = colours * np.uint8(255 // _opaque(header))
    return colours, opacity if alpha else None


def _gray(colours: npt.NDArray[Any], gamma: int | None, bits: int) -> npt.NDArray[Any]:
    """Weigh colours as libpng does: in linear light where the picture says what that is."""
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
    """Return the power of every number of a dtype, which is taken from 0 to 1.

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
