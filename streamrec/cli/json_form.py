"""The JSON form of records, as ``streamrec cat --help`` describes it."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import MalformedExample, MissingFeature
from streamrec.formats.examples.example import Example, SequenceExample
from streamrec.suggestions import did_you_mean
from streamrec.values.message_schema import unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from streamrec.datasets.survey import PlacedRecord

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""C0 and C1 without tab, line feed and carriage return; they would steer the terminal."""
_NO_NUMBER = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""As in protobuf's JSON mapping."""


class Examples:
    """A printer of parsed Examples.

    Args:
        names: The features to print, in this order; ``None``: all, sorted.
    """

    def __init__(self, names: Sequence[str] | None = None) -> None:
        self._names = names
        self._seen: set[str] = set()
        self._others: set[str] = set()
        self._first: PlacedRecord | None = None

    def line(self, record: PlacedRecord) -> str:
        """Return a record as one line of JSON, without its end.

        Raises:
            MalformedExample: The record is not an Example.
        """
        features, lists = self._parse(record)
        self._note({**features, **lists})
        form = {name: _values(features[name]) for name in self._names_of(features)}
        if not lists:
            return json.dumps(form, ensure_ascii=False)
        steps = {
            name: [_values(step) for step in lists[name].feature] for name in self._names_of(lists)
        }
        return json.dumps({"context": form, "feature_lists": steps}, ensure_ascii=False)

    @property
    def has_all(self) -> bool:
        """True once a record had each named feature."""
        return self._names is None or self._seen.issuperset(self._names)

    def finish(self) -> None:
        """Check, after the last record, that each named feature was in a record.

        A record may lack a feature that others have, so only now is a name known to be wrong.

        Raises:
            MissingFeature: No record had a feature of one of the names.
        """
        for name in self._names or ():
            if self._first is not None and name not in self._seen:
                raise MissingFeature(
                    f"no record that was read has this feature; {_nearest(name, self._others)}",
                    url=self._first.url,
                    feature=name,
                )

    def _parse(self, record: PlacedRecord) -> tuple[Any, Any]:
        """Return the record's features, and its feature lists if it is a SequenceExample.

        An Example is a SequenceExample of the same context, without feature lists.
        """
        self._first = self._first or record
        try:
            # The larger message first: it reads an Example as its context, and tells feature lists.
            message = SequenceExample.FromString(record.payload)
            return message.context.feature, message.feature_lists.feature_list
        except unreadable():
            pass
        try:
            return Example.FromString(record.payload).features.feature, {}
        except unreadable():
            raise MalformedExample(
                "not a serialized tf.train.Example; --raw prints records as they are",
                url=record.url,
                record=record.number,
            ) from None

    def _names_of(self, there: Any) -> list[str]:
        # A map of protobuf has no order that one could rely on.
        return sorted(there) if self._names is None else [n for n in self._names if n in there]

    def _note(self, there: Mapping[str, Any]) -> None:
        if self._names is not None:
            self._seen.update(name for name in self._names if name in there)
            # Of all records: the nearest right name may be in a later one.
            self._others.update(there)


def raw_line(record: PlacedRecord) -> str:
    """Return a record's payload in base64, as a JSON string."""
    # Base64 has no character that JSON would escape.
    return f'"{base64.b64encode(record.payload).decode()}"'


def text_or_base64(value: bytes) -> str | dict[str, str]:
    """Return bytes as text if they are text, else as base64."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        # A control character, so that base64 is given below.
        text = "\0"
    if _CONTROL.search(text):
        return {"base64": base64.b64encode(value).decode()}
    return text


def _values(feature: Any) -> list[Any] | None:
    kind = feature.WhichOneof("kind")
    if kind is None:
        return None
    values = getattr(feature, kind).value
    if kind == "bytes_list":
        return [text_or_base64(value) for value in values]
    return _shortest(values) if kind == "float_list" else list(values)


def _shortest(values: Iterable[float]) -> list[float | str]:
    """Return each float32 as the shortest decimal that reads back as the same; NumPy finds it."""
    # Python's own repr is that of a double, with digits that a float32 never had.
    texts = np.array(list(values), np.float32).astype(str).tolist()
    return [_NO_NUMBER[text] if text in _NO_NUMBER else float(text) for text in texts]


def _nearest(name: str, others: set[str]) -> str:
    every = f"there are {', '.join(map(repr, sorted(others)[:8]))}" if others else "there is none"
    return did_you_mean(name, others, every)
