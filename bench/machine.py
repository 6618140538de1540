"""Describes the machine and the software that a result was measured on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from streamrec.measure.benchmark import describe_machine

ROOT = Path(__file__).parents[1]
LIBRARIES = ("aiobotocore", "aiohttp", "botocore", "crc32c", "numpy", "protobuf", "s3fs", "uvloop")


def describe() -> dict[str, Any]:
    """Return the machine, the interpreter, and the versions of the libraries that take part."""
    found = describe_machine()
    return {
        "cpu": found.cpu,
        "cores": found.cores,
        "memory_gigabytes": round(found.memory_bytes / 1e9, 1),
        # Of a run, since results are written at its end; more than the cores is a busy machine.
        "load_of_15_minutes": round(os.getloadavg()[2], 1),
        "kernel": found.system,
        "python": found.python,
        "streamrec": {"version": found.streamrec, "revision": _revision(), "kernel": found.kernel},
        "libraries": {name: _version(name) for name in LIBRARIES},
    }


def title() -> str:
    """Return the machine and the interpreter as the end of a chart's title."""
    on = describe_machine()
    return f"{on.cpu}, {on.cores} cores, {on.python}, medians"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _revision() -> str | None:
    """Return the commit of this checkout, with a plus sign where code differs from it.

    Results and pages differ as soon as the first table of a run is written.
    """
    code = ["*.py", "*.c", "*.h"]
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", *code)
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}{'+' if changed else ''}"


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def module_versions(python: str, names: Sequence[str]) -> dict[str, str | None]:
    """Return the versions behind modules that an interpreter has; ``None`` for what it lacks."""
    # TensorFlow's distribution may be called tensorflow-cpu or otherwise; importing takes seconds.
    return _versions(
        python,
        names,
        "from importlib.metadata import packages_distributions, version;"
        "have = {name: version(of[0]) for name, of in packages_distributions().items()"
        " if name in sys.argv[1:]}",
    )


def versions_in(python: str, names: Sequence[str]) -> dict[str, str | None]:
    """Return the versions of distributions that an interpreter has; ``None`` for what it lacks."""
    return _versions(
        python,
        names,
        "from importlib.metadata import distributions;"
        "have = {one.name.lower().replace('_', '-'): one.version for one in distributions()}",
    )


def _versions(python: str, names: Sequence[str], search: str) -> dict[str, str | None]:
    """Run code that looks for versions, and return those of these names."""
    program = (
        f"import json, sys\n{search}\n"
        "print(json.dumps({name: have.get(name) for name in sys.argv[1:]}))"
    )
    try:
        asked = subprocess.run(
            [python, "-c", program, *names], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return dict.fromkeys(names)
    versions: dict[str, str | None] = json.loads(asked.stdout)
    return versions


def kernels() -> list[str]:
    """Return the implementations of the kernel that run here, the faster one first."""
    return [name for name in ("native", "python") if _runs(name)]


def _runs(name: str) -> bool:
    program = "from streamrec import kernel; print(kernel.implementation)"
    environment = {**os.environ, "STREAMREC_KERNEL": name}
    command = [sys.executable, "-c", program]
    asked = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() == name
