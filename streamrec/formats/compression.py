"""Compressed shards: which compression it is, and its bytes out and in, step by step.

gzip (RFC 1952), zlib (RFC 1950) and Zstandard (RFC 8878) streams hold members, or frames, end to
end; TensorFlow's names for the first two are ``GZIP`` and ``ZLIB``. Input may be cut anywhere.
"""

from __future__ import annotations

import sys
import zlib
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from streamrec import kernel
from streamrec.errors import CorruptCompression, DataError, DecompressionBomb, TruncatedShard
from streamrec.kernel.contract import HEADER

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from streamrec.config import Compression
    from streamrec.types import Bytes

__all__ = ["LIMITS", "Compressor", "Decompressor", "Limits", "detect", "of_name"]

HEAD = HEADER
"""Bytes of a shard's beginning that tell its compression."""
INPUT = 64 << 10
"""Bytes that a library is given at a time: zlib copies what it does not use up at each call."""
OUTPUT = 256 << 10
"""Bytes that it may give at a time: they are small enough to stay in the processor's cache."""

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = b"\x2a\x4d\x18"
"""Behind a byte 0x50 to 0x5f: a skippable frame (RFC 8878, 3.1.2), with which pzstd begins."""
_ZLIB = 0x78
"""The first byte of a zlib stream with a 32 KiB window; the first two are a multiple of 31."""
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
"""Content-Encoding (RFC 9110, 8.4.1; RFC 8878, 7.2): ``deflate`` is the zlib format."""
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "zlib": zlib.MAX_WBITS}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may come out of how little."""

    ratio: int = 1100
    """Bytes out for each byte in. DEFLATE cannot do more than 1,032; zeros in TFRecords come to
    1,028 with gzip, and to 32,000 with zstd."""
    free: int = 256 << 20
    """Bytes of a shard that may come out at any ratio: small shards of zeros are no attack."""
    total: int | None = None
    """Bytes of a shard that may come out at all."""


LIMITS = Limits()


def of_name(url: str, encoding: str | None = None) -> Compression:
    """What a shard's name, or the store's Content-Encoding, says about its compression."""
    suffix = PurePosixPath(url.partition("?")[0]).suffix.lower()
    return _ENCODINGS.get(encoding or "") or _SUFFIXES.get(suffix, "none")


def detect(head: bytes, named: Compression = "none") -> Compression:
    """The compression of a shard that begins so.

    The bytes say more than names do: some servers decompress on the way and some names lie. The CRC
    of the first record's length is looked at first, as other first bytes prove less.

    Args:
        head: The first bytes: ``HEAD`` of them, or all there are.
        named: What the name says; it decides about bytes that are nothing that is known, so that
            the error about them is the right one.
    """
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


class Decompressor:
    """Decompresses one shard, into memory that the caller gives.

    The library is given the object in steps of ``INPUT`` bytes, counted from its first one, and
    asked for ``OUTPUT`` bytes at a time. What a call finds before a fault is lost with it; so that
    this is the same however the bytes come, the calls must follow from the object alone.

    Args:
        kind: ``"gzip"``, ``"zlib"`` or ``"zstd"``.
        url: The shard, for errors.
        limits: What is refused.
    """

    def __init__(self, kind: Compression, *, url: str, limits: Limits = LIMITS) -> None:
        self.kind = kind
        self.url = url
        self.consumed = 0
        """Bytes of the shard, as it is stored, that were used up."""
        self.produced = 0
        """Bytes that came out."""
        self.members = 0
        """Members, or frames, that were begun."""
        self._limits = limits
        self._member: _Member | None = None
        self._step = bytearray()  # what the library is given next
        self._used = 0  # how much of it the library has
        self._out = _NOTHING  # what it gave, and no target has taken
        self._ended = False
        self._fault: DataError | None = None

    def __repr__(self) -> str:
        return f"<Decompressor of {self.kind}, {self.consumed} bytes in, {self.produced} out>"

    @property
    def pending(self) -> bool:
        """Whether more can come out without more going in, or a fault be told."""
        return bool(self._out) or self._fault is not None or self._ready

    def fill(self, source: memoryview, target: memoryview) -> tuple[int, int]:
        """Decompress until the source is used up or the target is full.

        Args:
            source: The bytes that follow those already taken.
            target: Where to write.

        Returns:
            How many bytes of the source were taken, and how many of the target written. Up to
            ``INPUT`` bytes that were taken wait for those behind them, or for :meth:`end`.

        Raises:
            CorruptCompression: The bytes are no such stream, or a checksum in it is wrong.
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
        """No more bytes will go in: what waits for others need not wait."""
        self._ended = True

    def finish(self) -> None:
        """Say that the shard ends here: after :meth:`end`, and once nothing is pending.

        Raises:
            TruncatedShard: It ends inside a member.
            CorruptCompression: A fault that the last ``fill`` found.
            DecompressionBomb: The same.
        """
        if self._fault:
            raise self._fault
        if self._member is not None:
            raise self._error(
                TruncatedShard,
                f"the object ends at byte {self.consumed}, inside its {self.kind} stream; "
                "fetch or write the shard again",
            )

    @property
    def _ready(self) -> bool:
        """Whether the library can be called: with a whole step, or for what it still holds."""
        is_whole = len(self._step) == INPUT or self._ended
        holds = self._member is not None and self._member.pending
        return holds or (is_whole and self._used < len(self._step))

    def _take(self, source: memoryview) -> int:
        if self._used == len(self._step):
            self._step.clear()
            self._used = 0
        part = source[: INPUT - len(self._step)]
        self._step += part
        return len(part)

    def _give(self, target: memoryview) -> int:
        count = min(len(self._out), len(target))
        target[:count] = self._out[:count]
        self._out = self._out[count:] or _NOTHING
        self.produced += count
        return count

    def _call(self) -> None:
        """One call of the library."""
        with memoryview(self._step)[self._used :] as data:
            try:
                self._decompress(data)
            except (zlib.error, zstd.ZstdError) as error:
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
            self._member = _member(self.kind)
        taken, out = self._member.step(data, OUTPUT)
        if self._member.ended:
            taken -= len(self._member.left)
            self._member = None
        self._use(taken)
        self._out = memoryview(out)
        self._check_limits()

    def _use(self, count: int) -> None:
        self._used += count
        self.consumed += count

    def _padding(self, data: memoryview) -> int:
        """Zeros behind a gzip member fill up blocks of tapes and of disks; gzip skips them too."""
        if self.kind != "gzip" or not self.members:
            return 0
        return len(data) - len(bytes(data).lstrip(b"\0"))

    def _check_limits(self) -> None:
        limits, produced = self._limits, self.produced + len(self._out)
        if limits.total is not None and produced > limits.total:
            raise self._error(
                DecompressionBomb,
                f"more than the {limits.total} bytes that are allowed come out of the shard's "
                f"first {self.consumed}",
            )
        if produced > limits.free and produced > limits.ratio * self.consumed:
            raise self._error(
                DecompressionBomb,
                f"{produced} bytes come out of the shard's first {self.consumed}, more than "
                f"{limits.ratio} for one: refused as an attack; if it is none, write the shard "
                f"with gzip, or as several of less than {limits.free >> 20} MiB",
            )

    def _corrupt(self, error: Exception) -> DataError:
        reason = str(error).rpartition(": ")[2].rstrip(".")
        advice = "fetch or write the shard again, or set compression to what it is"
        if self.members > 1:
            advice = f"{self.members - 1} whole streams stand before: cut off what follows them"
        offset = self.consumed - (self._member.held if self._member else 0)
        return CorruptCompression(
            f"what begins at byte {offset} of the object is no intact {self.kind} "
            f"({reason}); {advice}",
            url=self.url,
            offset=offset,
        )

    def _error(self, kind: type[DataError], message: str) -> DataError:
        return kind(message, url=self.url, offset=self.consumed)


_NOTHING = memoryview(b"")


class _Member(Protocol):
    """One member of a stream, as its library decompresses it."""

    pending: bool
    """Whether more can come out without more going in."""
    held: int
    """Bytes that it has taken, and of which not all has come out."""

    @property
    def ended(self) -> bool: ...

    @property
    def left(self) -> bytes:
        """What was taken and, once it has ended, belongs to the next member."""

    def step(self, data: memoryview | bytes, most: int) -> tuple[int, bytes]:
        """Decompress; returns how many bytes were taken, and at most ``most``."""


class _ZlibMember:
    held, left = 0, b""

    def __init__(self, window_bits: int) -> None:
        self.pending = False
        self._stream = zlib.decompressobj(window_bits)

    @property
    def ended(self) -> bool:
        return self._stream.eof

    def step(self, data: memoryview | bytes, most: int) -> tuple[int, bytes]:
        out = self._stream.decompress(data, most)
        left = len(self._stream.unused_data if self.ended else self._stream.unconsumed_tail)
        self.pending = len(out) == most and not self.ended
        return len(data) - left, out


class _ZstdMember:
    def __init__(self) -> None:
        self.pending = False
        self.held = 0
        self._stream = zstd.ZstdDecompressor()

    @property
    def ended(self) -> bool:
        return self._stream.eof

    @property
    def left(self) -> bytes:
        return self._stream.unused_data

    def step(self, data: memoryview | bytes, most: int) -> tuple[int, bytes]:
        out = self._stream.decompress(data, most)
        self.pending = not (self.ended or self._stream.needs_input)
        self.held = self.held + len(data) if self.pending else 0
        return len(data), out


def _member(kind: Compression) -> _Member:
    return _ZstdMember() if kind == "zstd" else _ZlibMember(_WINDOW_BITS[kind])


class Compressor:
    """Compresses one shard at its library's own level; equal data give equal bytes.

    Args:
        kind: ``"gzip"``, ``"zlib"`` or ``"zstd"``.
    """

    def __init__(self, kind: Compression) -> None:
        # Modes: what comes out for all that has gone in so far, and for the stream's end.
        self._stream: _Stream
        if kind == "zstd":
            options: dict[int, int] = {zstd.CompressionParameter.checksum_flag: 1}
            self._stream = zstd.ZstdCompressor(options=options)
            self._modes = zstd.ZstdCompressor.FLUSH_BLOCK, zstd.ZstdCompressor.FLUSH_FRAME
        else:
            self._stream = zlib.compressobj(wbits=_WINDOW_BITS[kind])
            self._modes = zlib.Z_SYNC_FLUSH, zlib.Z_FINISH

    def compress(self, data: Bytes) -> bytes:
        """Take more bytes; gives what comes out of them now."""
        return self._stream.compress(data)

    def flush(self) -> bytes:
        """The rest of what has gone in so far."""
        return self._stream.flush(self._modes[0])

    def finish(self) -> bytes:
        """The stream's end."""
        return self._stream.flush(self._modes[1])


class _Stream(Protocol):
    """What the libraries have in common."""

    def compress(self, data: Bytes, /) -> bytes: ...

    def flush(self, mode: Any, /) -> bytes: ...
