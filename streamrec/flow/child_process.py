"""A child process of streamrec's, which ends with its parent."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from streamrec.config.named_files import check_variables
from streamrec.errors import StreamrecError
from streamrec.surroundings import hold_standard_descriptors

if TYPE_CHECKING:
    from collections.abc import Sequence

START = 30.0
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
        timer = threading.Timer(START, self.process.kill)
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
