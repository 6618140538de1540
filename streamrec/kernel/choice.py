"""The choice between the kernel in C and the one in Python, and the notice that Python runs."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
import warnings
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

VARIABLE = "STREAMREC_KERNEL"
"""The environment variable that names the kernel."""
_MODULES = {"native": "streamrec.kernel.native", "python": "streamrec.kernel.reference"}


def choose() -> tuple[str, ModuleType]:
    """Load the kernel that the environment names, else the one in C, else the one in Python.

    Warns where the one in Python runs unasked: it is many times slower. This is called once in a
    process.

    Returns:
        The kernel's name, ``"native"`` or ``"python"``, and its module.

    Raises:
        ConfigError: The variable holds another word, or names the kernel in C, which was not built
            or cannot be loaded.
    """
    wanted = os.environ.get(VARIABLE, "")
    name = wanted or "native"
    if name not in _MODULES:
        raise ConfigError(f"{VARIABLE} is {wanted!r}: set it to native or python, or unset it")
    try:
        return name, import_module(_MODULES[name])
    except ImportError as error:
        notice = explain(error)
        # Whoever asked for it by name must not get the slow one in its place.
        if wanted:
            raise ConfigError(
                f"{VARIABLE} is {wanted!r}, but the kernel in C {notice.reason}; "
                f"{notice.remedy}, or unset {VARIABLE}"
            ) from error
    warnings.warn(
        f"the kernel in C {notice.reason}; so the one in Python runs, which is many times slower: "
        f"{notice.remedy}, or set {VARIABLE}=python to keep it",
        UserWarning,
        stacklevel=2,
    )
    return "python", import_module(_MODULES["python"])


MODULE = "streamrec.kernel._native"
PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class KernelNotice:
    """The reason for which the kernel in C does not run."""

    reason: str
    """The rest of a sentence that begins with "the kernel in C"."""
    remedy: str
    """What to do, as an order."""


def explain(
    error: ImportError, package: Path = PACKAGE, search: Iterable[str] | None = None
) -> KernelNotice:
    """Say why the kernel in C could not be imported.

    Args:
        error: The error of the import.
        package: The directory of the package that was imported.
        search: The directories in which Python looks for packages; ``sys.path`` by default.
    """
    root = package.parent
    # A clone has it beside the package; an installation does not.
    clone = (root / "setup.py").exists()
    # The file is there and its import failed: it is of another system, or broken.
    if find_spec(MODULE) is not None:
        return KernelNotice(f"cannot be loaded ({error})", _build(root, clone=clone))
    other = _compiled_elsewhere(package, sys.path if search is None else search)
    if other is not None:
        return KernelNotice(
            f"is not beside the sources at {package}, which Python found before the package at "
            f"{other}, which has it",
            f"leave {root} (or take it off PYTHONPATH), or run `pip install -e .` there",
        )
    if clone:
        return KernelNotice(
            f"was not built beside the sources at {package}", _build(root, clone=True)
        )
    reason = f"was not built when streamrec was installed at {package}"
    return KernelNotice(reason, _build(root, clone=False))


def _compiled_elsewhere(package: Path, search: Iterable[str]) -> Path | None:
    """Return another copy of the package that has the kernel in C, if Python could find one."""
    for directory in search:
        other = Path(directory, package.name).absolute()
        # Python loads extensions by several suffixes, and a build uses one of them.
        files = (other / "kernel" / f"_native{suffix}" for suffix in EXTENSION_SUFFIXES)
        if other != package.absolute() and any(file.exists() for file in files):
            return other
    return None


def _build(root: Path, *, clone: bool) -> str:
    command = (
        f"run `pip install -e .` in {root}"
        if clone
        else "install streamrec again, with pip's --force-reinstall and --no-cache-dir"
    )
    return command if _has_compiler() else f"install a C compiler, gcc or clang; then {command}"


def _has_compiler() -> bool:
    """Return whether the compiler is here with which setuptools would build."""
    # CC may hold a launcher and options, as in "ccache gcc -m64".
    words = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    return bool(words) and shutil.which(words[0]) is not None
