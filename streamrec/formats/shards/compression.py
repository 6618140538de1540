"""The compression of shards: its detection, and decompressing and compressing step by step.

gzip (RFC 1952), zlib (RFC 1950) and Zstandard (RFC 8878) streams hold members, or frames, end to
end; TensorFlow's names for the first two are ``GZIP`` and ``ZLIB``. Input may be cut anywhere.

Files of other kinds than TFRecord shards are known by their first bytes, too.
"""

from __future__ import annotations

import codecs
import sys
import zlib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from streamrec import kernel
from streamrec.errors import (
    ConfigError,
    CorruptCompression,
    DataError,
    DecompressionBomb,
    TruncatedShard,
    UnsupportedFormat,
)
from streamrec.kernel.contract import HEADER

if TYPE_CHECKING:
    from streamrec.config import Compression
    from streamrec.values.columns import Bytes


_WRITE = "`streamrec write` converts it"
_UNPACK = "unpack it first"
_TWICE = "if it is set already, the shard was compressed twice: decompress it once"
_MAGIC = (
    (b"PAR1", f"a Parquet file: {_WRITE}"),
    (b"ARROW1", f"an Arrow file: {_WRITE}"),
    # The first block header of Riegeli, whose hash covers the same bytes in every file.
    (b"\x83\xafp\xd1\r\x88J?", f"an ArrayRecord or Riegeli file: {_WRITE}, if it is ArrayRecord"),
    (b"PK\x03\x04", f"a zip archive: {_UNPACK}, or read a member as zip://name::archive.zip"),
    (b"\xff\xd8\xff", "a JPEG picture: `streamrec write` converts a folder of pictures"),
    (b"\x89PNG", "a PNG picture: `streamrec write` converts a folder of pictures"),
    (b"\x93NUMPY", "a NumPy file: write its rows by streamrec.TFRecordWriter"),
    (b"\x89HDF", "an HDF5 file: write its rows by streamrec.TFRecordWriter"),
    (b"\x80\x04\x95", "a pickle: write its values by streamrec.TFRecordWriter"),
    (b"SQLite form", "an SQLite database: write its rows by streamrec.TFRecordWriter"),
    (b"\x1f\x8b", f"gzip data: set compression to 'gzip'; {_TWICE}"),
    (b"\x28\xb5\x2f\xfd", f"zstd data: set compression to 'zstd'; {_TWICE}"),
    (b"version http", "a pointer of Git LFS: fetch the shard itself by `git lfs pull`"),
    (b"BZh", f"bzip2 data: {_UNPACK}"),
    (b"\xfd7zXZ", f"xz data: {_UNPACK}"),
    (b"\x04\x22\x4d\x18", f"lz4 data: {_UNPACK}"),
    (b"\xff\x06\0\0sNaPpY", f"snappy data: {_UNPACK}"),
)
_TEXT = f"text: {_WRITE}, where it is CSV, JSON lines or text"
_MARKUP = "markup, such as the page of an error: check the URL, or fetch the shard again"
_WHITE = frozenset(b"\t\n\r")
LEAST_TEXT = 4
"""Bytes from which on text is recognised. The first eight bytes of a shard are the length of its
first record, whose upper bytes are 0."""


def hint_at_kind(head: bytes) -> str:
    """Return half a sentence about what the bytes look like, and what to do; or an empty text.

    Args:
        head: The first bytes of a file, 12 of them if it has so many.
    """
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return f"this looks like {kind}"
    if not _is_text(head):
        return ""
    # A byte order mark or blank lines may stand before a page's first tag.
    is_markup = head.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"<")
    return f"this looks like {_MARKUP if is_markup else _TEXT}"


def _is_text(head: bytes) -> bool:
    if len(head) < LEAST_TEXT or any(byte < 32 and byte not in _WHITE for byte in head):
        return False
    try:
        # The last character may be cut off.
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


# Python 3.14 has the module, unless it was built without libzstd; the backport gives older ones
# the same names.
try:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
except ImportError:
    zstd = None  # type: ignore[assignment]
ZstdError: type[Exception] = getattr(zstd, "ZstdError", zlib.error)
"""What the module raises; where it is missing, nothing does."""

HEAD = HEADER
"""The number of a shard's first bytes from which its compression is detected."""
INPUT = 64 << 10
"""Bytes that a library is given at a time. Each call of zlib copies the input that it leaves over.
"""
OUTPUT = 256 << 10
"""The most bytes that a library gives at a time: few enough to stay in the processor's cache."""

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = b"\x2a\x4d\x18"
"""The magic number of a skippable frame after its first byte, which is 0x50 to 0x5f (RFC 8878,
3.1.2). pzstd begins with such a frame."""
_ZLIB = 0x78
"""The first byte of a zlib stream with a 32 KiB window; the first two are a multiple of 31."""
_NEEDS_DICTIONARY = ("Error 2 while decompressing", "Dictionary mismatch")
"""The words of zlib (Z_NEED_DICT) and zstd for a stream whose dictionary is not given."""
_SUFFIXES: dict[str, Compression] = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".zlib": "zlib",
    ".zst": "zstd",
    ".zstd": "zstd",
}
_ENCODINGS: dict[str, Compression] = {
    "gzip": "gzip",
    "x-gzip": "gzip",
    "deflate": "zlib",
    "zstd": "zstd",
}
"""Compressions by Content-Encoding (RFC 9110, 8.4.1; RFC 8878, 7.2); ``deflate`` is zlib's format.
"""
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "zlib": zlib.MAX_WBITS}

RATIO = 1100
"""The most bytes out for each byte in. DEFLATE cannot exceed 1,032; zeros in TFRecords reach 1,028
with gzip, and 32,000 with zstd."""
FREE = 256 << 20
"""Bytes that a shard may become at any ratio, since a small shard of zeros is not an attack."""


def of_name(url: str, encoding: str | None = None) -> Compression:
    """Return the compression that the store's Content-Encoding, or else the suffix, names."""
    # Without the query, which is a signature and may end in anything.
    suffix = PurePosixPath(url.partition("?")[0]).suffix.lower()
    return _ENCODINGS.get(encoding or "") or _SUFFIXES.get(suffix, "none")


def detect(head: bytes, named: Compression = "none") -> Compression:
    """Detect a shard's compression from its first bytes.

    The bytes are more reliable than names: some servers decompress on the way and some names lie.

    Args:
        head: The first ``HEAD`` bytes, or all there are.
        named: The compression that the name says; it is returned for unknown bytes, so that the
            error about them is the right one.
    """
    # The CRC of the first record's length proves more than any magic number.
    if len(head) >= HEAD and _is_frame(head):
        return "none"
    if head.startswith(_GZIP):
        return "gzip"
    if head.startswith(_ZSTD) or (head[1:4] == _SKIPPABLE and head[0] >> 4 == 5):
        return "zstd"
    if len(head) > 1 and head[0] == _ZLIB and int.from_bytes(head[:2], "big") % 31 == 0:
        return "zlib"
    return named


def _is_frame(head: bytes) -> bool:
    return kernel.masked_crc32c(head[:8]) == int.from_bytes(head[8:HEAD], "little")


def zstd_library() -> Any:
    """Return the module of Zstandard.

    Raises:
        ConfigError: This Python does not have it.
    """
    if zstd is None:
        raise ConfigError(
            f"this Python ({sys.executable}) has no module for zstd: Python 3.14 and later are "
            "built without compression.zstd where libzstd is missing; build it again with "
            "libzstd, take another Python, or have the shards in gzip"
        )
    return zstd


class Decompressor:
    """A decompressor of one shard, which writes into the caller's memory.

    The library is given the object in steps of ``INPUT`` bytes, counted from its first one, and
    asked for ``OUTPUT`` bytes at a time. A call that finds a fault loses the bytes before it in
    that step. The steps depend on the object alone, so that the loss is the same however the bytes
    arrive.

    Args:
        kind: ``"gzip"``, ``"zlib"`` or ``"zstd"``.
        url: The shard, for errors.
        ratio: The most bytes out for each byte in; a shard with more is refused as a bomb.
        free: Bytes that may come out at any ratio.
    """

    def __init__(
        self, kind: Compression, *, url: str, ratio: int = RATIO, free: int = FREE
    ) -> None:
        self.kind = kind
        self.url = url
        self.consumed = 0
        """Bytes of the stored shard that were used up."""
        self.produced = 0
        """Bytes that came out."""
        self.members = 0
        """The number of members, or frames, that were begun."""
        self._ratio = ratio
        self._free = free
        self._member: _Member | None = None
        self._step = bytearray()  # the library's input
        self._used = 0  # bytes of it that the library has used
        self._out = _NOTHING  # output that no target has taken yet
        self._ended = False
        self._fault: DataError | None = None

    def __repr__(self) -> str:
        return f"<Decompressor of {self.kind}, {self.consumed} bytes in, {self.produced} out>"

    @property
    def pending(self) -> bool:
        """True while more can come out, or a fault be raised, without more input."""
        return bool(self._out) or self._fault is not None or self._ready

    def fill(self, source: memoryview, target: memoryview) -> tuple[int, int]:
        """Decompress until the source is used up or the target is full.

        Args:
            source: The bytes that follow those already taken.
            target: Where to write.

        Returns:
            How many bytes of the source were taken, and how many of the target written. Up to
            ``INPUT`` bytes that were taken wait for those after them, or for :meth:`end`.

        Raises:
            CorruptCompression: The bytes are not such a stream, or a checksum in it is wrong.
            DecompressionBomb: More comes out than the limits allow.
                What came out before a fault is returned first; the next call raises it.
        """
        taken = given = 0
        while given < len(target) and (self.pending or taken < len(source)):
            if self._out:
                given += self._give(target[given:])
            elif self._fault is not None:
                if given:
                    break
                raise self._fault
            elif self._ready:
                self._call()
            else:
                taken += self._take(source[taken:])
        return taken, given

    def end(self) -> None:
        """Say that no more bytes will go in, so that an incomplete step is decompressed too."""
        self._ended = True

    def finish(self) -> None:
        """Check that the shard ends between members; called after :meth:`end` with nothing pending.

        Raises:
            TruncatedShard: The shard ends inside a member.
            CorruptCompression: The last ``fill`` found this fault.
            DecompressionBomb: The last ``fill`` found this fault.
        """
        if self._fault:
            raise self._fault
        if self._member is not None:
            raise self._error(
                TruncatedShard,
                f"the object ends at byte {self.consumed}, inside its {self.kind} stream: it was "
                "cut short, and the records after this place are missing; fetch or write the shard "
                "again",
            )

    @property
    def _ready(self) -> bool:
        """True where the library can be called: with a whole step, or for output it holds back."""
        is_whole = len(self._step) == INPUT or self._ended
        holds = self._member is not None and self._member.pending
        return holds or (is_whole and self._used < len(self._step))

    def _take(self, source: memoryview) -> int:
        # A step begins only when the one before is used up, so that all are counted from the first
        # byte.
        if self._used == len(self._step):
            self._step.clear()
            self._used = 0
        part = source[: INPUT - len(self._step)]
        self._step += part
        return len(part)

    def _give(self, target: memoryview) -> int:
        count = min(len(self._out), len(target))
        target[:count] = self._out[:count]
        # An empty view of it would hold the library's output in memory.
        self._out = self._out[count:] or _NOTHING
        self.produced += count
        return count

    def _call(self) -> None:
        """Call the library once."""
        # Released at the end of the block: a bytearray that somebody views cannot be cleared.
        with memoryview(self._step)[self._used :] as data:
            try:
                self._decompress(data)
            except (zlib.error, ZstdError) as error:
                self._fault = self._corrupt(error)
            except DataError as error:
                self._fault = error

    def _decompress(self, data: memoryview) -> None:
        if self._member is None:
            padding = self._padding(data)
            if padding:
                self._use(padding)
                return
            self.members += 1
            self._member = _Member(self.kind)
        taken, out = self._member.step(data, OUTPUT)
        # Another one may follow: joined gzip or zstd files are one file.
        if self._member.ended:
            self._member = None
        self._use(taken)
        self._out = memoryview(out)
        self._check_ratio()

    def _use(self, count: int) -> None:
        self._used += count
        self.consumed += count

    def _padding(self, data: memoryview) -> int:
        """Return the number of zeros after a gzip member with which the data begin."""
        # Zeros fill up the blocks of tapes and disks; gzip skips them too.
        if self.kind != "gzip" or not self.members:
            return 0
        return len(data) - len(bytes(data).lstrip(b"\0"))

    def _check_ratio(self) -> None:
        # With what no target has taken yet, or a bomb would be found a call too late.
        produced = self.produced + len(self._out)
        if produced > self._free and produced > self._ratio * self.consumed:
            raise self._error(
                DecompressionBomb,
                f"the shard's first {self.consumed} bytes decompress to {produced}, more than "
                f"{self._ratio} for each, which is refused as an attack; if the shard is yours, "
                f"write it with gzip, or as several of less than {self._free >> 20} MiB",
            )

    def _corrupt(self, error: Exception) -> DataError:
        needs = _name_unsupported(str(error))
        if needs:
            return self._error(
                UnsupportedFormat,
                f"the {self.kind} stream needs {needs}, which is not supported; write the shard "
                f"with {self.kind}'s usual settings",
            )
        # zlib writes "Error -3 while decompressing data: " before the cause.
        reason = str(error).rpartition(": ")[2].rstrip(".")
        advice = "fetch or write the shard again, or set compression to its real one"
        if self.members > 1:
            advice = f"the streams before ({self.members - 1}) are intact, so cut off the rest"
        # What the library still holds is lost, too: its output never came out.
        assert self._member is not None
        offset = self.consumed - self._member.held
        return CorruptCompression(
            f"the data from byte {offset} of the object on are not an intact {self.kind} stream "
            f"({reason}); {advice}",
            url=self.url,
            offset=offset,
        )

    def _error(self, kind: type[DataError], message: str) -> DataError:
        return kind(message, url=self.url, offset=self.consumed)


def _name_unsupported(reason: str) -> str:
    """Return in words what an intact stream needs that is not there; ``""`` if it is corrupt.

    Args:
        reason: The library's words for its failure.
    """
    # The library refuses windows above 2^27 bytes unless it is told otherwise.
    if "requires too much memory" in reason:
        return "a window of more than 128 MiB"
    return "a dictionary" if any(words in reason for words in _NEEDS_DICTIONARY) else ""


_NOTHING = memoryview(b"")


class _Member:
    """A library's decompressor of one member of a stream."""

    def __init__(self, kind: Compression) -> None:
        self.pending = False
        """True while more can come out without more input."""
        self.held = 0
        """Bytes taken of which the output has not all come out."""
        self._is_zstd = kind == "zstd"
        self._stream: Any = (
            zstd_library().ZstdDecompressor()
            if self._is_zstd
            else zlib.decompressobj(_WINDOW_BITS[kind])
        )

    @property
    def ended(self) -> bool:
        return bool(self._stream.eof)

    def step(self, data: memoryview, most: int) -> tuple[int, bytes]:
        """Decompress; return the number of bytes taken, and at most ``most`` bytes of output."""
        stream = self._stream
        out: bytes = stream.decompress(data, most)
        if self._is_zstd:  # which takes all bytes, and holds those that it has no room for
            left = stream.unused_data
            self.pending = not (stream.eof or stream.needs_input)
            self.held = self.held + len(data) if self.pending else 0
        else:
            # zlib gives back what it did not use: in one place at a member's end, else in another.
            left = stream.unused_data if stream.eof else stream.unconsumed_tail
            # A full output may leave more inside, which zlib does not tell; a call costs little.
            self.pending = len(out) == most and not stream.eof
        return len(data) - len(left), out


class Compressor:
    """A compressor of one shard, at the library's default level; equal data give equal bytes.

    Args:
        kind: ``"gzip"``, ``"zlib"`` or ``"zstd"``.
    """

    def __init__(self, kind: Compression) -> None:
        # The two modes of flush: output all that has gone in so far, and end the stream.
        self._stream: Any
        if kind == "zstd":
            library = zstd_library()
            # The library writes no checksum by default, and a flipped bit could pass.
            options: dict[int, int] = {library.CompressionParameter.checksum_flag: 1}
            self._stream = library.ZstdCompressor(options=options)
            self._modes = library.ZstdCompressor.FLUSH_BLOCK, library.ZstdCompressor.FLUSH_FRAME
        else:
            # zlib's own gzip header has no time in it, so that equal data give equal bytes.
            self._stream = zlib.compressobj(wbits=_WINDOW_BITS[kind])
            self._modes = zlib.Z_SYNC_FLUSH, zlib.Z_FINISH

    def compress(self, data: Bytes) -> bytes:
        """Take more bytes, and return the compressed bytes that are ready."""
        return bytes(self._stream.compress(data))

    def flush(self) -> bytes:
        """Return the compressed rest of all bytes taken so far."""
        return bytes(self._stream.flush(self._modes[0]))

    def finish(self) -> bytes:
        """Return the end of the compressed stream."""
        return bytes(self._stream.flush(self._modes[1]))
