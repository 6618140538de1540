"""The arguments of adapters: the stream, and pairs picked from a batch by the names of features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

from streamrec.errors import ConfigError


def check_stream(stream: Any, call: str) -> None:
    """Refuse what is not a stream at once, not only when it is iterated.

    Args:
        stream: The argument.
        call: The adapter's function, for the error.

    Raises:
        ConfigError: It is something else.
    """
    # By what it can do: a mix and a wrapper of a user are streams, too.
    if not hasattr(stream, "state_dict"):
        raise ConfigError(
            f"{call} takes a stream, not {type(stream).__name__}; give it "
            "streamrec.open(source, features, batch_size=...) or streamrec.connect(address)"
        )


Names: TypeAlias = str | Sequence[str] | Mapping[str, str]
"""The name of a feature; or several, as a sequence or as the values of a mapping from own names."""
Convert: TypeAlias = Callable[[str, Any], Any]
"""From a column's name and values to an array of a framework."""


class Pairs(NamedTuple):
    """The names of inputs and targets."""

    inputs: Names
    targets: Names

    @classmethod
    def of_arguments(cls, inputs: Names | None, targets: Names | None) -> Self | None:
        """Return what an adapter's arguments ask for; ``None`` if it is not pairs.

        Raises:
            ConfigError: Only one of them is given.
        """
        if inputs is None and targets is None:
            return None
        if inputs is None or targets is None:
            there, missing = ("targets", "inputs") if inputs is None else ("inputs", "targets")
            raise ConfigError(
                f"{there}= is given without {missing}=, and a pair takes both; name the features "
                f"of the {missing}, or leave both out"
            )
        return cls(inputs, targets)

    @property
    def features(self) -> list[str]:
        """The names of all features of a pair."""
        return [name for names in self for name in _by_key(names).values()]

    def of(self, columns: Mapping[str, Any], mask: Any = None) -> tuple[Any, ...]:
        """Return ``(inputs, targets)``, or ``(inputs, targets, mask)`` where there is a mask.

        Raises:
            ConfigError: There is no feature of a name.
        """
        pair = pick(columns, self.inputs), pick(columns, self.targets)
        return pair if mask is None else (*pair, mask)


def pick(columns: Mapping[str, Any], names: Names, convert: Convert | None = None) -> Any:
    """Return the column of a name; of several names, a dict of columns.

    Args:
        columns: The columns of a batch, or the values of a record.
        names: The names.
        convert: A function that each column is converted by.

    Raises:
        ConfigError: There is no feature of a name.
    """
    if not isinstance(names, str):
        return {key: pick(columns, name, convert) for key, name in _by_key(names).items()}
    if names not in columns:
        raise ConfigError(
            f"the stream has no feature {names!r}, but {', '.join(columns)}; name one of these"
        )
    return convert(names, columns[names]) if convert else columns[names]


def _by_key(names: Names) -> Mapping[str, str]:
    if isinstance(names, Mapping):
        return names
    return {name: name for name in ([names] if isinstance(names, str) else names)}
