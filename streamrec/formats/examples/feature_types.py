"""The types of features, which stay equal over all records of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrec import kernel
from streamrec.errors import ConfigError, WrongFeatureType
from streamrec.formats.examples.example import encode_noted
from streamrec.formats.examples.needs import Needs
from streamrec.formats.examples.spec_columns import compile_spec
from streamrec.formats.examples.specs import as_specs, feature_of
from streamrec.kernel.contract import ColumnKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CODES = {"bytes_list": 1, "float_list": 2, "int64_list": 3}
"""The number of each list's field in a ``Feature``: feature.proto."""
NAMES = {1: "bytes", 2: "float32", 3: "int64"}
_CODE_OF = {name: code for code, name in NAMES.items()}


class FeatureTypes:
    """The types of features: those declared, or those of the first records that have them.

    Args:
        features: Specs by feature name, which name all features there are; ``None``: any features.

    Raises:
        ConfigError: A spec is wrong.
    """

    def __init__(self, features: Mapping[str, Any] | None = None) -> None:
        self.codes: dict[str, int] = {}
        """The number of each feature's list in a ``Feature``."""
        self._since: dict[str, int] = {}
        self._is_declared = features is not None
        if features is not None:
            needs = Needs()
            for name, spec in as_specs(features).items():
                compile_spec(feature_of(name, spec), spec, needs, ColumnKind.VARLEN, pad=True)
            self.codes = {plan.name: _CODE_OF[plan.dtype.value] for plan in needs.plans}

    def encode(self, features: Mapping[str, Any], record: int) -> bytes:
        """Serialize one Example, and take its types.

        Args:
            features: As :func:`encode_example` takes them.
            record: The record's number.

        Raises:
            WrongFeatureType: A value has no representation, or another type than its feature.
        """
        plain = kernel.encode_plain(features, self.codes)
        if plain is not None:
            return plain
        kinds: list[tuple[str, str | None, int]] = []
        try:
            data = encode_noted(features, lambda name, kind: kinds.append((name, kind, record)))
        except WrongFeatureType as error:
            error.record = record
            raise
        self.take(kinds)
        return data

    def take(self, values: Iterable[tuple[str, str | None, int]]) -> None:
        """Take the types of values: all of them, or none if one is refused.

        Args:
            values: For each value the feature's name, the field of ``Feature`` that is set
                (``None`` where the value has no type), and the record's number.

        Raises:
            WrongFeatureType: A feature has another type, or is not declared.
        """
        # Kept apart until all are accepted: a refused record must leave no types behind.
        new: dict[str, tuple[int, int]] = {}
        for name, kind, record in values:
            if kind is not None:
                self._take(name, CODES[kind], record, new)
        for name, (code, record) in new.items():
            self.codes[name], self._since[name] = code, record

    def _take(self, name: str, code: int, record: int, new: dict[str, tuple[int, int]]) -> None:
        # Values of the same call must agree among themselves, too.
        known, since = new.get(name, (self.codes.get(name), self._since.get(name)))
        if known is None and self._is_declared:
            message = "features does not name it; add it there, or leave it out of the records"
            raise WrongFeatureType(message, feature=name, record=record)
        if known is None:
            new[name] = code, record
        elif known != code:
            raise WrongFeatureType(
                f"the value is of type {NAMES[code]}, but the feature is {NAMES[known]} "
                f"{self._origin(since)}; give all records one type of value",
                feature=name,
                record=record,
            )

    def to_dict(self) -> dict[str, str]:
        """Return the types' names by the features' names, sorted."""
        return {name: NAMES[self.codes[name]] for name in sorted(self.codes)}

    def update(self, types: Mapping[str, str]) -> None:
        """Take the types that :meth:`to_dict` gave.

        Raises:
            ConfigError: A type has no such name.
        """
        try:
            codes = {name: _CODE_OF[kind] for name, kind in types.items()}
        except KeyError as error:
            raise ConfigError(f"there is no type {error} of features; write it again") from None
        self.codes |= codes

    def _origin(self, since: int | None) -> str:
        if self._is_declared:
            return "in features"
        return "in the shards written before" if since is None else f"since record {since}"
