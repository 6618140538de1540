"""Encoded pictures of every kind, for tests."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

from streamrec.surroundings import has_gil

TURBO = "simplejpeg" if has_gil() else "leanjpeg_simple"
"""The binding of libjpeg-turbo."""

ADAM7 = (
    *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
    *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
)
"""First column and row of each pass, and the steps between them."""


PNG_KINDS = [
    *((0, depth) for depth in (1, 2, 4, 8, 16)),
    *((3, depth) for depth in (1, 2, 4, 8)),
    *((kind, depth) for kind in (2, 4, 6) for depth in (8, 16)),
]
"""Colour types, and the bits of a channel that each may have."""


def noise(shape: tuple[int, ...], seed: int = 0, most: int = 255) -> Any:
    return np.random.default_rng(seed).integers(0, most + 1, shape)


def smooth(height: int = 29, width: int = 37, channels: int = 3) -> Any:
    """Return a picture that JPEG keeps well."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(y / (5 + k) + x / (9 - k) + k) for k in range(4)]
    array = (127.5 + 127.5 * np.stack(waves, axis=2)).astype(np.uint8)[..., :channels]
    return array[..., 0] if channels == 1 else array


def saved(array: Any, kind: str, mode: str | None = None, **options: Any) -> bytes:
    """Return a picture, encoded by Pillow."""
    image = Image.fromarray(array)
    file = io.BytesIO()
    (image.convert(mode) if mode else image).save(file, kind, **options)
    return file.getvalue()


def animation(kind: str, frames: int = 3, mode: str = "RGBA", **options: Any) -> bytes:
    """Frames that are partly transparent."""
    images = [Image.fromarray(np.roll(smooth(channels=4), 3 * k, 0)) for k in range(frames)]
    for image in images[1:]:
        image.paste((0, 0, 0, 0), (3, 3, 20, 20))
    file = io.BytesIO()
    first, *rest = [image.convert(mode) for image in images]
    first.save(file, kind, save_all=True, append_images=rest, **options)
    return file.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def header(width: int, height: int, depth: int = 8, kind: int = 2, interlaced: int = 0) -> bytes:
    return struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlaced)


def of_chunks(*chunks: tuple[bytes, bytes]) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, body) for kind, body in chunks)


def random_png(
    kind: int, depth: int, *, interlaced: bool = False, extra: Any = (), seed: int = 0
) -> bytes:
    """Return a PNG of 11 x 9 random pixels with random filters, of any colour type."""
    random = np.random.default_rng(seed)
    bits = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind] * depth
    raw = b""
    for x, y, dx, dy in ADAM7 if interlaced else ((0, 0, 1, 1),):
        columns, rows = len(range(x, 11, dx)), len(range(y, 9, dy))
        for _ in range(rows if columns else 0):
            raw += bytes([random.integers(0, 5)]) + random.bytes((columns * bits + 7) // 8)
    palette = [(b"PLTE", random.bytes(3 * min(1 << depth, 200)))] if kind == 3 else []
    return of_chunks(
        (b"IHDR", header(11, 9, depth, kind, int(interlaced))),
        *[each for each in extra if each[0] != b"tRNS"],
        *palette,
        *[each for each in extra if each[0] == b"tRNS"],
        (b"IDAT", zlib.compress(raw)),
        (b"IEND", b""),
    )


def transparency(kind: int, depth: int) -> tuple[bytes, bytes]:
    """Return a chunk of transparency for each colour type that may have it."""
    number = (1 << depth) // 3
    return b"tRNS", {
        0: struct.pack(">H", number),
        2: struct.pack(">HHH", number, number, number),
        3: bytes([0, 100]),
    }[kind]


def without_segment(jpeg: bytes, marker: int) -> bytes:
    """Return a JPEG without its first segment of a kind."""
    at = jpeg.index(bytes([0xFF, marker]))
    return jpeg[:at] + jpeg[at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big") :]


PALETTE = bytes([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255])
"""Black, red, green, blue."""


def frame(colours: list[int], left: int = 0, top: int = 0, width: int = 2, flags: int = 0) -> bytes:
    """Colours of two bits, each in a code of four between codes that clear the table."""
    codes = [code for colour in colours for code in (4, colour)] + [5]
    bits = sum(code << 3 * k for k, code in enumerate(codes))
    data = bits.to_bytes((3 * len(codes) + 7) // 8, "little")
    size = struct.pack("<HHHHB", left, top, width, len(colours) // width, flags)
    return b"\x2c" + size + b"\x02" + bytes([len(data)]) + data + b"\0"


def control(transparent: int, disposal: int = 0) -> bytes:
    return bytes([0x21, 0xF9, 4, 1 | disposal << 2, 0, 0, transparent, 0])


def made_gif(*blocks: bytes, width: int = 2, height: int = 1, palette: bytes = PALETTE) -> bytes:
    flags = 0x81 if palette else 0
    screen = struct.pack("<HHBBB", width, height, flags, 0, 0)
    return b"GIF89a" + screen + palette + b"".join(blocks) + b"\x3b"
