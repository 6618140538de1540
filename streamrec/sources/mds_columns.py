"""The columns of MDS samples, as MosaicML Streaming encodes them. Nothing is unpickled.

A sample has the sizes of those of its columns that have no fixed one, as little-endian uint32, and
then the columns. Source: ``streaming/base/format/mds/encodings.py`` of MosaicML Streaming 0.13.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrec.sources.table_columns import DTYPES
from streamrec.sources.table_values import RowError, as_value, is_emptied, is_rounded
from streamrec.values.columns import BytesColumn, Ragged, offsets_of

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

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
        found = self._decoded(sample, features)
        for name, dtype in features.items():
            try:
                found[name] = _as_type(found[name], dtype, is_given=name in given)
            except RowError as error:
                raise error.of_column(name) from None
        return found

    def joined(self, rows: list[dict[str, Value]], features: Mapping[str, str]) -> dict[str, Any]:
        """Return the values of samples as columns."""
        return {
            name: _joined([row[name] for row in rows], dtype, is_list=name in self._lists)
            for name, dtype in features.items()
        }

    def _decoded(self, sample: bytes, features: Container[str] | None = None) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for column, data in zip(self._columns, self._cells(sample), strict=True):
            names = column.name, column.name + SHAPE
            if features is None or any(name in features for name in names):
                found |= column.values(data)
        return found

    def _cells(self, sample: bytes) -> Iterator[bytes]:
        own = sum(column.size is None for column in self._columns)
        try:
            given = iter(np.frombuffer(sample, "<u4", own).tolist())
            sizes = [next(given) if one.size is None else one.size for one in self._columns]
            yield from _parts(sample, 4 * own, sizes)
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
    at = 0 if numbers else 1
    dtype = _SCALARS[numbers or _NUMBERS[data[0]]]
    sides, width = divmod(data[at], 4)
    shape = np.frombuffer(data, f"<u{1 << width}", sides, at + 1)
    values = np.frombuffer(data, dtype, offset=at + 1 + (sides << width))
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
        return value.tobytes()
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
        elif value.dtype.kind == "u" and dtype == "int64":
            _refuse_first(narrow < 0, value, f"beyond {dtype}", ("bytes", "keeps its bytes"))
    return narrow


def _refuse_first(is_wrong: Any, values: Any, what: str, *mends: tuple[str, str]) -> None:
    if is_wrong.any():
        raise RowError(f"holds {values[is_wrong][0]}, which is {what}", *mends)


def _joined(values: list[Any], dtype: str, *, is_list: bool) -> Any:
    """Return the values of all samples as a column."""
    if dtype == "bytes":
        if not values or isinstance(values[0], bytes):
            return BytesColumn.of(values)
        flat: Any = BytesColumn.of([one for value in values for one in value])
    else:
        flat = np.concatenate([np.empty(0, DTYPES[dtype]), *values])
        if not is_list:
            return flat
    return Ragged(flat, offsets_of(np.fromiter(map(len, values), np.int64, len(values))))
