"""The results that a Parser must give, from protobuf's messages, one value after the other."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError

from streamrec.kernel.contract import ColumnKind, ColumnPlan, DataType, FaultCode, KernelFault
from streamrec.kernel.messages import MESSAGES
from streamrec.values.columns import BytesColumn, Ragged
from streamrec.values.record_rows import RecordRows

if TYPE_CHECKING:
    from collections.abc import Sequence

LISTS = {DataType.INT64: "int64_list", DataType.FLOAT32: "float_list", DataType.BYTES: "bytes_list"}
NUMPY = {DataType.INT64: np.dtype(np.int64), DataType.FLOAT32: np.dtype(np.float32)}


class Refused(Exception):
    """Its arguments: the code, and the feature if it is about one."""


def expected(
    records: Sequence[bytes], plans: Sequence[ColumnPlan], lists: Sequence[ColumnPlan] | None
) -> Any:
    """Return the rows' values by plan, or the code, row and feature of the first fault."""
    columns: list[list[Any]] = [[] for _ in (*plans, *(lists or ()))]
    for number, record in enumerate(records):
        try:
            row = _row(record, plans, lists)
        except Refused as refused:
            code, feature = refused.args
            return code, number, feature
        for column, values in zip(columns, row, strict=True):
            column.append(values)
    return columns


def found(
    kernel: Any,
    records: Sequence[bytes],
    plans: Sequence[ColumnPlan],
    lists: Sequence[ColumnPlan] | None,
) -> Any:
    """Return an implementation's result in the form of :func:`expected`; check its arrays."""
    try:
        columns = kernel.Parser(plans, lists).parse(RecordRows.of(records))
    except KernelFault as fault:
        assert fault.offset is None or 0 <= fault.offset <= len(records[fault.record])
        return fault.code, fault.record, fault.feature
    pairs = zip(columns, (*plans, *(lists or ())), strict=True)
    return [_as_lists(column, plan, len(records)) for column, plan in pairs]


def _row(
    record: bytes, plans: Sequence[ColumnPlan], lists: Sequence[ColumnPlan] | None
) -> list[Any]:
    kind = MESSAGES["Example" if lists is None else "SequenceExample"]
    try:
        message = kind.FromString(record)
    except DecodeError:
        raise Refused(FaultCode.MALFORMED, None) from None
    features = (message.features if lists is None else message.context).feature
    row = [_feature(features, plan) for plan in plans]
    return row + [_steps(message.feature_lists.feature_list, plan) for plan in lists or ()]


def _feature(features: Any, plan: ColumnPlan) -> Any:
    values = _values(features[plan.name], plan) if plan.name in features else None
    if plan.kind is ColumnKind.VARLEN:
        return values or []
    if values is None:
        if plan.default is None:
            raise Refused(FaultCode.MISSING, plan.name)
        values = _bits(plan.default, plan)
    if plan.kind is ColumnKind.FIXED:
        if len(values) != plan.count:
            raise Refused(FaultCode.WRONG_COUNT, plan.name)
        return nested(values, plan.shape)
    if len(values) != 1:
        raise Refused(FaultCode.WRONG_COUNT, plan.name)
    if len(values[0]) != plan.count:
        raise Refused(FaultCode.WRONG_SIZE, plan.name)
    return nested(list(values[0]), plan.shape)


def _steps(lists: Any, plan: ColumnPlan) -> Any:
    if plan.name in lists:
        return [_values(step, plan) or [] for step in lists[plan.name].feature]
    if plan.default is None:
        raise Refused(FaultCode.MISSING, plan.name)
    return []


def _values(feature: Any, plan: ColumnPlan) -> list[Any] | None:
    kind = feature.WhichOneof("kind")
    if kind is None:
        return None
    if kind != LISTS[plan.dtype]:
        raise Refused(FaultCode.WRONG_KIND, plan.name)
    return _bits(getattr(feature, kind).value, plan)


def _bits(values: Any, plan: ColumnPlan) -> list[Any]:
    """Floats as their bits; all that are no number alike, since Python does not keep their bits."""
    if plan.dtype is not DataType.FLOAT32:
        return list(values)
    numbers = np.array([math.nan if math.isnan(value) else value for value in values], np.float32)
    bits: list[Any] = numbers.view(np.uint32).tolist()
    return bits


def nested(values: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """Return the values as lists of lists, as ``tolist`` of an array of this shape does."""
    objects = np.empty(math.prod(shape), object)
    objects[:] = values
    return objects.reshape(shape).tolist()


def _as_lists(column: Any, plan: ColumnPlan, rows: int) -> Any:
    if plan.kind is ColumnKind.STEPS:
        assert isinstance(column, Ragged)
        assert isinstance(column.values, Ragged)
        return _cut(_cut(_flat(column.values.values, plan), column.values), column)
    if plan.kind is ColumnKind.VARLEN:
        return _cut(_flat(column.values, plan), column)
    if isinstance(column, BytesColumn):
        assert column.item_shape == plan.shape
        return nested(_flat(column, plan), (rows, *plan.shape))
    assert column.shape == (rows, *plan.shape)
    return nested(_flat(column.reshape(-1), plan), column.shape)


def _cut(values: Sequence[Any], ragged: Ragged) -> list[Any]:
    splits = ragged.row_splits
    assert splits.dtype == np.int64
    assert splits.flags.writeable
    assert (splits[0], splits[-1]) == (0, len(values))
    bounds = splits.tolist()
    return [list(values[a:b]) for a, b in pairwise(bounds)]


def _flat(values: Any, plan: ColumnPlan) -> list[Any]:
    if plan.kind is ColumnKind.RAW:
        assert values.dtype == np.uint8
        return list(values.tolist())
    if plan.dtype is DataType.BYTES:
        assert isinstance(values, BytesColumn)
        assert values.values.dtype == np.uint8
        assert values.offsets.dtype == np.int64
        assert (values.offsets[0], values.offsets[-1]) == (0, len(values.values))
        return BytesColumn(values.values, values.offsets).to_list()
    assert values.dtype == NUMPY[plan.dtype]
    assert values.ndim == 1
    assert values.flags.c_contiguous
    return _bits(values.tolist(), plan)
