"""Functions that make the columns of the specs from a kernel's: compiled once, called per batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from streamrec.errors import ConfigError
from streamrec.formats.examples.composite import (
    compile_ragged,
    compile_shaped,
    compile_sparse,
    numbers_in,
)
from streamrec.formats.examples.dtypes import HELD_AS, numpy_dtype
from streamrec.formats.examples.faults import ColumnFault
from streamrec.formats.examples.image_spec import Image
from streamrec.formats.examples.needs import (
    ZLIB,
    Make,
    Needs,
    column_of,
    inflate,
    row_of,
    values_of,
)
from streamrec.formats.examples.specs import (
    FeatureSpec,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    ShapedFeature,
    SparseFeature,
    VarLenFeature,
)
from streamrec.kernel.contract import ColumnKind, ColumnPlan, DataType
from streamrec.masking import type_of
from streamrec.values.aligned import empty
from streamrec.values.columns import Bytes, BytesColumn, Ragged, offsets_of
from streamrec.values.record_rows import RecordRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from streamrec.formats.examples.needs import Claims
    from streamrec.values.columns import Column


Serialized: TypeAlias = "Sequence[Bytes] | npt.NDArray[np.object_] | BytesColumn"
"""A batch of serialized records."""
_BYTES = (bytes, bytearray, memoryview)


def batch_rows(serialized: Serialized, single: str) -> RecordRows:
    """Return a batch of serialized records as rows.

    Args:
        serialized: The records; also a tensor of TensorFlow.
        single: The name of the function that takes a single record, for the error.

    Raises:
        ConfigError: The argument is a single record, an array of other than one dimension, or
            holds other things than bytes.
    """
    if isinstance(serialized, BytesColumn):
        return RecordRows.from_column(serialized)
    given = _without_tensor(serialized)
    if isinstance(given, (*_BYTES, str)) or getattr(given, "ndim", 1) != 1:
        raise ConfigError(f"serialized must be a batch of records; for one record use {single}")
    return _rows(list(given))


def single_row(serialized: Bytes) -> RecordRows:
    """Return one serialized record as rows.

    Raises:
        ConfigError: It is not bytes.
    """
    given = _without_tensor(serialized)
    is_scalar = getattr(given, "ndim", None) == 0 and hasattr(given, "item")
    return _rows([given.item() if is_scalar else given])


def _without_tensor(serialized: Any) -> Any:
    return serialized.numpy() if hasattr(serialized, "numpy") else serialized


def _rows(records: list[Any]) -> RecordRows:
    # One look at the types spares the usual batch a check of each record.
    if not set(map(type, records)) <= {bytes}:
        records = list(map(_without_tensor, records))
        wrong = [one for one in records if not isinstance(one, _BYTES)]
        if wrong:
            raise ConfigError(
                f"serialized must hold bytes, not {type_of(wrong[0])}; "
                "give messages as SerializeToString() or encode_example return them"
            )
    return RecordRows.of(records)


_OFFSET = 8
"""Bytes of the place of a string, which an empty one has too."""


def compile_spec(
    name: str, spec: FeatureSpec, needs: Needs, kind: ColumnKind, *, pad: bool
) -> Make:
    """Return a function that makes the column of a spec.

    Args:
        name: The name in the records of the feature with the values.
        spec: The spec.
        needs: Receives the columns that the kernel has to parse for it.
        kind: ``VARLEN``: of an Example's or a context's features; ``STEPS``: of feature lists.
        pad: Give :class:`FixedLenSequenceFeature` as an array; else as rows of their own length.

    Raises:
        ConfigError: The spec is wrong, or contradicts another spec.
    """
    of_lists = kind is ColumnKind.STEPS
    if isinstance(spec, VarLenFeature):
        return values_of(name, spec.dtype, needs, kind)
    if isinstance(spec, RaggedFeature):
        return compile_ragged(name, spec, needs, kind)
    if isinstance(spec, FixedLenSequenceFeature):
        return (_steps if of_lists else _sequence)(name, spec, needs, pad)
    if isinstance(spec, Image):
        from streamrec.formats.examples.image_columns import compile_image  # and the codecs

        if of_lists and spec.sequence:
            raise ConfigError(
                f"feature {name!r} is a feature list, each step of which holds one picture; leave "
                "sequence out of its Image"
            )
        one = ColumnKind.VARLEN if spec.sequence else ColumnKind.FIXED
        return compile_image(name, spec, needs, ColumnKind.STEPS if of_lists else one)
    if of_lists:
        raise ConfigError(
            f"feature {name!r} is a feature list, which cannot be read by a "
            f"{type(spec).__name__}; use FixedLenSequenceFeature, VarLenFeature, RaggedFeature or "
            f"Image{_of_default(spec)}"
        )
    if isinstance(spec, SparseFeature):
        return compile_sparse(spec, needs)
    if isinstance(spec, ShapedFeature):
        return compile_shaped(name, spec, needs)
    return _raw(name, spec, needs) if spec.raw else _compile_fixed(name, spec, needs)


def _of_default(spec: FeatureSpec) -> str:
    """Return what to give in place of a spec with a default, which no feature list takes."""
    if getattr(spec, "default_value", None) is None:
        return ""
    return (
        ". A list takes no default_value: for records that lack it, give "
        "FixedLenSequenceFeature(..., allow_missing=True), where it has no steps"
    )


def _compile_fixed(name: str, spec: FixedLenFeature, needs: Needs) -> Make:
    given = spec.default_value
    # A scalar's default stands alone in a spec; the kernel takes a tuple.
    default = given if spec.shape or given is None else (given,)
    # A bool's default is a bool, and the kernel's list is of int64.
    if default is not None and HELD_AS[spec.dtype] is DataType.INT64:
        default = tuple(map(int, default))
    plan = ColumnPlan(name, ColumnKind.FIXED, HELD_AS[spec.dtype], spec.shape, default)
    return column_of(plan, spec.dtype, needs, spec.shape)


def _raw(name: str, spec: FixedLenFeature, needs: Needs) -> Make:
    size = math.prod(spec.shape) * numpy_dtype(spec.dtype).itemsize
    if spec.raw == ZLIB:
        return _compressed(name, spec, needs, size)
    default = None if spec.default_value is None else (spec.default_value,)
    plan = ColumnPlan(name, ColumnKind.RAW, DataType.BYTES, (size,), default)
    get = needs.getter(plan, spec.dtype, spec.shape)

    def make(columns: Sequence[Any]) -> Column:
        octets = get(columns)
        return numbers_in(octets, spec.dtype, name).reshape(len(octets), *spec.shape)

    return make


def _compressed(name: str, spec: FixedLenFeature, needs: Needs, size: int) -> Make:
    get = needs.getter(ColumnPlan(name, ColumnKind.FIXED, DataType.BYTES), spec.dtype, spec.shape)

    def make(columns: Sequence[Any]) -> Column:
        strings = get(columns)
        octets = inflate(strings, np.full(len(strings), size, np.int64), name, needs)
        rows = octets.reshape(len(strings), size)
        return numbers_in(rows, spec.dtype, name).reshape(len(strings), *spec.shape)

    return make


def _sequence(name: str, spec: FixedLenSequenceFeature, needs: Needs, pad: bool) -> Make:
    if not spec.allow_missing:
        raise ConfigError(
            f"feature {name!r} may be missing, as any list of an Example may; give its "
            "FixedLenSequenceFeature allow_missing=True"
        )
    get = values_of(name, "bytes" if spec.raw else spec.dtype, needs, ColumnKind.VARLEN)
    count, claims = math.prod(spec.shape), needs.claims if pad else None

    def make(columns: Sequence[Column]) -> Column:
        column: Any = get(columns)
        if spec.raw:
            return _raw_items(column.values, column.row_splits, name, spec, claims)
        held = np.diff(column.row_splits)
        odd = np.flatnonzero(held % count)
        if len(odd):
            why = f"which is not a multiple of the {count} that shape {spec.shape} takes"
            raise _odd(int(odd[0]), name, f"the record holds {held[odd[0]]} values, {why}")
        return _items(column.values, column.row_splits // count, name, spec, claims)

    return make


def _steps(name: str, spec: FixedLenSequenceFeature, needs: Needs, pad: bool) -> Make:
    # () says to the kernel that a list may be missing, and None that it may not.
    default = () if spec.allow_missing else None
    dtype = "bytes" if spec.raw else spec.dtype
    plan = ColumnPlan(name, ColumnKind.STEPS, HELD_AS[dtype], default=default)
    get = column_of(plan, dtype, needs, spec.shape)
    count = 1 if spec.raw else math.prod(spec.shape)
    claims = needs.claims if pad else None

    def make(columns: Sequence[Column]) -> Column:
        column: Any = get(columns)
        held = np.diff(column.values.row_splits)
        odd = np.flatnonzero(held != count)
        if len(odd):
            row = row_of(int(odd[0]), column)
            step = odd[0] - column.row_splits[row]
            why = "but a raw one takes 1" if spec.raw else f"but shape {spec.shape} takes {count}"
            raise _odd(row, name, f"step {step} holds {held[odd[0]]} values, {why}")
        if spec.raw:
            return _raw_items(column.values.values, column.row_splits, name, spec, claims)
        return _items(column.values.values, column.row_splits, name, spec, claims)

    return make


def _raw_items(
    strings: Any,
    row_splits: npt.NDArray[np.int64],
    name: str,
    spec: FixedLenSequenceFeature,
    claims: Claims | None,
) -> Column:
    """Return items that are byte strings, each of the bytes of an array."""
    size = math.prod(spec.shape) * numpy_dtype(spec.dtype).itemsize
    held = np.diff(strings.offsets)
    odd = np.flatnonzero(held != size)
    if len(odd):
        item = int(odd[0])
        # "right", since empty rows before the item have the same split.
        row = int(np.searchsorted(row_splits, item, "right")) - 1
        what = f"item {item - row_splits[row]} holds {held[item]} bytes"
        raise _odd(row, name, f"{what}, but shape {spec.shape} of {spec.dtype} takes {size}")
    # All strings are of one size, so that end to end they are the numbers.
    octets = strings.values[strings.offsets[0] : strings.offsets[-1]]
    numbers = numbers_in(Ragged(octets, row_splits * size), spec.dtype, name)
    return _items(numbers, row_splits, name, spec, claims)


def _odd(row: int, name: str, what: str) -> ColumnFault:
    return ColumnFault(row, name, f"{what}; correct the shape, or use VarLenFeature")


def _items(
    values: Any,
    row_splits: npt.NDArray[np.int64],
    name: str,
    spec: FixedLenSequenceFeature,
    claims: Claims | None,
) -> Column:
    """Return rows of items; with claims, which they make first, as rows of one length."""
    items = Ragged(as_items(values, spec.shape), row_splits)
    if claims is None:
        return items
    lengths = np.diff(row_splits)
    each = _OFFSET if isinstance(values, BytesColumn) else values.itemsize
    # Every row becomes as long as the longest: one long record multiplies the batch.
    count = len(lengths) * int(lengths.max(initial=0))
    claims.rows(lengths, count, each * math.prod(spec.shape), name)
    return pad(items, spec.default_value)


def as_items(
    values: npt.NDArray[Any] | BytesColumn, shape: tuple[int, ...]
) -> npt.NDArray[Any] | BytesColumn:
    """Return flat values as items of a shape, in the same memory."""
    if isinstance(values, BytesColumn):
        return BytesColumn(values.values, values.offsets, shape)
    # The number of items is given, since NumPy cannot infer it where there are no values.
    return values.reshape(len(values) // math.prod(shape), *shape)


def pad(column: Ragged, default: Any) -> npt.NDArray[Any] | BytesColumn:
    """Return the rows as one column ``[rows, longest, *shape]``.

    Args:
        column: Rows of items.
        default: The value that fills up short rows; ``None`` means 0 or ``b""``.
    """
    lengths = np.diff(column.row_splits)
    longest = int(lengths.max(initial=0))
    values = column.values
    if isinstance(values, BytesColumn):
        return _pad_strings(values, lengths, longest, default or b"")
    if isinstance(values, np.ndarray) and len(values) == len(lengths) * longest:
        return values.reshape(len(lengths), longest, *values.shape[1:])
    return column.to_dense(default)


def _pad_strings(
    values: BytesColumn, lengths: npt.NDArray[np.int64], longest: int, default: bytes
) -> BytesColumn:
    each = values.strings_per_row
    given = np.repeat(np.arange(longest) < lengths[:, None], each)
    sizes = np.full(len(given), len(default), np.int64)
    sizes[given] = np.diff(values.offsets)
    octets = values.values
    # An empty default takes no bytes, so that the given strings stay where they are.
    if default and not given.all():
        own = np.repeat(given, sizes)
        octets = empty((len(own),), np.uint8)
        octets[own] = values.values
        octets[~own] = np.tile(np.frombuffer(default, np.uint8), int((~given).sum()))
    return BytesColumn(octets, offsets_of(sizes), (longest, *values.item_shape), len(lengths))
