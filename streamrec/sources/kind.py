"""The declaration of a kind of source: its suffixes, its options and its opening.

``streamrec write`` reads the declarations to print its help and to complete options. So the file of
a kind imports NumPy, stores and other heavy modules only inside the functions that need them.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from streamrec.sources.source import Source


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of ``streamrec write`` for sources of some kinds.

    Args:
        name: The argument of the opening.
        help: The text of ``--help``.
        flag: The name on the command line, without dashes; by default ``name``.
        metavar: The value in ``--help``.
        type: The type of the value; ``bool``: the option has no value.
        choices: The texts to choose among.
        least: The smallest number.
        most: The largest number.
        has_opposite: There is a ``--no-NAME``, too.
        is_repeatable: The opening gets a tuple of all values.
        is_place: The value is a path, or a URL.
        parse: Makes the opening's argument of the value.
    """

    name: str
    help: str
    flag: str | None = None
    metavar: str | None = None
    type: type[str | int | float | bool] = str
    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    has_opposite: bool = False
    is_repeatable: bool = False
    is_place: bool = False
    parse: Callable[[Any], Any] | None = None

    @property
    def on_command_line(self) -> str:
        """The option as it is typed."""
        return f"--{self.flag or self.name.replace('_', '-')}"


@dataclass(frozen=True)
class SourceKind:
    """A kind of source, such as CSV.

    Args:
        name: The value of ``--kind``.
        open: Opens a source. Beside the place and the options it gets those of ``storage_options``,
            ``memory``, ``splits`` and ``function`` that it has a parameter for.
        suffixes: The ends of the names that tell the kind.
        options: Its options.
    """

    name: str
    open: Callable[..., Source]
    suffixes: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()

    @cached_property
    def parameters(self) -> Collection[str]:
        """The names of the opening's parameters."""
        return inspect.signature(self.open).parameters.keys()

    @property
    def is_function(self) -> bool:
        """True if SOURCE is a function of the user."""
        return "function" in self.parameters

    @property
    def is_stored(self) -> bool:
        """True if it can be read from a store."""
        return "storage_options" in self.parameters

    def has_suffix(self, *names: str) -> bool:
        """Return whether one of some names tells this kind."""
        return any(name.endswith(self.suffixes) for name in names if self.suffixes)

    def refuse_others(self, given: Collection[str], all_options: Collection[Option]) -> None:
        """Refuse options of other kinds.

        Raises:
            ConfigError: One is given.
        """
        names = {option.name for option in self.options}
        typed = {option.name: option.on_command_line for option in all_options}
        for name in given:
            if name not in names:
                raise ConfigError(
                    f"{typed[name]} does not go with a source of the kind {self.name}; leave it "
                    "out, or name the kind with --kind"
                )
