"""The parser of Examples and SequenceExamples, by protobuf's own messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.kernel import contract
from streamrec.kernel.contract import (
    ColumnKind,
    ColumnPlan,
    DataType,
    FaultCode,
    KernelFault,
    fresh,
)
from streamrec.values.aligned import align
from streamrec.values.columns import BytesColumn, Ragged, offsets_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from streamrec.kernel.contract import Admit, Allocate
    from streamrec.values.columns import Column
    from streamrec.values.record_rows import RecordRows


class Parser:
    """A parser of serialized messages into columns, for any number of threads.

    It accepts what protobuf accepts: a record that protobuf's parser refuses is ``MALFORMED``, even
    if the fault is in a feature that no plan names. Those features are checked and skipped. If a
    feature occurs twice, the last one counts. A feature without a list is absent.

    Args:
        plans: The columns of an Example's features, or of a SequenceExample's context: ``FIXED``,
            ``VARLEN`` or ``RAW``. No two have the same name.
        lists: The columns of a SequenceExample's feature lists: ``STEPS``. No two have the same
            name. ``None``: the records are Examples.
        allocate: A source of memory for large columns, which the kernel in C uses.
        admit: Called by the kernel in C with the bytes of all columns whose sizes depend on the
            records, and the name of the widest, before their memory is taken. It may raise.
    """

    def __init__(
        self,
        plans: Sequence[ColumnPlan],
        lists: Sequence[ColumnPlan] | None = None,
        allocate: Allocate = fresh,  # noqa: ARG002 - NumPy and protobuf bring their own memory
        admit: Admit | None = None,  # noqa: ARG002 - sizes are known when all is there
    ) -> None:
        self._plans = tuple(plans)
        self._lists = tuple(lists or ())
        self._of_sequences = lists is not None

    def parse(self, rows: RecordRows) -> list[Column]:
        """Parse records into columns.

        Args:
            rows: The serialized messages.

        Returns:
            One column for each of ``plans``, then one for each of ``lists``.

        Raises:
            KernelFault: For the first row that does not fit: the fault of its bytes as a whole,
                else of the first of ``plans`` that it breaks, else of the first of ``lists``.
        """
        plans = (*self._plans, *self._lists)
        builders = [_BUILDERS[plan.kind](plan, len(rows)) for plan in plans]
        split = len(self._plans)
        for row, features, lists in self._messages(rows):
            # Features first: of two faults in a record, that of the earlier plan is told.
            _add(builders[:split], features, row)
            _add(builders[split:], lists, row)
        return [builder.column() for builder in builders]

    def _messages(self, rows: RecordRows) -> Any:
        """Yield the number, the features and the feature lists of each row."""
        from streamrec.kernel.messages import MESSAGES
        from streamrec.values.message_schema import unreadable

        parse = MESSAGES["SequenceExample" if self._of_sequences else "Example"].FromString
        sizes = rows.lengths.tolist()
        for row, payload in enumerate(rows.payloads()):
            if sizes[row] > contract.LARGEST_MESSAGE:
                raise KernelFault(FaultCode.TOO_LARGE, row)
            try:
                message = parse(payload)
            except unreadable():
                raise KernelFault(FaultCode.MALFORMED, row) from None
            if self._of_sequences:
                yield row, message.context.feature, message.feature_lists.feature_list
            else:
                yield row, message.features.feature, None


def _add(builders: Sequence[_Builder], values: Any, row: int) -> None:
    for builder in builders:
        fault = builder.add(values)
        if fault:
            raise KernelFault(fault, row, builder.plan.name)


_LISTS = {
    DataType.INT64: "int64_list",
    DataType.FLOAT32: "float_list",
    DataType.BYTES: "bytes_list",
}
_LONG = 64
"""Values of a list from which one NumPy call (2 us) beats a Python object a value (33 ns)."""


class _Numbers:
    """A collector of numbers for one array."""

    def __init__(self, dtype: type[np.int64 | np.float32]) -> None:
        self._dtype = dtype
        self._chunks: list[npt.NDArray[Any]] = []
        self._run: list[Any] = []

    def extend(self, values: Any) -> None:
        if len(values) < _LONG:
            self._run.extend(values)
        else:
            # The short lists before this one must stand before it.
            if self._run:
                self._end_run()
            self._chunks.append(np.array(values, self._dtype))

    def _end_run(self) -> None:
        self._chunks.append(np.array(self._run, self._dtype))
        self._run.clear()

    def array(self) -> npt.NDArray[Any]:
        # Even without values, since NumPy joins one array at least.
        self._end_run()
        return align(np.concatenate(self._chunks))


class _Strings(list[Any]):
    """A collector of byte strings for one column."""

    def array(self, item_shape: tuple[int, ...] = ()) -> BytesColumn:
        return BytesColumn.of(self, item_shape)


def _collector(dtype: DataType) -> Any:
    if dtype is DataType.BYTES:
        return _Strings()
    return _Numbers(np.int64 if dtype is DataType.INT64 else np.float32)


class _Builder(ABC):
    """A builder of one column, row by row."""

    def __init__(self, plan: ColumnPlan, rows: int) -> None:
        self.plan = plan
        self.rows = rows
        self.list_name = _LISTS[plan.dtype]
        self.values = _collector(plan.dtype)
        # Bound once, as it is called for every feature of every record.
        self.extend = self.values.extend

    @abstractmethod
    def add(self, features: Any) -> FaultCode:
        """Append the row's values, or return their fault."""

    @abstractmethod
    def column(self) -> Column:
        """Return the column of all rows."""

    def why_empty(self, feature: Any) -> FaultCode:
        """Return the fault of a feature without values of the plan's type; ``NONE``: empty list."""
        kind = feature.WhichOneof("kind")
        # As in TensorFlow, a feature without a list is absent.
        if kind is None:
            return FaultCode.MISSING
        return FaultCode.NONE if kind == self.list_name else FaultCode.WRONG_KIND


class _FixedBuilder(_Builder):
    def add(self, features: Any) -> FaultCode:
        # Indexing a protobuf map creates a missing key: an absent feature is one without values.
        feature = features[self.plan.name]
        # Of a oneof's member that is not set, protobuf gives an empty list.
        values = getattr(feature, self.list_name).value
        count = len(values)
        # A list of no values does not tell its kind, which is then looked at.
        if count == self.plan.count and count:
            self.extend(values)
            return FaultCode.NONE
        return FaultCode.WRONG_COUNT if count else self._add_empty(feature)

    def _add_empty(self, feature: Any) -> FaultCode:
        fault = self.why_empty(feature)
        if fault is FaultCode.MISSING and self.plan.default is not None:
            self.extend(self.plan.default)
            return FaultCode.NONE
        return FaultCode.WRONG_COUNT if fault is FaultCode.NONE and self.plan.count else fault

    def column(self) -> Column:
        if self.plan.dtype is DataType.BYTES:
            return BytesColumn.of(self.values, self.plan.shape)
        numbers: npt.NDArray[Any] = self.values.array()
        return numbers.reshape(self.rows, *self.plan.shape)


class _RawBuilder(_Builder):
    def add(self, features: Any) -> FaultCode:
        feature = features[self.plan.name]
        strings = feature.bytes_list.value
        if not strings and self.why_empty(feature) is FaultCode.MISSING and self.plan.default:
            strings = self.plan.default
        if len(strings) == 1 and len(strings[0]) == self.plan.count:
            self.extend(strings)
            return FaultCode.NONE
        if strings:
            return FaultCode.WRONG_SIZE if len(strings) == 1 else FaultCode.WRONG_COUNT
        return self.why_empty(feature) or FaultCode.WRONG_COUNT

    def column(self) -> Column:
        # All strings are of one size, so that end to end they are the array.
        octets = BytesColumn.of(self.values).values
        return octets.reshape(self.rows, *self.plan.shape)


class _VarLenBuilder(_Builder):
    def __init__(self, plan: ColumnPlan, rows: int) -> None:
        super().__init__(plan, rows)
        self._lengths: list[int] = []

    def add(self, features: Any) -> FaultCode:
        fault = self.add_one(features[self.plan.name])
        return FaultCode.NONE if fault is FaultCode.MISSING else fault

    def add_one(self, feature: Any) -> FaultCode:
        """Append one list's values."""
        values = getattr(feature, self.list_name).value
        # Of a missing feature, too: it makes an empty row.
        self._lengths.append(len(values))
        if values:
            self.extend(values)
            return FaultCode.NONE
        return self.why_empty(feature)

    def column(self) -> Ragged:
        return Ragged(self.values.array(), offsets_of(np.array(self._lengths, np.int64)))


class _StepsBuilder(_VarLenBuilder):
    def __init__(self, plan: ColumnPlan, rows: int) -> None:
        super().__init__(plan, rows)
        self._steps: list[int] = []

    def add(self, features: Any) -> FaultCode:
        # Asked before indexing, which would create the missing list.
        if self.plan.name not in features:
            self._steps.append(0)
            # A default of a feature list is only the permission to lack it: it has no steps then.
            return FaultCode.MISSING if self.plan.default is None else FaultCode.NONE
        steps = features[self.plan.name].feature
        self._steps.append(len(steps))
        for step in steps:
            # A step without a list is missing to it, and has no values here.
            if self.add_one(step) is FaultCode.WRONG_KIND:
                return FaultCode.WRONG_KIND
        return FaultCode.NONE

    def column(self) -> Ragged:
        values = super().column()
        return Ragged(values, offsets_of(np.array(self._steps, np.int64)))


_BUILDERS: dict[ColumnKind, type[_Builder]] = {
    ColumnKind.FIXED: _FixedBuilder,
    ColumnKind.RAW: _RawBuilder,
    ColumnKind.VARLEN: _VarLenBuilder,
    ColumnKind.STEPS: _StepsBuilder,
}
