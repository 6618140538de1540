"""Compares streams from object stores with other ways to read them.

Parts, each with ``--part``: *link*, *images* behind a store with 50 ms to the first byte and
60 MB/s a connection, plain and TLS, beside a plain downloader, other clients of object stores,
WebDataset, MosaicML Streaming and a loop over a file of s3fs, and the streams' first batches more
often than all of it; *nginx*, the same without latency from a web server, plain and TLS; *busy*,
beside trainers; *tail*, where some requests stall; *growth*, many shards.
bench/README.md says how each number is made.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import quantiles
from typing import Any

import click

from bench import datasets, machine
from bench import remote_cases as cases
from bench.cases import MISSING, RATE, Case, Result, ratios, say
from bench.charts import CEILING, OTHER, OWN, draw_bars, new_figure, save_figure
from bench.datasets import Images
from bench.harness import (
    PEERS,
    Column,
    Report,
    Run,
    benchmark,
    name_of,
    number,
    spread,
    table,
    table_of,
)
from bench.peers import Peers, find_peers
from bench.readers.streams import iterations_in
from bench.remote_cases import BUCKET, GROWTH, STREAM, Place
from bench.services import Certificate, Served, nginx, self_signed, store

TEMPLATE_MEGABYTES = 536.0
"""Most megabytes of images that are made; they are served again and again by other names."""
STEP_SECONDS = 0.01
"""Seconds of pure Python after each batch, in the busy trainer."""
STALLS = (
    {"ranged": True, "probability": 0.005, "latency": 10.0},
    {"ranged": True, "probability": 0.005, "stall_after": 1 << 18, "stall": 10.0},
)
"""Faults of one request in a hundred: half stall before the answer, half in the body."""
BUSY_SHARE, FEW_SHARE = 0.4, 0.1
"""Parts of the images that streams read beside trainers, with ``for`` and ``async for``."""
BEGINNINGS = 2
"""Times as many rounds of first batches, since other work on the machine delays some."""
STORE = "store at 50 ms and 60 MB/s a connection"
FIRST = "first batches behind the store"
FIRST_BATCH, PEAK = "first_batch_seconds", "peak_megabytes"
NGINX = "nginx on loopback"
TAIL = "1 % of requests stall for 10 s"
UNDRAWN = ("busy_tail", "growth")
"""Tables that no page draws."""
WIDTH, ROW, HEAD = 7.5, 0.24, 0.55
"""Inches: width of the chart, height of a bar, and height of a panel without its bars."""


# -- parts: each starts a server, measures cases, and stops the server -----------------------------


@dataclass
class Setup:
    """What the parts share.

    Args:
        run: The rounds, the cases that are selected, and the results.
        peers: Other loaders that take part.
        certificate: Certificate of servers that speak TLS, or ``None`` if none could be made.
        latency: Seconds to the first byte.
        bandwidth: Bytes a second of a connection.
    """

    run: Run
    images: Images
    peers: Peers
    certificate: Certificate | None
    latency: float
    bandwidth: float

    def read(self, rows: Sequence[Case], repeat: int | None = None) -> None:
        self.run.measure(rows, partial(cases.judge, images=self.images), repeat)

    def store(self, **options: Any) -> AbstractContextManager[Served]:
        """Serve the images, or what the options say, at the distance of the settings."""
        distance = {"latency": self.latency, "bandwidth": self.bandwidth}
        source = {} if "root" in options else {"recipes": {BUCKET: self.images.recipe}}
        return store(**{**distance, **source, **options})

    def transports(self) -> Iterator[tuple[str, Certificate | None, dict[str, str]]]:
        """Yield plain HTTP, and TLS where there is a certificate, with variables to trust it."""
        yield "plain", None, {}
        if self.certificate is None:
            self.run.skipped.append("TLS: there is no openssl to make a certificate.")
        else:
            yield "TLS", self.certificate, self.certificate.trust


def link(setup: Setup) -> None:
    """Measure the readers of a store, plain and over TLS."""
    images = setup.images
    setup.peers.make(images.template)
    setup.run.skipped += setup.peers.missing()
    for transport, certificate, trust in setup.transports():
        with (
            setup.store(certificate=certificate) as served,
            setup.store(root=setup.peers.root, certificate=certificate) as other,
        ):
            place = Place(f"{STORE}, {transport}", served, trust, other)
            rows = cases.behind_store(images, place)
            if certificate is not None:  # once, and none of the others: it takes twice as long
                setup.read(rows, 1)
                continue
            setup.read([*rows, cases.through_feeder(images, place)])
            setup.read(cases.other_clients(images, place, setup.peers), 1)
            setup.read(cases.slow_peers(images.template, place, setup.peers), 1)
            first = cases.first_batches(images, replace(place, group=f"{FIRST}, {transport}"))
            setup.run.measure(first, cases.judge_beginning, BEGINNINGS * setup.run.repeat)


def files(setup: Setup) -> None:
    """Measure readings from nginx, plain and over TLS."""
    for rows in _from_nginx(setup):
        setup.read(rows)


def _from_nginx(setup: Setup) -> Iterator[list[Case]]:
    if shutil.which("nginx") is None:
        setup.run.skipped.append("nginx: it is not installed; apt-get install nginx-light.")
        return
    root = setup.images.linked(setup.peers.root.parent / "linked")
    for transport, certificate, trust in setup.transports():
        with nginx(root, certificate) as server:
            yield cases.from_files(setup.images, f"{NGINX}, {transport}", server, trust)


def busy(setup: Setup) -> None:
    passes, few = (max(1, round(setup.images.passes * share)) for share in (BUSY_SHARE, FEW_SHARE))
    with setup.store() as served:
        place, iterations = Place("", served), iterations_in(STEP_SECONDS)
        setup.read(cases.beside_trainers(setup.images, place, iterations, passes=passes, few=few))


def tail(setup: Setup) -> None:
    """Measure streams from a store where some requests stall."""
    with setup.store(faults=STALLS) as served:
        setup.read(cases.with_tail(setup.images, Place(TAIL, served)))


def many_shards(setup: Setup) -> None:
    """Measure the first batch of more and more shards."""
    tiny = datasets.tokens(setup.images.template.root, 0.1)
    buckets = [cases.Shards(f"tiny-{count}", tiny, count) for count in cases.COUNTS]
    with setup.store(recipes=_recipes(buckets)) as served:
        setup.run.measure(list(cases.growing(buckets, served)), cases.judge_first)


def _recipes(buckets: Sequence[cases.Shards]) -> dict[str, Any]:
    return {bucket.bucket: bucket.recipe for bucket in buckets}


PARTS: Mapping[str, Callable[[Setup], None]] = {
    "link": link,
    "nginx": files,
    "busy": busy,
    "tail": tail,
    "growth": many_shards,
}
"""Part for each name of ``--part``."""

# -- the command -----------------------------------------------------------------------------------


@benchmark("remote", repeat=3, only=True, data=True)
@click.option(
    *("--part", "chosen"),
    multiple=True,
    type=click.Choice(list(PARTS)),
    help="Part of the benchmark; all by default.",
)
@click.option("--name", default="remote", show_default=True, help="Name of the files written.")
@click.option("--gigabytes", default=3.2, show_default=True, help="Gigabytes of images to read.")
@click.option("--latency", default=0.05, show_default=True, help="Seconds to the first byte.")
@click.option(
    "--bandwidth", default=60e6, show_default=True, help="Bytes a second of a connection."
)
@PEERS
def main(
    run: Run,
    *,
    gigabytes: float,
    name: str,
    chosen: tuple[str, ...],
    peers_python: str,
    latency: float,
    bandwidth: float,
) -> Report:
    peers, images = find_peers(peers_python, run.data / "peers"), images_of(run.data, gigabytes)
    with self_signed() as certificate:
        setup = Setup(run, images, peers, certificate, latency, bandwidth)
        for part in chosen or PARTS:
            say(f"part {part}")
            PARTS[part](setup)
    facts = {
        "peers": peers.versions,
        "dataset": images.part(images.passes).facts(),
        "settings": {
            "rounds": run.repeat,
            "latency_seconds": latency,
            "bytes_per_second_and_connection": bandwidth,
            "stalls": list(STALLS),
        },
    }
    return Report(
        as_markdown(run.results),
        facts,
        draw=None if name in UNDRAWN else partial(draw, run.results, machine.title()),
        name=name,
    )


def images_of(data: Path, gigabytes: float) -> Images:
    """Return so many gigabytes of images, made of at most four shards of 134 MB."""
    template = datasets.images(data, min(TEMPLATE_MEGABYTES, gigabytes * 1e3))
    return Images(template, max(1, round(gigabytes * 1e9 / template.nbytes)))


# -- tables ----------------------------------------------------------------------------------------

READ = (
    Column("", name_of, str),
    Column("first batch, s", FIRST_BATCH),
    Column("MB/s", RATE),
    Column("least to most", spread(RATE, " to "), str),
    Column("after the first batch", f"{RATE}_after_first_batch"),
    Column("longest wait, s", "longest_wait_seconds"),
    Column("client CPU, s/GB", "client_cpu_seconds_per_gigabyte"),
    Column("+ engine, s/GB", "engine_cpu_seconds_per_gigabyte"),
    Column("feeder CPU, s/GB", "feeder_cpu_seconds_per_gigabyte"),
)


def as_markdown(results: Sequence[Result]) -> str:
    """Return a table for each group, of medians, and of the least and the largest rate."""
    grown = [one for one in results if one.case.group.startswith(GROWTH)]
    parts = [_growth(grown)] if grown else []
    for group, found in groupby(results, lambda result: result.case.group):
        members = list(found)
        if group.startswith(FIRST):
            parts.append(f"### {group}\n\n{_quarters(members, FIRST_BATCH)}\n")
        elif not group.startswith(GROWTH):
            parts.append(f"### {group}\n\n{_read(members, results)}\n")
    return "\n".join(parts)


def _quarters(members: Sequence[Result], figure: str) -> str:
    """Return a table of the quartiles of seconds over the rounds."""
    rows = []
    for result in members:
        values = result.values(figure)
        quarters = quantiles(values, method="inclusive") if len(values) > 1 else values * 3
        found = [min(values), *quarters, max(values)] if values else [None] * 5
        rows.append([name_of(result), str(len(values)), *map(number, found)])
    heads = ("least", "first quarter", "median", "third quarter", "most")
    return table(["", "rounds", *(f"{head}, s" for head in heads)], rows)


def _read(members: Sequence[Result], results: Sequence[Result]) -> str:
    """Return a table with the figures that any of the cases has, and the ratios."""
    columns = [*READ, Column("ratio", partial(ratios, results=results), str)]
    shown = [one for one in columns if any(one.cell(member) != MISSING for member in members)]
    return table_of(shown, members)


def _growth(results: Sequence[Result]) -> str:
    """Return a table of the first batch and the memory of more and more shards."""
    rows = []
    for group, found in groupby(results, lambda result: result.case.group):
        members = list(found)
        cells = [_first_and_peak(one.median(FIRST_BATCH), one.median(PEAK)) for one in members]
        more = (_a_shard(members, figure) for figure in (FIRST_BATCH, PEAK))
        seconds, megabytes = (one and one * 1e6 for one in more)
        slope = f"{number(seconds)} µs, {number(megabytes)} bytes"
        rows.append([group.removeprefix(f"{GROWTH}, "), *cells, slope])
    shards = [f"{name} shards" for name in dict.fromkeys(one.case.name for one in results)]
    return table(["first batch, largest process", *shards, "a shard more"], rows)


def _first_and_peak(seconds: float | None, megabytes: float | None) -> str:
    return f"{number(seconds)} s, {number(megabytes)} MB"


def _a_shard(members: Sequence[Result], figure: str) -> float | None:
    """Return how much more a figure is for each shard more, of the two largest numbers of them."""
    if len(members) == 1:
        return None
    few, many = members[-2:]
    before, after = few.median(figure), many.median(figure)
    shards = many.case.arguments["shards"] - few.case.arguments["shards"]
    return None if before is None or after is None else (after - before) / shards


# -- the chart -------------------------------------------------------------------------------------


def draw(results: Sequence[Result], title: str, target: Path) -> None:
    """Draw a panel for each group: bars of MB/s, with the seconds to the first batch."""
    read = [one for one in results if not one.case.group.startswith((FIRST, GROWTH))]
    measured = [one for one in read if one.measurements]
    panels = [(group, list(some)) for group, some in groupby(measured, lambda one: one.case.group)]
    heights = [len(members) * ROW + HEAD for _, members in panels]
    figure = new_figure(WIDTH, sum(heights) + HEAD)
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for (group, members), panel in zip(panels, axes[:, 0], strict=True):
        bars = [
            (one.case.name, one.median(RATE) or 0.0, _color(one), _text(one)) for one in members
        ]
        draw_bars(panel, bars)
        panel.set_xlim(0, max(rate for _, rate, _, _ in bars) * 1.3)
        panel.set_title(f"{group}, MB/s", fontsize=9, loc="left")
    save_figure(figure, title, target)


def _text(result: Result) -> str:
    rate, first = result.median(RATE), result.median("first_batch_seconds")
    return f"{rate or 0.0:,.0f}" + ("" if first is None else f"; first batch {first:.2f} s")


def _color(result: Result) -> str:
    if result.case.program == STREAM:
        return OWN
    return CEILING if "download" in result.case.program else OTHER


if __name__ == "__main__":
    main()
