"""Streams from object stores side by side with other ways to read them.

::

    python -m bench.remote --peers-python PATH --output bench/results

Parts, each with ``--part``: *link*, *images* behind a store with 50 ms to the first byte and
60 MB/s a connection, plain and TLS, beside a plain downloader, WebDataset, MosaicML Streaming and a
loop over a file of s3fs, and the streams' first batches more often than all of it; *nginx*, the
same without latency from a web server, plain and TLS; *profile*, where the client's time goes
there; *busy*, beside trainers; *tail*, where some requests stall; *growth*, many shards; *memory*,
all budgets, lanes and sizes of shards.
bench/results/README.md says how each number is made.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from bench import machine
from bench.aims import targets_as_markdown
from bench.console import complain, default_data
from bench.datasets import images
from bench.fetching import parts
from bench.fetching.peers import find_peers
from bench.fetching.picture import draw
from bench.fetching.scene import Pictures
from bench.fetching.tables import as_markdown
from bench.fetching.targets import targets
from bench.services import self_signed
from bench.table import write_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.aims import Target

TEMPLATE_MEGABYTES = 1072.0
"""Of the images that are served again and again under other names."""


@click.command()
@click.option("--output", type=click.Path(path_type=Path), help="Directory for the results.")
@click.option("--part", "chosen", multiple=True, type=click.Choice(list(parts.PARTS)), help="[all]")
@click.option("--gigabytes", default=10.72, show_default=True, help="Of images to read.")
@click.option("--repeat", default=3, show_default=True, help="Rounds; each case once in each.")
@click.option("--data", type=click.Path(path_type=Path), default=default_data, help="For shards.")
@click.option("--latency", default=0.05, show_default=True, help="Seconds to the first byte.")
@click.option("--bandwidth", default=60e6, show_default=True, help="Bytes/s of a connection.")
@click.option("--peers-python", default=sys.executable, help="Has the peers. [this one]")
@click.option("--only", multiple=True, help="Cases whose title holds this. [all]")
@click.option("--date", help="For the results. [now]")
def main(
    *,
    output: Path | None,
    data: Path,
    gigabytes: float,
    chosen: tuple[str, ...],
    peers_python: str,
    date: str | None,
    **options: Any,
) -> None:
    """Measure, print tables, and write JSON, Markdown and a picture."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    peers = find_peers(peers_python, data.absolute() / "peers")
    with self_signed() as certificate:
        scene = parts.Scene(pictures_of(data.absolute(), gigabytes), peers, certificate, **options)
        for name in chosen or parts.PARTS:
            parts.PARTS[name](scene)
    found = targets(scene.results)
    report = "\n".join(
        [as_markdown(scene.results), *scene.more, f"### aims\n\n{targets_as_markdown(found)}\n"]
    )
    console.print(report)
    for line in dict.fromkeys(scene.skipped):
        console.print(f"Skipped: {line}")
    complain(scene.results, console)
    if output is not None:
        write(output, scene, describe(scene, found, date), report, console)
    sys.exit(any(parts.failed(result) for result in scene.results))


def pictures_of(data: Path, gigabytes: float) -> Pictures:
    """So many, of at most eight shards of 134 MB."""
    template = images(data, min(TEMPLATE_MEGABYTES, gigabytes * 1e3))
    return Pictures(template, max(1, round(gigabytes * 1e9 / template.nbytes)))


def describe(scene: parts.Scene, found: Sequence[Target], date: str | None) -> dict[str, Any]:
    """What else belongs to the results."""
    return {
        "benchmark": "remote",
        "date": date or datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "peers": scene.peers.versions,
        "dataset": scene.pictures.part(scene.pictures.passes).facts(),
        "settings": scene.settings(),
        "skipped": list(dict.fromkeys(scene.skipped)),
        "profiles": scene.profiles,
        "aims": [target.facts() for target in found],
    }


def write(
    output: Path, scene: parts.Scene, facts: Mapping[str, Any], report: str, console: Console
) -> None:
    """JSON, the tables, and the picture where matplotlib is installed."""
    write_json(output / "remote.json", scene.results, facts)
    (output / "remote.md").write_text(report)
    on = facts["machine"]
    title = f"{on['cpu']}, {on['cores']} cores, {on['python']}, medians"
    try:
        draw(scene.results, title, output / "remote.svg")
    except ImportError:
        console.print("No picture: matplotlib is missing; pip install 'streamrec[bench]'.")


if __name__ == "__main__":
    main()
