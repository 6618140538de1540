"""Compares streams from object stores with other ways to read them.

Parts, each with ``--part``: *link*, *images* behind a store with 50 ms to the first byte and
60 MB/s a connection, plain and TLS, beside a plain downloader, other clients of object stores,
WebDataset, MosaicML Streaming and a loop over a file of s3fs, and the streams' first batches more
often than all of it; *feeder*, a feeder beside a stream and downloads; *nginx*, the same without
latency from a web server, plain and TLS; *busy*,
beside trainers; *tail*, where some requests stall; *growth*, many shards.
bench/README.md says how each number is made.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from statistics import quantiles
from typing import Any

import click

from bench import datasets, machine
from bench import remote_cases as cases
from bench.charts import CEILING, OTHER, OWN, draw_bars, new_figure, save_figure
from bench.harness import (
    PEERS,
    RATE,
    Aim,
    Case,
    Column,
    Report,
    Result,
    Run,
    benchmark,
    name_of,
    number,
    ratio,
    say,
    spread,
    table,
    table_of,
)
from bench.peers import Peers, find_peers
from bench.readers.streams import iterations_in
from bench.remote_cases import BUCKET, GROWTH, HELD, MATRICES, STEPS, STREAM, Images, Place
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
BEGINNINGS = 3
"""Times as many rounds of first batches, since other work on the machine delays some."""
STORE = "store at 50 ms and 60 MB/s a connection"
FIRST = "first batches behind the store"
NGINX = "nginx on loopback"
TAIL = "1 % of requests stall for 10 s"
STREAMS = ("async for", "for")
AHEAD = "for, engine started ahead"
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
        more: Tables that are not made of the results.
    """

    run: Run
    images: Images
    peers: Peers
    certificate: Certificate | None
    latency: float
    bandwidth: float
    more: list[str] = field(default_factory=list)

    def read(self, rows: Sequence[Case]) -> None:
        self.run.measure(rows, partial(cases.judge, images=self.images))

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
    """Measure what the store can give, then the readers of it, plain and over TLS."""
    images = setup.images
    with setup.store(latency=0.0, bandwidth=None) as served:
        setup.read(cases.ceiling(images, Place("the store without latency", served)))
    setup.peers.make(images.template)
    setup.run.skipped += setup.peers.missing()
    for transport, certificate, trust in setup.transports():
        with (
            setup.store(certificate=certificate) as served,
            setup.store(root=setup.peers.root, certificate=certificate) as other,
        ):
            place = Place(f"{STORE}, {transport}", served, trust, other)
            rows = cases.behind_store(images, place)
            if certificate is None:  # the others, too, would take twice as long
                rows += cases.other_clients(images, place, setup.peers)
                rows += cases.slow_peers(images.template, place, setup.peers)
            setup.read(rows)
            first = cases.first_batches(images, replace(place, group=f"{FIRST}, {transport}"))
            setup.run.measure(first, cases.judge_beginning, BEGINNINGS * setup.run.repeat)


def through_feeder(setup: Setup) -> None:
    """Measure a feeder, beside a stream and downloads."""
    with setup.store() as served:
        setup.read(cases.through_feeder(setup.images, Place("through a feeder", served)))


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
    "feeder": through_feeder,
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
        "\n".join([as_markdown(run.results), *setup.more]),
        facts,
        aims_of(run.results),
        partial(draw, run.results, machine.title()),
        name=name,
    )


def images_of(data: Path, gigabytes: float) -> Images:
    """Return so many gigabytes of images, made of at most four shards of 134 MB."""
    template = datasets.images(data, min(TEMPLATE_MEGABYTES, gigabytes * 1e3))
    return Images(template, max(1, round(gigabytes * 1e9 / template.nbytes)))


# -- aims ------------------------------------------------------------------------------------------


def aims_of(results: Sequence[Result]) -> list[Aim]:
    """Return the aims that could be measured."""

    def of(group: str, names: Sequence[str]) -> list[Result]:
        cases_of = [one for one in results if one.case.group.startswith(group)]
        return [one for one in cases_of if one.case.name in names and one.measurements]

    def share(one: Result, label: str, aim: float) -> Aim:
        comparison = next(held for held in one.case.comparisons if held.label == label)
        found = ratio(one, comparison, results)
        return Aim(f"{one.case.title}: rate, {label}", "times", aim, found)

    def at_most(one: Result, figure: str, what: str, unit: str, aim: float) -> Aim:
        return Aim(f"{one.case.title}: {what}", unit, aim, one.median(figure), least=False)

    ways = (*STREAMS, AHEAD)
    return [
        *(share(one, "of download", 0.9) for one in of(STORE, ways)),
        *(share(one, "of download", 0.7) for one in of(NGINX, ways)),
        *(
            at_most(one, "first_batch_seconds", "first batch", "s", 0.25)
            for group in (STORE, FIRST)
            for one in of(f"{group}, plain", ways)
        ),
        *map(_waste, of(STORE, STREAMS)),
        # Of the idle rate, or of the trainer without data.
        *(
            share(one, label, 0.7)
            for group, label in ((HELD, "of idle"), (MATRICES, "of idle"), (STEPS, "of no data"))
            for one in of(group, ("for",))
        ),
        *(
            at_most(one, "longest_wait_seconds", "longest wait between batches", "s", 1.0)
            for one in of(TAIL, STREAMS)
        ),
    ]


def _waste(one: Result) -> Aim:
    """Return the aim for the bytes read over those used, without hedges of the mean size."""
    read, requests = one.median("read_over_used"), one.median("requests")
    hedged = (one.median("hedges") or 0.0) / requests if requests else 0.0
    name = f"{one.case.title}: bytes read besides hedges, of those used"
    measured = None if read is None or requests is None else read * (1 - hedged)
    return Aim(name, "times", 1.02, measured, least=False)


# -- tables ----------------------------------------------------------------------------------------

READ = (
    Column("GB", "gigabytes"),
    Column("first batch, s", "first_batch_seconds"),
    Column("MB/s", RATE),
    Column("after first", f"{RATE}_after_first_batch"),
    Column("longest wait, s", "longest_wait_seconds"),
    Column("client CPU s/GB", "client_cpu_seconds_per_gigabyte"),
    Column("+ helpers", "engine_cpu_seconds_per_gigabyte"),
    Column("feeder CPU s/GB", "feeder_cpu_seconds_per_gigabyte"),
    Column("store CPU s/GB", "store_cpu_seconds_per_gigabyte"),
    Column("requests", "requests"),
    Column("in flight", "peak_in_flight"),
    Column("hedges", "hedges"),
    Column("read/used", "read_over_used"),
    Column("peak MB", "client_peak_megabytes"),
    Column("+ helpers'", "engine_peak_megabytes"),
    Column("feeder's", "feeder_peak_megabytes"),
)
GROWN = (
    Column("shards", name_of, str),
    Column("first batch, s", "first_batch_seconds"),
    Column("peak MB", "client_peak_megabytes"),
    Column("largest process, MB", "peak_megabytes"),
    Column("requests", "requests"),
)


def as_markdown(results: Sequence[Result]) -> str:
    """Return a table for each group, of medians, and of the least and the largest rate."""
    parts = []
    for group, found in groupby(results, lambda result: result.case.group):
        members = list(found)
        if group.startswith(GROWTH):
            body = table_of(GROWN, members) + _slopes(members)
        elif group.startswith(FIRST):
            body = _quarters(members, "first_batch_seconds")
        else:
            body = _read(members, results)
        parts.append(f"### {group}\n\n{body}\n")
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
    """Return a table with the figures and the ratios that any of the cases has."""

    def compare(label: str) -> Callable[[Result], float | None]:
        return lambda result: next(
            (ratio(result, one, results) for one in result.case.comparisons if one.label == label),
            None,
        )

    labels = dict.fromkeys(one.label for member in members for one in member.case.comparisons)
    columns = [*READ, *(Column(label, compare(label)) for label in labels)]
    shown = [one for one in columns if any(one.cell(member) != "-" for member in members)]
    head = Column("", name_of, str), Column("MB/s, min-max", spread(RATE, form=",.0f"), str)
    return table_of([*head, *shown], members)


def _slopes(members: Sequence[Result]) -> str:
    """Return a line for each two counts: the seconds and bytes that a shard more costs."""
    lines = []
    for few, many in pairwise(members):
        shards = many.case.arguments["shards"] - few.case.arguments["shards"]
        seconds, megabytes = (
            _difference(few, many, name) for name in ("first_batch_seconds", "peak_megabytes")
        )
        if seconds is not None and megabytes is not None:
            lines.append(
                f"From {few.case.name} to {many.case.name}: {seconds / shards * 1e6:,.1f} µs and "
                f"{megabytes / shards * 1e6:,.0f} bytes a shard."
            )
    return "\n\n" + "\n".join(lines) if lines else ""


def _difference(few: Result, many: Result, name: str) -> float | None:
    before, after = few.median(name), many.median(name)
    return None if before is None or after is None else after - before


# -- the chart -------------------------------------------------------------------------------------


def draw(results: Sequence[Result], title: str, target: Path) -> None:
    """Draw a panel for each group: bars of MB/s, with the seconds to the first batch."""
    read = [one for one in results if not one.case.group.startswith((FIRST, GROWTH))]
    measured = [one for one in read if one.measurements]
    panels = [(group, list(some)) for group, some in groupby(measured, lambda one: one.case.group)]
    if not panels:
        return
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
