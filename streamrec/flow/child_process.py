"""Child processes of streamrec's, which end with their parent."""

from __future__ import annotations

import contextlib
import json
import os
import site
import subprocess
import sys
import threading
import time
from errno import ENOENT
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from streamrec import kernel
from streamrec.config.environment import SERVER_PREFIX
from streamrec.config.named_files import check_variables
from streamrec.errors import StreamrecError
from streamrec.kernel.choice import VARIABLE
from streamrec.surroundings import hold_standard_descriptors

if TYPE_CHECKING:
    from collections.abc import Sequence

ENVIRONMENT_DEFAULTS = {"OPENBLAS_NUM_THREADS": "1", "PYDANTIC_DISABLE_PLUGINS": "1"}
"""Variables that a child has unless its parent has others. NumPy's OpenBLAS would start a thread
for each core that spins for a while (70 ms of CPU time), and batches are decoded by several threads
anyway; pydantic would look through all installed packages for plugins, and import them."""

START = "streamrec.flow.child_start"

KEPT_BACK = (SERVER_PREFIX, "NOTIFY_SOCKET", "WATCHDOG_")
"""The beginnings of variables that are for the daemon's first process alone: its settings, secrets
among them, and the way to its service manager."""


def child_command(module: str, *arguments: object) -> list[str]:
    """Return the command that runs the ``main`` of one of our modules.

    Raises:
        FileNotFoundError: The program embeds Python, and does not say where an interpreter is.
    """
    if not sys.executable:
        raise FileNotFoundError(ENOENT, "sys.executable names no Python interpreter")
    # -P: a `queue.py` in the working directory is not the standard library's.
    options = ["-P", "-X", "faulthandler", "-m", START]
    return [sys.executable, *options, module, *map(str, arguments)]


def child_environment() -> dict[str, str]:
    """Return most variables of this process, and the place of this package if not installed."""
    # The child runs the kernel that runs here: what is to be said about that has been said.
    variables = {name: text for name, text in os.environ.items() if not name.startswith(KEPT_BACK)}
    environment = {**ENVIRONMENT_DEFAULTS, **variables, VARIABLE: kernel.implementation}
    root = str(Path(__file__).parents[2])
    if root not in site.getsitepackages() and root != site.getusersitepackages():
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


class HelperTimes:
    """The CPU time of the helpers of this process: of its children that do not report their own.

    Linux only: elsewhere there are no helpers.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        """CPU seconds of the helpers that run, as last read, by process number."""
        self._ended = 0.0
        """CPU seconds of the helpers that have ended."""

    def add(self, pid: int) -> None:
        """Count a helper from now on."""
        self._seconds[pid] = 0.0

    def end(self, pid: int) -> None:
        """Keep the time of a helper that ends; call this before its parent waits for it."""
        self._read(pid)
        self._ended += self._seconds.pop(pid, 0.0)

    def leave(self, pid: int) -> None:
        """Count a helper no more, in a fork: it is the parent's."""
        self._seconds.pop(pid, None)

    def total(self) -> float:
        """Return the CPU seconds of all helpers since this process began."""
        for pid in list(self._seconds):
            self._read(pid)
        return self._ended + sum(self._seconds.values())

    def _read(self, pid: int) -> None:
        # The kernel's number of another process's CPU clock, as clock_getcpuclockid(3) makes it.
        with contextlib.suppress(OSError):  # it has been waited for: the last time read stays
            self._seconds[pid] = time.clock_gettime(~pid << 3 | 2)


HELPERS = HelperTimes()
"""The helpers of this process."""

START_SECONDS = 30.0
"""The most seconds until a process is ready; it takes about one."""
GOODBYE = 5.0
"""The most seconds until a process has ended by itself."""
TAIL = 2000
"""The bytes of a process's log that an error shows."""


class ChildProcess:
    """A process of streamrec's, which prints its addresses as one line of JSON.

    It is started with ``--until-eof``, and so ends when its standard input does: none outlives its
    parent, however that ends.

    Args:
        name: The name for errors.
        arguments: The arguments of ``python -m``.
        log: The file for its standard error.

    Raises:
        ConfigError: A variable names a FIFO or a device as a file of certificates.
    """

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self._log = log
        check_variables()  # the process would read certificates while it imports aiohttp
        hold_standard_descriptors()
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments, "--until-eof"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=Path(__file__).parents[2],  # where this very package is found
                process_group=0,  # Ctrl-C is the parent's business
            )

    def ready(self) -> dict[str, Any]:
        """Wait until it has printed its addresses, and return them.

        Raises:
            StreamrecError: It ended, printed nothing in time, or has no data.
        """
        assert self.process.stdout is not None
        # A read of a pipe has no time limit of its own: the kill ends it.
        timer = threading.Timer(START_SECONDS, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            last_words = self._log.read_bytes()[-TAIL:].decode(errors="replace").strip()
            raise StreamrecError(
                f"the {self.name} process did not start: {last_words or 'no reason'}"
            )
        answer: dict[str, Any] = json.loads(line)
        for why in answer.get("failing", {}).values():
            raise StreamrecError(f"the {self.name} process did not start: {why}")
        return answer

    def close(self) -> None:
        """End the process and wait for it."""
        pipes = (self.process.stdin, self.process.stdout)
        for pipe in pipes:
            if pipe is not None:
                pipe.close()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                # Its standard input is closed: by --until-eof it ends now by itself.
                self.process.wait(GOODBYE)
        finally:
            self.process.kill()  # does nothing where it has ended
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
