"""The adapters side by side: the rate of a stream, and of the same stream as tensors.

::

    python -m bench.adapters --peers-python PATH --output bench/results

Streams of local files against :func:`streamrec.adapters.torch.as_loader`, alone and in a worker of
a DataLoader, and against other data in a DataLoader: tf.data, and WebDataset over tar files. An
adapter is to cost less than 5 % of the stream's rate.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from bench import datasets
from bench.console import case_options, print_failures, run, selected
from bench.fetching.peers import find_peers
from bench.machine import tensorflow_version
from bench.markdown import MISSING, number, table
from bench.measure import Case, Comparison, quantities, ratio
from bench.results import facts, rows, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bench.datasets import Dataset
    from bench.fetching.peers import Peers
    from bench.measure import Result

SIZES: dict[str, tuple[Callable[[Path, float], Dataset], float, int]] = {
    "recsys": (datasets.recsys, 272.0, 512),
    "tokens": (datasets.tokens, 544.0, 256),
    "raw-images": (datasets.raw_images, 1072.0, 64),
    "images": (datasets.images, 1072.0, 64),
}
"""Function that makes each dataset, its size in 10^6 bytes with ``--size 1``, and its batches."""
STREAM = "stream"


@click.command()
@case_options(3)
@click.option("--size", default=1.0, show_default=True, help="Size of the data; 1 is 3 GB.")
@click.option(
    "--kinds", multiple=True, type=click.Choice(list(SIZES)), help="Kind of data; all by default."
)
@click.option("--peers-python", default=sys.executable, help="Interpreter with the other loaders.")
def main(
    *,
    output: Path | None,
    data: Path,
    kinds: tuple[str, ...],
    peers_python: str,
    **options: Any,
) -> None:
    """Measure, print a table, and write JSON and Markdown."""
    chosen = {kind: SIZES[kind] for kind in kinds or SIZES}
    made = {
        kind: make(data.absolute(), options["size"] * mb) for kind, (make, mb, _) in chosen.items()
    }
    peers = find_peers(peers_python, data)
    if "images" in made:
        peers.make(made["images"])
    for path in (path for dataset in made.values() for path in dataset.paths):
        path.read_bytes()  # into the page cache
    every = [case for kind, dataset in made.items() for case in cases(kind, dataset, peers)]
    judge = partial(judged, made)
    results = run(
        [case for case in every if selected(case, options["only"])], judge, options["repeat"]
    )
    text = as_markdown(results)
    click.echo(text)
    print_failures(results)
    if output is not None:
        sizes = {kind: dataset.facts() for kind, dataset in made.items()}
        content = facts("adapters", datasets=sizes, peers=peers.versions, rows=rows(results))
        write(output, "adapters", content, text)
    sys.exit(any(result.failures for result in results))


def judged(made: Mapping[str, Dataset], case: Case, report: Mapping[str, Any]) -> dict[str, float]:
    """Return what a case measured, if it has read the whole dataset."""
    return quantities(report, made[case.group])


def cases(kind: str, dataset: Dataset, peers: Peers) -> Iterator[Case]:
    """Yield the cases of a dataset: the stream, its adapter, and what else is installed."""
    arguments: dict[str, Any] = {
        "features": dataset.features,
        "batch_size": SIZES[kind][2],
        "source": dataset.pattern,
        "paths": [str(path) for path in dataset.paths],
        "deterministic": True,
    }
    compared = (Comparison("of the stream", (f"{kind}: {STREAM}",)),)
    of = partial(Case, kind, comparisons=compared)
    loader = "bench.readers.torch_loader"
    yield of(STREAM, loader, {**arguments, "way": "stream"})
    yield of("as_loader", loader, {**arguments, "way": "as_loader"})
    yield of("as_loader in one worker", loader, {**arguments, "way": "in_worker"})
    if peers.versions["torch"] and tensorflow_version(peers.python):
        own = {**arguments, "way": "tf_data"}
        yield of("DataLoader over tf.data", loader, own, python=peers.python)
    if kind == "images" and peers.has_web_dataset:
        urls = [str(path) for path in sorted(peers.tars(dataset).glob("*.tar"))]
        for workers in (0, 2):
            own = {"urls": urls, "workers": workers, "batch_size": SIZES[kind][2]}
            name = f"DataLoader over WebDataset, {workers} workers"
            yield of(name, "bench.readers.web_dataset", own, python=peers.python)


def as_markdown(results: Sequence[Result]) -> str:
    """Return a table with a row for each case."""
    head = ("", "MB/s", "least", "most", "of the stream")
    return table(head, [_row(result, results) for result in results])


def _row(result: Result, results: Sequence[Result]) -> tuple[str, ...]:
    rates = result.values("megabytes_per_second")
    if not rates:
        return (result.case.title, *[MISSING] * 4)
    part = ratio(result, result.case.comparisons[0], results)
    median = result.median("megabytes_per_second")
    return (result.case.title, *map(number, (median, min(rates), max(rates), part)))


if __name__ == "__main__":
    main()
