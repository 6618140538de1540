"""Columns of Arrow tables as columns of features, and back; where Arrow allows it, no copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import WrongFeatureType
from streamrec.masking import type_of
from streamrec.values.columns import Arrays, BytesColumn, Ragged, offsets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray


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
    if _is_list(kind):
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


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return any(
        of(kind)
        for of in (
            *(types.is_string, types.is_large_string, types.is_string_view),
            *(types.is_binary, types.is_large_binary, types.is_binary_view),
            types.is_fixed_size_binary,
        )
    )


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _lists(name: str, array: Any) -> Ragged:
    """Return lists as ragged rows; a null list is an empty one."""
    import pyarrow.compute as pc

    values = array.flatten()  # without what stands after nulls, or outside of a slice
    if values.null_count and not _is_list(values.type):
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
