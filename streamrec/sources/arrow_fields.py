"""Columns of Arrow as columns of features: their types, and their values.

And Arrow tables as a batch's columns, and back; where Arrow allows it, no copies.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import ConfigError, WrongFeatureType
from streamrec.masking import type_of
from streamrec.sources.table import NOTHING
from streamrec.sources.table_columns import DTYPES
from streamrec.sources.table_values import EXACT, RowError, is_emptied, is_rounded
from streamrec.suggestions import install
from streamrec.values.columns import Arrays, BytesColumn, Ragged, offsets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

LENGTHS = "/row_lengths"
"""The end of the name of the feature with the lengths of a list's inner lists."""


def module(name: str) -> Any:
    """Import a module of pyarrow.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(f"Parquet and Arrow are read by pyarrow; {install('arrow')}") from None


def feature_types(fields: Any, prefix: str = "") -> Iterator[tuple[str, str | None]]:
    """Yield the type of each feature of columns by name; ``None``: no feature has it."""
    for column in fields:
        name, kind = prefix + column.name, _plain_type(column.type)
        if module("pyarrow").types.is_struct(kind):
            yield from feature_types(list(kind), f"{name}/")
        else:
            dtype = _type_of(kind)
            yield name, dtype
            if dtype not in (None, NOTHING) and _is_nested(kind):
                yield name + LENGTHS, "int64"


def _plain_type(kind: Any) -> Any:
    """Return the type of a column's values, without the form in which Arrow keeps them."""
    pyarrow = module("pyarrow")
    if isinstance(kind, pyarrow.BaseExtensionType):
        order = getattr(kind, "permutation", None)
        if order is not None and list(order) != sorted(order):
            return kind  # a tensor whose values stand in another order
        return _plain_type(kind.storage_type)
    if pyarrow.types.is_dictionary(kind) or pyarrow.types.is_run_end_encoded(kind):
        return _plain_type(kind.value_type)
    return kind


def _type_of(kind: Any) -> str | None:
    pyarrow = module("pyarrow")
    types = pyarrow.types
    kind = _plain_type(kind)
    if _is_list(kind):
        # RaggedFeature can hold a list of lists through their lengths, and nothing deeper.
        inner = _plain_type(kind.value_type)
        is_deep = _is_list(inner) and _is_list(_plain_type(inner.value_type))
        return None if is_deep or types.is_struct(inner) else _type_of(inner)
    if types.is_null(kind):
        return NOTHING
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_temporal(kind):
        return None if types.is_interval(kind) else "int64"
    # A decimal without digits after the point is a whole number.
    if types.is_decimal(kind) and kind.scale <= 0:
        return "int64"
    if types.is_floating(kind) or types.is_decimal(kind):
        return "float32"
    return "bytes" if _is_text(kind) else None


def _is_list(kind: Any) -> bool:
    types = module("pyarrow").types
    names = "list", "large_list", "fixed_size_list", "list_view", "large_list_view"
    return any(getattr(types, f"is_{name}")(kind) for name in names)


def _is_nested(kind: Any) -> bool:
    return _is_list(kind) and _is_list(_plain_type(kind.value_type))


def _is_text(kind: Any) -> bool:
    types = module("pyarrow").types
    names = "string", "large_string", "string_view", "binary", "large_binary", "binary_view"
    return any(getattr(types, f"is_{name}")(kind) for name in (*names, "fixed_size_binary"))


def flatten_structs(names: list[str], arrays: Any) -> Iterator[tuple[str, Any]]:
    """Yield the columns that are not structs, and those of structs, by the features' names."""
    types = module("pyarrow").types
    for name, wrapped in zip(names, arrays, strict=True):
        array = _plain(wrapped)
        if types.is_struct(array.type):
            inner = [f"{name}/{column.name}" for column in array.type]
            yield from flatten_structs(inner, array.flatten())  # its own nulls become theirs
        else:
            yield name, array


def _plain(array: Any) -> Any:
    """Return an array of plain values, whatever form Arrow keeps them in."""
    pyarrow, compute = module("pyarrow"), module("pyarrow.compute")
    kind = array.type
    if isinstance(kind, pyarrow.BaseExtensionType):
        is_bool8 = kind.extension_name == "arrow.bool8"
        return compute.not_equal(array.storage, 0) if is_bool8 else _plain(array.storage)
    if pyarrow.types.is_dictionary(kind):
        values = _plain(array.dictionary)
        return _plain(
            pyarrow.DictionaryArray.from_arrays(array.indices, values).dictionary_decode()
        )
    if pyarrow.types.is_run_end_encoded(kind):
        return _plain(compute.run_end_decode(array))
    if pyarrow.types.is_string_view(kind) or pyarrow.types.is_binary_view(kind):
        # Views have no offsets that a column of bytes could use.
        return array.cast(pyarrow.large_binary())
    return array


def column_of(column: Any, dtype: str, name: str, *, is_given: bool) -> tuple[Any, Any]:
    """Return an array of Arrow as a column, with any value where there is none, and its nulls.

    Args:
        column: The array.
        dtype: The feature's type.
        name: The feature's name, for errors.
        is_given: The user named the type, so numbers may be rounded to float32, and NaN among
            whole numbers is a missing value.

    Raises:
        WrongFeatureType: A value is not of the type; the error names the feature and the row.
    """
    array = _plain(column)
    pyarrow, types = module("pyarrow"), module("pyarrow").types
    if types.is_floating(array.type) and dtype == "int64" and is_given:
        is_gap = module("pyarrow.compute").is_nan(array)
        array = module("pyarrow.compute").if_else(is_gap, pyarrow.scalar(None, array.type), array)
    nulls = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    if _is_list(array.type):
        return _as_ragged(array, dtype, name, is_given=is_given), nulls
    # Arrow has no cast from a column of nulls to every type.
    if types.is_null(array.type):
        return _empty_column(len(array), dtype), nulls
    if dtype == "bytes":
        is_text = _is_text(array.type)
        text = array if is_text else array.cast(pyarrow.string())
        return _bytes_column(text.cast(pyarrow.large_binary())), nulls
    if types.is_temporal(array.type):
        # Times have no cast to int64 where they are stored in 32 bits.
        bits = array.type.bit_width
        array = array.cast(pyarrow.int32() if bits == 32 else pyarrow.int64())
    if dtype == "int64":
        return _integers(array, name), nulls
    return _floats(array, name, is_given=is_given), nulls


def _empty_column(rows: int, dtype: str) -> Any:
    if dtype == "bytes":
        return BytesColumn(np.empty(0, np.uint8), np.zeros(rows + 1, np.int64))
    return np.zeros(rows, DTYPES[dtype])


def _refusal(value: Any, what: str, name: str, row: int, *mends: tuple[str, str]) -> Exception:
    error = RowError(f"holds {value}, which is {what}", *mends).of_column(name)
    message = str(error).removeprefix(f"column {name!r} ")
    return WrongFeatureType(message, feature=name, record=row)


def _integers(array: Any, name: str) -> Any:
    """Return whole numbers, of any type that holds them."""
    pyarrow = module("pyarrow")
    try:
        numbers = array.cast(pyarrow.int64())
    # Arrow does not tell which row it was.
    except pyarrow.ArrowInvalid:
        for row, value in enumerate(array.to_pylist()):
            if value is not None and not _is_int64(value):
                is_part = value == value and abs(value) < float("inf") and value != int(value)
                mends = [("float32", "takes it")] if is_part else []
                what = "beyond int64" if abs(value) >= 1 << 63 else "not int64"
                raise _refusal(value, what, name, row, *mends, ("bytes", "makes it text")) from None
        raise
    return numbers.fill_null(0).to_numpy(zero_copy_only=False)


def _is_int64(value: Any) -> bool:
    try:
        return bool(int(value) == value and -(1 << 63) <= value < 1 << 63)
    except (ValueError, OverflowError):  # NaN and infinities
        return False


def _floats(array: Any, name: str, *, is_given: bool) -> Any:
    pyarrow = module("pyarrow")
    most: float = EXACT
    stored = array
    if pyarrow.types.is_decimal(array.type):
        most, array = np.inf, array.cast(pyarrow.float64())
    if pyarrow.types.is_boolean(array.type):
        array = array.cast(pyarrow.int64())
    numbers = array.fill_null(0).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = numbers.astype(np.float32)
        if numbers.dtype.kind in "iu":
            # Back as whole numbers: a float64 would round the large ones, too.
            is_changed = narrow.astype(numbers.dtype) != numbers
        else:
            sizes = np.abs(numbers.astype(np.float64))
            is_lost = np.isinf(narrow) & np.isfinite(sizes)
            is_changed = is_rounded(narrow.astype(np.float64), numbers, most) & ~is_lost
            _refuse_first(is_lost, numbers, "beyond float32", name, ("bytes", "makes it text"))
    if not is_given and numbers.dtype != np.float32:
        keep = "bytes" if is_changed.any() and _has_parts(stored) else "int64"
        options = (keep, "keeps the digits"), ("float32", "rounds it")
        _refuse_first(is_changed, numbers, "changed by float32", name, *options)
        options = ("bytes", "makes it text"), ("float32", "rounds it")
        _refuse_first(is_emptied(narrow, numbers), numbers, "0 as float32", name, *options)
    return narrow


def _has_parts(array: Any) -> bool:
    """Return whether int64 does not take all numbers of a column that becomes float32."""
    types, compute = module("pyarrow").types, module("pyarrow.compute")
    if not types.is_floating(array.type) and not types.is_decimal(array.type):
        return True  # whole ones become float32 where another file has floating ones
    is_whole = compute.equal(compute.trunc(array), array)
    if types.is_floating(array.type):
        is_whole = compute.or_(is_whole, compute.is_nan(array))  # a missing value as int64
    return compute.all(is_whole).as_py() is False


def _refuse_first(
    is_wrong: Any, numbers: Any, what: str, name: str, *mends: tuple[str, str]
) -> None:
    rows = np.flatnonzero(is_wrong)
    if len(rows):
        raise _refusal(numbers[rows[0]], what, name, int(rows[0]), *mends)


def _bytes_column(array: Any) -> BytesColumn:
    _, offsets, data = array.buffers()
    if not len(array):
        return BytesColumn.of([])
    # The buffers are those of the whole array, of which this may be a slice.
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    octets = np.frombuffer(data or b"", np.uint8)
    return BytesColumn(octets, bounds)


def lengths_of(array: Any) -> Ragged:
    """Return the lengths of the lists in lists."""
    return Ragged(_lengths(_plain(array.flatten())), _splits(array))


def _lengths(array: Any) -> Any:
    lengths = module("pyarrow.compute").list_value_length(array).fill_null(0)
    return lengths.to_numpy(zero_copy_only=False).astype(np.int64)


def _splits(array: Any) -> Any:
    return offsets_of(_lengths(array))


def _as_ragged(array: Any, dtype: str, name: str, *, is_given: bool) -> Ragged:
    """Return lists, the values of nested ones flat."""
    splits = _splits(array)
    values = array.flatten()  # without what stands after nulls
    try:
        column, nulls = column_of(values, dtype, name, is_given=is_given)
    except WrongFeatureType as error:
        inner = error.record or 0
        error.record = int(np.searchsorted(splits, inner, "right")) - 1
        raise
    if nulls is not None:
        row = int(np.searchsorted(splits, np.flatnonzero(nulls)[0], "right")) - 1
        raise WrongFeatureType(
            "a null stands in the list; remove it there", feature=name, record=row
        )
    return Ragged(column, splits)


def columns_of(batch: Any) -> dict[str, Any]:
    """Return the columns of a ``pyarrow.RecordBatch``, as ``encode_examples`` takes them.

    Numbers, strings and lists share Arrow's memory. A tensor is the list of its values, as an
    Example stores it. Where a value is null, the feature has no value in that Example.

    Raises:
        WrongFeatureType: A column's type has no representation, or two columns have one name; the
            error names the column.
    """
    names = batch.schema.names
    for name in names:
        if names.count(name) > 1:
            raise WrongFeatureType(
                "two columns have this name, and a record has one feature of a name; rename one",
                feature=name,
            )
    return {name: _column(name, batch.column(name)) for name in names}


def _column(name: str, array: Any) -> Any:
    # Imported in functions, since pyarrow is optional.
    import pyarrow as pa

    kind = array.type
    # Tensors are extensions over lists, and features are flat.
    if isinstance(array, pa.ExtensionArray):
        return _column(name, array.storage)
    if pa.types.is_dictionary(kind):
        return _column(name, array.dictionary_decode())
    if pa.types.is_struct(kind) and {field.name for field in kind} == {"data", "shape"}:
        return _column(name, array.field("data"))  # tensors of different shapes, as Ray has them
    # A column of nulls alone has no type; its features have no value.
    if pa.types.is_null(kind):
        return [[] for _ in range(len(array))]
    if _is_counted_list(kind):
        return _lists(name, array)
    if not (_is_number(kind) or _is_text(kind)):
        raise WrongFeatureType(
            f"the column is of Arrow's type {kind}, which no feature has; cast it to numbers, "
            "strings or lists of them, or leave it out",
            feature=name,
        )
    # Only rows of their own lengths can say that one has no value.
    if array.null_count:
        return [[] if value is None else [value] for value in array.to_pylist()]
    return array.to_numpy(zero_copy_only=False) if _is_number(kind) else _strings(array)


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_counted_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _lists(name: str, array: Any) -> Ragged:
    """Return lists as ragged rows; a null list is an empty one."""
    import pyarrow.compute as pc

    values = array.flatten()  # without what stands after nulls, or outside of a slice
    if values.null_count and not _is_counted_list(values.type):
        raise WrongFeatureType(
            "a list has a null among its values, which no feature can hold; drop or fill it",
            feature=name,
        )
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    splits = offsets_of(lengths.to_numpy(zero_copy_only=False).astype(np.int64))
    return Ragged(_column(name, values), splits)


def _strings(array: Any) -> BytesColumn:
    """Return strings without nulls; their bytes are Arrow's."""
    import pyarrow as pa

    if pa.types.is_fixed_size_binary(array.type):
        width, first, rows = array.type.byte_width, array.offset, len(array)
        offsets = np.arange(first, first + rows + 1, dtype=np.int64) * width
        return BytesColumn(_bytes(array.buffers()[1]), offsets)
    # Views have any number of buffers, and a BytesColumn has one.
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        array = array.cast(pa.large_binary())
    is_large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, places, values = array.buffers()
    offsets = np.zeros(1, np.int64)
    # Arrow may leave out the offsets of an array without rows.
    if places is not None and len(array):
        every = np.frombuffer(places, np.int64 if is_large else np.int32)
        # A slice shares the buffers of the whole, and begins at its offset in them.
        offsets = every[array.offset : array.offset + len(array) + 1].astype(np.int64, copy=False)
    return BytesColumn(_bytes(values), offsets)


def _bytes(buffer: Any) -> Any:
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def arrow_of(columns: Mapping[str, Any], tensors_of: Callable[[NDArray[Any] | Arrays], Any]) -> Any:
    """Return columns as a ``pyarrow.Table``.

    Numbers share the columns' memory; a :class:`BytesColumn` becomes ``large_binary``, a
    :class:`Ragged` a ``large_list``.

    Args:
        columns: The columns of a batch.
        tensors_of: From arrays of several dimensions, one a row and of one shape or of different
            ones, to an Arrow array. Engines have types of their own for them.

    Raises:
        WrongFeatureType: A column has no type in Arrow; the error names it.
    """
    import pyarrow as pa

    def convert(name: str, column: Any) -> Any:
        if isinstance(column, Arrays) or (isinstance(column, np.ndarray) and column.ndim > 1):
            return tensors_of(column)
        try:
            return _array(column)
        except (TypeError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise WrongFeatureType(
                f"the column, {type_of(column)}, has no type in Arrow ({error}); leave it "
                "out of features, or make another of it with map=",
                feature=name,
            ) from None

    return pa.table({name: convert(name, column) for name, column in columns.items()})


def _array(column: Any) -> Any:
    """Return a column as an Arrow array; rows of several values as lists."""
    import pyarrow as pa

    if isinstance(column, Ragged):
        return pa.LargeListArray.from_arrays(pa.array(column.row_splits), _array(column.values))
    if isinstance(column, BytesColumn):
        return _binary(column)
    if not isinstance(column, np.ndarray):
        raise TypeError("only arrays, strings and ragged rows of them have one")
    flat = pa.array(np.ascontiguousarray(column).reshape(-1))
    return _nest(flat, column.shape[1:])


def _binary(column: BytesColumn) -> Any:
    import pyarrow as pa

    offsets = np.ascontiguousarray(column.offsets)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(column.values))]
    strings = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
    return _nest(strings, column.item_shape)


def _nest(values: Any, shape: tuple[int, ...]) -> Any:
    """Return rows of a shape, whose values stand end to end."""
    import pyarrow as pa

    if 0 in shape:
        raise TypeError(f"its rows of the shape {shape} hold nothing")
    for size in reversed(shape):
        values = pa.FixedSizeListArray.from_arrays(values, size)
    return values
