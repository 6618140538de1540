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
from functools import cache, cached_property, lru_cache, partial
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from io import BytesIO
from pathlib import Path, PurePath
from types import CellType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle

from streamrec.errors import ConfigError
from streamrec.feeder.functions.function_code import (
    draws_from,
    is_generator,
    is_installed,
    is_own,
    obstacle,
    reads,
    variables,
)
from streamrec.pipeline.batch.functions import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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
    """The reason why there is no data."""

    @classmethod
    def of(cls, functions: Mapping[str, Callable[..., Any]]) -> SentFunctions:
        """Pickle functions by value, with all that they read of this program.

        Args:
            functions: The functions by the name of their setting.
        """
        try:
            data = _pickle(functions)
        except _Refused as error:
            return cls(b"", "", _unsendable(functions, error))
        # In base64, as it travels within JSON.
        return cls(blake2b(data).digest(), b64encode(data).decode())


def unpickle(data: str) -> dict[str, Callable[..., Any]]:
    """Return the functions that the parent process has pickled, by the name of their setting.

    Raises:
        ConfigError: A module that they refer to cannot be imported here.
    """
    try:
        functions, options, *_ = cloudpickle.loads(b64decode(data))
        for module, name, value in options:
            # What the program has set in installed packages holds in the process as well.
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

    def set_options(self) -> list[tuple[ModuleType, str, Any]]:
        """Return the options with their modules, names and values."""
        # Sorted: the order in which functions read them must not change the digest.
        named = sorted(self.options.items(), key=lambda item: item[0])
        return [(module, name, getattr(module, name)) for (_, name), module in named]

    def environment(self) -> list[tuple[str, str]] | None:
        """Return the environment's variables, if a function reads any."""
        read = (one.value for function in self.functions for one in reads(function))
        is_read = any(value is os.environ or value is os.getenv for value in read)
        return sorted(os.environ.items()) if is_read else None


def _is_option(value: Any, module: str) -> bool:
    """Return whether a value of an installed module may be what the program has set there."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == __name__.partition(".")[0]:
        return type(value) in PLAIN
    # What has a name is code: a function of any kind, a class, a module.
    return not hasattr(value, "__name__")


def identity_of(function: Callable[..., Any]) -> str:
    """Return a digest of a map with all that it reads, for a cache: equal in all processes.

    Lines, files and the order of sets are not in it; releases of packages that it names are.

    Raises:
        ConfigError: What it reads cannot be told, or is a random generator.
    """
    functions, names = {"map": function}, set[str]()
    try:
        read_names = _follow(functions)
        whole = functions, read_names.set_options(), read_names.environment()
        data = _dump(whole, read_names, partial(_IdentityPickler, names=names))
    except _Refused as error:
        named = f'a cache of "mapped" keeps one result for each record, but map {name_of(function)}'
        if error.is_random:
            raise ConfigError(
                f"{named} {error}; draw in transform, which runs after the cache"
            ) from None
        raise ConfigError(
            f"{named} {error}, so a change of it might not be seen; mend that, or set key in the "
            "cache, and another key when map changes"
        ) from None
    packages = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    releases = [(name, _releases(name)) for name in sorted(packages) if name.isidentifier()]
    surroundings = repr((sys.version_info[:2], releases)).encode()
    return blake2b(surroundings + data, digest_size=16).hexdigest()


def code_of(function: Callable[..., Any]) -> str | None:
    """Return a digest of a function with all that it reads, equal on all hosts of one Python.

    What belongs to a host or to an installed package is not in it; the release of the package that
    the function itself is of, is. ``None``: what it reads cannot be told.
    """
    functions = {"": function}
    try:
        read_names = _follow(functions)
        options = [one for one in read_names.set_options() if not _is_standard(one[0].__name__)]
        data = _dump((functions, options), read_names, partial(_IdentityPickler, names=set()))
    except _Refused:
        return None
    package = str(getattr(function, "__module__", "")).partition(".")[0]
    release = [] if _is_standard(package) else _releases(package)
    return blake2b(repr(release).encode() + data, digest_size=8).hexdigest()


def _is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _releases(package: str) -> list[str]:
    """Return the versions of the distributions that an installed package is of; of others none."""
    try:
        return [version(package)]
    except PackageNotFoundError:
        # Few have another name, as that of cv2, and to look it up takes a second.
        distributions = _distributions() if is_installed(package) else {}
        return [version(name) for name in sorted({*distributions.get(package, ())})]


_distributions = cache(packages_distributions)


def _pickle(functions: Mapping[str, Callable[..., Any]]) -> bytes:
    read_names = _follow(functions)
    # The process begins with the last two, so it is enough that they are compared.
    whole = dict(functions), read_names.set_options(), read_names.environment(), _directory()
    return _dump(whole, read_names)


def _follow(functions: Mapping[str, Callable[..., Any]]) -> _Reads:
    """Find all that functions read."""
    attributes: set[tuple[str, str]] = set()
    while True:
        read_names = _Reads([], set(attributes), {})
        _dump([dict(functions)], read_names)
        # A module takes along the attributes that functions name, and some come after it.
        if read_names.own == attributes:
            return read_names
        attributes = read_names.own


def _directory() -> str | None:
    """Return the directory in which relative paths are looked up."""
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return None


def _dump(
    value: Any, read_names: _Reads, pickler: Callable[[BytesIO, _Reads], Any] | None = None
) -> bytes:
    file = _Bounded()
    tops = {name for name in list(sys.modules) if "." not in name and is_own(name)} - {"__main__"}
    # The registry is global: another stream's thread must not take out what this one has put in.
    with _registry:
        # What the user has registered stays registered afterwards.
        added = tops - cloudpickle.list_registry_pickle_by_value()
        # Some programs put other objects there.
        found_there: list[Any] = [sys.modules.get(name) for name in added]
        modules = [module for module in found_there if isinstance(module, ModuleType)]
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            (pickler or _Pickler)(file, read_names).dump(value)
        except _Refused:
            raise
        except Exception as error:
            what = _blame(read_names, error)
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


class _Named(NamedTuple):
    """A module of the user's in a place where code reads it by its name.

    What code reads of it is known there. Of a module in a list or an attribute nobody knows that.
    """

    module: ModuleType


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler of all that is of the user's program, by value."""

    def __init__(self, file: BytesIO, read_names: _Reads) -> None:
        super().__init__(file)
        self._read_names = read_names
        self._modules: dict[int, _Named] = {}

    def reducer_override(self, value: Any) -> Any:
        """Return how to pickle a value; ``NotImplemented``: as always."""
        if is_generator(value):
            raise _Refused("draws from a random generator of the program", is_random=True)
        if isinstance(value, _Named):
            return ModuleType, (value.module.__name__,), self._attributes(value.module)
        if isinstance(value, ModuleType) and is_own(value.__name__):
            raise _Refused(
                f"reads the module {value.__name__} through a value that holds it; name the module "
                "itself, as it is imported"
            )
        if isinstance(value, ModuleType) and type(value) is not ModuleType:  # as lazy ones are
            return importlib.import_module, (value.__name__,)
        if isinstance(value, _cached) and is_own(value.__module__):
            return _cache_again, (value.__wrapped__, value.cache_parameters())
        if type(value) is cached_property:  # it holds a lock before Python 3.12
            return cached_property, (value.func,), {"attrname": value.attrname}
        how = super().reducer_override(value)
        if isinstance(value, FunctionType) and how is not NotImplemented:
            self._read_names.add(value)
        is_installed = isinstance(value, FunctionType | type) and how is NotImplemented
        if is_installed and (generator := draws_from(value)):
            named = f"{value.__module__}.{value.__qualname__}"
            raise _Refused(f"uses {named}, which draws from {generator}", is_random=True)
        return how

    def _dynamic_function_reduce(self, func: FunctionType) -> Any:
        make, arguments, (attributes, slots), *rest = super()._dynamic_function_reduce(func)
        slots["__globals__"] = self._by_name(slots["__globals__"])
        modules = slots["_cloudpickle_submodules"]
        slots["_cloudpickle_submodules"] = list(self._by_name(dict(enumerate(modules))).values())
        cells = [self._cell(cell) for cell in slots["__closure__"] or ()]
        slots["__closure__"] = tuple(cells) or None
        return make, arguments, (attributes, slots), *rest

    def _cell(self, cell: CellType) -> CellType:
        try:
            content = cell.cell_contents
        except ValueError:  # it has no value yet
            return cell
        (named,) = self._by_name({"": content}).values()
        return cell if named is content else CellType(named)

    def _by_name(self, values: dict[Any, Any]) -> dict[Any, Any]:
        """Mark the modules of the user's among values that code reads by their names."""
        return {name: self._name_module(value) for name, value in values.items()}

    def _name_module(self, value: Any) -> Any:
        if not isinstance(value, ModuleType) or not is_own(value.__name__):
            return value
        return self._modules.setdefault(id(value), _Named(value))

    def _attributes(self, module: ModuleType) -> dict[str, Any]:
        """Return the attributes of a module that functions read."""
        attributes = vars(module)
        names = {name for owner, name in self._read_names.own if owner == module.__name__}
        if names - attributes.keys():
            names.add("__getattr__")  # which makes the others when they are read
        return self._by_name(
            {name: attributes[name] for name in sorted(names) if name in attributes}
        )


class _IdentityPickler(_Pickler):
    """A pickler whose data nobody loads: equal for equal values, in each process.

    Args:
        file: Written.
        read_names: The names that functions read.
        names: Where to note what may be names of packages.
    """

    def __init__(self, file: BytesIO, read_names: _Reads, names: set[str]) -> None:
        super().__init__(file, read_names)
        self._names = names
        self._classes: dict[type, int] = {}
        # A program that is copied to another place is the same.
        files = {read.__globals__.get("__file__") for read in read_names.functions}
        self._folders = sorted({str(Path(file).parent) for file in files if file}, key=len)

    def persistent_id(self, value: Any) -> Any:
        """Return the form of a value in place of its pickle; ``None``: as always."""
        kind = type(value)
        if kind is str:  # which would be told from an equal one by its place in memory
            self._names.add(value)
            return self._below(value).encode("utf-8", "surrogatepass")
        if isinstance(value, PurePath):
            return kind.__name__.encode(), self._below(str(value)).encode(errors="surrogateescape")
        if kind is CodeType:
            return [getattr(value, name) for name in _OF_CODE]
        if kind in (set, frozenset):  # whose order is another one in each process
            # By text, since values of several types cannot be compared.
            ordered = sorted(value, key=lambda one: (str(type(one)), repr(one)))
            return kind.__name__.encode(), ordered
        if isinstance(value, type) and super().reducer_override(value) is not NotImplemented:
            return self._class(value)  # whose pickle has a random number
        return None

    def _below(self, text: str) -> str:
        """Return a path in a folder of the program's as one relative to that; other texts stay."""
        for folder in self._folders:
            if text == folder or text.startswith(f"{folder}/"):
                return text[len(folder) :]
        return text

    def _class(self, kind: type) -> tuple[Any, ...]:
        is_known = kind in self._classes
        number = self._classes.setdefault(kind, len(self._classes))
        if is_known:
            return (number,)
        attributes = {
            name: value for name, value in vars(kind).items() if name not in _NOT_OF_CLASS
        }
        return number, kind.__qualname__, kind.__bases__, attributes


_OF_CODE = (
    *("co_name", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_code"),
    *("co_consts", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_exceptiontable"),
)
"""The attributes of code that decide what it does."""
_NOT_OF_CLASS = {
    *("__dict__", "__weakref__", "__module__", "__doc__", "_abc_impl", "__firstlineno__"),
    *("__static_attributes__", "__annotate__", "__annotate_func__"),
}


def _cache_again(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    cached: Callable[..., Any] = lru_cache(**parameters)(function)
    return cached


def _blame(read_names: _Reads, error: Exception) -> str:
    """Return what cannot be pickled, by the name that a function has for it."""
    for function in reversed(read_names.functions):
        for name, value in _variables_read(function, read_names):
            try:
                _Pickler(_Bounded(), _Reads([], set(read_names.own), {})).dump(value)
            except Exception as cause:  # noqa: BLE001 - whatever it is, this is the name of it
                return f"reads {name!r} of {function.__module__} ({type(cause).__name__}: {cause})"
    return f"holds what cannot be pickled ({type(error).__name__}: {error})"


def _variables_read(function: FunctionType, read_names: _Reads) -> Iterator[tuple[str, Any]]:
    names = variables(function)
    for read in reads(function):
        if read.owner is None:
            is_sent = read.path in names
        else:
            place = read.owner.__name__, read.path.rpartition(".")[2]
            is_sent = place in read_names.own or place in read_names.options
        if is_sent and read.value is not function and not isinstance(read.value, ModuleType):
            yield read.path, read.value


def _unsendable(functions: Mapping[str, Callable[..., Any]], error: _Refused) -> Unsendable:
    """Make the error, which names the first of the functions that cannot be sent."""
    for setting, function in functions.items():
        try:
            _pickle({setting: function})
        except _Refused as refused:
            # Alone: the error then names what this function reads, and not another one.
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
        f"{named}, which cannot be sent to the engine process: it {error}; let the function make "
        'or import what it needs itself, or set engine="thread"'
    )
