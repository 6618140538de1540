"""The command and the environment of this package's own child processes."""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path

from streamrec import kernel
from streamrec.config.environment import SERVER_PREFIX
from streamrec.kernel.choice import VARIABLE

ENVIRONMENT_DEFAULTS = {"OPENBLAS_NUM_THREADS": "1", "PYDANTIC_DISABLE_PLUGINS": "1"}
"""Variables that a child has unless its parent has others. NumPy's OpenBLAS would start a thread
for each core that spins for a while (70 ms of CPU time), and batches are decoded by several threads
anyway; pydantic would look through all installed packages for plugins, and import them."""

START = "streamrec.feeder.engine.child_start"

KEPT_BACK = (SERVER_PREFIX, "NOTIFY_SOCKET", "WATCHDOG_")
"""The beginnings of variables that are for the daemon's first process alone: its settings, secrets
among them, and the way to its service manager."""


def child_command(module: str, *arguments: object) -> list[str]:
    """Return the command that runs the ``main`` of one of our modules."""
    # -P: a `queue.py` in the working directory is not the standard library's.
    options = ["-P", "-X", "faulthandler", "-m", START]
    return [sys.executable, *options, module, *map(str, arguments)]


def child_environment() -> dict[str, str]:
    """Return most variables of this process, and the place of this package if not installed."""
    # The child runs the kernel that runs here: what is to be said about that has been said.
    given = {name: text for name, text in os.environ.items() if not name.startswith(KEPT_BACK)}
    environment = {**ENVIRONMENT_DEFAULTS, **given, VARIABLE: kernel.implementation}
    root = str(Path(__file__).parents[3])
    if root not in site.getsitepackages() and root != site.getusersitepackages():
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment
