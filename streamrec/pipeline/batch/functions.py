"""The user's own functions: how they are found by name and called, and how their faults show.

A function that takes ``rng`` gets a generator, whose seed follows from the record's place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from streamrec.errors import ConfigError, FunctionFailed
from streamrec.masking import type_of
from streamrec.pipeline.batch.batch import Batch
from streamrec.pipeline.batch.origin import Origin
from streamrec.values.columns import Arrays, BytesColumn, Ragged, Sparse
from streamrec.values.given_columns import as_delivered, fault_of, is_number
from streamrec.values.rows import join_columns, row_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from streamrec.config import DatasetSettings
    from streamrec.formats.examples.faults import UrlOf
    from streamrec.values.columns import Column, Indices


RNG = "rng"
"""The name of the parameter that is given a generator."""

# Never changed: a run that is resumed must draw the same values as before.
STREAMS = {"filter": 1, "map": 2, "transform": 3}
"""The number of each setting, so that they draw independently of each other."""
MASK = (1 << 64) - 1


def generator_for(
    setting: str, seed: int, epoch: int, place: int, part: int
) -> np.random.Generator:
    """Make the generator of a place.

    Args:
        setting: The name of the setting whose function gets it.
        seed: The seed of the stream.
        epoch: The epoch.
        place: The number of the shard; for a batch, the step.
        part: The number of the record in its shard; for a batch, the rank.
    """
    # The first word of the counter counts the blocks that are drawn.
    counter = np.array([0, epoch & MASK, place & MASK, part & MASK], np.uint64)
    key = np.array([seed, STREAMS[setting]], np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))


def takes_generator(setting: str, function: Callable[..., Any], name: str) -> bool:
    """Return whether a function has a parameter named ``rng`` after its first one.

    Args:
        setting: The name of the setting, for errors.
        function: The function.
        name: Its name, for errors.

    Raises:
        ConfigError: It needs another argument, which nothing would be given for.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())[1:]
    except (TypeError, ValueError):  # one of C, which does not say
        return False
    if isinstance(function, partial) and RNG in function.keywords:
        return False  # it is bound to a generator of the user's
    variable = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    by_name = {one.name for one in parameters if one.kind is not inspect.Parameter.POSITIONAL_ONLY}
    for one in parameters:
        is_needed = one.default is inspect.Parameter.empty and one.kind not in variable
        if is_needed and not (one.name == RNG and RNG in by_name):
            raise ConfigError(
                f"the setting {setting!r} is {name}, whose parameter {one.name!r} gets no value; "
                f"if it is a random generator, name it {RNG}, else bind it with functools.partial"
            )
    return any(one.name == RNG and one.kind not in variable for one in parameters)


SETTINGS = ("filter", "map", "transform")
"""The settings that are functions."""


class Function:
    """A function of the user's.

    One with a parameter named ``rng`` is given a random generator. A filter or a map is then called
    with one record at a time, whose generator depends on the epoch and the record alone; the
    generator of a transform depends on the epoch, the step and the rank.

    Args:
        setting: The name of the setting that it is given as.
        function: The function, or its name as ``"module:function"``.
        seed: The seed of the stream, for generators.

    Raises:
        ConfigError: There is no function of that name, or it needs further arguments.
    """

    def __init__(self, setting: str, function: Callable[..., Any] | str, seed: int = 0) -> None:
        self.setting = setting
        self.name = name_of(function)
        self._function = load(setting, function) if isinstance(function, str) else function
        self._seed = seed
        self.is_random = takes_generator(setting, self._function, self.name)
        """True if it is given a generator."""

    def __repr__(self) -> str:
        return f"<Function {self.name} for {self.setting}>"

    def keep(
        self, columns: Mapping[str, Any], origin: Origin, url_of: UrlOf, epochs: Indices | int = 0
    ) -> npt.NDArray[np.bool_]:
        """Call a filter.

        Args:
            columns: The columns of some records.
            origin: The origin of these records.
            url_of: Returns the URL of a shard's number.
            epochs: The epoch of each record, or of all of them.

        Returns:
            bool ``[records]``: True for a record that is kept.

        Raises:
            FunctionFailed: The function raised or returned something else.
        """
        if not self.is_random:
            return self._mask(columns, origin, url_of)
        each = self._one_by_one(columns, origin, epochs)
        masks = [self._mask(one, place, url_of, rng) for one, place, rng in each]
        return np.concatenate([np.empty(0, bool), *masks])

    def _mask(
        self,
        columns: Mapping[str, Any],
        origin: Origin,
        url_of: UrlOf,
        rng: np.random.Generator | None = None,
    ) -> npt.NDArray[np.bool_]:
        mask = self._call(columns, origin, url_of, rng)
        rows = len(origin.shards)
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (rows,):
            why = f"returned {_words(mask)}; it must return a boolean array of shape ({rows},)"
            raise self._failure(why, origin, url_of)
        return mask

    def apply(
        self, columns: Mapping[str, Any], origin: Origin, url_of: UrlOf, epochs: Indices | int = 0
    ) -> dict[str, Column]:
        """Call a map, which returns columns of as many rows.

        Arguments and errors are those of :meth:`keep`.
        """
        if not self.is_random:
            return self._columns(columns, origin, url_of)
        # A map of no records tells which columns there are; a generator is given as its signature
        # asks for one.
        if not len(origin.shards):
            rng = generator_for(self.setting, self._seed, 0, 0, 0)
            return self._columns(columns, origin, url_of, rng)
        each = self._one_by_one(columns, origin, epochs)
        rows = [self._columns(one, place, url_of, rng) for one, place, rng in each]
        return self.join_rows(rows, origin, url_of)

    def change(self, batch: Batch, url_of: UrlOf) -> dict[str, Column]:
        """Call a transform, which returns columns of as many rows.

        Raises:
            FunctionFailed: The function raised or returned something else.
        """
        rng, at = None, batch.next_position
        if self.is_random:
            # The position is that after the batch, so the batch's own step is one less.
            rng = generator_for(self.setting, self._seed, batch.epoch, at.step - 1, at.rank)
        return self._columns(batch, batch.origin, url_of, rng)

    def _one_by_one(
        self, columns: Mapping[str, Any], origin: Origin, epochs: Indices | int
    ) -> Iterator[tuple[Mapping[str, Any], Origin, np.random.Generator]]:
        """Yield the columns, the origin and the generator of each record."""
        # What is cut together depends on ranges and ranks, so no generator may serve several.
        every_epoch = np.broadcast_to(epochs, origin.shards.shape).tolist()
        places = zip(origin.shards.tolist(), origin.records.tolist(), every_epoch, strict=True)
        for row, (shard, record, epoch) in enumerate(places):
            one: Mapping[str, Any] = _LazyRow(columns, row)
            if self.setting == "map":  # which may change it and give it back
                one = dict(one)
            place = Origin(origin.shards[row : row + 1], origin.records[row : row + 1])
            yield one, place, generator_for(self.setting, self._seed, epoch, shard, record)

    def join_rows(
        self, rows: Sequence[Mapping[str, Column]], origin: Origin, url_of: UrlOf
    ) -> dict[str, Column]:
        """Join what a map gave for each record.

        Raises:
            FunctionFailed: It gave other columns for one record than for another.
        """
        first = rows[0]
        for row in rows:
            if row.keys() != first.keys():
                both = f"{sorted(first)} for one record, and {sorted(row)} for another"
                why = f"returned the columns {both}; it must return the same columns for all"
                raise self._failure(why, origin, url_of)
        result: dict[str, Column] = {}
        for name in first:
            try:
                result[name] = join_columns([row[name] for row in rows])
            except ValueError as error:
                why = (
                    f"returned {name!r} in several forms ({error}), but all records of a batch "
                    "must have the same form; return sr.Arrays or sr.Ragged if shapes differ"
                )
                raise self._failure(why, origin, url_of) from None
        return result

    def _columns(
        self, columns: Any, origin: Origin, url_of: UrlOf, rng: np.random.Generator | None = None
    ) -> dict[str, Column]:
        result = self._call(columns, origin, url_of, rng)
        if not isinstance(result, Mapping):
            why = f"returned {_words(result)}; it must return a mapping of columns"
            raise self._failure(why, origin, url_of)
        rows = len(origin.shards)
        for name, column in result.items():
            if not isinstance(name, str) or _rows_of(column) != rows:
                why = f"returned {name!r} as {_words(column)}; {_advice_for(column, rows)}"
                raise self._failure(why, origin, url_of)
            if fault := fault_of(column):
                why = f"returned {name!r} as {_words(column)} whose {fault}"
                raise self._failure(why, origin, url_of)
        return {name: as_delivered(column) for name, column in result.items()}

    def _call(
        self, argument: Any, origin: Origin, url_of: UrlOf, rng: np.random.Generator | None
    ) -> Any:
        try:
            return self._function(argument) if rng is None else self._function(argument, rng=rng)
        except KeyboardInterrupt:
            raise  # Ctrl-C, which is for the program
        # All else is a fault of the function: sys.exit would end the engine process, and asyncio's
        # CancelledError a task that reads, as if there were no more records.
        except BaseException as error:
            why = f"raised {type(error).__name__}: {error}"
            raise self._failure(why, origin, url_of) from error

    def _failure(self, why: str, origin: Origin, url_of: UrlOf) -> FunctionFailed:
        intact = origin.shards >= 0
        shards, records = origin.shards[intact].tolist(), origin.records[intact].tolist()
        if not records:
            return FunctionFailed(
                f"{self.name} {why}; it was called with {len(intact)} rows, none of them a record "
                "(mask is False): mend the function",
                setting=self.setting,
            )
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
    def draw_in_lanes(self) -> bool:
        """True if a filter or a map is given a generator."""
        return any(function is not None and function.is_random for function in self[:2])

    @property
    def in_lanes(self) -> str:
        """The names of the functions that decide which records come, and with what content."""
        functions = [function for function in (self.filter, self.map) if function]
        return ", ".join(f"{function.setting} {function.name}" for function in functions)

    @classmethod
    def of(cls, settings: DatasetSettings) -> Self:
        """Find the functions that the settings name.

        Raises:
            ConfigError: There is no function of a name.
        """
        values = ((name, getattr(settings, name)) for name in SETTINGS)
        return cls(
            *(
                None if value is None else Function(name, value, settings.seed)
                for name, value in values
            )
        )


class _LazyRow(Mapping[str, Any]):
    """One row of some columns, each cut at its first use: others may not even be parsed."""

    def __init__(self, columns: Mapping[str, Any], number: int) -> None:
        self._columns, self._number = columns, number
        self._cut: dict[str, Column] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._cut:
            self._cut[name] = row_of(self._columns[name], self._number)
        return self._cut[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


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
        target: Any = import_module(module)
    except Exception as error:
        raise ConfigError(
            f"the setting {setting!r} names {name!r}, but importing {module} raised "
            f"{type(error).__name__}: {error}; check the name and PYTHONPATH"
        ) from error
    for part in path.split("."):
        target = getattr(target, part, None)
    if not callable(target):
        raise ConfigError(
            f"the setting {setting!r} names {name!r}, but {module} has no such function; "
            "correct the name"
        )
    return target  # type: ignore[no-any-return]


def _rows_of(column: Any) -> int:
    """Count a column's rows; -1 if it is not a column."""
    if isinstance(column, np.ndarray):
        # What another process can send: a result must not depend on who calls the function.
        is_fit = (
            column.ndim and is_number(column.dtype) and not isinstance(column, np.ma.MaskedArray)
        )
        return len(column) if is_fit else -1
    return len(column) if isinstance(column, Arrays | BytesColumn | Ragged | Sparse) else -1


def _advice_for(column: Any, rows: int) -> str:
    """Return what to give in place of a column."""
    if isinstance(column, np.ma.MaskedArray):
        return "it must return arrays without a mask, by .filled(...)"
    library = type(column).__module__.partition(".")[0]
    if library == "torch" or hasattr(column, "numpy"):
        return "it must return NumPy arrays, by .numpy()"
    if hasattr(column, "__array__") and not isinstance(column, np.ndarray):
        return f"it must return NumPy arrays, by numpy.asarray(), of {rows} rows"
    if isinstance(column, list | tuple):
        return f"it must return {_instead_of_list(column)}"
    if isinstance(column, np.ndarray) and len(column.shape[:1]) and not is_number(column.dtype):
        return (
            "it must return numbers of at most 64 bits, by .astype(...), and strings as a column, "
            "by streamrec.BytesColumn.of(...)"
        )
    return f"it must return columns of {rows} rows"


def _instead_of_list(values: Sequence[Any]) -> str:
    """Return what to make of a list: its dtype would follow from the values of some records."""
    first = values[0] if values else None
    if isinstance(first, str):
        return "a column, by streamrec.BytesColumn.of([text.encode() for text in ...])"
    if isinstance(first, bytes | bytearray | memoryview):
        return "a column, by streamrec.BytesColumn.of(...)"
    if isinstance(first, np.ndarray):
        return (
            "an array, by numpy.stack(...), or for arrays of different shapes a column, by "
            "streamrec.Arrays.of(...)"
        )
    return (
        "an array, by numpy.array(...), or for strings a column, by streamrec.BytesColumn.of(...)"
    )


def _words(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of dtype {value.dtype} and shape {value.shape}"
    if isinstance(value, Arrays | BytesColumn | Ragged | Sparse | Batch):
        return f"{type_of(value)} of {len(value)} rows"
    return type_of(value)
