"""The parts of the benchmark: each starts a server, measures cases, and stops the server."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bench import datasets
from bench.console import run, selected
from bench.fetching import cases, growth
from bench.fetching.busy import beside_trainers
from bench.fetching.images import BUCKET, Place, judge, judge_beginning
from bench.fetching.peers import slow_peers
from bench.fetching.profile import profiled, py_spy
from bench.fetching.targets import FIRST, NGINX, STORE, TAIL
from bench.readers.trainer import iterations_in
from bench.services import nginx, store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bench.fetching.images import Images
    from bench.fetching.peers import Peers
    from bench.measure import Case, Judge, Result
    from bench.services import Certificate, Served

STEP_SECONDS = 0.01
"""Seconds of pure Python after each batch, in the busy trainer."""
STALLS = (
    {"ranged": True, "probability": 0.005, "latency": 10.0},
    {"ranged": True, "probability": 0.005, "stall_after": 1 << 18, "stall": 10.0},
)
"""Faults of one request in a hundred: half stall before the answer, half in the body."""
BUSY_SHARE, FEW_SHARE = 0.4, 0.1
"""Parts of the images that streams read beside trainers, with ``for`` and ``async for``."""
BEGINNINGS = 5
"""Times as many rounds of first batches, since other work on the machine delays some."""
CEILING = "the store without latency"
FEEDER = "through a feeder"
MEMORY_SHARE = 0.2
"""Part of the images' bytes that a stream reads at most while its memory is measured."""


@dataclass
class Setup:
    """The settings that the parts share, and their results.

    Args:
        images: Images that are read.
        peers: Other loaders that take part.
        certificate: Certificate of servers that speak TLS, or ``None`` if none could be made.
        repeat: Number of rounds.
        latency: Seconds to the first byte.
        bandwidth: Bytes a second of a connection.
        only: Parts of the titles of the cases to measure; none for all cases.
    """

    images: Images
    peers: Peers
    certificate: Certificate | None
    repeat: int
    latency: float
    bandwidth: float
    only: tuple[str, ...]
    results: list[Result] = field(default_factory=list)
    more: list[str] = field(default_factory=list)
    """Tables that are not made of the results."""
    profiles: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Lines on what could not be measured, each with a remedy."""

    def settings(self) -> dict[str, Any]:
        """Return the settings that the numbers depend on."""
        return {
            "rounds": self.repeat,
            "latency_seconds": self.latency,
            "bytes_per_second_and_connection": self.bandwidth,
            "stalls": list(STALLS),
        }

    def measure(self, rows: Sequence[Case], judging: Judge, repeat: int | None = None) -> None:
        """Measure the selected cases."""
        chosen = [case for case in rows if selected(case, self.only)]
        self.results += run(chosen, judging, self.repeat if repeat is None else repeat)

    def read(self, rows: Sequence[Case]) -> None:
        """Measure cases that read images."""
        self.measure(rows, partial(judge, images=self.images))

    def store(self, **options: Any) -> contextlib.AbstractContextManager[Served]:
        """Serve the images, or what the options say, at the distance of the settings."""
        distance = {"latency": self.latency, "bandwidth": self.bandwidth}
        source = {} if "root" in options else {"recipes": {BUCKET: self.images.recipe}}
        return store(**{**distance, **source, **options})

    def transports(self) -> Iterator[tuple[str, Certificate | None]]:
        """Yield plain HTTP, and TLS where there is a certificate."""
        yield "plain", None
        if self.certificate is None:
            self.skipped.append("TLS: there is no openssl to make a certificate.")
        else:
            yield "TLS", self.certificate


def link(setup: Setup) -> None:
    """Measure what the store can give, then all readers of it, plain and over TLS."""
    with setup.store(latency=0.0, bandwidth=None) as served:
        setup.read(cases.ceiling(setup.images, Place(CEILING, served)))
    setup.peers.make(setup.images.template)
    setup.skipped += setup.peers.missing()
    for transport, certificate in setup.transports():
        with contextlib.ExitStack() as stack:
            served = stack.enter_context(setup.store(certificate=certificate))
            peers_store = setup.store(root=setup.peers.root, certificate=certificate)
            other = stack.enter_context(peers_store)
            trust = {} if certificate is None else certificate.trust
            place = Place(f"{STORE}, {transport}", served, trust, other)
            peers = slow_peers(setup.images.template, place, setup.peers)
            setup.read([*cases.behind_store(setup.images, place), *peers])
            beginnings = cases.first_batches(
                setup.images, replace(place, group=f"{FIRST}, {transport}")
            )
            setup.measure(beginnings, judge_beginning, BEGINNINGS * setup.repeat)


def through_feeder(setup: Setup) -> None:
    """Measure a feeder, beside a stream and downloads."""
    with setup.store() as served:
        setup.read(cases.through_feeder(setup.images, Place(FEEDER, served)))


def files(setup: Setup) -> None:
    """Measure readings from nginx, plain and over TLS."""
    for rows in _from_nginx(setup):
        setup.read(rows)


def _from_nginx(setup: Setup) -> Iterator[list[Case]]:
    if shutil.which("nginx") is None:
        setup.skipped.append("nginx: it is not installed; apt-get install nginx-light.")
        return
    root = setup.images.linked(setup.peers.root.parent / "linked")
    for transport, certificate in setup.transports():
        trust = {} if certificate is None else certificate.trust
        with nginx(root, certificate) as server:
            yield cases.from_files(setup.images, f"{NGINX}, {transport}", server, trust)


def profile(setup: Setup) -> None:
    """Profile streams that read from nginx."""
    if py_spy() is None:
        setup.skipped.append("the profile: there is no py-spy; pip install 'streamrec[bench]'.")
        return
    gigabytes = setup.images.part(setup.images.passes).nbytes / 1e9
    for rows in _from_nginx(setup):
        streams = [case for case in rows if case.name in ("async for", "for")]
        chosen = [case for case in streams if selected(case, setup.only)]
        if chosen:
            text, found = profiled(chosen, gigabytes)
            setup.more.append(text)
            setup.profiles += found


def busy(setup: Setup) -> None:
    """Measure streams beside trainers."""
    passes, few = (max(1, round(setup.images.passes * share)) for share in (BUSY_SHARE, FEW_SHARE))
    with setup.store() as served:
        place = Place("", served)
        iterations = iterations_in(STEP_SECONDS)
        rows = beside_trainers(setup.images, place, iterations, passes=passes, few=few)
        setup.read(rows)


def tail(setup: Setup) -> None:
    """Measure streams from a store where some requests stall."""
    with setup.store(faults=STALLS) as served:
        setup.read(cases.with_tail(setup.images, Place(TAIL, served)))


def many_shards(setup: Setup) -> None:
    """Measure the first batch of more and more shards."""
    tiny = datasets.tokens(setup.images.template.root, 0.1)
    buckets = [growth.Shards(f"tiny-{count}", tiny, count) for count in growth.COUNTS]
    with setup.store(recipes=_recipes(buckets)) as served:
        setup.measure(list(growth.growing(buckets, served)), growth.judge_footprint)


def memory(setup: Setup) -> None:
    """Measure the memory of all budgets, lanes and sizes of shards, once."""
    template = setup.images.template
    small = datasets.images(template.root, 8.0)
    total = template.nbytes * setup.images.passes
    most = total * MEMORY_SHARE
    copies = max(1, round(total / (template.nbytes / template.shards)))
    buckets = [
        growth.Shards("small", small, round(most / (small.nbytes / small.shards))),
        growth.Shards("medium", template, template.shards * setup.images.passes),
        growth.Shards("large", template, 1, copies),
    ]
    with setup.store(recipes=_recipes(buckets)) as served:
        rows = list(growth.footprints(buckets, served, most))
        setup.measure(rows, growth.judge_footprint, 1)


def _recipes(buckets: Sequence[growth.Shards]) -> dict[str, Any]:
    return {bucket.bucket: bucket.recipe for bucket in buckets}


PARTS: Mapping[str, Callable[[Setup], None]] = {
    "link": link,
    "feeder": through_feeder,
    "nginx": files,
    "profile": profile,
    "busy": busy,
    "tail": tail,
    "growth": many_shards,
    "memory": memory,
}
"""Part for each name of ``--part``."""


def failed(result: Result) -> bool:
    """Return whether a case failed; settings that are refused with their arithmetic did not."""
    refusable = result.case.group == growth.MEMORY
    return any(not (refusable and "ConfigError" in failure) for failure in result.failures)
