"""Encoded pictures to arrays and back, with TensorFlow's names, arguments and meaning.

BMP is read here, as TensorFlow does: by the size of its pixels alone.
"""

from __future__ import annotations

import io
import math
import os
import re
import struct
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from streamrec.config.machine import MOST_PIXELS
from streamrec.errors import ConfigError, MalformedImage, UnsupportedFormat
from streamrec.formats.images.jpeg import read as read_jpeg
from streamrec.formats.images.picture import (
    CropWindow,
    OutputForm,
    Picture,
    check_channels,
    check_size,
    is_fast,
    library,
    take_window,
)
from streamrec.formats.images.pillow import read as read_gif
from streamrec.formats.images.pillow import read_tiff, read_webp
from streamrec.formats.images.png import deflate
from streamrec.formats.images.png import read as read_png

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from streamrec.values.columns import Bytes


_HEADER = struct.Struct("<10xIIii2xH")
"""The place of the pixels, the size of the header after it, width, height, and bits a pixel."""
_OLDEST = 12
"""Bytes of the header of OS/2 1.x, which has its fields at other places."""
_COMPRESSION = 30
_COMPRESSED = {1: "RLE", 2: "RLE", 4: "JPEG", 5: "PNG"}
"""Source: learn.microsoft.com, [MS-WMF] 2.1.1.7. Others stand in headers too short to say."""
_ORDERS = {8: [0], 24: [2, 1, 0], 32: [2, 1, 0, 3]}
"""The place of each channel in a pixel, by the bits of a pixel."""


def read_bmp(contents: memoryview, wanted: OutputForm) -> Picture:
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
    # Each row is filled up to a multiple of four bytes.
    held, stride = bits // 8, (width * bits // 8 + 3) // 4 * 4
    # Compared before memory is set aside: a header may claim any size.
    if len(contents) < begin + stride * abs(height):
        raise MalformedImage("the BMP ends inside its pixels: it is truncated; replace it")

    def fill(out: npt.NDArray[Any]) -> None:
        rows = np.frombuffer(contents, np.uint8, stride * abs(height), begin).reshape(-1, stride)
        # The lowest row comes first, unless the height is negative.
        rows = rows[:: 1 if height < 0 else -1, : width * held]
        pixels = rows.reshape(abs(height), width, held)
        # Opaque, where the picture has no alpha of its own to put here.
        out[..., 3:] = 255
        for channel in range(out.shape[2]):
            if held == 1 and channel < 3:
                out[..., channel] = pixels[..., 0]
            elif channel < held:
                out[..., channel] = pixels[..., _ORDERS[bits][channel]]

    return Picture((abs(height), width, wanted.channels or held), fill)


_PNG = b"\x89PNG\r\n\x1a\n"
_READERS = {
    "JPEG": (read_jpeg, b"\xff\xd8\xff"),
    "PNG": (read_png, _PNG),
    "GIF": (read_gif, b"GIF8"),
    "BMP": (read_bmp, b"BM"),
    "WebP": (read_webp, b"RIFF....WEBP"),
    "TIFF": (read_tiff, b"II[*+]\0|MM\0[*+]"),
}
"""Readers by format, and patterns of the first bytes."""
READ_FORMATS = frozenset(_READERS)
_NOT_READ = {
    "JPEG XL": b"\xff\x0a|\0\0\0\x0cJXL ",
    "JPEG 2000": b"\xff\x4f\xff\x51|\0\0\0\x0cjP  ",
    "AVIF": b"....ftypavi[fs]",
    "HEIC": b"....ftyp(hei[cxms]|hev[cmsx]|mif1|msf1)",
    "PNM": rb"P[1-7]\s",
    "PSD": b"8BPS",
    "OpenEXR": b"v/1\x01",
    "QOI": b"qoif",
}
"""Patterns of the first bytes of other formats."""
_FORMATS = [
    (name, re.compile(pattern, re.DOTALL))
    for name, pattern in ({name: one[1] for name, one in _READERS.items()} | _NOT_READ).items()
]
"""The names of all these formats, and their patterns."""
_STILL = ("JPEG", "PNG", "GIF")


def decode_image(
    contents: Bytes,
    channels: int = 0,
    expand_animations: bool = True,
    *,
    max_pixels: int = MOST_PIXELS,
) -> npt.NDArray[np.uint8]:
    """Decode a JPEG, PNG, GIF, BMP, WebP or TIFF, as ``tf.io.decode_image`` does.

    A JPEG's inverse transform is TensorFlow's default; ``decode_jpeg`` has others.

    Args:
        contents: The encoded picture.
        channels: 1 (gray), 3 (RGB) or 4 (RGBA); 0: as many as the picture has. JPEG cannot give 4,
            GIF gives only 3, BMP cannot give 1, and WebP gives only its own.
        expand_animations: True: GIF and WebP give ``[frames, height, width, channels]``, even with
            one frame. False: only their first frame.
        max_pixels: The most pixels of all frames together; a larger picture is refused before
            memory is allocated for it.

    Returns:
        uint8 ``[height, width, channels]``, or with the frames before; in memory of its own.

    Raises:
        MalformedImage: The picture is corrupt, truncated or too large.
        UnsupportedFormat: It is of another format, or of a kind that is not read.
        WrongFeatureType: It is not given in so many channels.
        ConfigError: An argument is wrong, or a library is not installed.
    """
    wanted = OutputForm(channels, animation=expand_animations, max_pixels=max_pixels)
    return read_picture(contents, wanted).decode()


def decode_jpeg(
    contents: Bytes, channels: int = 0, *, dct_method: str = "", max_pixels: int = MOST_PIXELS
) -> npt.NDArray[np.uint8]:
    """Decode a JPEG, as ``tf.io.decode_jpeg`` does, bit for bit.

    PNG and GIF of one frame are taken, too, as TensorFlow takes them.

    Args:
        contents: The encoded picture.
        channels: 1 (gray) or 3 (RGB); 0: as many as the picture has.
        dct_method: The inverse transform: ``"INTEGER_ACCURATE"``, or ``"INTEGER_FAST"``, which is
            TensorFlow's default ``""``, too.
        max_pixels: As ``decode_image``'s.

    Returns:
        uint8 ``[height, width, channels]``, in memory of its own.

    Raises:
        MalformedImage: The picture is corrupt, truncated or too large.
        UnsupportedFormat: It is of another format, or of a kind that is not read.
        WrongFeatureType: It is not given in so many channels.
        ConfigError: An argument is wrong, or a library is not installed.
    """
    return _still(contents, OutputForm(channels, dct_method=dct_method, max_pixels=max_pixels))


def decode_and_crop_jpeg(
    contents: Bytes,
    crop_window: Sequence[int] | npt.NDArray[np.integer[Any]],
    channels: int = 0,
    *,
    dct_method: str = "",
    max_pixels: int = MOST_PIXELS,
) -> npt.NDArray[np.uint8]:
    """Decode a JPEG and cut a window out of it, as ``tf.io.decode_and_crop_jpeg`` does.

    If nvImageCodec is installed (the extra ``crop``), only the window is decoded, to the same
    pixels.

    Args:
        contents: The encoded picture.
        crop_window: ``[y, x, height, width]`` in pixels, inside of the picture.
        channels: As ``decode_jpeg``'s.
        dct_method: As ``decode_jpeg``'s.
        max_pixels: As ``decode_image``'s; of the whole picture.

    Returns:
        uint8 ``[height, width, channels]``, in memory of its own.

    Raises:
        MalformedImage: The picture is corrupt, truncated or too large.
        UnsupportedFormat: It is of another format, or of a kind that is not read.
        WrongFeatureType: It is not given in so many channels, or does not hold the window.
        ConfigError: An argument is wrong, or a library is not installed.
    """
    window = np.asarray(crop_window)
    if window.shape != (4,) or window.dtype.kind not in "iu":
        raise ConfigError(f"crop_window must be [y, x, height, width], not {crop_window!r}")
    wanted = OutputForm(
        channels, dct_method=dct_method, window=CropWindow(*window.tolist()), max_pixels=max_pixels
    )
    return read_picture(contents, wanted, ("JPEG",)).decode()


def decode_png(
    contents: Bytes, channels: int = 0, dtype: Any = "uint8", *, max_pixels: int = MOST_PIXELS
) -> npt.NDArray[Any]:
    """Decode a PNG, as ``tf.io.decode_png`` does, bit for bit.

    JPEG and GIF of one frame are taken, too, as TensorFlow takes them.

    Args:
        contents: The encoded picture.
        channels: 1 (gray), 3 (RGB) or 4 (RGBA); 0: as many as the picture has, which may be 2.
        dtype: ``"uint8"`` or ``"uint16"``; numbers of the other size are cut, or filled up.
        max_pixels: As ``decode_image``'s.

    Returns:
        ``[height, width, channels]`` of the dtype, in memory of its own.

    Raises:
        MalformedImage: The picture is corrupt, truncated or too large.
        UnsupportedFormat: It is of another format, or of a kind that is not read.
        WrongFeatureType: It is not given in so many channels.
        ConfigError: An argument is wrong, or a library is not installed.
    """
    return _still(contents, OutputForm(channels, _bits(dtype), max_pixels=max_pixels))


def _bits(dtype: Any) -> int:
    try:
        name = np.dtype(getattr(dtype, "as_numpy_dtype", dtype)).name
    except (TypeError, KeyError):  # the second of TensorFlow, for types that NumPy does not have
        name = str(dtype)
    if name not in ("uint8", "uint16"):
        raise ConfigError(f"dtype must be 'uint8' or 'uint16', not {name!r}")
    return 8 if name == "uint8" else 16


def _still(contents: Bytes, wanted: OutputForm) -> npt.NDArray[Any]:
    picture = read_picture(contents, wanted._replace(animation=True), _STILL)
    if len(picture.shape) == 4 and picture.shape[0] > 1:
        raise MalformedImage(f"the GIF has {picture.shape[0]} frames; decode it with decode_image")
    array = picture.decode().reshape(picture.shape[-3:])
    return array if array.itemsize * 8 == wanted.bits else array * np.uint16(256)


def read_picture(
    contents: Any, wanted: OutputForm, formats: Sequence[str] = tuple(_READERS)
) -> Picture:
    """Read a picture up to its size; nothing of the size of its pixels is set aside.

    Args:
        contents: The encoded picture: bytes, or an array of them.
        wanted: How it is to be given.
        formats: Names of those that are taken.

    Raises:
        MalformedImage: The picture is corrupt, truncated or too large.
        UnsupportedFormat: It is of another format, or of a kind that is not read.
        WrongFeatureType: It is not given in so many channels, or does not hold the window.
        ConfigError: No format has a setting that ``wanted`` gives, or a library is not
            installed.
    """
    if wanted.channels not in (0, 1, 3, 4) or isinstance(wanted.channels, bool):
        raise ConfigError(f"channels must be 0, 1, 3 or 4, not {wanted.channels!r}")
    # For its error alone: a wrong name fails whatever the picture's format is.
    is_fast(wanted.dct_method)
    try:
        octets = memoryview(contents).cast("B")
    except TypeError:
        raise ConfigError(
            f"contents must be the bytes of one picture, not {type(contents).__name__}; for the "
            "pictures of a stream, give streamrec.Image in features"
        ) from None
    name = format_of(octets)
    if not name:
        raise MalformedImage(
            "the bytes do not begin as a picture of any known format does; check what wrote them"
        )
    if name not in formats:
        raise UnsupportedFormat(
            f"this is a picture in the format {name}, but only {', '.join(formats)} can be decoded "
            "here; convert it"
        )
    picture = _READERS[name][0](octets, wanted)
    # For all formats, before any pixel; some readers must check earlier, too.
    check_size(picture.shape, wanted.max_pixels)
    return picture if wanted.window is None else take_window(picture, wanted.window)


def format_of(contents: Bytes) -> str:
    """Return the name of a picture's format, by its first bytes; ``""`` if it is not known."""
    # The longest pattern has 12 bytes.
    first = bytes(memoryview(contents)[:12])
    # Called for each picture, most of which are of the first formats.
    for name, pattern in _FORMATS:
        if pattern.match(first):
            return name
    return ""


def encode_jpeg(image: Any, quality: int = 95) -> bytes:
    """Encode a JPEG, as ``tf.io.encode_jpeg`` does: with colours at half the resolution.

    Args:
        image: uint8 ``[height, width, channels]``, of 1 (gray) or 3 (RGB) channels.
        quality: From 0 to 100.

    Returns:
        The encoded picture, the very bytes that TensorFlow writes where Pillow has libjpeg-turbo.

    Raises:
        ConfigError: An argument is wrong, or a library is not installed.
    """
    array = _check(image, (np.uint8,), (1, 3))
    if not 0 <= quality <= 100:
        raise ConfigError(f"quality must be a number from 0 to 100, not {quality!r}")
    if max(array.shape) > _MOST_JPEG:
        raise ConfigError(f"no JPEG has a side of more than {_MOST_JPEG} pixels: {array.shape}")
    shown = array[..., 0] if array.shape[2] == 1 else array
    # libjpeg takes 0 for 1, but Pillow for its own default.
    sampling = {} if array.shape[2] == 1 else {"subsampling": "4:2:0"}
    encoded = library().fromarray(shown)
    with _memory_file() as file:
        encoded.save(file, "JPEG", quality=max(quality, 1), dpi=_DENSITY, **sampling)
        file.seek(0)
        return file.read()


def _memory_file() -> BinaryIO:
    """Open an empty file in memory, with a descriptor where the system has such files.

    While Pillow encodes into a descriptor, other threads run.
    """
    # Linux has such files; macOS and Windows have none.
    if not hasattr(os, "memfd_create"):
        return io.BytesIO()
    # Unbuffered, since Pillow writes into the descriptor, past Python's buffer.
    return os.fdopen(os.memfd_create("picture"), "w+b", buffering=0)


_DENSITY = 300, 300
"""Pixels an inch, which TensorFlow writes into every JPEG."""
_MOST_JPEG = 65500
"""libjpeg's JPEG_MAX_DIMENSION."""


def encode_png(image: Any, compression: int = -1) -> bytes:
    """Encode a PNG, as ``tf.io.encode_png`` does.

    Args:
        image: uint8 or uint16 ``[height, width, channels]``, of 1 to 4 channels: gray, gray and
            alpha, RGB, RGBA.
        compression: zlib's level from 0 to 9; -1 is its default.

    Returns:
        The encoded picture, the very bytes that TensorFlow writes where Python has the same zlib.

    Raises:
        ConfigError: An argument is wrong.
    """
    array = _check(image, (np.uint8, np.uint16), (1, 2, 3, 4))
    if not -1 <= compression <= 9:
        raise ConfigError(f"compression must be a number from -1 to 9, not {compression!r}")
    height, width, channels = array.shape
    # PNG's colour types of 1 to 4 channels: gray, gray and alpha, RGB, RGBA.
    depth, kind = array.dtype.itemsize * 8, (0, 4, 2, 6)[channels - 1]
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    # A PNG has the high byte of a number first.
    octets = array.astype(array.dtype.newbyteorder(">")).view(np.uint8).reshape(height, -1)
    data = deflate(octets, octets.shape[1] // width, compression)
    parts = [(b"IDAT", data[at : at + _IDAT]) for at in range(0, len(data), _IDAT)]
    chunks = [(b"IHDR", header), *parts, (b"IEND", b"")]
    return _PNG + b"".join(_chunk(kind, body) for kind, body in chunks)


_IDAT = 8192
"""The most bytes of pixels in a chunk, as libpng writes them."""


def _check(image: Any, dtypes: tuple[Any, ...], channels: tuple[int, ...]) -> npt.NDArray[Any]:
    array = np.ascontiguousarray(image)
    if array.dtype not in dtypes or array.ndim != 3 or array.shape[2] not in channels:
        names = " or ".join(np.dtype(dtype).name for dtype in dtypes)
        raise ConfigError(
            f"image must be {names} [height, width, channels] of {channels[0]} to {channels[-1]} "
            f"channels, not {array.dtype} of shape {array.shape}"
        )
    if not math.prod(array.shape):
        raise ConfigError(f"image of shape {array.shape} has no pixels")
    return array


def _chunk(kind: bytes, body: bytes) -> bytes:
    # The CRC covers the kind and the content, and not the length.
    crc = zlib.crc32(body, zlib.crc32(kind))
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc)
