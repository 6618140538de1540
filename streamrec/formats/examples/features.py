"""Parsing of Examples into columns by feature specs, and inference of specs from Examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from streamrec import kernel
from streamrec.errors import (
    ConfigError,
    DataError,
    MalformedExample,
    WrongFeatureType,
    located,
)
from streamrec.formats.examples.descriptions import as_python, describe, from_description
from streamrec.formats.examples.example import Example, SequenceExample
from streamrec.formats.examples.faults import DTYPES, ColumnFault, UrlOf, explain, malformed
from streamrec.formats.examples.needs import Needs, Share, one_by_one
from streamrec.formats.examples.spec_columns import compile_spec
from streamrec.formats.examples.specs import (
    FeatureSpec,
    FixedLenFeature,
    FixedLenSequenceFeature,
    Image,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
    as_specs,
)
from streamrec.kernel.contract import KernelFault, fresh
from streamrec.values.columns import Bytes, BytesColumn, Column
from streamrec.values.records import RecordRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from streamrec.kernel.contract import Allocate


__all__ = [
    "FeatureParser",
    "FeatureSpec",
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "Image",
    "RaggedFeature",
    "SparseFeature",
    "VarLenFeature",
    "as_python",
    "as_specs",
    "describe",
    "from_description",
    "infer_features",
    "parse_example",
    "parse_single_example",
    "rows_of",
]

MOST_FEATURES = 1 << 16
"""The most features that are inferred, which takes some seconds. Users' widest tables have some
10,000."""


class FeatureParser:
    """A parser of serialized Examples, which any number of threads may use.

    Args:
        features: Specs by feature name.
        pad: Give :class:`FixedLenSequenceFeature` as one array, short rows filled up; else as
            a :class:`Ragged` of items, so that a row does not depend on those beside it.
        allocate: A function that gives the memory of large columns; new memory by default.
        share: A function that decodes a batch's pictures; one after the other by default.

    Raises:
        ConfigError: A spec is wrong, or two need the same feature in different ways.
    """

    def __init__(
        self,
        features: Mapping[str, Any],
        *,
        pad: bool = True,
        allocate: Allocate = fresh,
        share: Share = one_by_one,
    ) -> None:
        needs = Needs(allocate, share)
        specs = as_specs(features)
        self._make = {name: compile_spec(name, specs[name], needs, pad=pad) for name in specs}
        self._needs = {(name, False): need for name, need in needs.by_name.items()}
        self._parser = kernel.Parser(needs.plans, None, allocate)

    def parse(self, rows: RecordRows, url_of: UrlOf | None = None) -> dict[str, Column]:
        """Parse records into columns.

        Args:
            rows: The records.
            url_of: A function from a shard's number to its URL, for errors.

        Returns:
            A column for each feature, by name; docs/reference/formats.md has the types.

        Raises:
            MalformedExample: A record is no Example.
            MissingFeature: A record lacks a feature whose spec has no default.
            WrongFeatureType: A record holds other values than the spec says.
            MalformedImage: A picture cannot be decoded.
        """
        try:
            columns = self._parser.parse(rows)
            return {name: make(columns) for name, make in self._make.items()}
        except (KernelFault, ColumnFault) as fault:
            raise explain(fault, rows, self._needs, sequence=False, url_of=url_of) from None


def parse_example(
    serialized: Sequence[Bytes] | npt.NDArray[np.object_] | BytesColumn,
    features: Mapping[str, Any],
) -> dict[str, Column]:
    """Parse a batch of serialized Examples, as ``tf.io.parse_example`` does.

    Args:
        serialized: The records.
        features: Specs by feature name.

    Returns:
        One column a feature, as :meth:`FeatureParser.parse`; ``record`` in an error is the row's
        number.
    """
    return FeatureParser(features).parse(rows_of(serialized, "parse_single_example"))


def rows_of(
    serialized: Sequence[Bytes] | npt.NDArray[np.object_] | BytesColumn, single: str
) -> RecordRows:
    """Return a batch of serialized records as rows.

    Args:
        serialized: The records.
        single: The name of the function that takes a single record, for the error.

    Raises:
        ConfigError: The argument is a single record.
    """
    if isinstance(serialized, BytesColumn):
        return RecordRows.from_column(serialized)
    if isinstance(serialized, bytes | bytearray | memoryview | str):
        raise ConfigError(f"serialized must be a batch of records; for one record use {single}")
    return RecordRows.of(list(serialized))


def parse_single_example(serialized: Bytes, features: Mapping[str, Any]) -> dict[str, Any]:
    """Parse one serialized Example, as ``tf.io.parse_single_example`` does.

    Returns:
        The only row of each column, by feature name: a NumPy scalar or an array, ``bytes`` or lists
        of them, or for nested rows a :class:`Ragged`, for :class:`SparseFeature` a
        :class:`Sparse`. :class:`FixedLenSequenceFeature` gives as many items as there are.
    """
    columns = FeatureParser(features, pad=False).parse(RecordRows.of([serialized]))
    return {name: column[0] for name, column in columns.items()}


def infer_features(
    records: Iterable[Bytes],
    place_of: Callable[[int], Mapping[str, Any]] = lambda number: {"record": number},
) -> dict[str, FeatureSpec]:
    """Find specs that fit serialized Examples.

    Args:
        records: Some records; more of them make the guess better. All are read.
        place_of: A function from a record's number, from 0, to the fields of an error about it.

    Returns:
        Specs by feature name, sorted: a :class:`FixedLenFeature` where all records have the same
        number of values (``()`` for one), a :class:`VarLenFeature` where the number differs or a
        record lacks the feature. A feature that never holds a list is left out.

    Raises:
        ConfigError: There are no records, they are SequenceExamples, or they have more than
            ``MOST_FEATURES`` features.
        MalformedExample: A record is no Example.
        WrongFeatureType: A feature's kind differs between records.
    """
    seen = _Seen()
    for number, record in enumerate(records):
        try:
            seen.add(record)
        except DataError as error:
            vars(error).update(place_of(number))
            raise
        except ConfigError as error:
            raise ConfigError(located(error.message, place_of(number))) from None
    if not seen.records:
        raise ConfigError("features cannot be inferred, since there are no records; name them")
    return {name: _infer(seen.kinds[name], seen.counts[name], seen.records) for name in seen.names}


class _Seen:
    """The features of the records so far."""

    def __init__(self) -> None:
        self.records = 0
        self.kinds: dict[str, str] = {}
        self.counts: dict[str, list[int]] = {}
        """The number of values in each record that has the feature."""

    @property
    def names(self) -> list[str]:
        return sorted(self.kinds)

    def add(self, record: Bytes) -> None:
        features = _read(record)
        # Checked before the loop, which would take a minute for a million features.
        self._check_number(len(features))
        for name, feature in features.items():
            self._note(name, feature)
        self._check_number(len(self.kinds))
        self.records += 1

    def _check_number(self, features: int) -> None:
        if features > MOST_FEATURES:
            raise ConfigError(
                f"features cannot be inferred where there are {features:,}, as each becomes "
                f"a column and {MOST_FEATURES:,} are allowed; name those that you need"
            )

    def _note(self, name: str, feature: Any) -> None:
        kind = feature.WhichOneof("kind")
        if kind is None:
            return
        before = self.kinds.setdefault(name, kind)
        if before != kind:
            raise WrongFeatureType(
                f"the feature holds {DTYPES[kind]}, but held {DTYPES[before]} in earlier records; "
                "write one type of value",
                feature=name,
            )
        self.counts.setdefault(name, []).append(len(getattr(feature, kind).value))


def _read(record: Bytes) -> Mapping[str, Any]:
    try:
        features: Mapping[str, Any] = Example.FromString(record).features.feature
    except DecodeError:
        raise MalformedExample(malformed("Example")) from None
    if _has_feature_lists(record):
        raise ConfigError(
            "the record is a SequenceExample, whose features cannot be inferred; give them as a "
            "pair (context, sequence) of mappings from names to specs"
        )
    return features


def _has_feature_lists(record: Bytes) -> bool:
    """Return whether a record is a SequenceExample with feature lists."""
    # It parses as an Example too: its context has the field of an Example's features.
    try:
        return len(SequenceExample.FromString(record).feature_lists.feature_list) > 0
    except DecodeError:
        return False


def _infer(kind: str, counts: list[int], records: int) -> FeatureSpec:
    if len(counts) < records or len(set(counts)) > 1 or not counts[0]:
        return VarLenFeature(DTYPES[kind])
    return FixedLenFeature(() if counts[0] == 1 else (counts[0],), DTYPES[kind])
