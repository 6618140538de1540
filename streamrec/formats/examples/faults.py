"""Errors for records that cannot be parsed, made from a kernel's fault or a column's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from streamrec.errors import DataError, MalformedExample, MissingFeature, WrongFeatureType
from streamrec.kernel.contract import (
    LARGEST_MESSAGE,
    ColumnKind,
    ColumnPlan,
    FaultCode,
    KernelFault,
)
from streamrec.kernel.messages import MESSAGES
from streamrec.suggestions import did_you_mean
from streamrec.values.message_schema import unreadable

if TYPE_CHECKING:
    from streamrec.values.columns import Bytes
    from streamrec.values.record_rows import RecordRows

UrlOf: TypeAlias = Callable[[int], str]

DTYPES = {"bytes_list": "bytes", "float_list": "float32", "int64_list": "int64"}
"""The dtypes of a Feature's lists, by the lists' names."""
MOST_COMPARED = 10_000
"""The most names compared with a missing feature's, to suggest one: a million would take 15 s."""
PICTURE = "picture"
"""The dtype of a :class:`Need` of encoded pictures."""
OCTETS = "octets"
"""The dtype of a :class:`Need` of byte strings of any size, which hold numbers."""
SIZES = "sizes"
"""The dtype of a :class:`Need` of the sizes of a shape."""
_TAKERS = {
    PICTURE: "Image takes one byte string; use another spec",
    OCTETS: "raw=True takes one byte string; leave raw out",
    SIZES: "a shape takes {} int64; correct the shape of the ShapedFeature",
}


class ColumnFault(Exception):
    """Parsed values do not make the column that the spec describes.

    Args:
        row: The row's number in the input.
        feature: The feature's name in the record.
        message: What is wrong and what to do next.
        kind: The class of the error to raise.
    """

    def __init__(
        self, row: int, feature: str, message: str, kind: type[DataError] = WrongFeatureType
    ) -> None:
        super().__init__(row, feature, message, kind)
        self.row = row
        self.feature = feature
        self.message = message
        self.kind = kind


class Need(NamedTuple):
    """A spec's request for one feature: the kernel's column, and the spec's own words for it."""

    plan: ColumnPlan
    dtype: str
    """The spec's dtype."""
    shape: tuple[int, ...] = ()
    """The spec's shape."""


def feature_lists(record: Bytes) -> Sequence[str]:
    """Return the names of a record's feature lists; none where it is not a SequenceExample."""
    # It parses as an Example too: its context has the field of an Example's features.
    try:
        return list(MESSAGES["SequenceExample"].FromString(record).feature_lists.feature_list)
    except unreadable():
        return ()


def of_a_list() -> str:
    """Return the error's message for a feature that is sought in the context, and is a list."""
    return (
        "the record is a SequenceExample, and this is one of its feature lists; give features as a "
        "pair (context, sequence) of mappings from names to specs"
    )


def malformed(what: str, offset: int | None = None) -> str:
    """Return the error's message for a record that is not such a message."""
    where = "" if offset is None else f", which shows at its byte {offset}"
    return (
        f"the record is not a serialized tf.train.{what}{where}; "
        "leave the features out to read the records as they are"
    )


def explain(
    fault: KernelFault | ColumnFault,
    rows: RecordRows,
    needs: Mapping[tuple[str, bool], Need],
    *,
    sequence: bool,
    url_of: UrlOf | None,
) -> DataError:
    """Make the error for a fault; the record is parsed again to say what it holds instead.

    Args:
        fault: The fault of the kernel or of a column.
        rows: The records.
        needs: The needs by the feature's name and whether it is a feature list.
        sequence: True where the records are SequenceExamples.
        url_of: A function from a shard's number to its URL.
    """
    row = fault.record if isinstance(fault, KernelFault) else fault.row
    where: dict[str, Any] = {
        "url": url_of(int(rows.shards[row])) if url_of else None,
        "record": int(rows.ordinals[row]),
    }
    if isinstance(fault, ColumnFault):
        return fault.kind(fault.message, feature=fault.feature, **where)
    if fault.feature is None:
        return MalformedExample(_whole(fault, int(rows.lengths[row]), sequence), **where)
    # The kernel tells a code and a name alone; faults are rare enough to parse again.
    record = record_bytes(rows, row)
    kind, message = _words(fault.code, fault.feature, needs, record, sequence=sequence)
    return kind(message, feature=fault.feature, **where)


def _whole(fault: KernelFault, size: int, sequence: bool) -> str:
    if fault.code is FaultCode.TOO_LARGE:
        return (
            f"the record has {size:,} bytes, but a protobuf message has at most "
            f"{LARGEST_MESSAGE:,}; leave the features out to read the records as they are"
        )
    return malformed("SequenceExample" if sequence else "Example", fault.offset)


def record_bytes(rows: RecordRows, row: int) -> bytes:
    """Return the bytes of the record in a row."""
    start = int(rows.offsets[row])
    buffer = rows.buffers[int(rows.buffer_index[row])]
    return buffer[start : start + int(rows.lengths[row])].tobytes()


def _words(
    code: FaultCode,
    name: str,
    needs: Mapping[tuple[str, bool], Need],
    record: bytes,
    *,
    sequence: bool,
) -> tuple[type[DataError], str]:
    if code is FaultCode.MISSING and not sequence and name in feature_lists(record):
        return MissingFeature, of_a_list()
    features, lists = parts_of(record, sequence)
    # The context goes first: where a name is in both and wrong in both, the kernel means that one.
    for in_lists, there in ((False, features), (True, lists)):
        need = needs.get((name, in_lists))
        if need is not None and _is_wrong(code, need, there):
            others = [other for other, of_lists in needs if of_lists == in_lists]
            return _words_of(code, need, there, others)
    return MalformedExample, malformed("SequenceExample" if sequence else "Example")


def parts_of(record: bytes, sequence: bool) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the features and the feature lists of a record; none of one that is malformed."""
    try:
        if not sequence:
            return MESSAGES["Example"].FromString(record).features.feature, {}
        message = MESSAGES["SequenceExample"].FromString(record)
        return message.context.feature, message.feature_lists.feature_list
    except unreadable():
        return {}, {}


def _kinds_of(need: Need, there: Mapping[str, Any], name: str | None = None) -> list[str | None]:
    """Return the kind of the feature's list, or those of all its steps, or of another feature."""
    name = need.plan.name if name is None else name
    if name not in there:
        return []
    steps = there[name].feature if need.plan.kind is ColumnKind.STEPS else [there[name]]
    return [step.WhichOneof("kind") for step in steps]


def _is_wrong(code: FaultCode, need: Need, there: Mapping[str, Any]) -> bool:
    held = _kinds_of(need, there)
    absent = need.plan.name not in there if need.plan.kind is ColumnKind.STEPS else not any(held)
    if code is FaultCode.MISSING:
        return absent
    wrong = _wrong_kind(need, held) is not None
    # Otherwise the number of values is what is wrong.
    return wrong if code is FaultCode.WRONG_KIND else not absent and not wrong


def _wrong_kind(need: Need, held: list[str | None]) -> str | None:
    others = (DTYPES[kind] for kind in held if kind is not None)
    return next((dtype for dtype in others if dtype != need.plan.dtype.value), None)


def _words_of(
    code: FaultCode, need: Need, there: Mapping[str, Any], others: list[str]
) -> tuple[type[DataError], str]:
    if code is FaultCode.MISSING:
        return MissingFeature, _missing(need, there, others)
    if code is FaultCode.WRONG_KIND:
        dtype = _wrong_kind(need, _kinds_of(need, there))
        if need.dtype in _TAKERS:
            return WrongFeatureType, _not_taken(f"{dtype}", need)
        return WrongFeatureType, (
            f"the record holds {dtype}, but the spec says {need.dtype}; "
            f"give the spec the dtype {dtype!r}"
        )
    feature = there[need.plan.name]
    values = getattr(feature, feature.WhichOneof("kind")).value
    if need.plan.kind is ColumnKind.RAW:
        return WrongFeatureType, _wrong_raw(need, values)
    if need.dtype in _TAKERS:
        kind = "numbers" if need.dtype == SIZES else "byte strings"
        return WrongFeatureType, _not_taken(f"{len(values)} {kind}", need)
    return WrongFeatureType, (
        f"the record holds {len(values)} values, but shape {need.shape} takes {need.plan.count}; "
        "correct the shape, or use VarLenFeature"
    )


def _not_taken(held: str, need: Need) -> str:
    return f"the record holds {held}, but {_TAKERS[need.dtype].format(need.plan.count)}"


def _wrong_raw(need: Need, values: Any) -> str:
    if len(values) != 1:
        return f"the record holds {len(values)} byte strings, but raw=True takes one; leave raw out"
    return (
        f"the record's byte string has {len(values[0])} bytes, but shape {need.shape} of "
        f"{need.dtype} takes {need.plan.count}; correct the shape or the dtype"
    )


def _missing(need: Need, there: Mapping[str, Any], others: list[str]) -> str:
    nearest = _nearest(need, there, others)
    steps = need.plan.kind is ColumnKind.STEPS
    if need.dtype in _TAKERS:
        otherwise = "leave the spec out"
    elif steps:
        otherwise = "give the spec allow_missing=True"
    else:
        otherwise = "give the spec a default_value, or use VarLenFeature"
    what = "feature list" if steps else "feature"
    comma = "," if "," in otherwise else ", or"
    return f"the record has no such {what}{nearest}; correct the name{comma} {otherwise}"


def _nearest(need: Need, there: Mapping[str, Any], wanted: list[str]) -> str:
    name, known = need.plan.name, set(wanted)
    # A name that another spec asks for is not the one that is missing here.
    unused = sorted(other for other in there if other not in known)[:MOST_COMPARED]
    every = f"it has {', '.join(map(repr, sorted(there)[:8]))}" if there else "it has none"
    fitting = [other for other in unused if _fits(need, _kinds_of(need, there, other))]
    otherwise = every if need.dtype in _TAKERS else did_you_mean(name, unused, every)
    meant = None if need.plan.kind is ColumnKind.STEPS else _part_of(name, there, fitting)
    return f" ({did_you_mean(name, fitting, otherwise, meant=meant)})"


def _fits(need: Need, held: list[str | None]) -> bool:
    return any(held) and _wrong_kind(need, held) is None


def _part_of(name: str, there: Mapping[str, Any], fitting: list[str]) -> str | None:
    """Return the feature that holds most bytes of those below a name, as image/encoded."""
    sizes = {
        other: sum(map(len, there[other].bytes_list.value))
        for other in fitting
        if other.startswith(f"{name}/")
    }
    most = max(sizes, key=lambda other: sizes[other], default=None)
    return most if most and sizes[most] else None
