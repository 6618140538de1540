"""The servers and the processes of clients, each started when it is first needed."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from bench.feeding.processes import Process
from bench.services import toml
from streamrec.config.daemon import DaemonSettings

if TYPE_CHECKING:
    from bench.datasets import Dataset
    from bench.services import Certificate

HOSTS = 2
"""Processes that clients are divided over: one for each core of a small machine."""
MEMORY = "256MiB"
"""Budget of a session."""
ALL_MEMORY = "32GiB"
"""Budget of all sessions of a feeder, and what they may share of their clients' memory: never
reached, and large enough that the last of many clients gets as much as the first."""
FOR_EVER = 1_000_000_000
SPEAKS_TLS = "tls" in DaemonSettings.Server.model_fields
SHARES_MEMORY = "shared_memory" in DaemonSettings.Server.model_fields


@dataclass(frozen=True)
class Load:
    """The batches of one kind that are moved.

    Args:
        dataset: Shards that they come from.
        batch_size: Records of a batch.
        nbytes: Bytes of the arrays of a batch.
        is_parsed: False: the records as they are.
    """

    dataset: Dataset
    batch_size: int
    nbytes: int
    is_parsed: bool

    @property
    def name(self) -> str:
        """Return the kind and the form."""
        return f"{self.dataset.kind}, {'parsed' if self.is_parsed else 'raw'}"

    @property
    def key(self) -> str:
        """Return the name of the dataset at a feeder."""
        return f"{self.dataset.kind}-{'parsed' if self.is_parsed else 'raw'}"

    @property
    def features(self) -> dict[str, Any] | None:
        """Return the features to parse; none for raw records."""
        return self.dataset.features if self.is_parsed else None

    def arguments(self, *, repeats: bool) -> dict[str, Any]:
        """Return the arguments of those who read the shards themselves."""
        return {
            "source": self.dataset.pattern,
            "paths": [str(path) for path in self.dataset.paths],
            "features": self.features,
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
    _feeders: dict[tuple[bool, int], tuple[Process, dict[str, str]]] = field(default_factory=dict)
    _servers: dict[str, tuple[Process, Any]] = field(default_factory=dict)
    _hosts: dict[tuple[str, bool], list[Process]] = field(default_factory=dict)
    _numbers: Any = field(default_factory=count)

    def __enter__(self) -> Self:
        directory = tempfile.TemporaryDirectory(prefix="feeder-bench-")
        self._directory = Path(self._running.enter_context(directory))
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def feeder(self, workers: int, *, repeats: bool) -> tuple[Process, dict[str, str]]:
        """Return a feeder of all loads, and its addresses by scheme."""
        key = repeats, workers
        if key not in self._feeders:
            config = self._directory / f"feeder-{next(self._numbers)}.toml"
            config.write_text(self._configuration(workers))
            command = ["serve", str(config), "--until-eof", "--json"]
            process = self._start("streamrec", command, repeats=repeats)
            listen = process.answer()["listen"]
            self._feeders[key] = process, {one.partition(":")[0]: one for one in listen}
        return self._feeders[key]

    def server(self, module: str, python: str) -> tuple[Process, Any]:
        """Return a server of another kind, and its address."""
        if module not in self._servers:
            process = self._start(module, ["serve"], python=python)
            self._servers[module] = process, process.answer()["listen"]
        return self._servers[module]

    def hosts(self, module: str, python: str, clients: int, *, repeats: bool) -> list[Process]:
        """Return the processes that clients are divided over."""
        running = [one for one in self._hosts.get((module, repeats), []) if one.is_alive]
        self._hosts[module, repeats] = running
        while len(running) < min(HOSTS, clients):
            process = self._start(module, [], python=python, repeats=repeats)
            process.answer()
            running.append(process)
        return running[: min(HOSTS, clients)]

    def _start(self, module: str, arguments: list[str], **options: Any) -> Process:
        log = self._directory / f"{next(self._numbers)}.log"
        process = Process(module, arguments, log, **options)
        self._running.callback(process.close)
        return process

    def _configuration(self, workers: int) -> str:
        socket = self._directory / f"feeder-{next(self._numbers)}.sock"
        server: dict[str, Any] = {
            "listen": ["tcp://127.0.0.1:0", f"unix://{socket}"],
            "status": "127.0.0.1:0",
            "workers": workers,
            "memory_budget": ALL_MEMORY,
            "log_level": "warning",
        }
        if SHARES_MEMORY:
            server["shared_memory"] = ALL_MEMORY
        if SPEAKS_TLS and self.certificate is not None:
            server["listen"].append("tls://127.0.0.1:0")
            server["tls"] = {"cert": str(self.certificate.path)}
        datasets = {load.key: _dataset(load) for load in self.loads}
        return toml({"server": server, "datasets": datasets})


def _dataset(load: Load) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "source": load.dataset.pattern,
        "batch_size": load.batch_size,
        "epochs": FOR_EVER,
        "memory_budget": MEMORY,
    }
    return settings | ({"features": load.features} if load.features else {})
