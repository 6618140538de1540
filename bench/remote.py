"""Compares streams from object stores with other ways to read them.

::

    python -m bench.remote --peers-python PATH --output bench/results

Parts, each with ``--part``: *link*, *images* behind a store with 50 ms to the first byte and
60 MB/s a connection, plain and TLS, beside a plain downloader, WebDataset, MosaicML Streaming and a
loop over a file of s3fs, and the streams' first batches more often than all of it; *feeder*, a
feeder beside a stream and downloads; *nginx*, the same without latency from a web server, plain and
TLS; *profile*, where the client's time goes there; *busy*, beside trainers; *tail*, where some
requests stall; *growth*, many shards; *memory*, all budgets, lanes and sizes of shards.
bench/README.md says how each number is made.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from bench import datasets, machine
from bench.aims import targets_as_markdown
from bench.console import case_options, print_failures
from bench.fetching import parts
from bench.fetching.chart import draw
from bench.fetching.images import Images
from bench.fetching.peers import find_peers
from bench.fetching.tables import as_markdown
from bench.fetching.targets import targets
from bench.progress import say
from bench.results import facts, rows, write
from bench.services import self_signed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.aims import Target

TEMPLATE_MEGABYTES = 1072.0
"""Most megabytes of images that are made; they are served again and again by other names."""


@click.command()
@case_options(3)
@click.option(
    "--part",
    "chosen",
    multiple=True,
    type=click.Choice(list(parts.PARTS)),
    help="Part of the benchmark; all by default.",
)
@click.option("--name", default="remote", show_default=True, help="Name of the files written.")
@click.option("--gigabytes", default=10.72, show_default=True, help="Gigabytes of images to read.")
@click.option("--latency", default=0.05, show_default=True, help="Seconds to the first byte.")
@click.option(
    "--bandwidth", default=60e6, show_default=True, help="Bytes a second of a connection."
)
@click.option(
    "--peers-python",
    default=sys.executable,
    help="Python interpreter that has the peers; this one by default.",
)
def main(
    *,
    output: Path | None,
    data: Path,
    gigabytes: float,
    name: str,
    chosen: tuple[str, ...],
    peers_python: str,
    **options: Any,
) -> None:
    """Measure, print tables, and write JSON, Markdown and a chart."""
    peers = find_peers(peers_python, data.absolute() / "peers")
    with self_signed() as certificate:
        setup = parts.Setup(images_of(data.absolute(), gigabytes), peers, certificate, **options)
        for part in chosen or parts.PARTS:
            say(f"part {part}")
            parts.PARTS[part](setup)
    found = targets(setup.results)
    report = "\n".join(
        [as_markdown(setup.results), *setup.more, f"### aims\n\n{targets_as_markdown(found)}"]
    )
    click.echo(report)
    for line in dict.fromkeys(setup.skipped):
        click.echo(f"Skipped: {line}")
    print_failures(setup.results)
    if output is not None:
        content = facts("remote", **describe(setup, found), rows=rows(setup.results))
        draw_results = partial(draw, setup.results, machine.title())
        write(output, name, content, report, draw_results)
    sys.exit(any(parts.failed(result) for result in setup.results))


def images_of(data: Path, gigabytes: float) -> Images:
    """Return so many gigabytes of images, made of at most eight shards of 134 MB."""
    template = datasets.images(data, min(TEMPLATE_MEGABYTES, gigabytes * 1e3))
    return Images(template, max(1, round(gigabytes * 1e9 / template.nbytes)))


def describe(setup: parts.Setup, found: Sequence[Target]) -> dict[str, Any]:
    """Return what the results depend on, and the aims."""
    return {
        "peers": setup.peers.versions,
        "dataset": setup.images.part(setup.images.passes).facts(),
        "settings": setup.settings(),
        "skipped": list(dict.fromkeys(setup.skipped)),
        "profiles": setup.profiles,
        "aims": [target.facts() for target in found],
    }


if __name__ == "__main__":
    main()
