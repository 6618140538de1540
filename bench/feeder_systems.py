"""What :mod:`bench.feeder` measures: the systems, their servers and processes of clients."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Any, Self

from bench.cases import TAIL, Failure, without_folders
from bench.datasets import Dataset
from bench.machine import ROOT
from bench.services import Certificate, toml
from streamrec.config.server_settings import ServerSettings

REPEATING = ROOT / "bench" / "feeding" / "repeating"
"""Directory of the module that makes all streams of a process repeat their first batches."""
ANSWER = 60.0
"""Seconds to wait for an answer; TensorFlow takes some to start."""
GOODBYE = 5.0
MEMORY = "256MiB"
"""Budget of a session."""
ALL_MEMORY = "32GiB"
"""Budget of all sessions of a feeder, and what they may share of their clients' memory: never
reached, and large enough that the last of many clients gets as much as the first."""
FOR_EVER = 1_000_000_000
SPEAKS_TLS = "tls" in ServerSettings.model_fields
SHARES_MEMORY = "shared_memory" in ServerSettings.model_fields
BARE = "bare sendall and recv_into"
TCP = "streamrec, TCP"
SHARED = "streamrec, Unix socket, shared memory"
ENGINE = "streamrec, engine process"
TF_SERVICE = "tf.data service"
CLIENTS = "bench.feeding.clients"

# -- processes that answer lines of JSON, and end when their standard input does -------------------


class Process:
    """A process, used as a context manager.

    Args:
        program: Module that Python runs, and its arguments.
        log: File for its standard error.
        python: Interpreter that runs it.
        repeats: True: its streams, and those of its children, repeat their first batches.
    """

    def __init__(
        self,
        program: Sequence[str],
        log: Path,
        *,
        python: str = sys.executable,
        repeats: bool = False,
    ) -> None:
        self._name, self._log = program[0], log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [python, "-m", *program],
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
            raise Failure(f"{self._name}: {found['failed']}")
        return found

    @property
    def is_alive(self) -> bool:
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
        return Failure(f"{self._name} ended: {said.strip() or 'no reason'}")


def _environment(*, repeats: bool) -> dict[str, str]:
    paths = [str(ROOT), *([str(REPEATING)] if repeats else [])]
    more = {"PYTHONPATH": os.pathsep.join(paths), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return {**os.environ, **more}


# -- what is moved, and what runs ------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """The batches of one kind that are moved.

    Args:
        dataset: Shards that they come from.
        nbytes: Bytes of the arrays of a batch.
    """

    dataset: Dataset
    batch_size: int
    nbytes: int

    @property
    def name(self) -> str:
        """Return the kind of its records, which is the name of the dataset at a feeder, too."""
        return self.dataset.kind

    def arguments(self, *, repeats: bool) -> dict[str, Any]:
        """Return the arguments of those who read the shards themselves."""
        return {
            "source": self.dataset.pattern,
            "paths": [str(path) for path in self.dataset.paths],
            "features": self.dataset.features,
            "batch_size": self.batch_size,
            "records": self.batch_size,
            "nbytes": self.nbytes,
            "memory_budget": MEMORY,
            "repeats": repeats,
        }


@dataclass
class Setup:
    """Everything that runs, ended by leaving it as a context manager.

    Args:
        loads: All batches that feeders serve.
        python: Interpreter that has the other systems.
        certificate: Certificate for TLS, or ``None`` if none could be made.
    """

    loads: list[Load]
    python: str
    certificate: Certificate | None
    _running: ExitStack = field(default_factory=ExitStack)
    _feeders: dict[bool, tuple[Process, dict[str, str]]] = field(default_factory=dict)
    _servers: dict[Sequence[str], tuple[Process, Any]] = field(default_factory=dict)
    _hosts: dict[tuple[Sequence[str], bool], Process] = field(default_factory=dict)
    _numbers: Any = field(default_factory=count)

    def __enter__(self) -> Self:
        directory = tempfile.TemporaryDirectory(prefix="feeder-bench-")
        self._directory = Path(self._running.enter_context(directory))
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def feeder(self, *, repeats: bool) -> tuple[Process, dict[str, str]]:
        """Return a feeder of all loads, and its addresses by scheme."""
        if repeats not in self._feeders:
            config = self._directory / f"feeder-{next(self._numbers)}.toml"
            config.write_text(self._configuration())
            command = ["streamrec", "serve", str(config), "--until-eof", "--json"]
            process = self._start(command, repeats=repeats)
            listen = process.answer()["listen"]
            self._feeders[repeats] = process, {one.partition(":")[0]: one for one in listen}
        return self._feeders[repeats]

    def server(self, program: Sequence[str], python: str) -> tuple[Process, Any]:
        """Return a server of another kind, and its address."""
        if program not in self._servers:
            process = self._start([*program, "serve"], python=python)
            self._servers[program] = process, process.answer()["listen"]
        return self._servers[program]

    def host(self, program: Sequence[str], python: str, *, repeats: bool) -> Process:
        """Return the process of a system's client."""
        running = self._hosts.get((program, repeats))
        if running is None or not running.is_alive:
            running = self._hosts[program, repeats] = self._start(
                program, python=python, repeats=repeats
            )
            running.answer()
        return running

    def _start(self, program: Sequence[str], **options: Any) -> Process:
        log = self._directory / f"{next(self._numbers)}.log"
        process = Process(program, log, **options)
        self._running.callback(process.close)
        return process

    def _configuration(self) -> str:
        socket = self._directory / f"feeder-{next(self._numbers)}.sock"
        server: dict[str, Any] = {
            "listen": ["tcp://127.0.0.1:0", f"unix://{socket}"],
            "status": "127.0.0.1:0",
            "memory_budget": ALL_MEMORY,
            "log_level": "warning",
        }
        if SHARES_MEMORY:
            server["shared_memory"] = ALL_MEMORY
        if SPEAKS_TLS and self.certificate is not None:
            server["listen"].append("tls://127.0.0.1:0")
            server["tls"] = {"cert": str(self.certificate.path)}
        datasets = {load.name: _dataset(load) for load in self.loads}
        return toml({"server": server, "datasets": datasets})


def _dataset(load: Load) -> dict[str, Any]:
    return {
        "source": load.dataset.pattern,
        "features": load.dataset.features,
        "batch_size": load.batch_size,
        "epochs": FOR_EVER,
        "memory_budget": MEMORY,
    }


# -- systems ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class System:
    """A way from shards, or from ready batches, to clients.

    Args:
        serves: True where the kind has a server, other than a feeder.
        scheme: Scheme of the feeder's address.
        needs: Modules that the other interpreter must have.
    """

    name: str
    kind: str
    serves: bool = False
    scheme: str = ""
    parts: tuple[str, ...] = ("ready", "shards")
    needs: tuple[str, ...] = ()

    @property
    def serves_by_helpers(self) -> bool:
        """Return whether the processes that a client starts are the serving side."""
        return self.kind == "engine"

    @property
    def program(self) -> tuple[str, ...]:
        """Return the module of the processes of clients, and its arguments."""
        return CLIENTS, self.kind

    def python(self, setup: Setup) -> str:
        """Return the interpreter of its processes."""
        return setup.python if self.needs else sys.executable

    def missing(self, setup: Setup, versions: Mapping[str, str | None]) -> str | None:
        """Return why it cannot be measured, with a remedy; ``None``: it can."""
        lacking = [module for module in self.needs if versions[module] is None]
        if lacking:
            return f"{setup.python} lacks {' and '.join(lacking)}; install it there."
        if self.scheme == "tls" and not SPEAKS_TLS:
            return "this version speaks no TLS."
        if self.scheme == "tls" and setup.certificate is None:
            return "there is no openssl to make a certificate."
        if self.scheme == "unix" and not SHARES_MEMORY:
            return "this version shares no memory with clients of a feeder."
        return None

    def reach(
        self, setup: Setup, load: Load, *, repeats: bool
    ) -> tuple[list[Process], dict[str, Any]]:
        """Return its server, started if it was not, and the arguments of its clients."""
        arguments = load.arguments(repeats=repeats)
        if self.scheme:
            process, addresses = setup.feeder(repeats=repeats)
            separator = "#" if self.scheme == "unix" else "/"
            ca = str(setup.certificate.path) if self.scheme == "tls" and setup.certificate else None
            address = f"{addresses[self.scheme]}{separator}{load.name}"
            return [process], {**arguments, "address": address, "ca": ca}
        if self.serves:
            process, address = setup.server(self.program, self.python(setup))
            return [process], {**arguments, "address": address}
        return [], arguments

    def host(self, setup: Setup, *, repeats: bool) -> Process:
        """Return the process of its client, started if it was not."""
        # The others repeat by themselves.
        patched = repeats and self.kind in ("feeder", "engine")
        return setup.host(self.program, self.python(setup), repeats=patched)


TENSORFLOW, ARROW = ("tensorflow",), ("pyarrow",)
SYSTEMS = (
    System(BARE, "bare", serves=True),
    System(TCP, "feeder", scheme="tcp"),
    System(SHARED, "feeder", scheme="unix"),
    System("streamrec, TLS", "feeder", scheme="tls"),
    System(ENGINE, "engine"),
    System(TF_SERVICE, "tf_service", serves=True, needs=TENSORFLOW),
    System("pyarrow Flight", "flight", serves=True, needs=ARROW),
)
