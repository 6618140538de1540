"""The index of a key: which value of a feature stands in which record of a dataset.

It is one object beside the index of the dataset. The layout stands in
docs/reference/dataset-index.md. It has a hash of 128 bits in place of each value, so that no two
values are taken for one another. Whoever has it can test whether a value is in it. It comes from
outside, so :meth:`KeyIndex.parse` checks all of it.
"""

from __future__ import annotations

import re
import struct
from codecs import BOM_UTF8
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Self, TypeAlias
from urllib.parse import quote

import numpy as np

from streamrec.config.places import is_http
from streamrec.errors import ConfigError, MalformedIndex
from streamrec.formats.shards.index_names import KEYS, SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from streamrec.formats.shards.index import ShardEntry

    Hashes = npt.NDArray[np.void]
    Numbers = npt.NDArray[np.int64]

Value: TypeAlias = "int | bytes"
TYPES = ("int64", "bytes")
"""The types of values, by their numbers in the layout."""
LARGEST = 1 << 30
"""The most bytes of such an index, which has then 53 million values. A larger one is not read."""
MAGIC = b"STRMRKEY"
VERSION = 1
HASH = np.dtype([("high", "<u8"), ("low", "<u8")])
_HEAD = struct.Struct("<8sIIQQQ")
"""Magic, version, type of the values, shards, values, bytes of text."""
_DIGEST = 16
_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,40}\s*")
_SURROGATES = re.compile("[\ud800-\udfff]")
_WIDE = 1 << 32
"""Records of a dataset that has 8 bytes for the number of each, in place of 4."""


def key_url(index: str, feature: str, ending: str = KEYS) -> str:
    """Return the URL of the index of a key, which stands beside an index of that URL.

    Args:
        index: The URL of the index.
        feature: The key.
        ending: The end of the name; that of an index of lengths is :data:`.index_names.LENGTHS`.

    Raises:
        ConfigError: No record has a feature of such a name.
    """
    if not feature or not _is_utf8(feature):
        raise ConfigError(f"{feature!r} cannot be the name of a feature; correct it")
    before, suffix, behind = index.rpartition(SUFFIX)
    name = f".{quote(feature, safe='')}{ending}"
    name = quote(name) if is_http(index) else name  # its URLs are encoded
    return f"{before}{name}{behind}" if suffix else f"{index}{name}"


def value_of(text: str | int, feature: str, dtype: str) -> Value:
    """Return a value of a feature from its text: a decimal number, or bytes in UTF-8.

    Raises:
        ConfigError: The feature has integers, and the text is not one of int64; or the text is not
            UTF-8.
    """
    text = str(text)
    if not _is_utf8(text):
        raise ConfigError(f"the value {text!r} is not UTF-8; list the records that have it")
    if dtype == "bytes":
        return text.encode()
    # Python's own integers may have underscores, and digits of other scripts.
    if not _INTEGER.fullmatch(text):
        raise ConfigError(f"{text!r} is not an integer, but {feature!r} has integers")
    number = int(text)
    if not -(1 << 63) <= number < 1 << 63:
        raise ConfigError(f"{text!r} is not an integer of 64 bits, which {feature!r} has")
    return number


def values_in(data: bytes) -> list[str]:
    """Return the values of a file that has one on each line; empty lines have none.

    Raises:
        UnicodeDecodeError: It is not UTF-8.
    """
    # Lines of bytes, as those of texts end also at characters that a value may have, such as
    # U+2028. Some editors begin a file with a mark of its encoding.
    lines = data.removeprefix(BOM_UTF8).splitlines()
    return [line.decode() for line in lines if line]


def _is_utf8(text: str) -> bool:
    # The surrogates of Python, which stand for other bytes, are what UTF-8 cannot hold.
    return not _SURROGATES.search(text)


def hashes_of(values: Sequence[Value]) -> Hashes:
    """Return the hash of each value, of 128 bits."""
    octets = (
        value if isinstance(value, bytes) else value.to_bytes(8, "little", signed=True)
        for value in values
    )
    joined = b"".join(blake2b(value, digest_size=16).digest() for value in octets)
    return np.frombuffer(joined, HASH)


def stamp_of(entry: ShardEntry) -> int:
    """Return a hash of 64 bits of what an index says of a shard's content."""
    hashed = blake2b(struct.pack("<qq", entry.size, entry.records), digest_size=8)
    for column in (entry.begins, entry.first_records, entry.crcs):
        hashed.update(np.asarray(column, "<i8").tobytes())
    return int.from_bytes(hashed.digest(), "little")


@dataclass(frozen=True, eq=False)
class KeyIndex:
    """The values of a feature, and the records that have them."""

    feature: str
    dtype: str
    """``"int64"`` or ``"bytes"``."""
    names: tuple[str, ...]
    """The shards, named as in the index of the dataset."""
    stamps: tuple[int, ...]
    """What an index said of each shard: see :func:`stamp_of`."""
    counts: tuple[int, ...]
    """The records of each shard."""
    hashes: Hashes
    """``HASH [values]``, ascending."""
    records: Numbers
    """int64 ``[values]``: the record of each value, numbered over all shards."""

    def __repr__(self) -> str:
        return f"<KeyIndex of {len(self.records)} values of {self.feature!r}>"

    @classmethod
    def of(
        cls,
        feature: str,
        dtype: str,
        entries: Sequence[ShardEntry],
        parts: Sequence[tuple[Hashes, Numbers]],
    ) -> Self:
        """Make the index of what was read of each shard.

        Args:
            feature: The feature.
            dtype: The type of its values.
            entries: What the index of the dataset says of each shard.
            parts: For each shard the hashes of its values, and the number of the record of each.
        """
        counts = tuple(entry.records for entry in entries)
        firsts = [0, *accumulate(counts)][: len(counts)]
        hashes = np.concatenate([np.empty(0, HASH), *(part for part, _ in parts)])
        numbers = [part + first for (_, part), first in zip(parts, firsts, strict=True)]
        records = np.concatenate([np.empty(0, np.int64), *numbers])
        order = np.lexsort((records, hashes["low"], hashes["high"]))
        return cls(
            feature,
            dtype,
            tuple(entry.name for entry in entries),
            tuple(map(stamp_of, entries)),
            counts,
            hashes[order],
            records[order],
        )

    @cached_property
    def _shards(self) -> Mapping[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    @cached_property
    def _firsts(self) -> Numbers:
        return np.array([0, *accumulate(self.counts)], np.int64)

    def shard_of(self, entry: ShardEntry) -> int | None:
        """Return the number of a shard here; ``None``: it has another content, or is not here."""
        number = self._shards.get(entry.name)
        return number if number is not None and self.stamps[number] == stamp_of(entry) else None

    def find(self, values: Iterable[Value]) -> tuple[Numbers, Numbers, int]:
        """Find the records that have one of some values.

        Returns:
            The shard's number here and the number in it of each record, each record once; and how
            many of the values no record has.
        """
        wanted = hashes_of(sorted({*values}))
        high, low = self.hashes["high"], self.hashes["low"]
        begins = np.searchsorted(high, wanted["high"], "left").tolist()
        ends = np.searchsorted(high, wanted["high"], "right").tolist()
        found, missing = [np.empty(0, np.int64)], 0
        for begin, end, one in zip(begins, ends, wanted["low"], strict=True):
            own = self.records[begin:end][low[begin:end] == one]
            found.append(own)
            missing += not len(own)
        records = np.unique(np.concatenate(found))
        shards = np.searchsorted(self._firsts, records, "right") - 1
        return shards, records - self._firsts[shards], missing

    def encode(self) -> bytes:
        """Serialize the index."""
        # A file's name need not be UTF-8: Python holds other bytes as surrogates.
        names = [name.encode(errors="surrogateescape") for name in (*self.names, self.feature)]
        text = b"".join(names)
        kind, shards = TYPES.index(self.dtype), len(self.names)
        body = b"".join(
            (
                _HEAD.pack(MAGIC, VERSION, kind, shards, len(self.records), len(text)),
                np.array(self.counts, "<i8").tobytes(),
                np.array(self.stamps, "<u8").tobytes(),
                np.array([len(name) for name in names[:-1]], "<u4").tobytes(),
                self.hashes.tobytes(),
                self.records.astype(_number(sum(self.counts))).tobytes(),
                text,
            )
        )
        return body + blake2b(body, digest_size=_DIGEST).digest()

    @classmethod
    def parse(cls, data: bytes, *, url: str) -> Self:
        """Parse the bytes that :meth:`encode` gave.

        Raises:
            MalformedIndex: The bytes are not such an index, are damaged, or of a later version.
        """
        try:
            return cls._parse(data)
        except (ValueError, OverflowError):
            raise MalformedIndex(
                "this is not the index of a key, or it is damaged; write it again with `streamrec "
                "index --key FEATURE`",
                url=url,
            ) from None

    @classmethod
    def _parse(cls, data: bytes) -> Self:
        if len(data) < _HEAD.size + _DIGEST:
            raise ValueError
        magic, version, kind, shards, values, text_bytes = _HEAD.unpack_from(data)
        if magic != MAGIC or version != VERSION or kind >= len(TYPES):
            raise ValueError
        body = data[:-_DIGEST]
        if blake2b(body, digest_size=_DIGEST).digest() != data[-_DIGEST:]:
            raise ValueError
        # Each takes 16 bytes at least, so that no array below is larger than the object.
        if max(shards, values) > len(body) // 16:
            raise ValueError
        at, arrays = _HEAD.size, []
        for dtype, count in (("<i8", shards), ("<u8", shards), ("<u4", shards), (HASH, values)):
            arrays.append(np.frombuffer(body, dtype, count, at))
            at += arrays[-1].nbytes
        counts, stamps, lengths, hashes = arrays
        total = sum(counts.tolist())
        if total >= 1 << 63:
            raise ValueError
        records = np.frombuffer(body, _number(total), values, at)
        text = body[at + records.nbytes :]
        bounds = [0, *accumulate(lengths.tolist())]
        rises = bool((hashes["high"][1:] >= hashes["high"][:-1]).all())
        is_whole = len(text) == text_bytes >= bounds[-1]
        if not rises or not is_whole or counts.min(initial=0) < 0:
            raise ValueError
        if values and int(records.max()) >= total:
            raise ValueError
        names = [text[a:b].decode(errors="surrogateescape") for a, b in pairwise(bounds)]
        return cls(
            text[bounds[-1] :].decode(),
            TYPES[kind],
            tuple(names),
            tuple(stamps.tolist()),
            tuple(counts.tolist()),
            hashes,
            records.astype(np.int64),
        )


def _number(records: int) -> str:
    """Return the type of a record's number."""
    return "<u4" if records < _WIDE else "<u8"
