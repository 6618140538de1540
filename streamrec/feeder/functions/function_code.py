"""The code of the user's functions: what it reads outside of itself, as far as that can be told.

Names are followed through modules, as in ``config.limits.LONGEST``. What code looks up by other
means, as by ``globals()``, cannot be told.
"""

from __future__ import annotations

import builtins
import dis
import importlib.util
import random
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

BESIDE = frozenset({"PRECALL", "PUSH_NULL", "EXTENDED_ARG", "NOP"})
"""Instructions that may stand between a name and its attribute."""
LOOKUPS = (globals, vars, eval, exec, __import__, importlib.import_module)
"""Functions that look up what the code does not name."""
WHOLE = frozenset({"__dict__", "__getattribute__"})
"""Attributes of a module that stand for all others."""
DRAWS = {
    (
        "torch",
        "torch",
    ): "bernoulli multinomial normal poisson rand rand_like randint randn randperm "
    "randint_like randn_like",
    ("tensorflow", "random"): "gamma normal poisson shuffle truncated_normal uniform",
    ("keras", "random"): "categorical gamma normal randint shuffle truncated_normal uniform",
}
"""Functions that draw from their module's generator, which is not seen in them, by the package and
the last name of the module."""
IN_C = {"torch": {"get_default_dtype": "torch.float32", "get_default_device": "cpu"}}
"""Settings that no attribute of a library shows: the functions that return them, with defaults."""
OF_PYTHON = {"builtins", "io", "_io", "_sitebuiltins"}
"""The modules of what Python itself puts into ``builtins``."""
WRAPPED = {"dir", "input", "open", "print"}
"""Functions of Python that debuggers and tests replace by others that do the same."""
INSTALLED = {"site-packages", "dist-packages"}
_MISSING = object()


class ReadValue(NamedTuple):
    """A value that code reads by a name, or by an attribute of a module."""

    path: str
    """The name, with the modules on the way to it: ``config.limits.LONGEST``."""
    value: Any
    owner: ModuleType | None
    """The module whose attribute it is; ``None``: it is a variable."""
    goes_on: bool
    """True if it is a module, and an attribute of it is read next."""


def variables(function: FunctionType) -> dict[str, Any]:
    """Return the globals and the variables of other functions that a function's code may read."""
    values = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    return values


def reads(function: FunctionType) -> Iterator[ReadValue]:
    """Yield what a function's code reads outside of itself."""
    return _reads(function.__code__, {**vars(builtins), **variables(function)})


def _reads(code: CodeType, visible: dict[str, Any]) -> Iterator[ReadValue]:
    steps = _steps(code)
    # A local variable hides a global of the same name.
    local_names = {*code.co_varnames, *code.co_cellvars}
    visible = {name: value for name, value in visible.items() if name not in local_names}
    # An import inside the function binds a local name, which is looked through like a global.
    visible |= _find_imports(steps)
    for number, step in enumerate(steps):
        if step.opname.startswith("LOAD_") and _attribute(step) is None and step.argval in visible:
            yield from _follow(step.argval, visible[step.argval], steps[number + 1 :])
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            # Functions, lambdas and comprehensions within a function are constants of its code.
            yield from _reads(constant, visible)


def _steps(code: CodeType) -> list[dis.Instruction]:
    steps = (step for step in dis.get_instructions(code) if step.opname not in BESIDE)
    # A constant may look like a name.
    return [step for step in steps if step.opname != "LOAD_CONST" or isinstance(step.argval, int)]


def _attribute(step: dis.Instruction) -> str | None:
    return step.argval if step.opname in ("LOAD_ATTR", "LOAD_METHOD") else None


def _follow(path: str, value: Any, steps: list[dis.Instruction]) -> Iterator[ReadValue]:
    """Yield a variable's value, and what is read through it while that is a module."""
    owner = None
    for step in steps:
        name = _attribute(step)
        # Only modules are followed: an attribute of any other object may be computed.
        if name is None or not isinstance(value, ModuleType):
            break
        yield ReadValue(path, value, owner, goes_on=True)
        owner, path = value, f"{path}.{name}"
        value = _attribute_of(owner, name)
    if value is not _MISSING:
        yield ReadValue(path, value, owner, goes_on=False)


def _attribute_of(value: Any, name: str) -> Any:
    try:
        return getattr(value, name, _MISSING)
    except Exception:  # noqa: BLE001 - as of a module that imports what it has at its first use
        return _MISSING


def _find_imports(steps: list[dis.Instruction]) -> dict[str, Any]:
    """Return the variables that get what the code itself imports, where that is imported here."""
    imports: dict[str, Any] = {}
    module: ModuleType | None = None
    for step, following in pairwise(steps):
        value: Any = _MISSING
        if step.opname == "IMPORT_NAME":
            module = sys.modules.get(step.argval)
            value = sys.modules.get(step.argval.partition(".")[0], _MISSING)
        elif step.opname == "IMPORT_FROM":
            value = getattr(module, step.argval, _MISSING)
        if value is not _MISSING and following.opname.startswith("STORE_"):
            imports[following.argval] = value
    return imports


def obstacle(function: FunctionType) -> str | None:
    """Return why another process cannot have a function's reads, to end a sentence, or ``None``."""
    for code in _codes(function.__code__):
        steps = _steps(code)
        for number, step in enumerate(steps):
            if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                return f"sets the global {step.argval!r}"
            # Before it stands the number of dots.
            is_import = step.opname == "IMPORT_NAME"
            if is_import and (steps[number - 1].argval or is_own(step.argval)):
                name = step.argval or "its package"
                return f"imports {name} when it is called; import it at the top of the file"
    names = variables(function)
    for read in reads(function):
        if is_put_into_builtins(read, names):
            return f"reads {read.path!r}, which the program has put into builtins"
        if setting := _set_in_c(read):
            return f"uses {read.path}, and the program has changed {setting}"
        if any(read.value is lookup for lookup in LOOKUPS) or read.value is sys.modules:
            return f"uses {read.path}, which reads what its code does not name"
        if isinstance(read.value, ModuleType) and not read.goes_on and is_own(read.value.__name__):
            return f"uses the module {read.path} as a whole; name what it reads of it"
        path, _, name = read.path.rpartition(".")
        if read.owner is not None and name in WHOLE and is_own(read.owner.__name__):
            return f"uses the module {path} as a whole; name what it reads of it"
    return None


def is_put_into_builtins(read: ReadValue, names: dict[str, Any]) -> bool:
    """Return whether a value is one of ``builtins`` that Python itself has not put there.

    Args:
        read: The value, and how it is read.
        names: The variables of the function that reads it.
    """
    name = read.path.rpartition(".")[2]
    is_variable = read.owner is None and read.path in names
    if (
        is_variable
        or read.owner not in (None, builtins)
        or name.startswith("__")
        or name in WRAPPED
    ):
        return False
    if vars(builtins).get(name, _MISSING) is not read.value:  # the function imports it
        return False
    is_constant = read.value is Ellipsis or read.value is NotImplemented
    return not is_constant and getattr(read.value, "__module__", None) not in OF_PYTHON


def _set_in_c(read: ReadValue) -> str | None:
    """Return the name of a changed setting of the library that a value is of, if it is not seen."""
    name = read.path.rpartition(".")[2]
    for package, settings in IN_C.items():
        # A library that is not imported cannot have been changed.
        library = sys.modules.get(package)
        if library is None or _attribute_of(library, name) is not read.value:
            continue
        for getter, default in settings.items():
            if hasattr(library, getter) and str(getattr(library, getter)()) != default:
                return f"the result of {package}.{getter}"
    return None


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


# -- random generators -----------------------------------------------------------------------------


def is_generator(value: Any) -> bool:
    """Return whether something is a random generator, whose state moves with each draw."""
    if isinstance(value, np.random.Generator | np.random.RandomState | np.random.BitGenerator):
        return True
    kind = type(value)
    is_torch = kind.__name__ == "Generator" and kind.__module__.partition(".")[0] == "torch"
    return isinstance(value, random.Random) or is_torch


def draws_from(code: FunctionType | type) -> str | None:
    """Return the name of a generator of the program's that a function or a class draws from."""
    functions = [code] if isinstance(code, FunctionType) else _methods(code)
    for function in functions:
        # Libraries have large classes, so their code is looked at by its names alone at first.
        if not is_own(function.__module__) and not _may_draw(function.__code__):
            continue
        for read in reads(function):
            if is_generator(read.value) or is_generator(_attribute_of(read.value, "__self__")):
                return read.path
            module = read.owner.__name__.split(".") if read.owner else [""]
            if read.path.rpartition(".")[2] in DRAWS.get((module[0], module[-1]), "").split():
                return read.path
    return None


def _methods(kind: type) -> Iterator[FunctionType]:
    # Methods that a class inherits draw as well.
    for base in kind.__mro__:
        for value in vars(base).values():
            # Static and class methods wrap the function.
            function = getattr(value, "__func__", value)
            if isinstance(function, FunctionType):
                yield function


def _may_draw(code: CodeType) -> bool:
    """Return whether code has a name that a generator, or what draws from one, may have."""
    names = {name for part in _codes(code) for name in part.co_names}
    return any("ran" in name or "rng" in name or name in _DRAWN for name in names)


_DRAWN = {name for names in DRAWS.values() for name in names.split()} | {"choice", "sample"}


# -- whose code ------------------------------------------------------------------------------------


@cache
def is_own(module: str) -> bool:
    """Return whether a module is of the user's program, which may change its globals.

    Python's modules and those of installed packages are not, unless installed from a local folder.
    """
    top = module.partition(".")[0]
    if top == "__main__":
        return True
    if not top or top == __name__.partition(".")[0] or top in sys.stdlib_module_names:
        return False
    module_object = sys.modules.get(top)
    if module_object is None:
        origin = _origin(top)
        return origin is not _MISSING and not _is_installed(top, origin)
    attributes = getattr(module_object, "__dict__", {})  # some put other objects there
    places = [attributes.get("__file__"), *(attributes.get("__path__") or ())]
    return not _is_installed(top, next((place for place in places if place), None))


def is_installed(package: str) -> bool:
    """Return whether there is an installed package of that name, be it imported or not."""
    origin = _origin(package)
    return origin is not _MISSING and _is_installed(package, origin)


def _origin(package: str) -> Any:
    try:
        # Of a top package this imports nothing.
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return _MISSING
    return _MISSING if spec is None else spec.origin


def _is_installed(top: str, place: Any) -> bool:
    if place in ("built-in", "frozen"):
        return True
    if not isinstance(place, str):  # it was made by a program that runs
        return False
    parts = Path(place).parts
    at = next((at for at, part in enumerate(parts) if part in INSTALLED), None)
    if at is None:
        return False
    # https://packaging.python.org/specifications/direct-url
    return not any(Path(*parts[: at + 1]).glob(f"{top}-*.dist-info/direct_url.json"))
