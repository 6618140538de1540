"""The choice between the kernel in C and the one in Python."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from typing import TYPE_CHECKING

from streamrec.errors import ConfigError
from streamrec.kernel.notice import explain

if TYPE_CHECKING:
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
