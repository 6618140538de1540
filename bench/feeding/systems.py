"""The systems that are measured: how each is reached, and which processes work for it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.feeding.setup import SHARES_MEMORY, SPEAKS_TLS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.feeding.processes import Process
    from bench.feeding.setup import Load, Setup

BARE = "bare sendall and recv_into"
TCP = "streamrec, TCP"
SHARED = "streamrec, Unix socket, shared memory"
ENGINE = "streamrec, engine process"
TF_SERVICE = "tf.data service"


@dataclass(frozen=True)
class System:
    """A way from shards, or from ready batches, to clients.

    Args:
        name: Name in the tables.
        module: Module of the processes of clients.
        kind: Kind of clients in it.
        server: Module of the server; none for a feeder, and where clients need none.
        scheme: Scheme of the feeder's address.
        workers: Processes of the feeder, or of the DataLoader.
        parts: Parts that it takes part in.
        most_clients: Most clients that it is measured with.
        fewest_clients: Fewest clients that it is measured with.
        needs: Modules that the other interpreter must have.
    """

    name: str
    module: str
    kind: str
    server: str = ""
    scheme: str = ""
    workers: int = 1
    parts: tuple[str, ...] = ("ready", "shards")
    most_clients: int = 64
    fewest_clients: int = 1
    needs: tuple[str, ...] = ()

    @property
    def serves_by_helpers(self) -> bool:
        """Return whether the processes that a client starts are the serving side."""
        return self.kind in ("engine", "loader")

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
            process, addresses = setup.feeder(self.workers, repeats=repeats)
            separator = "#" if self.scheme == "unix" else "/"
            ca = str(setup.certificate.path) if self.scheme == "tls" and setup.certificate else None
            address = f"{addresses[self.scheme]}{separator}{load.key}"
            return [process], {**arguments, "address": address, "ca": ca}
        if self.server:
            process, address = setup.server(self.server, self.python(setup))
            return [process], {**arguments, "address": address}
        return [], {**arguments, "workers": self.workers}

    def hosts(self, setup: Setup, clients: int, *, repeats: bool) -> list[Process]:
        """Return the processes of clients, started if they were not."""
        # The others repeat by themselves.
        patched = repeats and self.module == STREAMS
        return setup.hosts(self.module, self.python(setup), clients, repeats=patched)


STREAMS = "bench.feeding.streams"
BARE_MODULE, TF_MODULE, FLIGHT_MODULE = (
    f"bench.feeding.{name}" for name in ("bare", "tf_service", "flight")
)

SYSTEMS = (
    System(BARE, BARE_MODULE, "bare", BARE_MODULE),
    System(TCP, STREAMS, "feeder", scheme="tcp"),
    System(f"{TCP}, 2 workers", STREAMS, "feeder", scheme="tcp", workers=2, fewest_clients=4),
    System(SHARED, STREAMS, "feeder", scheme="unix"),
    System("streamrec, TLS", STREAMS, "feeder", scheme="tls", most_clients=4),
    System(ENGINE, STREAMS, "engine", most_clients=1),
    System(TF_SERVICE, TF_MODULE, "tf_service", TF_MODULE, most_clients=4, needs=("tensorflow",)),
    System(
        "pyarrow Flight", FLIGHT_MODULE, "flight", FLIGHT_MODULE, most_clients=4, needs=("pyarrow",)
    ),
    System(
        "torch DataLoader, 2 workers",
        "bench.feeding.loader",
        "loader",
        workers=2,
        most_clients=1,
        needs=("torch",),
    ),
)
