"""The tables of the results, and the command that makes each of them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

RESULTS = "bench/results"
"""Directory of the results, from the root of the repository."""


@dataclass(frozen=True)
class Table:
    """A file of results, and the command that makes it.

    Args:
        name: Name of the file, without the suffix.
        about: What it compares, on a line.
        options: Its options, those of the results in the repository.
        quick: Options after them for a run of a minute or so, whose numbers say little.
        peers: Option that names the interpreter of the peers, by the key of that interpreter.
    """

    name: str
    about: str
    module: str
    options: str = ""
    quick: str = ""
    peers: Mapping[str, str] = field(default_factory=dict)

    def command(
        self, output: Path | str | None, interpreters: Mapping[str, str], *, quick: bool = False
    ) -> list[str]:
        """Return the arguments of Python.

        Args:
            output: Directory of the results; without one nothing is written.
            interpreters: Interpreters by the keys of ``peers``; one that is missing is left to
                the command, which takes its own.
            quick: True for little data and few rounds.
        """
        options = shlex.split(f"{self.options} {self.quick if quick else ''}")
        for key, option in self.peers.items():
            options += [option, interpreters[key]] if key in interpreters else []
        return ["-m", self.module, *options, *(["--output", str(output)] if output else [])]


LITTLE = "--repeat 1 --gigabytes 0.54"
PEERS = {"peers": "--peers-python"}


def _remote(name: str, about: str, options: str) -> Table:
    """Return a table of :mod:`bench.remote`, whose files have the table's name."""
    return Table(name, about, "bench.remote", f"{options} --name {name}", LITTLE, PEERS)


TABLES = (
    _remote(
        "remote",
        "a store at a distance: streams, a feeder, downloads, other loaders",
        "--part link --gigabytes 3.2 --repeat 2",
    ),
    _remote("nginx", "files from nginx on loopback", "--part nginx --gigabytes 2.7 --repeat 1"),
    _remote(
        "busy_tail",
        "busy trainers, and requests that stall",
        "--part tail --part busy --gigabytes 3.2 --repeat 1",
    ),
    _remote("growth", "first batches of more and more shards", "--part growth --repeat 1"),
    Table(
        "shapes",
        "datasets of unusual shapes, and unusual stores, beside a plain download",
        "bench.shapes",
        quick="--only '110 KB'",
    ),
    Table(
        "dlio",
        "MLPerf Storage's benchmark with its own readers and with streamrec's",
        "bench.dlio",
        "--repeat 1",
        "--only resnet50",
        {"dlio": "--dlio-python"},
    ),
    Table(
        "start",
        "fresh processes to their first batch, beside the import of NumPy and aiohttp",
        "bench.start",
        "--repeat 3",
        "--repeat 1",
    ),
    Table(
        "sweep",
        "the figures of a store beside those of curl, wrk and aiohttp alone",
        "bench.sweep",
        "--repeat 1 --seconds 1",
        "--only '4 at a time'",
    ),
    Table(
        "attribution",
        "what the attribution of time costs",
        "bench.attribution",
        "--repeat 3",
        "--repeat 2",
    ),
    Table(
        "verdicts",
        "planted bottlenecks, and what the verdicts on them bring",
        "bench.verdicts",
        quick="--only trainer",
    ),
    Table("pictures", "the pictures of how reading overlaps", "bench.pictures"),
    Table(
        "simulation",
        "what a simulated bucket promises, and what the engine takes",
        "bench.simulation",
        "--repeat 1",
    ),
    Table(
        "kernel",
        "the kernel beside TensorFlow, protobuf and others",
        "bench.kernel",
        "--repeat 1 --size 0.1 --seconds 0.3",
        "--size 0.05 --seconds 0.1 --kinds tokens",
        {"peers": "--tensorflow-python"},
    ),
    Table(
        "shuffle",
        "how well orders mix, beside tf.data and Grain",
        "bench.shuffle",
        quick="--only 'tf.data, interleave 16'",
    ),
    Table(
        "reshard",
        "shards written anew, beside plain copies, and a shuffle of ten times the memory",
        "bench.reshard",
        "--repeat 1 --megabytes 100 --shuffle-megabytes 200",
        "--megabytes 50 --shuffle-megabytes 170",
    ),
    Table(
        "write",
        "writers of datasets beside other writers, to a disk and to a store",
        "bench.write",
        "--repeat 1 --size 0.1",
        "--quick",
        PEERS,
    ),
    Table(
        "images",
        "pictures decoded, beside tf.data",
        "bench.images",
        "--repeat 1",
        "--only 'JPEG of 224'",
    ),
    Table(
        "tfds",
        "TFDS folders, and windows of episodes, beside tensorflow_datasets",
        "bench.tfds",
        "--repeat 1",
        "--only integers",
    ),
    Table(
        "cached_epochs",
        "second epochs from a cache of decoded pictures, or of mapped records",
        "bench.cached_epochs",
        "--records 1024",
        "--records 256",
    ),
    Table(
        "adapters",
        "the adapters beside the stream and other loaders",
        "bench.adapters",
        "--repeat 1 --size 0.2",
        "--size 0.05",
        PEERS,
    ),
    Table(
        "feeder",
        "a feeder beside tf.data service, Arrow Flight and bare sockets",
        "bench.feeder",
        "--repeat 1",
        "--seconds 0.2 --size 0.1",
        PEERS,
    ),
    Table(
        "autoscale",
        "fleets of feeders that size themselves, beside an oracle",
        "bench.autoscale",
        quick="--repeat 20",
    ),
    Table(
        "fleet",
        "what 4,000 ranks over a million shards take of the code that plans them",
        "bench.fleet",
        quick="--shards 20000",
    ),
    Table(
        "fetch_processes",
        "a stream over TLS with processes that fetch",
        "bench.fetch_processes",
        "--repeat 1 --gigabytes 1",
        "--repeat 1 --gigabytes 0.5",
    ),
    Table(
        "padding",
        "padding of dense batches by buckets",
        "bench.padding",
        quick="--only 'by record, batches of 64, windows of 2MiB'",
    ),
    Table("index", "what an index costs", "bench.index", quick="--shards 100"),
    Table(
        "feeder_connections",
        "what many clients take of a feeder",
        "bench.feeder_connections",
        "--seconds 1",
        "--idle 100 --busy 20 --seconds 0.2",
    ),
    Table(
        "feeder_hostile",
        "a client beside attackers",
        "bench.feeder_hostile",
        "--repeat 1 --seconds 1",
        "--repeat 1 --seconds 0.5",
    ),
    Table(
        "feeder_leaving",
        "a client beside clients of pictures that come, leave and are killed",
        "bench.feeder_leaving",
        "--visitors 60 --seconds 3",
        "--visitors 8 --seconds 0.5",
    ),
)
