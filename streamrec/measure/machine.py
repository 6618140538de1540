"""Describes the machine and the software that figures were measured with."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from streamrec import __version__, kernel
from streamrec.config.cores import usable_cores
from streamrec.measure.figures import Machine

CPUINFO = Path("/proc/cpuinfo")


def describe_machine() -> Machine:
    """Return the machine, the interpreter, and streamrec's version and kernel."""
    return Machine(
        cpu=_cpu_model(),
        cores=usable_cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        streamrec=__version__,
        kernel="native" if kernel.implementation == "native" else "python",
    )


def _cpu_model() -> str:
    """Return the processor's name, or where the system does not tell it, its architecture."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
