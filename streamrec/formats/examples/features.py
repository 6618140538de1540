"""Parsing of Examples into columns by feature specs, and inference of specs from Examples."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from streamrec.errors import ConfigError, DataError, MalformedExample, WrongFeatureType
from streamrec.formats.examples.descriptions import (
    LENGTH,
    SequenceFeatures,
    as_sequence_features,
    from_description,
)
from streamrec.formats.examples.faults import (
    DTYPES,
    ColumnFault,
    UrlOf,
    explain,
    feature_lists,
    malformed,
    of_a_list,
    record_bytes,
)
from streamrec.formats.examples.image_spec import Image
from streamrec.formats.examples.needs import (
    ZLIB,
    Claims,
    Filling,
    FillPicture,
    Needs,
    Share,
    decode_anew,
    one_by_one,
)
from streamrec.formats.examples.renaming import AS_STORED, Renames, RenamingParser, new_names
from streamrec.formats.examples.spec_columns import batch_rows, compile_spec, single_row
from streamrec.formats.examples.specs import (
    FeatureSpec,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    VarLenFeature,
    as_specs,
    feature_of,
)
from streamrec.kernel.contract import ColumnKind, KernelFault, fresh
from streamrec.kernel.messages import MESSAGES
from streamrec.masking import masked, say_where
from streamrec.values.aligned import align
from streamrec.values.message_schema import unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from streamrec.formats.examples.image_spec import DenseColumn, GivesOther, Spec
    from streamrec.formats.examples.needs import Make
    from streamrec.formats.examples.spec_columns import Serialized
    from streamrec.kernel.contract import Allocate
    from streamrec.values.columns import Bytes, Column, Ragged
    from streamrec.values.record_rows import RecordRows

log = logging.getLogger("streamrec.formats")

MOST_FEATURES = 1 << 16
"""The most features that are inferred, which takes some seconds. Users' widest tables have some
10,000."""


class SequenceColumns(NamedTuple):
    """The columns of SequenceExamples, in the three parts that TensorFlow gives."""

    context: dict[str, Column]
    sequences: dict[str, Column]
    lengths: dict[str, npt.NDArray[np.int64]]
    """int64 ``[rows]``: each row's number of steps, for every ``FixedLenSequenceFeature``."""


class FeatureParser:
    """A parser of serialized Examples or SequenceExamples, which any number of threads may use.

    Args:
        features: Specs by feature name; or a pair (context, sequence) of them, for
            SequenceExamples.
        pad: Give ``FixedLenSequenceFeature`` as one array, short rows filled up; else as
            a ``Ragged`` of items, so that a row does not depend on those beside it.
        allocate: A function that gives the memory of large columns; new memory by default.
        scratch: The same, for what other columns are made of: pictures, sizes, indices.
        share: A function that decodes a batch's pictures; one after the other by default.
        fill_picture: A function that fills an array with a picture; it is decoded by default.
        claims: Takes note of the memory that columns claim, and sets its limits; none by default.
        renames: The names that specs have for the features of each shard's records.

    Raises:
        ConfigError: A spec is wrong, or two need the same feature in different ways.
    """

    def __init__(
        self,
        features: Any,
        *,
        pad: bool = True,
        allocate: Allocate = fresh,
        scratch: Allocate = fresh,
        share: Share = one_by_one,
        fill_picture: FillPicture = decode_anew,
        claims: Claims | None = None,
        renames: Renames = AS_STORED,
    ) -> None:
        self._of_sequences = isinstance(features, tuple | list)
        specs = (
            as_sequence_features(features)
            if self._of_sequences
            else SequenceFeatures(as_specs(features), {})
        )
        claims = claims or Claims()
        # Two of them, as a feature of the context and a feature list may have one name.
        needs, steps = (Needs(allocate, share, fill_picture, claims) for _ in range(2))
        self._context = _compile(specs.context, needs, ColumnKind.VARLEN, pad=pad)
        self._sequence = _compile(specs.sequence, steps, ColumnKind.STEPS, pad=pad)
        every = [*specs.context.items(), *specs.sequence.items()]
        self._columns = [(name, feature_of(name, spec)) for name, spec in every]
        self._lengths = {
            name: steps.numbers[feature_of(name, spec)]
            for name, spec in specs.sequence.items()
            if isinstance(spec, FixedLenSequenceFeature)
        }
        self._needs = {(name, False): need for name, need in needs.by_name.items()}
        self._needs |= {(name, True): need for name, need in steps.by_name.items()}
        # One call of the kernel gives the columns of the context, and after them those of the
        # lists.
        self._split = len(needs.by_name)
        self._unproven = {} if self._of_sequences else _ragged_places(needs)
        self._claims = needs.claims
        self._filling = Filling.of(needs.plans)
        # Pictures, sizes and indices are read again: nobody else may be able to change them.
        memory = allocate if all(_is_plain(spec) for _, spec in every) else scratch
        lists = steps.plans if self._of_sequences else None
        self._renames = renames
        self._parser = RenamingParser(needs.plans, lists, memory, self._claims.values, renames)

    @property
    def features(self) -> list[str]:
        """The names of the features that are read, as specs name them."""
        return [name for name, _ in self._needs]

    def parse_parts(self, rows: RecordRows, url_of: UrlOf | None = None) -> SequenceColumns:
        """Parse records into columns of the context, of the feature lists, and of their lengths.

        The columns of Examples are those of the context.

        Args:
            rows: The records.
            url_of: A function from a shard's number to its URL, for errors.

        Raises:
            MalformedExample: A record is not an Example, or not a SequenceExample.
            MissingFeature: A record lacks a feature, and its spec does not allow that.
            WrongFeatureType: A record holds other values than the spec says.
            MalformedImage: A picture cannot be decoded.
        """
        self._claims.begin(rows.lengths)
        try:
            if self._filling is not None:
                self._claims.filling(len(rows), int(rows.lengths.sum()), self._filling)
            columns = self._parser.parse(rows)
            if self._unproven and len(rows):
                self._look_for_lists(rows, columns, url_of)
            lists: list[Any] = columns[self._split :]
            return SequenceColumns(
                {name: make(columns) for name, make in self._context.items()},
                {name: make(lists) for name, make in self._sequence.items()},
                {name: _lengths(lists[at]) for name, at in self._lengths.items()},
            )
        except (KernelFault, ColumnFault) as fault:
            raise self._explain(fault, rows, url_of) from None

    def _explain(
        self, fault: KernelFault | ColumnFault, rows: RecordRows, url_of: UrlOf | None
    ) -> DataError:
        """Make the error for a fault, in which features have the names of the records."""
        row = fault.record if isinstance(fault, KernelFault) else fault.row
        component = int(self._renames.components_of(rows)[row])
        stored = partial(self._renames.stored_name, component=component)
        if isinstance(fault, ColumnFault):
            fault.feature = stored(fault.feature)
        needs = {
            (stored(name), in_lists): need._replace(
                plan=self._renames.stored_plan(need.plan, component)
            )
            for (name, in_lists), need in self._needs.items()
        }
        error = explain(fault, rows, needs, sequence=self._of_sequences, url_of=url_of)
        columns = [repr(n) for n, feature in self._columns if stored(feature) == error.feature != n]
        if columns:
            words = f"column{'s' * (len(columns) > 1)} {', '.join(columns)}"
            error.message = f"{words}: {error.message}"
        return error

    def _look_for_lists(
        self, rows: RecordRows, columns: Sequence[Any], url_of: UrlOf | None
    ) -> None:
        """Warn of a column without a value that is a feature list of the first record.

        As in TensorFlow, a plain spec finds nothing in such a list, record after record. The first
        batch tells.
        """
        empty = [name for name, at in self._unproven.items() if not len(columns[at].values)]
        lists = feature_lists(record_bytes(rows, 0)) if empty else ()
        for name in set(empty) & set(lists):
            url = masked(url_of(int(rows.shards[0]))) if url_of else "the first record"
            log.warning("%s: feature %s has no value: %s", url, name, of_a_list())
        # Looked for once, since it takes another parse of a record.
        self._unproven = {}

    def parse(self, rows: RecordRows, url_of: UrlOf | None = None) -> dict[str, Column]:
        """Parse records into one mapping; lengths are under the features' names and ``/length``.

        The documentation's page about formats has the columns' types; the arguments and the errors
        are those of ``parse_parts``.
        """
        context, sequences, lengths = self.parse_parts(rows, url_of)
        return context | sequences | {f"{name}{LENGTH}": lengths[name] for name in lengths}


def _ragged_places(needs: Needs) -> dict[str, int]:
    """Return the places of columns whose rows have any length, by feature.

    These alone find nothing, and no error, in what is a feature list.
    """
    plans = enumerate(need.plan for need in needs.by_name.values())
    return {plan.name: at for at, plan in plans if plan.kind is ColumnKind.VARLEN}


def _compile(
    specs: Mapping[str, FeatureSpec], needs: Needs, kind: ColumnKind, *, pad: bool
) -> dict[str, Make]:
    return {
        name: compile_spec(feature_of(name, spec), spec, needs, kind, pad=pad)
        for name, spec in specs.items()
    }


def _is_plain(spec: FeatureSpec) -> bool:
    """Return True if a column's form does not depend on the values of any feature."""
    if isinstance(spec, RaggedFeature):
        return not spec.partitions
    if isinstance(spec, FixedLenFeature):
        return spec.raw != ZLIB
    return isinstance(spec, FixedLenSequenceFeature | VarLenFeature)


def _lengths(column: Ragged) -> npt.NDArray[np.int64]:
    return align(np.diff(column.row_splits))


def parser_of(plain: Mapping[str, Any], **how: Any) -> FeatureParser:
    """Make the parser for features in their plain form.

    Args:
        plain: The features of Examples or of SequenceExamples; the form is described in
            ``streamrec.formats.examples.descriptions``.
        **how: The other arguments of ``FeatureParser``.

    Raises:
        ConfigError: A spec is wrong, or two columns would have the same name.
    """
    return FeatureParser(from_description(plain), **how)


@overload
def parse_example(
    serialized: Serialized, features: Mapping[str, Spec[GivesOther]]
) -> dict[str, GivesOther]: ...
@overload
def parse_example(
    serialized: Serialized, features: Mapping[str, Spec[DenseColumn]]
) -> dict[str, npt.NDArray[Any]]: ...
@overload
def parse_example(serialized: Serialized, features: Mapping[str, Any]) -> dict[str, Any]: ...
def parse_example(serialized: Serialized, features: Mapping[str, Any]) -> dict[str, Any]:
    """Parse a batch of serialized Examples, as ``tf.io.parse_example`` does.

    Args:
        serialized: The records.
        features: Specs by feature name.

    Returns:
        One column a feature, as ``FeatureParser.parse``; ``record`` in an error is the row's
        number.
    """
    _check_some(features)
    return FeatureParser(features).parse(batch_rows(serialized, "parse_single_example"))


def _check_some(features: Mapping[str, Any]) -> None:
    """Refuse to parse nothing, as TensorFlow does.

    Raises:
        ConfigError: There is no spec.
    """
    if not as_specs(features):
        raise ConfigError("features names no feature; give a spec")


def parse_single_example(serialized: Bytes, features: Mapping[str, Any]) -> dict[str, Any]:
    """Parse one serialized Example, as ``tf.io.parse_single_example`` does.

    Returns:
        The only row of each column, by feature name: a NumPy scalar or an array, ``bytes`` or lists
        of them, or for nested rows a ``Ragged``, for ``SparseFeature`` a
        ``Sparse``. ``FixedLenSequenceFeature`` gives as many items as there are.
    """
    _check_some(features)
    columns = FeatureParser(features, pad=False).parse(single_row(serialized))
    return {name: column[0] for name, column in columns.items()}


def parse_sequence_example(
    serialized: Serialized,
    context_features: Mapping[str, Any] | None = None,
    sequence_features: Mapping[str, Any] | None = None,
) -> SequenceColumns:
    """Parse a batch of SequenceExamples, as ``tf.io.parse_sequence_example`` does.

    Args:
        serialized: The records.
        context_features: Specs of the context's features.
        sequence_features: Specs of the feature lists: ``FixedLenSequenceFeature``,
            ``VarLenFeature``, ``RaggedFeature`` and ``Image``.

    Returns:
        Columns of the context, columns of the feature lists, and for each
        ``FixedLenSequenceFeature`` among these the rows' numbers of steps.

    Raises:
        ConfigError: A spec is wrong, or no spec is given.
        DataError: A record is wrong, as in ``FeatureParser.parse_parts``.
    """
    parser = _sequence_parser(context_features, sequence_features, pad=True)
    return parser.parse_parts(batch_rows(serialized, "parse_single_sequence_example"))


def parse_single_sequence_example(
    serialized: Bytes,
    context_features: Mapping[str, Any] | None = None,
    sequence_features: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parse one SequenceExample, as ``tf.io.parse_single_sequence_example`` does.

    Returns:
        The only rows of the columns of the context, and of those of the feature lists.
    """
    parser = _sequence_parser(context_features, sequence_features, pad=False)
    context, sequences, _ = parser.parse_parts(single_row(serialized))
    return (
        {name: column[0] for name, column in context.items()},
        {name: column[0] for name, column in sequences.items()},
    )


def _sequence_parser(context: Any, sequence: Any, *, pad: bool) -> FeatureParser:
    if not (context or sequence):
        raise ConfigError(
            "neither context_features nor sequence_features names a feature; give a spec"
        )
    return FeatureParser((context, sequence), pad=pad)


def infer_features(
    records: Iterable[Bytes],
    place_of: Callable[[int], Mapping[str, Any]] = lambda number: {"record": number},
    names_of: Callable[[int], Mapping[str, str]] = lambda _: {},
) -> dict[str, FeatureSpec]:
    """Find specs that fit serialized Examples.

    Args:
        records: Some records; more of them make the guess better. All are read.
        place_of: A function from a record's number, from 0, to the fields of an error about it.
        names_of: A function from a record's number to the new names of its features.

    Returns:
        Specs by feature name, sorted: a ``FixedLenFeature`` where all records have the same
        number of values (``()`` for one), an ``Image`` where all are encoded pictures by their
        first bytes, a ``VarLenFeature`` where the number differs or a record lacks the
        feature. A feature that never holds a list is left out.

    Raises:
        ConfigError: There are no records, they are SequenceExamples, or they have more than
            ``MOST_FEATURES`` features.
        MalformedExample: A record is not an Example.
        WrongFeatureType: A feature's kind differs between records.
    """
    kinds: dict[str, str] = {}
    counts: dict[str, list[int]] = {}  # of values, in each record that has the feature
    pictures: dict[str, set[str]] = {}  # formats of the values; "" of what is not a picture
    total = 0
    for total, record in enumerate(records, start=1):
        try:
            _note(record, names_of(total - 1), kinds, counts, pictures)
        except DataError as error:
            vars(error).update(place_of(total - 1))
            raise
        except ConfigError as error:
            raise ConfigError(say_where(error.message, place_of(total - 1))) from None
    if not total:
        raise ConfigError("features cannot be inferred, since there are no records; name them")
    return {
        name: _infer(kinds[name], counts[name], pictures.get(name, set()), total)
        for name in sorted(kinds)
    }


def as_stored(features: Mapping[str, FeatureSpec]) -> dict[str, FeatureSpec]:
    """Return inferred specs with pictures as they are stored: encoded, in byte strings."""
    encoded = FixedLenFeature((), "bytes")
    return {name: encoded if isinstance(spec, Image) else spec for name, spec in features.items()}


def _note(
    record: Bytes,
    names: Mapping[str, str],
    kinds: dict[str, str],
    counts: dict[str, list[int]],
    pictures: dict[str, set[str]],
) -> None:
    """Add the kinds of a record's features, their numbers of values, and formats of pictures."""
    from streamrec.formats.images.image import format_of  # and the codecs

    features = _read(record)
    # Checked before the loop, which would take a minute for a million features.
    _check_number(len(features))
    for stored, name in new_names(features, names).items():
        feature = features[stored]
        kind = feature.WhichOneof("kind")
        if kind is None:
            continue
        before = kinds.setdefault(name, kind)
        if before != kind:
            raise WrongFeatureType(
                f"the feature holds {DTYPES[kind]}, but held {DTYPES[before]} in earlier records; "
                "write one type of value",
                feature=name,
            )
        values = getattr(feature, kind).value
        counts.setdefault(name, []).append(len(values))
        if kind == "bytes_list":
            pictures.setdefault(name, set()).update(map(format_of, values))
    # Again, since all records together may have more than each of them.
    _check_number(len(kinds))


def _check_number(features: int) -> None:
    if features > MOST_FEATURES:
        raise ConfigError(
            f"features cannot be inferred where there are {features:,}, as each becomes "
            f"a column and {MOST_FEATURES:,} are allowed; name those that you need"
        )


def _read(record: Bytes) -> Mapping[str, Any]:
    try:
        features: Mapping[str, Any] = MESSAGES["Example"].FromString(record).features.feature
    except unreadable():
        raise MalformedExample(malformed("Example")) from None
    if feature_lists(record):
        raise ConfigError(
            "the record is a SequenceExample, whose features cannot be inferred; give them as a "
            "pair (context, sequence) of mappings from names to specs"
        )
    return features


def _infer(kind: str, counts: list[int], pictures: set[str], records: int) -> FeatureSpec:
    from streamrec.formats.images.image import READ_FORMATS  # and the codecs

    dtype: Any = DTYPES[kind]
    if len(counts) == records and set(counts) == {1} and pictures and pictures <= READ_FORMATS:
        # WebP alone is given in no other channels than its own.
        return Image(channels=0) if "WebP" in pictures else Image()
    # A record lacks it, or no one shape fits all of them.
    if len(counts) < records or len(set(counts)) > 1 or not counts[0]:
        return VarLenFeature(dtype)
    return FixedLenFeature(() if counts[0] == 1 else (counts[0],), dtype)
