"""Feeders as actors of Ray, which places them, and starts them again where they die."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from streamrec.config.daemon import load_daemon
from streamrec.errors import ConfigError, FeederLost, StreamrecError
from streamrec.suggestions import needs

with needs("streamrec.adapters.ray", "ray"):
    import ray
    from ray.util import get_node_ip_address
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMESPACE = "streamrec"
"""Ray's namespace of the actors' names, by which workers find feeders that were added."""
PORT = 7070
"""The port of the first feeder; each further one has the next port."""
SLOWEST_ANSWER = 10.0
"""Seconds for an actor to say where it listens; one that is being started again is left out."""


@dataclass(frozen=True)
class Feeders:
    """The feeders of a cluster; sent to workers, it is the same feeders there.

    Leaving its ``with`` block, or :meth:`close`, ends them. Where :meth:`resize` has changed their
    number, workers know it from the next :meth:`address` on.
    """

    scheme: str
    """``tcp`` or ``tls``."""
    datasets: tuple[str, ...]
    fleet: str
    """The part that the names of the actors have in common."""
    _starter: _Starter | None = field(default=None, repr=False, compare=False)
    """Starts more of them; only in the process that has started these."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Feeders, (self.scheme, self.datasets, self.fleet)

    @property
    def actors(self) -> tuple[Any, ...]:
        """The actors that there are now, in the order of their ports."""
        found = []
        for number in self._numbers():
            with suppress(ValueError):  # it has ended meanwhile
                found.append(ray.get_actor(self._name(number), NAMESPACE))
        return tuple(found)

    def address(self, dataset: str | None = None) -> str:
        """Return the address for ``streamrec.connect``: the feeders of this node first.

        A feeder that does not answer, as while it is started again, is left out.

        Args:
            dataset: The name of the dataset; it may be left out if there is only one.

        Raises:
            ConfigError: There is no dataset of this name.
            FeederLost: No feeder answers.
        """
        if dataset is None and len(self.datasets) == 1:
            [dataset] = self.datasets
        if dataset not in self.datasets:
            raise ConfigError(
                f"the feeders serve {', '.join(self.datasets)}, and no dataset {dataset!r}; "
                "name one of them"
            )
        places = self._places()
        if not places:
            raise FeederLost("no feeder of this cluster answers; see its actors in Ray's dashboard")
        here = get_node_ip_address()
        near = [place for place in places if place.rpartition(":")[0] == here]
        far = [place for place in places if place not in near]
        groups = [",".join(group) for group in (near, far) if group]
        return f"{self.scheme}://{';'.join(groups)}/{dataset}"

    def resize(self, feeders: int) -> None:
        """Start more feeders, or drain the last ones, until there are so many.

        It returns when the new ones serve, or those that go have ended. A stream of a feeder that
        goes reads on at the others that it knows, and loses no batch. A stream that is opened with
        :meth:`address` from then on knows the new ones.

        Args:
            feeders: The number of feeders, from 1 on.

        Raises:
            ConfigError: The number is less than 1, or another process has started the feeders.
            StreamrecError: A feeder did not start.
        """
        _check_number(feeders)
        if self._starter is None:
            raise ConfigError(
                "feeders are resized by the process that called feed(), which has their "
                "configuration; call resize() there"
            )
        self._drain(self.actors[feeders:])
        numbers = self._numbers()
        free = (number for number in count() if number not in numbers)
        more = [next(free) for _ in range(feeders - len(numbers))]
        self._starter.start({number: {"scheduling_strategy": "SPREAD"} for number in more})

    def close(self) -> None:
        """End the feeders; their clients get an error."""
        for actor in self.actors:
            ray.kill(actor, no_restart=True)

    def _drain(self, actors: Sequence[Any]) -> None:
        for actor, drained in [(actor, actor.drain.remote()) for actor in actors]:
            with suppress(ray.exceptions.RayActorError):  # it has died meanwhile
                ray.get(drained)
            ray.kill(actor, no_restart=True)

    def _name(self, number: int) -> str:
        return f"{self.fleet}-{number}"

    def _numbers(self) -> list[int]:
        named = ray.util.list_named_actors(all_namespaces=True)
        ours = (one["name"].rpartition("-") for one in named if one["namespace"] == NAMESPACE)
        return sorted(int(number) for fleet, _, number in ours if fleet == self.fleet)

    def _places(self) -> list[str]:
        asked = [actor.place.remote() for actor in self.actors]
        if not asked:
            return []
        ready, _ = ray.wait(asked, num_returns=len(asked), timeout=SLOWEST_ANSWER)
        places = []
        for reference in asked:
            if reference in ready:
                with suppress(ray.exceptions.RayActorError):
                    places.append(ray.get(reference))
        return [place for place in places if place is not None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def feed(
    configuration: str | os.PathLike[str],
    feeders: int | Literal["node"] = "node",
    *,
    port: int = PORT,
    **ray_remote_args: Any,
) -> Feeders:
    """Start feeders on Ray, and return them when all of them serve.

    Each is an actor that runs ``streamrec serve``. Ray starts one that dies again: on its node at
    the same address, or on another node. A stream that is open goes on at the others meanwhile.

    Args:
        configuration: The path of ``feeder.toml`` on this machine. The nodes get its text, so its
            paths are absolute. ``listen`` and ``status`` have no effect.
        feeders: The number of feeders, which Ray spreads over the nodes; ``"node"``: one for each
            node that there is now.
        port: The port of the first feeder. The i-th one listens at ``port + i``.
        **ray_remote_args: Options of the actors, as for ``ray.remote``, such as ``num_cpus``.

    Raises:
        ConfigError: The configuration is wrong, or does not allow to listen beyond a machine.
        StreamrecError: A feeder did not start.
    """
    path = Path(configuration)
    settings = load_daemon(path)
    if not ray.is_initialized():
        ray.init()
    scheme = "tcp" if settings.server.tls is None else "tls"
    fleet = f"feeders-{uuid.uuid4().hex}"
    starter = _Starter(path.read_text(), scheme, port, fleet, ray_remote_args)
    starter.start(dict(enumerate(_strategies(feeders))))
    return Feeders(scheme, tuple(settings.datasets), fleet, starter)


@dataclass(frozen=True)
class _Starter:
    """Starts actors; it stays where the configuration is, which may hold secrets."""

    text: str
    """The text of the configuration."""
    scheme: str
    port: int
    """The port of the first feeder."""
    fleet: str
    options: dict[str, Any]
    """Options of all actors."""
    held: list[Any] = field(default_factory=list)
    """All actors that it has started: Ray ends an actor that nobody refers to."""

    def start(self, options: dict[int, dict[str, Any]]) -> None:
        """Start actors by number, with options of each, and wait until they serve.

        Raises:
            StreamrecError: One of them did not start; then the others have ended as well.
        """
        actors = [self._begin(number, own) for number, own in options.items()]
        try:
            ray.get([actor.place.remote() for actor in actors])
        except ray.exceptions.RayError as error:
            for actor in actors:
                ray.kill(actor, no_restart=True)
            why = getattr(error, "cause", None) or error
            raise StreamrecError(f"a feeder did not start on Ray: {why}") from error
        self.held.extend(actors)

    def _begin(self, number: int, options: dict[str, Any]) -> Any:
        # Two calls at once: it says where it is also while it drains.
        fixed = {"max_restarts": -1, "max_concurrency": 2, "namespace": NAMESPACE}
        settings = {"num_cpus": 1, **self.options, **options, **fixed}
        actor = ray.remote(_FeederActor).options(name=f"{self.fleet}-{number}", **settings)
        return actor.remote(self.text, self.scheme, self.port + number)


def _check_number(feeders: int) -> None:
    if feeders < 1:
        raise ConfigError(f"feeders must be a number from 1 on, or 'node', not {feeders!r}")


def _strategies(feeders: int | Literal["node"]) -> list[dict[str, Any]]:
    if feeders == "node":
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        # Soft: where a node is gone for good, its feeder comes back on another one.
        return [
            {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True)}
            for node in nodes
        ]
    _check_number(feeders)
    return [{"scheduling_strategy": "SPREAD"}] * feeders


class _FeederActor:
    """A feeder: a process of ``streamrec serve``, which ends with this one.

    Args:
        text: The text of its configuration.
        scheme: ``tcp`` or ``tls``.
        port: The port to listen at.
    """

    def __init__(self, text: str, scheme: str, port: int) -> None:
        self._place = f"{get_node_ip_address()}:{port}"
        self._drains = False
        path = Path(tempfile.mkdtemp(prefix="streamrec-"), "feeder.toml")
        path.write_text(text)
        variables = {
            "STREAMREC_SERVER_LISTEN": f"{scheme}://{self._place}",
            # Several feeders of a node would want the same port.
            "STREAMREC_SERVER_STATUS": "127.0.0.1:0",
        }
        command = [sys.executable, "-m", "streamrec", "serve", str(path), "--json", "--until-eof"]
        # Its log is this process's, and so goes where Ray keeps logs of actors.
        self._process = subprocess.Popen(
            command, env=os.environ | variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            code = self._process.wait()
            raise StreamrecError(
                f"the feeder at {self._place} ended with {code}; its log is that of this actor"
            )
        self.failing = json.loads(said)["failing"]
        threading.Thread(target=self._end_with_it, daemon=True).start()

    def place(self) -> str | None:
        """Return ``host:port``, once it serves; ``None``: it drains."""
        return None if self._drains else self._place

    def drain(self) -> None:
        """Drain the feeder, and return when it has ended."""
        self._drains = True
        self._process.terminate()
        self._process.wait()

    def _end_with_it(self) -> None:
        self._process.wait()
        if not self._drains:
            os._exit(1)  # for Ray, which starts an actor again that has died
