"""The user's own functions: how they are found by name and called, and how their faults show."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from streamrec.errors import ConfigError, FunctionFailed
from streamrec.pipeline.batch.batch import Batch
from streamrec.values.columns import Arrays, BytesColumn, Ragged, Sparse

if TYPE_CHECKING:
    import numpy.typing as npt

    from streamrec.config import DatasetSettings
    from streamrec.formats.examples.faults import UrlOf
    from streamrec.pipeline.batch.batch import Origin
    from streamrec.values.columns import Column

__all__ = [
    "NONE",
    "SETTINGS",
    "Function",
    "Functions",
    "importable",
    "name_of",
]

SETTINGS = ("filter", "map", "transform")
"""The settings that are functions."""


class Function:
    """A function of the user's.

    Args:
        setting: The name of the setting that it is given as.
        function: The function, or its name as ``"module:function"``.

    Raises:
        ConfigError: There is no function of that name.
    """

    def __init__(self, setting: str, function: Callable[..., Any] | str) -> None:
        self.setting = setting
        self.name = name_of(function)
        self._function = load(setting, function) if isinstance(function, str) else function

    def __repr__(self) -> str:
        return f"<Function {self.name} for {self.setting}>"

    def keep(
        self, columns: Mapping[str, Any], origin: Origin, url_of: UrlOf
    ) -> npt.NDArray[np.bool_]:
        """Call a filter.

        Args:
            columns: The columns of some records.
            origin: The origin of these records.
            url_of: Returns the URL of a shard's number.

        Returns:
            bool ``[records]``: True for a record that is kept.

        Raises:
            FunctionFailed: The function raised or returned something else.
        """
        mask = self._call(columns, origin, url_of)
        rows = len(origin.shards)
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (rows,):
            why = f"gave {_words(mask)}; it must give a boolean array of shape ({rows},)"
            raise self._failure(why, origin, url_of)
        return mask

    def apply(self, columns: Mapping[str, Any], origin: Origin, url_of: UrlOf) -> dict[str, Column]:
        """Call a map or a transform, which returns columns of as many rows.

        Arguments and errors are those of :meth:`keep`.
        """
        result = self._call(columns, origin, url_of)
        if not isinstance(result, Mapping):
            why = f"gave {_words(result)}; it must give a mapping of columns"
            raise self._failure(why, origin, url_of)
        rows = len(origin.shards)
        for name, column in result.items():
            if not isinstance(name, str) or _rows_of(column) != rows:
                why = f"gave {name!r} as {_words(column)}; it must give columns of {rows} rows"
                raise self._failure(why, origin, url_of)
        return dict(result)

    def _call(self, argument: Any, origin: Origin, url_of: UrlOf) -> Any:
        try:
            return self._function(argument)
        except Exception as error:
            why = f"raised {type(error).__name__}: {error}"
            raise self._failure(why, origin, url_of) from error

    def _failure(self, why: str, origin: Origin, url_of: UrlOf) -> FunctionFailed:
        given = origin.shards >= 0
        shards, records = origin.shards[given].tolist(), origin.records[given].tolist()
        last = f"record {records[-1]} of {url_of(shards[-1])}"
        return FunctionFailed(
            f"{self.name} {why}; it was called with {len(records)} records, the last of them "
            f"{last}: mend the function",
            setting=self.setting,
            url=url_of(shards[0]),
            record=records[0],
        )


class Functions(NamedTuple):
    """All functions of a dataset."""

    filter: Function | None = None
    """A function of columns that returns a mask."""
    map: Function | None = None
    """A function of columns that returns columns."""
    transform: Function | None = None
    """A function of a batch that returns columns."""

    @property
    def in_lanes(self) -> str:
        """The names of the functions that decide which records come, and with what content."""
        given = [function for function in (self.filter, self.map) if function]
        return ", ".join(f"{function.setting} {function.name}" for function in given)

    @classmethod
    def of(cls, settings: DatasetSettings) -> Self:
        """Find the functions that the settings name.

        Raises:
            ConfigError: There is no function of a name.
        """
        given = ((name, getattr(settings, name)) for name in SETTINGS)
        return cls(*(None if value is None else Function(name, value) for name, value in given))


NONE = Functions()


def name_of(function: Callable[..., Any] | str) -> str:
    """Return a function's name as ``module:function``; for a callable object, its class's."""
    if isinstance(function, str):
        return function
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def load(setting: str, name: str) -> Callable[..., Any]:
    """Import a function by its name.

    Args:
        setting: The name of the setting, for errors.
        name: ``"module:function"``.

    Raises:
        ConfigError: The module cannot be imported or has no such function.
    """
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
    except Exception as error:
        raise ConfigError(
            f"the setting {setting!r} names {name!r}, but importing {module} raised "
            f"{type(error).__name__}: {error}; check the name and PYTHONPATH"
        ) from error
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ConfigError(
            f"the setting {setting!r} names {name!r}, but {module} has no such function; "
            "correct the name"
        )
    return found  # type: ignore[no-any-return]


def importable(function: Callable[..., Any] | str) -> str | None:
    """Return the name by which another process can import a function.

    ``None``: it has none, as a lambda, a local function or one of the main program.
    """
    name = name_of(function)
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module) if module != "__main__" else None
    for part in path.split("."):
        found = getattr(found, part, None)
    return name if found is function or isinstance(function, str) else None


def _rows_of(column: Any) -> int:
    """Count a column's rows; -1 if it is not a column."""
    if isinstance(column, np.ndarray):
        return len(column) if column.ndim and column.dtype.kind not in "OSUMm" else -1
    return len(column) if isinstance(column, Arrays | BytesColumn | Ragged | Sparse) else -1


def _words(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of dtype {value.dtype} and shape {value.shape}"
    if isinstance(value, Arrays | BytesColumn | Ragged | Sparse | Batch):
        return f"a {type(value).__name__} of {len(value)} rows"
    return f"a {type(value).__name__}"
