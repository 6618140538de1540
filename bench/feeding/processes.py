"""Processes that answer lines of JSON, and end when their standard input does."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING, Any

from bench.machine import ROOT
from bench.measure import Failure
from bench.traceback_paths import without_folders
from bench.usage import TICKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

REPEATING = ROOT / "bench" / "feeding" / "repeating"
"""Directory of the module that makes all streams of a process repeat their first batches."""
ANSWER = 60.0
"""Seconds to wait for an answer; TensorFlow takes some to start."""
GOODBYE = 5.0
TAIL = 1500
"""Bytes of a process's standard error that a failure shows."""


class Process:
    """A process, used as a context manager.

    Args:
        module: Module that Python runs.
        arguments: Arguments of the module.
        log: File for its standard error.
        python: Interpreter that runs it.
        repeats: True: its streams, and those of its children, repeat their first batches.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        log: Path,
        *,
        python: str = sys.executable,
        repeats: bool = False,
    ) -> None:
        self._module, self._log = module, log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [python, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env=_environment(repeats=repeats),
                text=True,
            )
        self.pid = self._process.pid

    def tell(self, **message: Any) -> None:
        """Send a line of JSON."""
        try:
            self._stdin.write(json.dumps(message) + "\n")
            self._stdin.flush()
        except OSError:
            raise self._failure() from None

    def answer(self, seconds: float = ANSWER) -> dict[str, Any]:
        """Wait for a line of JSON, and return it; a process that sends none in time is killed.

        Raises:
            Failure: It came not in time, or says that something failed.
        """
        timer = threading.Timer(seconds, self._process.kill)
        timer.start()
        try:
            line = self._stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise self._failure()
        found: dict[str, Any] = json.loads(line)
        if "failed" in found:
            raise Failure(f"{self._module}: {found['failed']}")
        return found

    @property
    def is_alive(self) -> bool:
        """Return whether the process has not ended."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process and wait for it."""
        with contextlib.suppress(OSError):  # where it has ended, with something unsent
            self._stdin.close()
        self._stdout.close()
        try:
            self._process.wait(GOODBYE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def _stdin(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _stdout(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _failure(self) -> Failure:
        said = without_folders(self._log.read_bytes()[-TAIL:].decode(errors="replace"), ROOT)
        return Failure(f"{self._module} ended: {said.strip() or 'no reason'}")


def _environment(*, repeats: bool) -> dict[str, str]:
    paths = [str(ROOT), *([str(REPEATING)] if repeats else [])]
    more = {"PYTHONPATH": os.pathsep.join(paths), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return {**os.environ, **more}


def cpu_seconds(pids: Iterable[int]) -> Mapping[int, float]:
    """Return the CPU seconds that processes have taken so far; of those that are gone, none."""
    found = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 - read twice a measurement
                fields = stat.read().rpartition(")")[2].split()
        except OSError:
            continue
        found[pid] = (int(fields[11]) + int(fields[12])) / TICKS
    return found
