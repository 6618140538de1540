"""Which kernel runs."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["VARIABLE", "choose"]

VARIABLE = "STREAMREC_KERNEL"
"""The environment variable that names the kernel."""
_MODULES = {"native": "streamrec.kernel.native", "python": "streamrec.kernel.reference"}


def choose() -> tuple[str, ModuleType]:
    """The kernel that the environment asks for, else the one in C if it was built.

    Warns where that was built and cannot be loaded: the one in Python is many times slower.

    Returns:
        Its name, ``"native"`` or ``"python"``, and its module.

    Raises:
        ConfigError: The variable holds another word, or the kernel in C was not built or cannot
            be loaded.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted:
        return wanted, _named(wanted)
    try:
        return "native", import_module(_MODULES["native"])
    except ImportError as error:
        if _is_built():
            warnings.warn(
                f"the kernel in C cannot be loaded ({error}), and the slower one in Python runs; "
                f"install streamrec again, or set {VARIABLE}=python",
                RuntimeWarning,
                stacklevel=2,
            )
        return "python", import_module(_MODULES["python"])


def _is_built() -> bool:
    return find_spec("streamrec.kernel._native") is not None


def _named(wanted: str) -> ModuleType:
    if wanted not in _MODULES:
        raise ConfigError(f"{VARIABLE} is {wanted!r}: set it to native or python, or unset it")
    try:
        return import_module(_MODULES[wanted])
    except ImportError as error:
        why = f"cannot be loaded ({error})" if _is_built() else "was not built"
        raise ConfigError(
            f"{VARIABLE} is {wanted!r}, but the kernel in C {why}; install streamrec again where "
            f"there is a C compiler, or unset {VARIABLE}"
        ) from error
