"""The index of a key: which value of a feature stands in which record of a dataset.

It is one object beside the index of the dataset. The layout stands in
docs/reference/dataset-index.md. It has a hash of 128 bits in place of each value, so that no two
values are taken for one another. Whoever has it can test whether a value is in it. It comes from
outside, so :meth:`KeyIndex.parse` checks all of it.
"""

from __future__ import annotations

import re
import struct
from abc import ABC, abstractmethod
from codecs import BOM_UTF8
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias
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
VERSION = 1
HASH = np.dtype([("high", "<u8"), ("low", "<u8")])
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
class FeatureIndex(ABC):
    """An index of a feature, which stands beside the index of a dataset: of its records or values.

    Its layout begins with a head, and the columns of the shards; at its end stand the names, and a
    digest of all before.
    """

    MAGIC: ClassVar[bytes]
    HEAD: ClassVar[struct.Struct]
    """Magic, version, numbers of the kind, bytes of text."""
    ABOUT: ClassVar[str]
    OPTION: ClassVar[str]
    """The option of ``streamrec index`` that writes it."""

    feature: str
    names: tuple[str, ...]
    """The shards, named as in the index of the dataset."""
    stamps: tuple[int, ...]
    """What an index said of each shard: see :func:`stamp_of`."""
    counts: tuple[int, ...]
    """The records of each shard."""

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

    @abstractmethod
    def encode(self) -> bytes:
        """Serialize the index."""

    def _encode(self, numbers: Sequence[int], *columns: npt.NDArray[Any]) -> bytes:
        """Serialize the numbers of the head, what all kinds have, and the columns of this one."""
        # A file's name need not be UTF-8: Python holds other bytes as surrogates.
        names = [name.encode(errors="surrogateescape") for name in (*self.names, self.feature)]
        text = b"".join(names)
        shards = (
            np.array(self.counts, "<i8"),
            np.array(self.stamps, "<u8"),
            np.array([len(name) for name in names[:-1]], "<u4"),
        )
        arrays = (column.tobytes() for column in (*shards, *columns))
        head = self.HEAD.pack(self.MAGIC, VERSION, *numbers, len(text))
        body = b"".join((head, *arrays, text))
        return body + blake2b(body, digest_size=_DIGEST).digest()

    @classmethod
    def parse(cls, data: bytes, *, url: str) -> Self:
        """Parse the bytes that :meth:`encode` gave.

        Raises:
            MalformedIndex: The bytes are not such an index, are damaged, or of a later version.
        """
        try:
            return cls._parse(*cls._open(data))
        except (ValueError, OverflowError):
            raise MalformedIndex(
                f"this is not {cls.ABOUT}, or it is damaged; write it again with `streamrec index "
                f"{cls.OPTION} FEATURE`",
                url=url,
            ) from None

    @classmethod
    def _open(cls, data: bytes) -> tuple[Any, ...]:
        """Return all but the digest, and the numbers of the head."""
        if len(data) < cls.HEAD.size + _DIGEST:
            raise ValueError
        magic, version, *numbers = cls.HEAD.unpack_from(data)
        body = data[:-_DIGEST]
        digest = blake2b(body, digest_size=_DIGEST).digest()
        if (magic, version, digest) != (cls.MAGIC, VERSION, data[-_DIGEST:]):
            raise ValueError
        return body, *numbers

    @classmethod
    @abstractmethod
    def _parse(cls, body: bytes, *numbers: int) -> Self:
        """Parse all but the digest; ``numbers`` are those of the head, bytes of text the last."""

    @classmethod
    def _columns(
        cls, body: bytes, *columns: tuple[npt.DTypeLike, int]
    ) -> tuple[list[npt.NDArray[Any]], bytes]:
        """Return the columns behind the head, each of a type and a length, and the rest.

        Raises:
            ValueError: The lengths are more than there is.
        """
        # Each takes 4 bytes at least, so that no array below is larger than the object.
        if max(length for _, length in columns) > len(body) // 4:
            raise ValueError
        arrays, at = [], cls.HEAD.size
        for dtype, length in columns:
            arrays.append(np.frombuffer(body, dtype, length, at))
            at += arrays[-1].nbytes
        return arrays, body[at:]


def texts_of(text: bytes, nbytes: int, lengths: Sequence[int]) -> tuple[tuple[str, ...], str]:
    """Return the names of the shards, and of the feature, from their bytes.

    Raises:
        ValueError: The lengths are more than there is.
    """
    bounds = [0, *accumulate(lengths)]
    if not len(text) == nbytes >= bounds[-1]:
        raise ValueError
    names = (text[a:b].decode(errors="surrogateescape") for a, b in pairwise(bounds))
    return tuple(names), text[bounds[-1] :].decode()


@dataclass(frozen=True, eq=False)
class KeyIndex(FeatureIndex):
    """The values of a feature, and the records that have them."""

    MAGIC = b"STRMRKEY"
    HEAD = struct.Struct("<8sIIQQQ")
    """With the type of the values, the shards and the values."""
    ABOUT = "the index of a key"
    OPTION = "--key"

    dtype: str
    """``"int64"`` or ``"bytes"``."""
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
        names = tuple(entry.name for entry in entries)
        stamps = tuple(map(stamp_of, entries))
        return cls(feature, names, stamps, counts, dtype, hashes[order], records[order])

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
        numbers = TYPES.index(self.dtype), len(self.names), len(self.records)
        return self._encode(numbers, self.hashes, self.records.astype(_number(sum(self.counts))))

    @classmethod
    def _parse(cls, body: bytes, *numbers: int) -> Self:
        kind, shards, values, text_bytes = numbers
        if kind >= len(TYPES):
            raise ValueError
        [counts], _ = cls._columns(body, ("<i8", shards))
        total = sum(counts.tolist())
        if counts.min(initial=0) < 0 or total >= 1 << 63:
            raise ValueError
        columns = ("<i8", shards), ("<u8", shards), ("<u4", shards)
        (_, stamps, lengths, hashes, records), text = cls._columns(
            body, *columns, (HASH, values), (_number(total), values)
        )
        names, feature = texts_of(text, text_bytes, lengths.tolist())
        if not (hashes["high"][1:] >= hashes["high"][:-1]).all():
            raise ValueError
        if values and int(records.max()) >= total:
            raise ValueError
        shown = tuple(stamps.tolist()), tuple(counts.tolist())
        return cls(feature, names, *shown, TYPES[kind], hashes, records.astype(np.int64))


def _number(records: int) -> str:
    """Return the type of a record's number."""
    return "<u4" if records < _WIDE else "<u8"
