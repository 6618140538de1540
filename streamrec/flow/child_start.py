"""The start of a child process: ``child_start MODULE [ARGUMENT ...]`` imports and runs a module.

What is imported stays for as long as the process lives. To look through it for garbage, again and
again while there is more of it, would take a tenth of the start.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module


def start() -> None:
    """Import the module that the first argument names, and call its ``main``."""
    gc.disable()
    module = import_module(sys.argv.pop(1))
    gc.freeze()
    gc.enable()
    module.main()


if __name__ == "__main__":
    start()
