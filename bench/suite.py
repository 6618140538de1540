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


LITTLE = "--repeat 1 --gigabytes 1.1"
PEERS = {"peers": "--peers-python"}
FAST_WRITERS = (
    "--only columns --only encode --only 'one by one' --only TensorFlow --only plain --only read"
    " --only streamrec --only create_pretraining"
)


def _remote(name: str, about: str, options: str) -> Table:
    """Return a table of :mod:`bench.remote`, whose files have the table's name."""
    return Table(name, about, "bench.remote", f"{options} --name {name}", LITTLE, PEERS)


TABLES = (
    _remote(
        "remote",
        "a store at a distance: streams, downloads, other loaders",
        "--part link --gigabytes 16.08",
    ),
    _remote("nginx", "files from nginx on loopback", "--part nginx"),
    _remote(
        "busy_tail",
        "busy trainers, and requests that stall",
        "--part tail --part busy --gigabytes 26.8",
    ),
    _remote("profile", "where the client's CPU time goes", "--part profile"),
    _remote("memory", "memory for all budgets, lanes and sizes of shards", "--part memory"),
    _remote("growth", "first batches of more and more shards", "--part growth"),
    _remote("first", "a feeder beside a stream and downloads", "--part feeder"),
    Table(
        "dlio",
        "MLPerf Storage's benchmark with its own readers and with streamrec's",
        "bench.dlio",
        quick="--repeat 1 --only resnet50",
        peers={"dlio": "--dlio-python"},
    ),
    Table(
        "start",
        "fresh processes to their first batch, beside the import of NumPy and aiohttp",
        "bench.start",
        quick="--repeat 1",
    ),
    Table(
        "sweep",
        "the figures of a store beside those of curl, wrk and aiohttp alone",
        "bench.sweep",
        quick="--repeat 1",
    ),
    Table(
        "attribution", "what the attribution of time costs", "bench.attribution", quick="--repeat 1"
    ),
    Table(
        "verdicts",
        "planted bottlenecks, and what the verdicts on them bring",
        "bench.verdicts",
        quick="--only trainer",
    ),
    Table(
        "repeated_verdicts",
        "how often a verdict names what is planted, on a busy machine",
        "bench.repeated_verdicts",
        quick="--only trainer --repeat 1",
    ),
    Table("pictures", "the pictures of how reading overlaps", "bench.pictures"),
    Table(
        "simulation",
        "what a simulated bucket promises, and what the engine takes",
        "bench.simulation",
        quick="--repeat 1",
    ),
    Table(
        "kernel",
        "the kernel beside TensorFlow, protobuf and others",
        "bench.kernel",
        quick="--repeat 1 --size 0.05 --seconds 0.1",
        peers={"peers": "--tensorflow-python"},
    ),
    Table(
        "shuffle",
        "how well orders mix, beside tf.data and Grain",
        "bench.shuffle",
        "--first-batch --repeat 7",
        "--seeds 1 --repeat 1 --megabytes 134",
    ),
    Table(
        "reshard",
        "shards written anew, beside plain copies, and a shuffle of ten times the memory",
        "bench.reshard",
        "--large-gigabytes 20",
        "--repeat 1 --megabytes 100 --shuffle-megabytes 200 --large-gigabytes 0.5",
    ),
    Table(
        "write",
        "writers of datasets beside other writers, to a disk and to a store",
        "bench.write",
        "--repeat 1",
        "--quick",
        PEERS,
    ),
    Table(
        "write_large",
        "the same with ten times the records, without the slowest writers",
        "bench.write",
        f"--name write_large --size 3 --repeat 2 {FAST_WRITERS}",
        "--quick",
        PEERS,
    ),
    Table("images", "pictures decoded, beside tf.data", "bench.images", "--repeat 1"),
    Table(
        "adapters",
        "the adapters beside the stream and other loaders",
        "bench.adapters",
        "--repeat 1 --kinds tokens --kinds recsys --kinds raw-images",
        "--size 0.1",
        PEERS,
    ),
    Table(
        "feeder",
        "a feeder beside tf.data service, Arrow Flight and bare sockets",
        "bench.feeder",
        "--seconds 0.5",
        "--repeat 1 --seconds 0.2 --size 0.1 --clients 1",
        PEERS,
    ),
    Table("padding", "padding of dense batches by buckets", "bench.padding"),
    Table("index", "what an index costs", "bench.index", quick="--shards 100 --chunks 100000"),
    Table(
        "extremes",
        "extreme inputs of the kernel: all linear",
        "bench.extremes",
        quick="--repeat 1 --size 0.1",
    ),
    Table(
        "soak",
        "a thousand clients of a feeder, one after the other",
        "bench.soak",
        quick="--connects 50",
    ),
    Table(
        "feeder_soak",
        "clients that come and go for half an hour",
        "bench.feeder_soak",
        quick="--minutes 1",
    ),
    Table(
        "feeder_connections",
        "what many clients take of a feeder",
        "bench.feeder_connections",
        quick="--idle 100 --busy 20 --seconds 0.5",
    ),
    Table(
        "feeder_hostile",
        "a client beside attackers",
        "bench.feeder_hostile",
        quick="--repeat 1 --seconds 0.5",
    ),
    Table(
        "feeder_leaving",
        "a client beside clients of pictures that come, leave and are killed",
        "bench.feeder_leaving",
        quick="--visitors 8 --seconds 0.5",
    ),
)
