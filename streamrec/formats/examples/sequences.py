"""Parsing of SequenceExamples into columns by a pair (context, sequence) of feature specs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from streamrec import kernel
from streamrec.errors import ConfigError
from streamrec.formats.examples.descriptions import (
    LENGTH,
    as_sequence_features,
    from_description,
    is_pair,
    pair_from_description,
)
from streamrec.formats.examples.faults import ColumnFault, UrlOf, explain
from streamrec.formats.examples.features import FeatureParser, rows_of
from streamrec.formats.examples.needs import Needs, Share, one_by_one
from streamrec.formats.examples.spec_columns import compile_spec, compile_steps
from streamrec.formats.examples.specs import FixedLenSequenceFeature
from streamrec.kernel.contract import KernelFault, fresh
from streamrec.values.records import RecordRows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from streamrec.kernel.contract import Allocate
    from streamrec.values.columns import Bytes, BytesColumn, Column


__all__ = [
    "ParsesRows",
    "SequenceColumns",
    "SequenceFeatureParser",
    "parse_sequence_example",
    "parse_single_sequence_example",
    "parser_of",
]


class SequenceColumns(NamedTuple):
    """The columns of SequenceExamples, in the three parts that TensorFlow gives."""

    context: dict[str, Column]
    sequences: dict[str, Column]
    lengths: dict[str, npt.NDArray[np.int64]]
    """int64 ``[rows]``: each row's number of steps, for every :class:`FixedLenSequenceFeature`."""


class ParsesRows(Protocol):
    """A parser of a stream's records into the columns of a batch."""

    def parse(self, rows: RecordRows, url_of: UrlOf | None = None) -> dict[str, Column]:
        """Parse records into columns."""
        ...


class SequenceFeatureParser:
    """A parser of serialized SequenceExamples, which any number of threads may use.

    Args:
        features: A pair (context, sequence) of specs by feature name.
        pad: Give :class:`FixedLenSequenceFeature` as one array, short rows filled up; else as
            a :class:`Ragged` of items, so that a row does not depend on those beside it.
        allocate: As in :class:`FeatureParser`.
        share: As in :class:`FeatureParser`.

    Raises:
        ConfigError: A spec is wrong, or two need the same feature in different ways.
    """

    def __init__(
        self,
        features: Any,
        *,
        pad: bool = True,
        allocate: Allocate = fresh,
        share: Share = one_by_one,
    ) -> None:
        context, sequence = as_sequence_features(features)
        needs, steps = Needs(allocate, share), Needs(allocate, share)
        self._context = {
            name: compile_spec(name, context[name], needs, pad=pad) for name in context
        }
        self._sequence = {
            name: compile_steps(name, sequence[name], steps, pad=pad) for name in sequence
        }
        self._lengths = {
            name: steps.numbers[name]
            for name, spec in sequence.items()
            if isinstance(spec, FixedLenSequenceFeature)
        }
        self._needs = {(name, False): need for name, need in needs.by_name.items()}
        self._needs |= {(name, True): need for name, need in steps.by_name.items()}
        self._split = len(needs.by_name)
        self._parser = kernel.Parser(needs.plans, steps.plans, allocate)

    def parse_parts(self, rows: RecordRows, url_of: UrlOf | None = None) -> SequenceColumns:
        """Parse records into columns of the context, of the feature lists, and of their lengths.

        Args:
            rows: The records.
            url_of: A function from a shard's number to its URL, for errors.

        Raises:
            MalformedExample: A record is no SequenceExample.
            MissingFeature: A record lacks a feature, and its spec does not allow that.
            WrongFeatureType: A record holds other values than the spec says.
            MalformedImage: A picture cannot be decoded.
        """
        try:
            columns = self._parser.parse(rows)
            lists: list[Any] = columns[self._split :]
            return SequenceColumns(
                {name: make(columns) for name, make in self._context.items()},
                {name: make(lists) for name, make in self._sequence.items()},
                {name: np.diff(lists[at].row_splits) for name, at in self._lengths.items()},
            )
        except (KernelFault, ColumnFault) as fault:
            raise explain(fault, rows, self._needs, sequence=True, url_of=url_of) from None

    def parse(self, rows: RecordRows, url_of: UrlOf | None = None) -> dict[str, Column]:
        """Parse records into one mapping; lengths are under the features' names and ``/length``."""
        context, sequences, lengths = self.parse_parts(rows, url_of)
        return context | sequences | {f"{name}{LENGTH}": lengths[name] for name in lengths}


def parse_sequence_example(
    serialized: Sequence[Bytes] | npt.NDArray[np.object_] | BytesColumn,
    context_features: Mapping[str, Any] | None = None,
    sequence_features: Mapping[str, Any] | None = None,
) -> SequenceColumns:
    """Parse a batch of SequenceExamples, as ``tf.io.parse_sequence_example`` does.

    Args:
        serialized: The records.
        context_features: Specs of the context's features.
        sequence_features: Specs of the feature lists: :class:`FixedLenSequenceFeature`,
            :class:`VarLenFeature`, :class:`RaggedFeature` and :class:`Image`.

    Returns:
        Columns of the context, columns of the feature lists, and for each
        :class:`FixedLenSequenceFeature` among these the rows' numbers of steps.

    Raises:
        ConfigError: A spec is wrong, or there is none.
        DataError: A record is wrong, as in :meth:`SequenceFeatureParser.parse_parts`.
    """
    parser = _parser(context_features, sequence_features, pad=True)
    return parser.parse_parts(rows_of(serialized, "parse_single_sequence_example"))


def parse_single_sequence_example(
    serialized: Bytes,
    context_features: Mapping[str, Any] | None = None,
    sequence_features: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parse one SequenceExample, as ``tf.io.parse_single_sequence_example`` does.

    Returns:
        The only rows of the columns of the context, and of those of the feature lists.
    """
    parser = _parser(context_features, sequence_features, pad=False)
    context, sequences, _ = parser.parse_parts(RecordRows.of([serialized]))
    return (
        {name: column[0] for name, column in context.items()},
        {name: column[0] for name, column in sequences.items()},
    )


def _parser(context: Any, sequence: Any, *, pad: bool) -> SequenceFeatureParser:
    if not (context or sequence):
        raise ConfigError(
            "neither context_features nor sequence_features names a feature; give a spec"
        )
    return SequenceFeatureParser((context, sequence), pad=pad)


def parser_of(
    plain: Mapping[str, Any],
    *,
    pad: bool = True,
    allocate: Allocate = fresh,
    share: Share = one_by_one,
) -> ParsesRows:
    """Make the parser for features in their plain form.

    Args:
        plain: The features of Examples or of SequenceExamples; the form is described in
            :mod:`streamrec.formats.examples.descriptions`.
        pad: As in :class:`FeatureParser`.
        allocate: As in :class:`FeatureParser`.
        share: As in :class:`FeatureParser`.

    Raises:
        ConfigError: A spec is wrong, or two columns would have the same name.
    """
    if not is_pair(plain):
        return FeatureParser(from_description(plain), pad=pad, allocate=allocate, share=share)
    pair = pair_from_description(plain)
    return SequenceFeatureParser(pair, pad=pad, allocate=allocate, share=share)
