"""Other names for the features in records: the setting ``rename``, for each component of a mix."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec import kernel
from streamrec.errors import ConfigError
from streamrec.formats.examples.faults import parts_of, record_bytes
from streamrec.kernel.contract import KernelFault
from streamrec.suggestions import close_names, did_you_mean
from streamrec.values.columns import pick_rows
from streamrec.values.rows import join_columns

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from streamrec.kernel.contract import Allocate, ColumnPlan
    from streamrec.values.columns import Column, Indices
    from streamrec.values.record_rows import RecordRows

    Names = Mapping[str, str]

log = logging.getLogger("streamrec.formats")

_FEATURE_KEYS = ("key", "value_key", "index_key", "shape", "partitions")
"""The arguments of a spec's plain form that may name features."""


def new_name(feature: str, names: Names) -> str:
    """Return the new name of a feature.

    Args:
        feature: Its name in the records.
        names: New names by the names in the records; that of a group, as ``steps/observation``,
            stands for all features below it.
    """
    group = feature
    while group not in names:
        group, slash, _ = group.rpartition("/")
        if not slash:
            return feature
    return names[group] + feature[len(group) :]


def new_names(features: Iterable[str], names: Names) -> dict[str, str]:
    """Return the new name of each feature, by its name in the records.

    Raises:
        ConfigError: Two features would have one name.
    """
    renamed = {feature: new_name(feature, names) for feature in features}
    owners: dict[str, str] = {}
    for feature, name in renamed.items():
        if (other := owners.setdefault(name, feature)) != feature:
            raise ConfigError(
                f"rename gives the features {other!r} and {feature!r} of the records one name, "
                f"{name!r}; give one of them another name"
            )
    return renamed


def rename_specs(plain: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """Return specs of Examples, in their plain form, that read the features by their new names.

    Raises:
        ConfigError: A name is not one of a feature, or two features would have one name.
    """
    for name in names:
        if not _has(plain, name):
            hint = did_you_mean(name, plain, f"there are {', '.join(plain)}")
            raise ConfigError(f"rename names the feature {name!r}; {hint}")
    renamed = new_names(plain, names)
    return {renamed[feature]: _rename_keys(spec, names) for feature, spec in plain.items()}


def check_inferred(features: Collection[str], renames: Mapping[str, Names]) -> None:
    """Check that rename has an effect where the features are inferred from records.

    Args:
        features: The names of the features, after renaming.
        renames: The new names of each component's features.

    Raises:
        ConfigError: No record that was looked at has a feature that rename names.
    """
    for component, names in renames.items():
        for name, new in names.items():
            if not _has(features, new):
                where = f" in the component {component!r}" if component else ""
                hint = did_you_mean(name, features, f"there are {', '.join(features)}")
                raise ConfigError(
                    f"rename names the feature {name!r}{where}, and the first records of the "
                    f"shards have none of this name; {hint}"
                )


def unread(features: Any, renames: Mapping[str, Names]) -> Iterator[tuple[str, str]]:
    """Yield each old and new name of rename that has no effect on what is read.

    Args:
        features: The specs in their plain form, by name; ``None``: raw records.
        renames: The new names of each component's features.
    """
    read = set(_texts_in(features))
    for names in renames.values():
        for old, new in names.items():
            # A name that makes room for another feature has its effect.
            if not _has(read, new) and old not in names.values():
                yield old, new


def _texts_in(value: Any) -> Iterator[str]:
    """Yield the names and texts of plain specs, at any depth: specs name features by keys too."""
    match value:
        case str():
            yield value
        case list() | tuple():
            for one in value:
                yield from _texts_in(one)
        case dict():
            yield from value
            for one in value.values():
                yield from _texts_in(one)


def _has(features: Collection[str], name: str) -> bool:
    """Return whether a name is one of a feature, or of a group."""
    return any(feature == name or feature.startswith(f"{name}/") for feature in features)


def _rename_keys(spec: Mapping[str, Any], names: Names) -> dict[str, Any]:
    return {
        key: _rename_texts(value, names) if key in _FEATURE_KEYS else value
        for key, value in spec.items()
    }


def _rename_texts(value: Any, names: Names) -> Any:
    match value:
        case str():
            return new_name(value, names)
        case list():
            return [_rename_texts(one, names) for one in value]
        case dict():
            return {key: _rename_texts(one, names) for key, one in value.items()}
    return value


def check_renames(features: Collection[str], renames: Mapping[str, Names]) -> None:
    """Check that specs read features by their new names.

    Args:
        features: The names of the features that the specs read.
        renames: The new names of each component's features.

    Raises:
        ConfigError: A spec reads a name that rename replaces.
    """
    for component, names in renames.items():
        where = f" in the component {component!r}" if component else ""
        old = {name: feature for feature, name in names.items()}
        for read in features:
            if new_name(read, old) == read != new_name(read, names):
                raise ConfigError(
                    f"features read {read!r}, which rename calls {new_name(read, names)!r}{where}; "
                    "read it by this name"
                )


@dataclass(frozen=True)
class Renames:
    """The new names of features in the shards of each component of a mix; else of all shards."""

    first_shards: tuple[int, ...] = (0,)
    """The number of each component's first shard, ascending."""
    by_component: tuple[Names, ...] = ({},)
    """New names by the names in the component's records."""

    def components_of(self, rows: RecordRows) -> Indices:
        """Return int64 ``[rows]``: the number of the component that each row is of."""
        return np.searchsorted(np.array(self.first_shards), rows.shards, "right") - 1

    def stored_name(self, feature: str, component: int) -> str:
        """Return the name in a component's records of a feature that the specs name."""
        old = {name: feature for feature, name in self.by_component[component].items()}
        return new_name(feature, old)

    def stored_plan(self, plan: ColumnPlan, component: int) -> ColumnPlan:
        """Return the plan of a column with the name in a component's records."""
        return replace(plan, name=self.stored_name(plan.name, component))


AS_STORED = Renames()
"""Features keep the names that they have in the records."""


class RenamingParser:
    """A kernel's parser of records in which features have other names, by component.

    Args:
        plans: As in the kernel's ``Parser``, with the new names.
        lists: As in the kernel's ``Parser``, with the new names.
        allocate: As in the kernel's ``Parser``.
        admit: As in the kernel's ``Parser``.
        renames: The new names.
    """

    def __init__(
        self,
        plans: Sequence[ColumnPlan],
        lists: Sequence[ColumnPlan] | None,
        allocate: Allocate,
        admit: Any,
        renames: Renames,
    ) -> None:
        self._renames = renames
        self._parsers = []
        read = {plan.name for plan in [*plans, *(lists or ())]}
        self._sought = {
            component: [old for old, new in names.items() if _has(read, new)]
            for component, names in enumerate(renames.by_component)
        }
        """The old names that are still to be sought in the first records of each component."""
        for component in range(len(renames.by_component)):
            stored = partial(renames.stored_plan, component=component)
            own_lists = None if lists is None else [*map(stored, lists)]
            own = kernel.Parser([*map(stored, plans)], own_lists, allocate, admit)
            self._parsers.append(own)

    def parse(self, rows: RecordRows) -> list[Column]:
        """Parse records into columns; arguments and errors are those of the kernel's ``Parser``."""
        if len(self._parsers) == 1:
            return self._parse(0, rows)
        of_row = self._renames.components_of(rows)
        places = {number: np.flatnonzero(of_row == number) for number in np.unique(of_row).tolist()}
        parts = [self._parse(number, rows, own) for number, own in places.items()]
        if not parts:
            return self._parsers[0].parse(rows)
        if len(parts) == 1:
            return parts[0]
        # The rows stand by component, and go back to their places.
        order = np.argsort(np.concatenate([*places.values()]))
        return [pick_rows(join_columns(part), order) for part in zip(*parts, strict=True)]

    def _parse(
        self, component: int, rows: RecordRows, places: Indices | None = None
    ) -> list[Column]:
        own = rows if places is None else rows.take(places)
        try:
            columns = self._parsers[component].parse(own)
        except KernelFault as fault:
            if places is not None:
                fault.record = int(places[fault.record])
            raise
        if len(own) and (sought := self._sought.pop(component, None)):
            tell_what_is_missing(sought, own)
        return columns


MOST_SOUGHT = 64
"""The first records in which old names are sought; that takes less time than a batch."""

_told: set[str] = set()
"""The warnings that this process has logged: many parsers read the same records."""


def tell_what_is_missing(names: Sequence[str], rows: RecordRows) -> None:
    """Log a warning of each old name that no record has, if they have one that is like it.

    A spec with a default value, or of any number of values, takes such a feature for absent.

    Args:
        names: The old names.
        rows: The first records.
    """
    there: set[str] = set()
    for row in range(min(len(rows), MOST_SOUGHT)):
        there.update(*parts_of(record_bytes(rows, row), sequence=True))
        if all(_has(there, name) for name in names):
            return
    for name in names:
        close = close_names(name, there)
        text = f"rename names the feature {name!r}, which the first records do not have"
        if close and not _has(there, name) and text not in _told:
            _told.add(text)
            log.warning("%s; did you mean %r?", text, close[0])
