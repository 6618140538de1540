"""PNG, decoded and encoded here, with colours as libpng converts them for TensorFlow.

Pillow decodes the rarer kinds: interlaced, with a transparent colour, of less than 8 bits. It also
decodes all that are damaged, so that it alone judges what is. The others are inflated by ISA-L, or
by zlib where that is not installed, and the kernel undoes their filters.

The filters and the compression of rows are those that libpng chooses. Sources: ISO/IEC 15948 (PNG),
clauses 9 and 12.7; libpng 1.6, pngwutil.c.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrec import kernel
from streamrec.errors import MalformedImage, UnsupportedFormat
from streamrec.formats.images.picture import (
    BAND,
    OutputForm,
    Picture,
    bands,
    library,
    open_picture,
    optional,
    refusing,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Octets = npt.NDArray[np.uint8]


_BAND = 1 << 18
"""Bytes of rows that are filtered at once: their differences take ten times as much memory."""
_MEMORY_LEVEL = 9
"""What zlib may use: TensorFlow's choice."""
_LOOKAHEAD = 262
"""Bytes that zlib looks ahead; a window need not be larger than the data with these."""


def deflate(rows: Octets, pixel: int, level: int) -> bytes:
    """Filter and compress rows.

    Args:
        rows: uint8 ``[height, bytes of a row]``.
        pixel: Bytes of a pixel.
        level: zlib's level from 0 to 9; -1 is its default.
    """
    size = rows.size + len(rows)
    bits = min(15, max(9, (size + _LOOKAHEAD - 1).bit_length()))  # zlib cannot do with 8
    # libpng filters no row of a single pixel, and then leaves zlib its usual strategy.
    strategy = zlib.Z_DEFAULT_STRATEGY if rows.shape == (1, pixel) else zlib.Z_FILTERED
    deflater = zlib.compressobj(level, zlib.DEFLATED, bits, _MEMORY_LEVEL, strategy)
    body = b"".join(map(deflater.compress, _filter(rows, pixel))) + deflater.flush()
    return _header(body[:2], size) + body[2:]


def _header(header: bytes, size: int) -> bytes:
    """Return zlib's header with the smallest window that holds the data (RFC 1950, clause 2.2)."""
    window = min(header[0] >> 4, max(0, (size - 1).bit_length() - 8))
    first, second = window << 4 | zlib.DEFLATED, header[1] & 0xE0
    # The two bytes as a number must be a multiple of 31.
    return bytes([first, second + 31 - (first << 8 | second) % 31])


def _filter(rows: Octets, pixel: int) -> Iterator[bytes]:
    """Yield the rows, each by the filter that leaves the least sum of differences."""
    step = max(1, _BAND // rows.shape[1])
    for begin in range(0, len(rows), step):
        band = rows[begin : begin + step]
        above = np.zeros_like(band)
        # The row above a band's first is the last of the band before; above the picture there are
        # zeros.
        above[begin == 0 :] = rows[max(0, begin - 1) : begin + len(band) - 1]
        differences = _differences(band, above, pixel)
        # As signed bytes: a difference of 255 is one of -1.
        costs = np.minimum(differences, -differences).sum(axis=2, dtype=np.int64)
        usable = _usable(len(rows), rows.shape[1] // pixel)
        best = np.array(usable)[costs[usable].argmin(axis=0)]
        chosen = differences[best, np.arange(len(band))]
        yield np.concatenate([best.astype(np.uint8)[:, None], chosen], axis=1).tobytes()


def _usable(height: int, width: int) -> list[int]:
    """Return the filters that may serve; those that look at what is never there do not."""
    usable = [0, 1, 2, 3, 4]
    # A single row has nothing above it, where filters 2 to 4 look.
    if height == 1:
        usable = [0, 1]
    # A single column has nothing to its left, where filters 1, 3 and 4 look.
    if width == 1:
        usable = [each for each in usable if each in (0, 2)]
    return usable


def _differences(rows: Octets, above: Octets, pixel: int) -> Octets:
    """Return what each filter leaves, uint8 ``[5, rows, bytes of a row]``: the filters 0 to 4."""
    left, corner = np.zeros_like(rows), np.zeros_like(rows)
    left[:, pixel:] = rows[:, :-pixel]
    corner[:, pixel:] = above[:, :-pixel]
    # Wider, as sums and differences of bytes do not fit a byte.
    a, b, c = (each.astype(np.int16) for each in (left, above, corner))
    by_a, by_b, by_c = np.abs(b - c), np.abs(a - c), np.abs(a + b - 2 * c)
    # Of equals the left goes first, then the one above (ISO/IEC 15948, 9.4).
    paeth = np.where(by_b <= by_c, above, corner)
    paeth = np.where((by_a <= by_b) & (by_a <= by_c), left, paeth)
    average = ((a + b) // 2).astype(np.uint8)
    guesses = (np.zeros_like(rows), left, above, average, paeth)
    return np.stack([rows - guess for guess in guesses])


_MOST_INFLATED = 1032
"""Bytes that zlib makes of one byte, at most."""
_MOST_WINDOW = 7
"""The largest window of compressed rows, 32 KiB, as their first byte has it."""
_WEIGHTS = (9797, 19234, 3737)
"""Of red, green and blue in gray, in 1/32768: 0.299 and 0.587, as libpng rounds them."""
_SRGB = 45455
"""The gamma that libpng takes for that of sRGB, in 1/100000."""
_CLOSE = 5000
"""A gamma so close to 1 is 1 to libpng, in 1/100000."""
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Numbers stored for a pixel, by the header's colour type."""
_PALETTE = 3
"""The colour type of pictures with a palette."""
_MOST_COLOURS = 3 * 256
"""Bytes of the largest palette."""
_SMALLEST = 8 + 25 + 12
"""Bytes of a PNG's mark, header and end."""
_CRITICAL = {b"IHDR", b"PLTE", b"IDAT", b"IEND"}
_READABLE = {"P": "RGBA", "1": "L"}
"""Pillow's modes that are converted before their numbers are taken."""
_INTENTS = 4
"""The number of rendering intents that sRGB may have."""


def read(contents: memoryview, wanted: OutputForm) -> Picture:
    """Read a PNG's header, and the chunks before its pixels.

    Raises:
        MalformedImage: The bytes are not a PNG that can be decoded.
        UnsupportedFormat: It is not in the form of the standard.
    """
    library()  # which pictures need it is known only when they come
    contents = _without_extras(contents)
    plain = _plain(contents)
    image = plain or open_picture("PNG", contents)
    depth, kind = contents[24:26]
    held = _CHANNELS.get(kind)
    if bytes(contents[12:16]) != b"IHDR" or not held:
        raise MalformedImage("the PNG does not begin with its header: it is corrupt; replace it")
    if image.height * (image.width * held * depth // 8) > _MOST_INFLATED * len(contents):
        raise MalformedImage(
            f"the PNG has fewer bytes than {image.width} x {image.height} pixels can take: "
            "it is truncated; replace it"
        )
    if image.mode == "P":
        held = 4 if "transparency" in image.info else 3
    shape = image.height, image.width, wanted.channels or held
    dtype = np.uint8 if wanted.bits == 8 else np.uint16
    # Pillow keeps four bytes a pixel, and reads pictures of two bytes a number twice.
    work = 4 * image.height * image.width * (2 if depth == 16 else 1)
    if plain is None:
        return Picture(shape, lambda out: _fill(image, contents, out), dtype, work=work)

    def fill(out: npt.NDArray[Any]) -> None:
        # What is damaged is Pillow's to judge, and to name.
        if not _fill_plain(plain, contents, out):
            _fill(open_picture("PNG", contents), contents, out)

    return Picture(shape, fill, dtype, work=max(work, plain.work))


class _Plain(NamedTuple):
    """The header of a PNG whose rows are undone here, named as by Pillow's images."""

    height: int
    width: int
    mode: str
    """``"P"`` for a palette."""
    info: dict[str, Any]
    """The gamma and the intent, as Pillow gives them."""
    row: int
    """Bytes of a row."""
    pixel: int
    """Bytes of a pixel."""
    palette: bytes
    pieces: tuple[slice, ...]
    """The places of the compressed rows: the contents of the chunks IDAT."""
    end: int
    """The byte after the picture's last chunk."""

    @property
    def colours(self) -> npt.NDArray[np.uint32]:
        """The palette as RGB and a byte without meaning; black where it has no colour."""
        colours = np.zeros((256, 4), np.uint8)
        given = np.frombuffer(self.palette, np.uint8).reshape(-1, 3)
        colours[: len(given), :3] = given
        return colours.view(np.uint32)[:, 0]

    @property
    def work(self) -> int:
        """Bytes that decoding takes besides the array."""
        # The compressed rows joined; the filtered ones, of which zlib joins blocks; the rows.
        joined: int = sum(piece.stop - piece.start for piece in self.pieces)
        return joined + self.height * (2 * (self.row + 1) + self.row)


def _plain(contents: memoryview) -> _Plain | None:
    """Read the chunks of a picture that is decoded here; ``None`` for all others."""
    begins = bytes(contents[8:16]) == b"\0\0\0\x0dIHDR" and len(contents) >= _SMALLEST
    # The twin in Python is slower than Pillow.
    if not begins or kernel.implementation != "native":
        return None
    width, height = (int.from_bytes(contents[at : at + 4], "big") for at in (16, 20))
    depth, kind, compression, filters, interlaced = contents[24:29]
    is_kind = kind in _CHANNELS and depth in (8, 16) and not (kind == _PALETTE and depth == 16)
    if not is_kind or compression or filters or interlaced or not width or not height:
        return None
    info: dict[str, Any] = {}
    palette, pieces, at = b"", [], 8
    while at + 12 <= len(contents):
        end = at + 12 + int.from_bytes(contents[at : at + 4], "big")
        name, body = bytes(contents[at + 4 : at + 8]), slice(at + 8, end - 4)
        if end > len(contents) or name == b"tRNS":
            return None
        if name == b"IDAT":
            pieces.append(body)
        elif not _is_intact(contents, body) or (pieces and name != b"IEND"):
            return None
        elif name == b"PLTE":
            palette = bytes(contents[body])
        elif name == b"gAMA":
            info["gamma"] = int.from_bytes(contents[body], "big") / 100_000
        elif name == b"sRGB":
            info["srgb"] = contents[body.start]
        at = end
        if name == b"IEND":
            break
    else:
        return None
    is_palette = kind == _PALETTE
    if (
        not pieces
        or len(palette) % 3
        or len(palette) > _MOST_COLOURS
        or is_palette != bool(palette)
    ):
        # A palette beside true colours is only a suggestion, and rare.
        return None
    pixel = _CHANNELS[kind] * depth // 8
    mode = "P" if is_palette else "RGB"
    return _Plain(height, width, mode, info, width * pixel, pixel, palette, tuple(pieces), at)


def _codec() -> Any:
    """Return what inflates; ISA-L takes half of zlib's time."""
    return optional("isal.isal_zlib") or zlib


def _is_intact(contents: memoryview, body: slice) -> bool:
    """Return whether a chunk matches the CRC after it, which is over its name, too."""
    stored = int.from_bytes(contents[body.stop : body.stop + 4], "big")
    computed: int = _codec().crc32(contents[body.start - 4 : body.stop])
    return computed == stored


def _fill_plain(plain: _Plain, contents: memoryview, out: npt.NDArray[Any]) -> bool:
    """Decode into an array; return whether there was nothing to object to."""
    filtered = _inflated(plain, contents)
    if filtered is None:
        return False
    height, width, pixel = plain.height, plain.width, plain.pixel
    depth, rows = contents[24], (plain.height, plain.row)
    is_direct = plain.mode != "P" and depth == 8 and out.dtype == np.uint8 and pixel == out.shape[2]
    octets = out if is_direct else np.empty(rows, np.uint8)
    if not kernel.unfilter(filtered, height, pixel, octets):
        return False
    if is_direct:
        return True
    numbers = octets.view(">u2") if depth == 16 else octets
    step = max(1, BAND // width)
    for top in range(0, height, step):
        some = slice(top, top + step)
        stored = numbers[some].astype(np.uint16) if depth == 16 else numbers[some]
        if plain.mode == "P":
            # By numbers of four bytes, as NumPy takes single ones faster than rows of three.
            stored = plain.colours.take(stored).view(np.uint8)
        stored = stored.reshape(len(stored), width, -1)
        _fill_rows(stored, plain, depth, _gamma(plain.info), out[some])
    return True


def _inflated(plain: _Plain, contents: memoryview) -> bytes | None:
    """Return the filtered rows; ``None`` where they are damaged, too few or too many."""
    if not all(_is_intact(contents, piece) for piece in plain.pieces):
        return None
    pieces, size = plain.pieces, plain.height * (plain.row + 1)
    data = (
        contents[pieces[0]] if len(pieces) == 1 else b"".join(contents[piece] for piece in pieces)
    )
    # ISA-L passes over a window that zlib, and so Pillow, refuses.
    if not data or data[0] >> 4 > _MOST_WINDOW:
        return None
    codec = _codec()
    inflater = codec.decompressobj()
    try:
        # No more than the rows take, whatever the data would grow to.
        rows: bytes = inflater.decompress(data, size)
        more = b"" if inflater.eof else inflater.decompress(inflater.unconsumed_tail, 1)
    except (zlib.error, codec.error):
        return None
    return rows if len(rows) == size and not more and inflater.eof else None


def _without_extras(contents: memoryview) -> memoryview:
    """Return a PNG without the chunks that have no say in its pixels, corrupt or not.

    Pillow refuses some of them that TensorFlow passes over: profiles, texts, frames of an APNG.
    """
    kept: list[memoryview] = []
    first, at, before, last = 0, 8, True, b""  # all from ``first`` to ``at`` is kept
    while at + 12 <= len(contents):
        end = at + 12 + int.from_bytes(contents[at : at + 4], "big")
        kind = bytes(contents[at + 4 : at + 8])
        # What is not a chunk any more is left as it is, for Pillow to refuse.
        if end > len(contents) or not kind.isalpha():
            break
        # Behind the pixels, such chunks come too late to have a say in them.
        before &= kind != b"IDAT"
        if kind[:1].isupper():
            _check_critical(kind, contents[at:end])
            last = kind
        elif before and _counts(kind, contents[at + 8 : end - 4]):
            last = kind
        elif last == b"IDAT" == bytes(contents[end + 4 : end + 8]):
            break  # the pixels are interrupted, which Pillow refuses
        else:
            kept += [contents[first:at]] if first < at else []
            first = end
        at = end
    kept.append(contents[first:])
    return contents if len(kept) == 1 else memoryview(b"".join(kept))


def _check_critical(kind: bytes, chunk: memoryview) -> None:
    """Refuse a chunk that has to be understood and is not; a damaged one is left to Pillow."""
    if kind not in _CRITICAL and zlib.crc32(chunk[4:-4]) == int.from_bytes(chunk[-4:], "big"):
        raise UnsupportedFormat(
            f"the PNG has a chunk {kind.decode()}, which the standard does not have, so that it "
            "is not supported; write it as a PNG of the standard"
        )


def _counts(kind: bytes, body: memoryview) -> bool:
    """Return whether an ancillary chunk before the pixels has a say in them, as in libpng."""
    if kind == b"sRGB":
        return len(body) == 1 and body[0] < _INTENTS
    return kind == b"tRNS" or (kind == b"gAMA" and len(body) == 4)


def _fill(image: Any, contents: memoryview, out: npt.NDArray[Any]) -> None:
    depth, gamma = contents[24], _gamma(image.info)
    with refusing("PNG"):
        # The CRCs, as image.verify() does, after which it would have to be opened again.
        image.fp.seek(image.tile[0][2] - 8)
        image.png.verify()
        for rows, stored in _rows_to_store(image, contents):
            _fill_rows(stored, image, depth, gamma, out[rows])


def _fill_rows(
    stored: npt.NDArray[Any], image: Any, depth: int, gamma: int | None, out: npt.NDArray[Any]
) -> None:
    channels, bits = out.shape[2], out.itemsize * 8
    decoded = stored[..., : 3 if image.mode == "P" or stored.shape[2] > 2 else 1]
    if channels < 3 and decoded.shape[2] == 3:
        decoded = _gray(decoded, gamma, bits)
    opaque = channels % 2 == 0
    out[..., : channels - opaque] = _fit(decoded, bits)
    if opaque:
        out[..., -1:] = _fit(_opacity(stored, image, depth), bits)


def _fit(numbers: npt.NDArray[Any], bits: int) -> npt.NDArray[Any]:
    """Return numbers of 8 or 16 bits as such of ``bits``."""
    if numbers.itemsize * 8 > bits:
        return numbers >> 8
    # 255 becomes 65535.
    return numbers * np.uint16(257) if numbers.itemsize * 8 < bits else numbers


def _rows_to_store(image: Any, contents: memoryview) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
    """Yield rows and their numbers ``[rows, width, channels]``; a palette's colours as RGBA."""
    stored_as = image.tile[0][3]
    if image.mode == "P":
        # Black where the palette has no colour.
        image.palette.palette = image.palette.palette.ljust(768, b"\0")
    if stored_as in ("RGB;16B", "RGBA;16B"):
        # Pillow keeps 8 bits: read as if the low byte came first, it takes these for the high ones.
        low = _read_as(open_picture("PNG", contents), f"{stored_as[:-1]}L")
        for (rows, part), (_, lower) in zip(bands(image), bands(low), strict=True):
            yield rows, np.asarray(part).astype(np.uint16) << 8 | np.asarray(lower)
        return
    if stored_as == "LA;16B":
        _read_as(image, "RGBA")
    for rows, part in bands(image):
        if stored_as == "LA;16B":
            array = np.asarray(part).view(">u2").astype(np.uint16)
        else:
            wanted = _READABLE.get(part.mode)
            array = np.asarray(part.convert(wanted) if wanted else part)
        yield rows, array.reshape(rows.stop - rows.start, image.width, -1)


def _read_as(image: Any, stored_as: str) -> Any:
    image.tile = [(*image.tile[0][:3], stored_as)]
    return image


def _opacity(stored: npt.NDArray[Any], image: Any, depth: int) -> npt.NDArray[Any]:
    """Return the alphas, which a transparent colour may give."""
    key, count = image.info.get("transparency"), stored.shape[2]
    if count % 2 == 0 and (key is not None or image.mode != "P"):
        return stored[..., count - 1 :]
    most = (1 << depth) - 1
    if key is None:  # TensorFlow has libpng fill up with a number that depends on the bits
        return np.full_like(stored[..., :1], most)
    scaled = (np.array(key) & most) * (255 // most or 1)
    clear = (stored == scaled).all(axis=2, keepdims=True)
    return np.where(clear, 0, np.iinfo(stored.dtype).max).astype(stored.dtype)


def _gamma(info: Any) -> int | None:
    """Return the gamma in 1/100000; ``None`` if it is not said, or as good as 1."""
    gamma = _SRGB if "srgb" in info else round(info.get("gamma", 0) * 100_000)
    return gamma if gamma and abs(gamma - 100_000) > _CLOSE else None


def _gray(colours: npt.NDArray[Any], gamma: int | None, bits: int) -> npt.NDArray[Any]:
    """Weigh colours as libpng does: in linear light where the picture says what that is."""
    # libpng's tables then keep 11 of 16 bits (PNG_MAX_GAMMA_8).
    dropped = 5 if bits == 8 and colours.dtype == np.uint16 else 0
    if gamma is None:
        wide = colours.astype(np.uint32)
    else:
        wide = _curve((10**10 + gamma // 2) // gamma, colours.dtype, dropped)[colours]
    weighted = (wide * np.array(_WEIGHTS, np.uint32)).sum(axis=2, dtype=np.uint32, keepdims=True)
    # libpng rounds numbers of 16 bits and those in linear light, and cuts off others.
    rounding = np.uint32(1 << 14 if gamma or colours.dtype == np.uint16 else 0)
    gray = ((weighted + rounding) >> 15).astype(colours.dtype)
    if gamma is not None:
        gray = _curve(gamma, colours.dtype, dropped)[gray].astype(colours.dtype)
    # Where the three are equal, nothing is computed.
    equal = (colours == colours[..., :1]).all(axis=2, keepdims=True)
    return np.where(equal, colours[..., :1], gray)


@lru_cache(8)
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
