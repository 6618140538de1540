"""The user's functions on their way to the private engine process, by value.

A function takes along all that it reads of the user's program, as it is now: globals, also of other
modules, closures, defaults, attributes. So the process calls what this one would call. What belongs
to an installed package is imported there.

They are pickled into the settings that a process writes to the standard input of its own child.
Nothing else is ever unpickled, and nothing that came over a socket.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle

from streamrec.errors import ConfigError
from streamrec.feeder.function_code import (
    draws_from,
    is_generator,
    is_own,
    obstacle,
    reads,
    variables,
)
from streamrec.pipeline.functions import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["SentFunctions", "Unsendable", "unpickled"]

MOST = 256 << 20
"""Bytes of functions and all that they read: it is written anew for each run."""
PLAIN = (bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, type(None))
"""The types of values that a program may have set in an installed package, as an option."""

_cached = type(lru_cache(name_of))
_registry = threading.Lock()


class Unsendable(ConfigError):
    """A function that no other process can be given."""


@dataclass(frozen=True)
class SentFunctions:
    """The functions of a stream, with all that they read at a time; equal if nothing changed."""

    digest: bytes
    """The digest of the data; empty if there is none."""
    data: str = field(compare=False)
    """The pickle in base64."""
    error: Unsendable | None = field(default=None, compare=False)
    """The reason why there is none."""

    @classmethod
    def of(cls, functions: Mapping[str, Callable[..., Any]]) -> SentFunctions:
        """Pickle functions by value, with all that they read of this program.

        Args:
            functions: The functions by the name of their setting.
        """
        try:
            data = _pickled(functions)
        except _Refused as error:
            return cls(b"", "", _unsendable(functions, error))
        return cls(blake2b(data).digest(), b64encode(data).decode())


def unpickled(data: str) -> dict[str, Callable[..., Any]]:
    """Return the functions that the parent process has pickled, by the name of their setting.

    Raises:
        ConfigError: A module that they refer to cannot be imported here.
    """
    try:
        functions, options, *_ = cloudpickle.loads(b64decode(data))
        for module, name, value in options:
            setattr(module, name, value)
    except Exception as error:
        raise ConfigError(
            "the engine process cannot load the functions of the settings "
            f'({type(error).__name__}: {error}); check PYTHONPATH, or set engine="thread"'
        ) from error
    return functions  # type: ignore[no-any-return]


class _Refused(Exception):
    """Something that cannot be sent."""

    def __init__(self, what: str, *, is_random: bool = False) -> None:
        super().__init__(what)
        self.is_random = is_random


class _Reads(NamedTuple):
    """The names that pickled functions read."""

    functions: list[FunctionType]
    own: set[tuple[str, str]]
    """Attributes of modules of the user's: (module, name)."""
    options: dict[tuple[str, str], ModuleType]
    """Installed modules by (module, name), whose value a program may have set."""

    def add(self, function: FunctionType) -> None:
        """Note what a function of the user's reads.

        Raises:
            _Refused: That cannot be told, or is a random generator.
        """
        if generator := draws_from(function):
            raise _Refused(f"draws from {generator}", is_random=True)
        if reason := obstacle(function):
            raise _Refused(f"{reason} ({function.__module__}:{function.__qualname__})")
        self.functions.append(function)
        for read in reads(function):
            if read.owner is None:
                continue
            place = read.owner.__name__, read.path.rpartition(".")[2]
            if is_own(place[0]):
                self.own.add(place)
            elif _is_option(read.value, place[0]) and vars(read.owner).get(place[1]) is read.value:
                self.options[place] = read.owner


def _is_option(value: Any, module: str) -> bool:
    """Return whether a value of an installed module may be what the program has set there."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == __name__.partition(".")[0]:
        return type(value) in PLAIN
    # What has a name is code: a function of any kind, a class, a module.
    return not hasattr(value, "__name__")


def _pickled(functions: Mapping[str, Callable[..., Any]]) -> bytes:
    known: set[tuple[str, str]] = set()
    while True:
        found = _Reads([], set(known), {})
        data = _dump([dict(functions)], found)
        # A module takes along the attributes that functions name, and some come after it.
        if found.own == known:
            options = [
                (module, name, getattr(module, name))
                for (_, name), module in sorted(found.options.items())
            ]
            environment = sorted(os.environ.items()) if _reads_environment(found) else None
            # The process begins with the last two, so it is enough that they are compared.
            return _dump((dict(functions), options, environment, _directory()), found)
        known = found.own
        del data


def _reads_environment(found: _Reads) -> bool:
    return any(
        read.value is os.environ or read.value is os.getenv
        for function in found.functions
        for read in reads(function)
    )


def _directory() -> str | None:
    """Return the directory in which relative paths are looked up."""
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return None


def _dump(value: Any, found: _Reads) -> bytes:
    file = _Bounded()
    own = {name for name in list(sys.modules) if "." not in name and is_own(name)} - {"__main__"}
    with _registry:
        added = own - cloudpickle.list_registry_pickle_by_value()
        # Some programs put other objects there.
        found_there: list[Any] = [sys.modules.get(name) for name in added]
        modules = [module for module in found_there if isinstance(module, ModuleType)]
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            _Pickler(file, found).dump(value)
        except _Refused:
            raise
        except Exception as error:
            what = _blamed(found, error)
            raise _Refused(what) from error
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)
    return file.getvalue()


class _Bounded(BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + len(data) > MOST:
            raise _Refused(f"reads more than {MOST >> 20} MiB of this program")
        return super().write(data)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler of all that is of the user's program, by value."""

    def __init__(self, file: BytesIO, found: _Reads) -> None:
        super().__init__(file)
        self._found = found

    def reducer_override(self, value: Any) -> Any:
        """Return how to pickle a value; ``NotImplemented``: as always."""
        if is_generator(value):
            raise _Refused("draws from a random generator of the program", is_random=True)
        if isinstance(value, ModuleType) and is_own(value.__name__):
            known = vars(value)
            names = sorted(name for owner, name in self._found.own if owner == value.__name__)
            return ModuleType, (value.__name__,), {n: known[n] for n in names if n in known}
        if isinstance(value, ModuleType) and type(value) is not ModuleType:  # as lazy ones are
            return importlib.import_module, (value.__name__,)
        if isinstance(value, _cached) and is_own(value.__module__):
            return _cache_again, (value.__wrapped__, value.cache_parameters())
        if type(value) is cached_property:  # it holds a lock before Python 3.12
            return cached_property, (value.func,), {"attrname": value.attrname}
        how = super().reducer_override(value)
        if isinstance(value, FunctionType) and how is not NotImplemented:
            self._found.add(value)
        is_installed = isinstance(value, FunctionType | type) and how is NotImplemented
        if is_installed and (generator := draws_from(value)):
            named = f"{value.__module__}.{value.__qualname__}"
            raise _Refused(f"uses {named}, which draws from {generator}", is_random=True)
        return how


def _cache_again(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    cached: Callable[..., Any] = lru_cache(**parameters)(function)
    return cached


def _blamed(found: _Reads, error: Exception) -> str:
    """Return what cannot be pickled, by the name that a function has for it."""
    for function in reversed(found.functions):
        for name, value in _variables_read(function, found):
            try:
                _Pickler(_Bounded(), _Reads([], set(found.own), {})).dump(value)
            except Exception as cause:  # noqa: BLE001 - whatever it is, this is the name of it
                return f"reads {name!r} of {function.__module__} ({type(cause).__name__}: {cause})"
    return f"holds what cannot be pickled ({type(error).__name__}: {error})"


def _variables_read(function: FunctionType, found: _Reads) -> Iterator[tuple[str, Any]]:
    known = variables(function)
    for read in reads(function):
        if read.owner is None:
            is_sent = read.path in known
        else:
            place = read.owner.__name__, read.path.rpartition(".")[2]
            is_sent = place in found.own or place in found.options
        if is_sent and read.value is not function and not isinstance(read.value, ModuleType):
            yield read.path, read.value


def _unsendable(functions: Mapping[str, Callable[..., Any]], error: _Refused) -> Unsendable:
    """Make the error, which names the first of the functions that cannot be sent."""
    for setting, function in functions.items():
        try:
            _pickled({setting: function})
        except _Refused as refused:
            error = refused
            break
    named = f"the setting {setting!r} is {name_of(function)}"
    if error.is_random:
        form = "augment(batch, rng)" if setting == "transform" else f"{setting}(columns, rng)"
        return Unsendable(
            f"{named}, which {error}; an engine process would have a copy of it, and give the same "
            f"numbers in each run. Take a generator, as in `def {form}`, which gives others in "
            'each epoch and rank, and the same after a resume; or set engine="thread"'
        )
    return Unsendable(
        f"{named}, which the engine process cannot be given as it is here: it {error}; have the "
        'function make or import what it refers to, or set engine="thread"'
    )
