"""The index and the shards of MosaicML Streaming (MDS).

A shard begins with the number of its samples and the offsets of each and of the end, all of them
little-endian uint32. Source: ``streaming/base/format/mds`` of MosaicML Streaming 0.13.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import sys
import zlib
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt, ValidationError

from streamrec.errors import ConfigError, DataError, StreamrecError
from streamrec.sources.source import DEFAULT_MEMORY

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from streamrec.sources.source import Memory
    from streamrec.stores.stored_files import StoredFile

INDEX = "index.json"
INDEX_COPIES = 16
"""The memory that an index takes when it is read, in times its bytes: 600 for each shard."""
HEAD = 64 << 10
"""Bytes of one request for offsets; those of samples are one more."""
_OPENED: dict[str, Any] = {"bz2": bz2.open, "gz": gzip.open, "zstd": zstd.open}
"""Decompression by the name that the index has for it, behind which a level may stand."""
Name = Annotated[str, Field(pattern=r"^[^/\\\x00]+$")]


class _Object(BaseModel):
    basename: Name
    bytes: Annotated[NonNegativeInt, Field(lt=1 << 32)]
    """Offsets have 32 bits."""
    hashes: dict[str, str] = {}
    """Hexadecimal digests of the file, by the names of algorithms."""


class MDSShard(BaseModel):
    """A shard in the index."""

    format: Literal["mds"]
    version: Literal[2]
    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[PositiveInt | None]
    compression: str | None = None
    raw_data: _Object
    zip_data: _Object | None = None
    samples: NonNegativeInt

    @property
    def stored(self) -> _Object:
        """The object that is there: the compressed one, where there is one."""
        return self.zip_data or self.raw_data

    @property
    def columns(self) -> list[tuple[str, str, int | None]]:
        """The names, encodings and sizes of the columns."""
        return list(zip(self.column_names, self.column_encodings, self.column_sizes, strict=True))


class _MDSIndex(BaseModel):
    version: Literal[2]
    shards: list[MDSShard]


def read_index(
    files: Mapping[str, StoredFile], place: str, memory: Memory = DEFAULT_MEMORY
) -> list[MDSShard]:
    """Return the shards of a directory's index.

    Args:
        files: The files of the directory by name.
        place: The directory, for messages.
        memory: The bounds of the index, and of each compressed shard, which is read as a whole.

    Raises:
        ConfigError: There is no index, or streamrec does not read such shards.
        DataError: The index is damaged, or is not that of the files.
        RecordTooLarge: The index or a compressed shard needs more memory than there is.
    """
    if INDEX not in files:
        raise ConfigError(f"{place}: there is no {INDEX}; give the directory that MDSWriter wrote")
    url = str(files[INDEX])
    memory.check(files[INDEX].size, memory.most // INDEX_COPIES, "the index", files[INDEX])
    with files[INDEX].open() as stored:
        data = stored.read(files[INDEX].size)
    try:
        shards = _MDSIndex.model_validate_json(data).shards
        columns = [shard.columns for shard in shards]
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise DataError(f"it is not an index of MDS, version 2, at {where!r}", url=url) from None
    except ValueError:
        raise DataError("shards have columns without a name or a type", url=url) from None
    for shard, own in zip(shards, columns, strict=True):
        _check(shard, own == columns[0], files, url)
        if shard.zip_data is not None or shard.stored.hashes:
            largest = max(shard.raw_data.bytes, shard.stored.bytes)
            _admit(largest, memory, files[shard.stored.basename])
    return shards


def _check(shard: MDSShard, is_like: bool, files: Mapping[str, StoredFile], url: str) -> None:
    name = shard.stored.basename
    kind = (shard.compression or "none").partition(":")[0]
    if not is_like:
        raise ConfigError(f"{url}: the columns of {name} are not those of others; write them apart")
    if shard.stored.hashes and not any(map(_algorithm, shard.stored.hashes)):
        names = ", ".join(shard.stored.hashes)
        raise ConfigError(
            f"{url}: the hashes of {name} are of the kind {names}; to have them checked, run: "
            "pip install xxhash"
        )
    if shard.zip_data is not None and kind not in _OPENED:
        raise ConfigError(
            f"{url}: {name} is compressed by {kind!r}, and streamrec reads {', '.join(_OPENED)}; "
            "write such shards anew"
        )
    found = files[name].size if name in files else None
    if found != shard.stored.bytes:
        there = "is not there" if found is None else f"has {found:,} bytes"
        raise DataError(
            f"{name} {there}, but the index says {shard.stored.bytes:,}; copy it again", url=url
        )


def _admit(size: int, memory: Memory, file: StoredFile) -> None:
    what = "what is read together of the shard"
    memory.check(size, memory.record, what, file)


def samples_of(
    file: StoredFile, shard: MDSShard, first: int, stop: int, memory: Memory = DEFAULT_MEMORY
) -> list[bytes]:
    """Return some samples of a shard.

    Raises:
        DataError: The shard is damaged.
        RecordTooLarge: They need more memory than there is.
        StoreError: It cannot be read.
    """
    admit = partial(_admit, memory=memory, file=file)
    try:
        if shard.zip_data is None and not shard.stored.hashes:
            with file.open(HEAD) as stored:
                return list(_samples(stored, shard, first, stop, admit))
        kind = (shard.compression or "").partition(":")[0] if shard.zip_data else ""
        opened = _OPENED.get(kind, nullcontext)
        with _checked(file, shard.stored.hashes) as stored, opened(stored) as plain:
            found = list(_samples(plain, shard, first, stop, admit))
            if stop == shard.samples:
                _check_end(plain)
            return found
    except StreamrecError:
        raise
    except (ValueError, EOFError, OSError, zlib.error, zstd.ZstdError) as error:
        why = str(error) or "it ends too early"
        raise DataError(f"the shard is damaged: {why}; copy it again", url=str(file)) from None


def _algorithm(name: str) -> Callable[[bytes], Any] | None:
    """Return an algorithm by the name that it has in Streaming; ``None``: it is not here."""
    if name in hashlib.algorithms_available and not name.startswith("shake"):
        return partial(hashlib.new, name, usedforsecurity=False)
    try:
        return getattr(import_module("xxhash"), name, None)
    except ImportError:
        return None


def _checked(file: StoredFile, hashes: Mapping[str, str]) -> IO[bytes]:
    """Open a shard, all of which has the hashes that the index says.

    Raises:
        ValueError: It has others.
    """
    if not hashes:
        return file.open()
    with file.open() as stored:
        data = stored.read()
    for name, digest in hashes.items():
        made = _algorithm(name)
        if made is not None and made(data).hexdigest() != digest:
            raise ValueError(f"its {name} is not the one in the index")
    return io.BytesIO(data)


def _samples(
    stored: IO[bytes], shard: MDSShard, first: int, stop: int, admit: Callable[[int], None]
) -> Iterator[bytes]:
    (count,) = np.frombuffer(_exactly(stored, 4), "<u4").tolist()
    if count != shard.samples:
        raise ValueError(f"it has {count} samples, but the index says {shard.samples}")
    stored.seek(4 * (1 + first))
    offsets = np.frombuffer(_exactly(stored, 4 * (stop - first + 1)), "<u4").tolist()
    bounds = [4 * (count + 2), *offsets, shard.raw_data.bytes]
    if bounds != sorted(bounds):
        raise ValueError("its offsets do not ascend")
    admit(offsets[-1] - offsets[0])
    stored.seek(offsets[0])
    data = _exactly(stored, offsets[-1] - offsets[0])
    for begin, end in pairwise(offsets):
        yield data[begin - offsets[0] : end - offsets[0]]


def _check_end(stored: IO[bytes]) -> None:
    if stored.read(1):  # behind the last byte stands a checksum
        raise ValueError("it is longer than the index says")


def _exactly(stored: IO[bytes], size: int) -> bytes:
    data = stored.read(size)
    if len(data) != size:
        raise EOFError
    return data
