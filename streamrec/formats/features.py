"""Examples to columns, as feature specs say; and specs from Examples."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from google.protobuf.message import DecodeError

from streamrec import kernel
from streamrec.errors import (
    ConfigError,
    DataError,
    MalformedExample,
    MissingFeature,
    WrongFeatureType,
)
from streamrec.formats.example import Example
from streamrec.formats.specs import (
    FeatureSpec,
    FixedLenFeature,
    VarLenFeature,
    as_python,
    as_specs,
    describe,
    from_description,
)
from streamrec.kernel.contract import Fault, KernelFault
from streamrec.types import Bytes, BytesColumn, Column, RecordRows

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "FeatureSpec",
    "FixedLenFeature",
    "VarLenFeature",
    "as_python",
    "as_specs",
    "describe",
    "from_description",
    "infer_features",
    "parse_example",
    "parse_rows",
    "parse_single_example",
]

UrlOf: TypeAlias = Callable[[int], str]

_DTYPES = {"bytes_list": "bytes", "float_list": "float32", "int64_list": "int64"}


def parse_rows(
    rows: RecordRows, features: Mapping[str, Any], *, url_of: UrlOf | None = None
) -> dict[str, Column]:
    """Parse serialized ``tf.train.Example`` records into columns.

    Args:
        rows: The records.
        features: Specs by feature name.
        url_of: Gives the URL of a shard's number, for errors.

    Returns:
        By feature name: for :class:`FixedLenFeature` an array ``[rows, *shape]`` or a
        :class:`BytesColumn` with that ``item_shape``; for :class:`VarLenFeature` a :class:`Ragged`.

    Raises:
        ConfigError: A spec is wrong.
        MalformedExample: A record is no Example.
        MissingFeature: A record lacks a feature, and its spec has no default.
        WrongFeatureType: A record holds another kind or number of values than the spec says.
    """
    specs = as_specs(features)
    plans = [spec.plan(name) for name, spec in specs.items()]
    try:
        columns = kernel.parse_examples(rows, plans)
    except KernelFault as fault:
        raise _explain(fault, rows, specs, url_of) from None
    return dict(zip(specs, columns, strict=True))


def parse_example(
    serialized: Sequence[Bytes] | npt.NDArray[np.object_] | BytesColumn,
    features: Mapping[str, Any],
) -> dict[str, Column]:
    """Parse a batch of serialized Examples, as ``tf.io.parse_example`` does.

    Args:
        serialized: The records.
        features: Specs by feature name.

    Returns:
        One column a feature, as :func:`parse_rows`; ``record`` in an error is the row's number.
    """
    if isinstance(serialized, BytesColumn):
        return parse_rows(RecordRows.from_column(serialized), features)
    if isinstance(serialized, bytes | bytearray | memoryview | str):
        raise ConfigError("serialized is a batch of records; for one use parse_single_example")
    return parse_rows(RecordRows.of(list(serialized)), features)


def parse_single_example(serialized: Bytes, features: Mapping[str, Any]) -> dict[str, Any]:
    """Parse one serialized Example, as ``tf.io.parse_single_example`` does.

    Returns:
        By feature name: a NumPy scalar or an array of the spec's shape, or ``bytes`` or lists of
        them; for :class:`VarLenFeature` all values, as an array or a list of ``bytes``.
    """
    columns = parse_example([serialized], features)
    return {name: column[0] for name, column in columns.items()}  # type: ignore[index]


def infer_features(records: Iterable[Bytes]) -> dict[str, FeatureSpec]:
    """Find specs that fit serialized Examples.

    Args:
        records: Some records; more of them make the guess better. All are read.

    Returns:
        By feature name, sorted: a :class:`FixedLenFeature` where all records have the same number
        of values (``()`` for one), a :class:`VarLenFeature` where the number differs or a record
        lacks the feature. A feature that never holds a list is left out.

    Raises:
        ConfigError: There are no records.
        MalformedExample: A record is no Example.
        WrongFeatureType: A feature's kind differs between records.
    """
    counts: dict[str, list[int]] = {}
    kinds: dict[str, str] = {}
    number = -1
    for number, record in enumerate(records):
        for name, feature in _read(record, number).items():
            _note(name, feature, number, counts, kinds)
    if number < 0:
        raise ConfigError("features cannot be inferred: there are no records")
    return {name: _infer(kinds[name], counts[name], number + 1) for name in sorted(kinds)}


def _read(record: Bytes, number: int) -> Mapping[str, Any]:
    try:
        features: Mapping[str, Any] = Example.FromString(record).features.feature
    except DecodeError:
        raise MalformedExample(_MALFORMED, record=number) from None
    return features


def _note(
    name: str, feature: Any, number: int, counts: dict[str, list[int]], kinds: dict[str, str]
) -> None:
    kind = feature.WhichOneof("kind")
    if kind is None:
        return
    before = kinds.setdefault(name, kind)
    if before != kind:
        raise WrongFeatureType(
            f"holds {_DTYPES[kind]}, but {_DTYPES[before]} in records before; "
            "write one type of value",
            record=number,
            feature=name,
        )
    counts.setdefault(name, []).append(len(getattr(feature, kind).value))


def _infer(kind: str, counts: list[int], records: int) -> FeatureSpec:
    if len(counts) < records or len(set(counts)) > 1 or not counts[0]:
        return VarLenFeature(_DTYPES[kind])
    return FixedLenFeature(() if counts[0] == 1 else (counts[0],), _DTYPES[kind])


_MALFORMED = (
    "not a serialized tf.train.Example; leave the features out to read the records as they are"
)


def _explain(
    fault: KernelFault, rows: RecordRows, specs: Mapping[str, FeatureSpec], url_of: UrlOf | None
) -> DataError:
    """The error for a fault; what the record holds instead is read from the record itself."""
    url = url_of(int(rows.shards[fault.record])) if url_of else None
    ordinal = int(rows.ordinals[fault.record])
    if fault.feature is None:
        return MalformedExample(_MALFORMED, url=url, record=ordinal)
    start = int(rows.offsets[fault.record])
    buffer = rows.buffers[int(rows.buffer_index[fault.record])]
    record = buffer[start : start + int(rows.lengths[fault.record])].tobytes()
    kind, message = _words(fault.code, fault.feature, specs, _read(record, ordinal))
    return kind(message, url=url, record=ordinal, feature=fault.feature)


def _words(
    code: Fault, name: str, specs: Mapping[str, FeatureSpec], features: Mapping[str, Any]
) -> tuple[type[DataError], str]:
    spec = specs[name]
    if code is Fault.MISSING:
        return MissingFeature, (
            f"the record has no such feature{_nearest(name, features, specs)}; "
            "correct the name, give the spec a default_value, or use VarLenFeature"
        )
    kind = features[name].WhichOneof("kind")
    if code is Fault.WRONG_KIND:
        return WrongFeatureType, (
            f"the record holds {_DTYPES[kind]}, but the spec says {spec.dtype}; "
            f"give the spec dtype {_DTYPES[kind]!r}"
        )
    shape = spec.shape if isinstance(spec, FixedLenFeature) else ()
    count = len(getattr(features[name], kind).value)
    return WrongFeatureType, (
        f"the record holds {count} values, but shape {shape} takes {spec.plan(name).count}; "
        "correct the shape, or use VarLenFeature"
    )


def _nearest(name: str, features: Mapping[str, Any], specs: Mapping[str, Any]) -> str:
    others = sorted(other for other in features if other not in specs)
    near = difflib.get_close_matches(name, others, n=1)
    if near:
        return f" (did you mean {near[0]!r}?)"
    return f" (it has {', '.join(map(repr, sorted(features)[:8]))})" if features else " (nor any)"
