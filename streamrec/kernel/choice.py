"""Which kernel runs."""

from __future__ import annotations

import os
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
    except ImportError:
        return "python", import_module(_MODULES["python"])


def _named(wanted: str) -> ModuleType:
    if wanted not in _MODULES:
        raise ConfigError(f"{VARIABLE} is {wanted!r}: set it to native or python, or unset it")
    try:
        return import_module(_MODULES[wanted])
    except ImportError as error:
        is_built = find_spec("streamrec.kernel._native") is not None
        why = f"cannot be loaded ({error})" if is_built else "was not built"
        raise ConfigError(
            f"{VARIABLE} is {wanted!r}, but the kernel in C {why}; install streamrec again where "
            f"there is a C compiler, or unset {VARIABLE}"
        ) from error
