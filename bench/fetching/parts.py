"""The parts of the benchmark: each starts what it reads from, measures its rows, and ends it."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bench import datasets
from bench.console import run, wanted
from bench.fetching import cases, growth
from bench.fetching.busy import beside_trainers
from bench.fetching.peers import slow_peers
from bench.fetching.profile import profiled, py_spy
from bench.fetching.scene import BUCKET, Place, judge, judge_beginning
from bench.fetching.targets import FIRST, NGINX, STORE, TAIL
from bench.readers.trainer import iterations_in
from bench.services import nginx, serves_tls, store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bench.fetching.peers import Peers
    from bench.fetching.scene import Pictures
    from bench.measure import Case, Judge, Result
    from bench.services import Certificate, Served

__all__ = ["PARTS", "Scene", "failed"]

STEP_SECONDS = 0.01
"""Of pure Python after each batch, in the busy trainer."""
STALLS = (
    {"ranged": True, "probability": 0.005, "latency": 10.0},
    {"ranged": True, "probability": 0.005, "stall_after": 1 << 18, "stall": 10.0},
)
"""One request in a hundred: half of them before the answer, half in the body."""
BUSY_SHARE, FEW_SHARE = 0.4, 0.1
"""Of the images: what streams read beside trainers, with ``for`` and with ``async for``."""
BEGINNINGS = 5
"""Times as many rounds of first batches: one may be late for what else the machine does."""
CEILING = "the store without latency"
MEMORY_SHARE = 0.2
"""Of the images' bytes: what a stream reads at most while its memory is watched."""


@dataclass
class Scene:
    """What the parts have in common, and what they have found.

    Args:
        pictures: What is read.
        peers: Who takes part.
        certificate: For servers that speak TLS; ``None``: none could be made.
        repeat: Rounds.
        latency: Seconds to the first byte.
        bandwidth: Bytes a second for each connection.
        only: Cases whose title holds one of these; none: all.
    """

    pictures: Pictures
    peers: Peers
    certificate: Certificate | None
    repeat: int
    latency: float
    bandwidth: float
    only: tuple[str, ...]
    results: list[Result] = field(default_factory=list)
    more: list[str] = field(default_factory=list)
    """Tables besides those of the results."""
    profiles: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """What could not be measured, and what to do about it."""

    def settings(self) -> dict[str, Any]:
        """What the numbers depend on."""
        return {
            "rounds": self.repeat,
            "latency_seconds": self.latency,
            "bytes_per_second_and_connection": self.bandwidth,
            "stalls": list(STALLS),
        }

    def measure(self, rows: Sequence[Case], judging: Judge, repeat: int | None = None) -> None:
        """Measure those that are wanted."""
        chosen = [case for case in rows if wanted(case, self.only)]
        self.results += run(chosen, judging, self.repeat if repeat is None else repeat)

    def read(self, rows: Sequence[Case]) -> None:
        """Measure readings of images."""
        self.measure(rows, partial(judge, pictures=self.pictures))

    @contextlib.contextmanager
    def store(self, **more: Any) -> Iterator[Served]:
        """The images behind the distant store."""
        distance = {"latency": self.latency, "bandwidth": self.bandwidth}
        recipes = {BUCKET: self.pictures.recipe}
        with store(recipes=recipes, **{**distance, **more}) as served:
            yield served

    def transports(self) -> Iterator[tuple[str, Certificate | None]]:
        """Plain, and TLS where there is a certificate."""
        yield "plain", None
        if self.certificate is None:
            self.skipped.append("TLS: there is no openssl to make a certificate.")
        else:
            yield "TLS", self.certificate


def link(scene: Scene) -> None:
    """What the store can give; then everybody behind it, plain and TLS."""
    with scene.store(latency=0.0, bandwidth=None) as served:
        scene.read(cases.ceiling(scene.pictures, Place(CEILING, served)))
    scene.peers.make(scene.pictures.template)
    scene.skipped += scene.peers.missing()
    for transport, certificate in scene.transports():
        if certificate is not None and not serves_tls():
            scene.skipped.append("the store over TLS: this devstore speaks none.")
            continue
        with contextlib.ExitStack() as stack:
            served = stack.enter_context(scene.store(certificate=certificate))
            other = stack.enter_context(_peers_store(scene, certificate))
            trust = {} if certificate is None else certificate.trust
            place = Place(f"{STORE}, {transport}", served, trust, other)
            peers = slow_peers(scene.pictures.template, place, scene.peers)
            scene.read([*cases.behind_store(scene.pictures, place), *peers])
            beginnings = cases.first_batches(
                scene.pictures, replace(place, group=f"{FIRST}, {transport}")
            )
            scene.measure(beginnings, judge_beginning, BEGINNINGS * scene.repeat)


def _peers_store(
    scene: Scene, certificate: Certificate | None
) -> contextlib.AbstractContextManager[Served]:
    return store(
        scene.peers.root,
        latency=scene.latency,
        bandwidth=scene.bandwidth,
        certificate=certificate,
    )


def files(scene: Scene) -> None:
    """From nginx, plain and TLS."""
    for rows in _from_nginx(scene):
        scene.read(rows)


def _from_nginx(scene: Scene) -> Iterator[list[Case]]:
    if shutil.which("nginx") is None:
        scene.skipped.append("nginx: it is not installed; apt-get install nginx-light.")
        return
    root = scene.pictures.linked(scene.peers.root.parent / "linked")
    for transport, certificate in scene.transports():
        trust = {} if certificate is None else certificate.trust
        with nginx(root, certificate) as server:
            yield cases.from_files(scene.pictures, f"{NGINX}, {transport}", server, trust)


def profile(scene: Scene) -> None:
    """Where the time goes that reading from nginx takes."""
    if py_spy() is None:
        scene.skipped.append("the profile: there is no py-spy; pip install 'streamrec[bench]'.")
        return
    gigabytes = scene.pictures.part(scene.pictures.passes).nbytes / 1e9
    for rows in _from_nginx(scene):
        streams = [case for case in rows if case.name in ("async for", "for")]
        chosen = [case for case in streams if wanted(case, scene.only)]
        if chosen:
            text, found = profiled(chosen, gigabytes)
            scene.more.append(text)
            scene.profiles += found


def busy(scene: Scene) -> None:
    """Beside trainers."""
    passes, few = (
        max(1, round(scene.pictures.passes * share)) for share in (BUSY_SHARE, FEW_SHARE)
    )
    with scene.store() as served:
        place = Place("", served)
        iterations = iterations_in(STEP_SECONDS)
        rows = beside_trainers(scene.pictures, place, iterations, passes=passes, few=few)
        scene.read(rows)


def tail(scene: Scene) -> None:
    """Where some requests stall."""
    if not cases.has_hedging():
        scene.skipped.append("hedging switched off: this streamrec does not hedge at all.")
    with scene.store(faults=STALLS) as served:
        scene.read(cases.with_tail(scene.pictures, Place(TAIL, served)))


def many(scene: Scene) -> None:
    """Ever more shards."""
    tiny = datasets.tokens(scene.pictures.template.root, 0.1)
    buckets = [growth.Shards(f"tiny-{count}", tiny, count) for count in growth.COUNTS]
    with _buckets(scene, buckets) as served:
        scene.measure(list(growth.growing(buckets, served)), growth.judge_footprint)


def memory(scene: Scene) -> None:
    """All budgets, lanes and sizes of shards, once."""
    template = scene.pictures.template
    small = datasets.images(template.root, 8.0)
    total = template.nbytes * scene.pictures.passes
    most = total * MEMORY_SHARE
    copies = max(1, round(total / (template.nbytes / template.shards)))
    buckets = [
        growth.Shards("small", small, round(most / (small.nbytes / small.shards))),
        growth.Shards("medium", template, template.shards * scene.pictures.passes),
        growth.Shards("large", template, 1, copies),
    ]
    with _buckets(scene, buckets) as served:
        rows = list(growth.footprints(buckets, served, most))
        scene.measure(rows, growth.judge_footprint, 1)


def _buckets(
    scene: Scene, buckets: Sequence[growth.Shards]
) -> contextlib.AbstractContextManager[Served]:
    recipes = {one.bucket: one.recipe for one in buckets}
    return store(recipes=recipes, latency=scene.latency, bandwidth=scene.bandwidth)


PARTS: Mapping[str, Callable[[Scene], None]] = {
    "link": link,
    "nginx": files,
    "profile": profile,
    "busy": busy,
    "tail": tail,
    "growth": many,
    "memory": memory,
}
"""By the name that the command line has for each."""


def failed(result: Result) -> bool:
    """Whether a case went wrong; a setting that is refused with its arithmetic did not."""
    refusable = result.case.group == growth.MEMORY
    return any(not (refusable and "ConfigError" in failure) for failure in result.failures)
