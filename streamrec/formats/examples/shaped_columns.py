"""Columns of arrays whose shapes are in the records, and the numbers in byte strings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.formats.examples.dtypes import numpy_dtype
from streamrec.formats.examples.faults import OCTETS, SIZES, ColumnFault
from streamrec.formats.examples.needs import Make, Needs, row_of, values_of
from streamrec.kernel.contract import LARGEST_MESSAGE, ColumnKind, ColumnPlan, DataType
from streamrec.values.columns import Arrays, Ragged, volumes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from streamrec.formats.examples.specs import ShapedFeature
    from streamrec.values.columns import Column, Indices


def compile_shaped(name: str, spec: ShapedFeature, needs: Needs) -> Make:
    """Return a function that makes a column of arrays.

    Raises:
        ConfigError: Another spec contradicts this one.
    """
    key = spec.value_key or name
    get_shapes = _shapes(spec, needs)
    if not spec.raw:
        get_list: Any = values_of(key, spec.dtype, needs, ColumnKind.VARLEN)
    else:
        get_octets = needs.getter(ColumnPlan(key, ColumnKind.FIXED, DataType.BYTES), OCTETS)

    def make(columns: Sequence[Any]) -> Column:
        shapes = get_shapes(columns)
        if not spec.raw:
            column = get_list(columns)
            _check(shapes, np.diff(column.row_splits), key, spec)
            return Arrays(column.values, column.row_splits, shapes)
        octets = get_octets(columns)
        item = numpy_dtype(spec.dtype).itemsize
        _check(shapes, np.diff(octets.offsets), key, spec, item)
        numbers = numbers_in(Ragged(octets.values, octets.offsets), spec.dtype, key)
        return Arrays(numbers, octets.offsets // item, shapes)

    return make


def _shapes(spec: ShapedFeature, needs: Needs) -> Callable[[Sequence[Any]], Indices]:
    """Return a function that gives the records' shapes: int64 ``[rows, dimensions]``."""
    if isinstance(spec.shape, str):
        plan = ColumnPlan(spec.shape, ColumnKind.FIXED, DataType.INT64, (spec.rank or 0,))
        index = needs.add(plan, SIZES)
        # Copied, as the feature may be a column of its own, too.
        return lambda columns: columns[index].copy()
    plans = {key: ColumnPlan(key, ColumnKind.FIXED, DataType.INT64) for key in spec.shape_keys}
    numbers = {key: needs.add(plan, SIZES) for key, plan in plans.items()}

    def stack(columns: Sequence[Any]) -> Indices:
        sides = [columns[numbers[side]] if side in numbers else side for side in spec.shape]
        return np.stack(np.broadcast_arrays(*sides), axis=1)

    return stack


def _check(shapes: Indices, held: Indices, key: str, spec: ShapedFeature, item: int = 1) -> None:
    """Refuse shapes that the values do not fill.

    Args:
        shapes: The records' shapes.
        held: The number of values, or of bytes, that each record holds.
        key: The feature that holds the values.
        spec: The column's.
        item: The bytes of a value, where ``held`` counts bytes.
    """
    counts = volumes(shapes, LARGEST_MESSAGE)
    odd = np.flatnonzero((counts < 0) | (counts * item != held))
    if not len(odd):
        return
    row = int(odd[0])
    shape = f"the shape {tuple(shapes[row].tolist())} of {' and '.join(map(repr, spec.shape_keys))}"
    if counts[row] < 0:
        raise ColumnFault(row, key, f"{shape} is that of no array; correct the record")
    what = f"bytes of {spec.dtype}" if spec.raw else "values"
    raise ColumnFault(
        row,
        key,
        f"{shape} takes {counts[row] * item} {what}, but the record holds {held[row]}; correct the "
        "spec or the record",
    )


def numbers_in(octets: npt.NDArray[np.uint8] | Ragged, dtype: str, name: str) -> npt.NDArray[Any]:
    """Return the numbers in byte strings, end to end: an array ``[numbers]``.

    Args:
        octets: The byte strings: an array ``[rows, size]``, or rows of different sizes.
        dtype: The numbers' dtype, of which each string holds a whole number.
        name: The feature's name, for errors.
    """
    flat: Any = octets.values if isinstance(octets, Ragged) else octets.reshape(-1)
    if dtype == "bool" and (flat > 1).any():
        index = int((flat > 1).argmax())
        raise ColumnFault(
            row_of(index, octets),
            name,
            f"the record's byte string holds {flat[index]}, but a bool is 0 or 1; "
            "give the spec the dtype 'uint8'",
        )
    # The bytes are little-endian; NumPy's computations want the machine's own order.
    own = numpy_dtype(dtype)
    numbers: npt.NDArray[Any] = flat.view(own.newbyteorder("<")).astype(own, copy=False)
    return numbers
