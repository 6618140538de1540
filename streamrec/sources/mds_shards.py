"""The index, the shards and the columns of MosaicML Streaming (MDS). Nothing is unpickled.

A shard begins with the number of its samples and the offsets of each and of the end, all of them
little-endian uint32. A sample begins with the sizes of those of its columns that have no fixed one,
little-endian uint32 too, and then come the columns. Source: ``streaming/base/format/mds`` of
MosaicML Streaming 0.13, the columns' types in its ``encodings.py``.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import math
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt, ValidationError

from streamrec.errors import ConfigError, DataError, StreamrecError
from streamrec.formats.shards.compression import ZstdError, zstd_library
from streamrec.sources.source import DEFAULT_MEMORY
from streamrec.sources.table_columns import DTYPES
from streamrec.sources.table_values import RowError, as_value, is_emptied, is_rounded
from streamrec.values.columns import BytesColumn, Ragged, offsets_of

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from streamrec.sources.source import Memory
    from streamrec.stores.stored_files import StoredFile

    Value = bytes | str | list[bytes] | npt.NDArray[Any]


SHAPE = "/shape"
"""The end of the name of the feature with an array's shape."""
_BYTES = frozenset({"bytes", "jpeg", "json", "png", "str"})
_TEXTS = {"str_int": "int64", "str_float": "float32", "str_decimal": "float32"}
_LISTS = {"jpeg_array": 0, "jpegarray": 0, "list[jpeg]": 4, "list[png]": 4}
"""Lists of bytes, with the number of bytes before them."""
_NUMBERS = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32",
    34: "float32", 64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
"""The types of numbers, by the byte that stands for them."""
_SCALARS = {
    name: np.dtype(kind).newbyteorder("<")
    for name, kind in [("int", "int64"), *zip(_NUMBERS.values(), _NUMBERS.values(), strict=True)]
}
_DIGITS = "int64", "keeps the digits"
_MANY = (*_LISTS, "ndarray")
"""The encodings of values that are lists."""

Decode = Callable[[bytes], "dict[str, Value]"]
"""A function that returns the values of a column's features, by their names."""


class _MDSColumn(NamedTuple):
    name: str
    encoding: str
    size: int | None
    """The bytes of each value; ``None``: each has its own."""
    decode: Decode | None
    """``None``: no feature has such values."""

    def values(self, data: bytes) -> dict[str, Value]:
        """Return the values of its features in one sample."""
        try:
            return self.decode(data) if self.decode else {}
        except (ValueError, IndexError, KeyError):
            raise RowError(f"column {self.name!r} does not hold what its type says") from None


class MDSColumns:
    """The columns of samples.

    Args:
        columns: The name of each, its encoding, and its size where all values have one.
    """

    def __init__(self, columns: Iterable[tuple[str, str, int | None]]) -> None:
        self._columns = [_MDSColumn(*column, _decoder(*column[:2])) for column in columns]
        self.others = {one.name: one.encoding for one in self._columns if one.decode is None}
        """The encodings of columns whose values no feature has."""
        # An array's shape is a feature beside its values, and is a list like them.
        lists = [one.name for one in self._columns if one.encoding.startswith(_MANY)]
        self._lists = {*lists, *(name + SHAPE for name in lists)}

    def types(self, sample: bytes, takes: Callable[[str], bool] = bool) -> dict[str, str]:
        """Return the types of the features by name.

        Args:
            sample: The first sample.
            takes: Returns whether a feature is written.

        Raises:
            RowError: The sample does not have these columns, or two of them make one feature.
        """
        types: dict[str, str] = {}
        for column, data in zip(self._columns, self._cells(sample), strict=True):
            for name, value in column.values(data).items():
                if name in types and takes(name):
                    raise RowError(
                        f"two columns make the feature {name!r}, and a record has one of a name; "
                        "leave both out with --drop"
                    )
                types[name] = _TEXTS.get(column.encoding) or _type_of(value)
        return types

    def values(
        self, sample: bytes, features: Mapping[str, str], given: Collection[str] = ()
    ) -> dict[str, Value]:
        """Return the values of features in a sample.

        Args:
            sample: The sample.
            features: The types of the features by name.
            given: Features whose type the user named, so numbers may be rounded to float32.

        Raises:
            RowError: The sample does not have them.
        """
        row = self._decode(sample, features)
        for name, dtype in features.items():
            try:
                row[name] = _as_type(row[name], dtype, is_given=name in given)
            except RowError as error:
                raise error.of_column(name) from None
        return row

    def join(self, rows: list[dict[str, Value]], features: Mapping[str, str]) -> dict[str, Any]:
        """Return the values of samples as columns."""
        return {
            name: _join_values([row[name] for row in rows], dtype, is_list=name in self._lists)
            for name, dtype in features.items()
        }

    def _decode(self, sample: bytes, features: Container[str] | None = None) -> dict[str, Value]:
        row: dict[str, Value] = {}
        for column, data in zip(self._columns, self._cells(sample), strict=True):
            # Columns that are not written are not decoded: pictures and JSON are most of a sample.
            names = column.name, column.name + SHAPE
            if features is None or any(name in features for name in names):
                row |= column.values(data)
        return row

    def _cells(self, sample: bytes) -> Iterator[bytes]:
        # Only columns without a fixed size have one in the sample's head.
        count = sum(column.size is None for column in self._columns)
        try:
            numbers = iter(np.frombuffer(sample, "<u4", count).tolist())
            sizes = [next(numbers) if one.size is None else one.size for one in self._columns]
            yield from _parts(sample, 4 * count, sizes)
        except ValueError:
            raise RowError("its columns do not have the sizes that it says") from None


def _decoder(name: str, encoding: str) -> Decode | None:
    if encoding in _BYTES:
        return lambda data: {name: data}
    if encoding in _LISTS:
        return lambda data: {name: _list(data, _LISTS[encoding])}
    if encoding in _TEXTS:
        return lambda data: {name: data.decode()}
    if encoding in _SCALARS:
        return lambda data: {name: np.frombuffer(data, _SCALARS[encoding]).reshape(1)}
    kind, _, form = encoding.partition(":")
    numbers, _, sides = form.partition(":")
    if kind != "ndarray" or numbers not in ("", *_SCALARS):
        return None
    if sides:  # one shape for all, which is for the reader's specs to say
        return lambda data: {name: np.frombuffer(data, _SCALARS[numbers])}
    return lambda data: _array(name, numbers, data)


def _list(data: bytes, skipped: int) -> list[bytes]:
    count = int.from_bytes(data[skipped : skipped + 4], "little")
    start = skipped + 4 + 4 * count
    sizes = np.frombuffer(data, "<u4", count, skipped + 4)
    return list(_parts(data, start, sizes.tolist()))


def _parts(data: bytes, at: int, sizes: Sequence[int]) -> Iterator[bytes]:
    if at + sum(sizes) != len(data):
        raise ValueError
    for size in sizes:
        yield data[at : at + size]
        at += size


def _array(name: str, numbers: str, data: bytes) -> dict[str, Value]:
    """Return an array's values and shape, which stand before them, as may their type."""
    # An encoding without a type of numbers writes that type into each value, as its first byte.
    at = 0 if numbers else 1
    dtype = _SCALARS[numbers or _NUMBERS[data[0]]]
    # One byte holds both the number of sides and the width of each, 1 to 4 bytes by powers of two.
    sides, width = divmod(data[at], 4)
    shape = np.frombuffer(data, f"<u{1 << width}", sides, at + 1)
    values = np.frombuffer(data, dtype, offset=at + 1 + (sides << width))
    # As Python's numbers: a product of int64 may wrap around and match by chance.
    if math.prod(shape.tolist()) != len(values):
        raise ValueError
    return {name: values, name + SHAPE: shape}


def _type_of(value: Value) -> str:
    """Return the type of a feature with such values."""
    if isinstance(value, bytes | str | list):
        return "bytes"
    return "float32" if value.dtype.kind == "f" else "int64"


def _as_type(value: Value, dtype: str, *, is_given: bool) -> Value:
    """Return a value as one of a feature's type.

    Raises:
        RowError: The value is not of the type.
    """
    if isinstance(value, str):
        if dtype == "bytes":
            return value.encode()
        return np.array([as_value(value, dtype, is_given=is_given)], DTYPES[dtype])
    if isinstance(value, bytes | list):
        return value
    if dtype == "bytes":
        # The user named bytes for numbers: they get them as they stand, little-endian.
        return value.tobytes()
    # What overflows is looked for below, and refused by name.
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = value.astype(DTYPES[dtype])
        if value.dtype.kind == "f" and dtype == "int64":
            _refuse_first(narrow != value, value, f"not {dtype}", ("float32", "takes it"))
        elif value.dtype.kind == "f":
            lost = np.isinf(narrow) & np.isfinite(value)
            _refuse_first(lost, value, f"beyond {dtype}", ("bytes", "keeps its bytes"))
            if not is_given and value.dtype == np.float64:
                changed = is_rounded(narrow, value)
                keep = (
                    ("bytes", "keeps its bytes")
                    if (np.abs(np.modf(value)[0]) > 0).any()
                    else _DIGITS
                )
                options = keep, ("float32", "rounds it")
                _refuse_first(changed, value, "changed by float32", *options)
                options = ("bytes", "keeps its bytes"), ("float32", "rounds it")
                _refuse_first(is_emptied(narrow, value), value, "0 as float32", *options)
        # Only uint64 can exceed int64, and then the cast wraps around to a negative number.
        elif value.dtype.kind == "u" and dtype == "int64":
            _refuse_first(narrow < 0, value, f"beyond {dtype}", ("bytes", "keeps its bytes"))
    return narrow


def _refuse_first(is_wrong: Any, values: Any, what: str, *mends: tuple[str, str]) -> None:
    if is_wrong.any():
        raise RowError(f"holds {values[is_wrong][0]}, which is {what}", *mends)


def _join_values(values: list[Any], dtype: str, *, is_list: bool) -> Any:
    """Return the values of all samples as a column."""
    if dtype == "bytes":
        if not values or isinstance(values[0], bytes):
            return BytesColumn.of(values)
        flat: Any = BytesColumn.of([one for value in values for one in value])
    else:
        # The empty one gives the type where there are no samples, which concatenate refuses.
        flat = np.concatenate([np.empty(0, DTYPES[dtype]), *values])
        if not is_list:
            return flat
    return Ragged(flat, offsets_of(np.fromiter(map(len, values), np.int64, len(values))))


INDEX = "index.json"
INDEX_COPIES = 16
"""The memory that an index takes when it is read, in times its bytes: 600 for each shard."""
HEAD = 64 << 10
"""Bytes of one request for offsets; those of samples are one more."""
_OPENED: dict[str, Any] = {
    "bz2": bz2.open,
    "gz": gzip.open,
    "zstd": lambda stored: zstd_library().open(stored),
}
"""Decompression by the name that the index has for it, after which a level may stand."""
# With slashes, as a merged index names shards in subdirectories. Only files that were found below
# the directory are read, so that no name leads out of it.
Name = Annotated[str, Field(pattern=r"^[^/\\\x00]+(/[^/\\\x00]+)*$")]


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
        files: The files below the directory, by their names there.
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
    for shard, names in zip(shards, columns, strict=True):
        _check(shard, names == columns[0], files, url)
        # Such a shard is read as a whole; of others, some samples.
        if shard.zip_data is not None or shard.stored.hashes:
            largest = max(shard.raw_data.bytes, shard.stored.bytes)
            _admit(largest, memory, files[shard.stored.basename])
    return shards


def _check(shard: MDSShard, is_like: bool, files: Mapping[str, StoredFile], url: str) -> None:
    name = shard.stored.basename
    # Streaming writes the level after a colon, as in "zstd:7".
    kind = (shard.compression or "none").partition(":")[0]
    if not is_like:
        raise ConfigError(
            f"{url}: {name} has other columns than the other shards; write it as another dataset"
        )
    # One algorithm that is here is enough; hashes that nothing can check are refused, not ignored.
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
    size = files[name].size if name in files else None
    if size != shard.stored.bytes:
        there = "is not there" if size is None else f"has {size:,} bytes"
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
            # Neither compressed nor hashed: the offsets and the samples alone are requested.
            with file.open(HEAD) as pieces:
                return list(_samples(pieces, shard, first, stop, admit))
        kind = (shard.compression or "").partition(":")[0] if shard.zip_data else ""
        opened = _OPENED.get(kind, nullcontext)
        with _open_checked(file, shard.stored.hashes) as stored, opened(stored) as plain:
            samples = list(_samples(plain, shard, first, stop, admit))
            # The decompressor compares its checksum only where the end is read.
            if stop == shard.samples:
                _check_end(plain)
            return samples
    except StreamrecError:
        raise
    except (ValueError, EOFError, OSError, zlib.error, ZstdError) as error:
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


def _open_checked(file: StoredFile, hashes: Mapping[str, str]) -> IO[bytes]:
    """Open a shard, all of which has the hashes that the index says.

    Raises:
        ValueError: It has others.
    """
    if not hashes:
        return file.open()
    with file.open() as stored:
        # All of it, before the first sample is used: a hash tells nothing of a part.
        data = stored.read()
    for name, digest in hashes.items():
        hashers = _algorithm(name)
        if hashers is not None and hashers(data).hexdigest() != digest:
            raise ValueError(f"its {name} is not the one in the index")
    return io.BytesIO(data)


def _samples(
    stored: IO[bytes], shard: MDSShard, first: int, stop: int, admit: Callable[[int], None]
) -> Iterator[bytes]:
    (count,) = np.frombuffer(_exactly(stored, 4), "<u4").tolist()
    if count != shard.samples:
        raise ValueError(f"it has {count} samples, but the index says {shard.samples}")
    # Behind the number of samples stand the offsets; one more than the samples, for the end of the
    # last.
    stored.seek(4 * (1 + first))
    offsets = np.frombuffer(_exactly(stored, 4 * (stop - first + 1)), "<u4").tolist()
    # So no sample lies in the offsets, after the end, or in another sample.
    bounds = [4 * (count + 2), *offsets, shard.raw_data.bytes]
    if bounds != sorted(bounds):
        raise ValueError("its offsets do not ascend")
    admit(offsets[-1] - offsets[0])
    stored.seek(offsets[0])
    data = _exactly(stored, offsets[-1] - offsets[0])
    for begin, end in pairwise(offsets):
        yield data[begin - offsets[0] : end - offsets[0]]


def _check_end(stored: IO[bytes]) -> None:
    if stored.read(1):  # after the last byte stands a checksum
        raise ValueError("it is longer than the index says")


def _exactly(stored: IO[bytes], size: int) -> bytes:
    data = stored.read(size)
    if len(data) != size:
        raise EOFError
    return data
