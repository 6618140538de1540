"""The adapters side by side: the rate of a stream, and of the same stream in each framework's form.

::

    python -m bench.adapters --peers-python PATH --output bench/results

Streams of local files against their adapters, each beside the stream itself in a process that has
the same framework, and against other loaders of the same records: tf.data, Grain, and DataLoaders
over tf.data and WebDataset. An adapter is to cost less than 5 % of the stream's rate. Rows whose
packages are not installed are skipped.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from bench import datasets
from bench.console import case_options, print_failures, run, selected
from bench.fetching.peers import find_peers
from bench.machine import module_versions
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
ALL = frozenset(SIZES)
NUMBERS = ALL - {"images"}
"""Kinds without strings, of which JAX and Keras have no arrays."""
STREAM = "stream"
JAX_STREAM = "stream of int32, beside JAX"
TF_STREAM = "stream, beside TensorFlow"
RECORDS = "stream of single records"
SINGLE = {"batch_size": None}
WORKERS = (0, 2)
RATE = "megabytes_per_second"
Versions = dict[str, str | None]


class Row(NamedTuple):
    """A reader, and what it takes part in.

    Args:
        name: Name of the row.
        reader: Module in :mod:`bench.readers`.
        way: The reader's way to read.
        needs: Modules that the interpreter must have.
        of: Row whose rate this one's is compared with.
        kinds: Kinds of data that it can read.
        more: More arguments of the reader.
        backend: Backend of Keras.
        is_peer: True for other loaders, which have an interpreter of their own.
        narrows: True where the stream delivers integers of 64 bits as 32, which is JAX's default.
    """

    name: str
    reader: str
    way: str
    needs: tuple[str, ...]
    of: str = STREAM
    kinds: frozenset[str] = ALL
    more: Mapping[str, Any] = {}
    backend: str = ""
    is_peer: bool = False
    narrows: bool = False

    def python(self, peers: Peers) -> str:
        """Return the interpreter that reads."""
        return peers.python if self.is_peer else sys.executable

    def missing(self, versions: Mapping[str, Versions], peers: Peers) -> list[str]:
        """Return the modules that the interpreter lacks."""
        found = versions[self.python(peers)]
        return [module for module in self.needs if found[module] is None]

    def case(self, kind: str, dataset: Dataset, peers: Peers) -> Case:
        """Return the case of this row for a dataset."""
        arguments = {**_arguments(kind, dataset, peers), "way": self.way, **self.more}
        if self.narrows:
            longs = [name for name, plain in dataset.features.items() if plain["dtype"] == "int64"]
            arguments["settings"] = {"dtypes": dict.fromkeys(longs, "int32")}
        return Case(
            kind,
            self.name,
            f"bench.readers.{self.reader}",
            arguments,
            python=self.python(peers),
            environment={"KERAS_BACKEND": self.backend} if self.backend else {},
            comparisons=(Comparison("of the stream", (f"{kind}: {self.of}",)),),
        )


def _arguments(kind: str, dataset: Dataset, peers: Peers) -> dict[str, Any]:
    return {
        "features": dataset.features,
        "batch_size": SIZES[kind][2],
        "source": dataset.pattern,
        "paths": [str(path) for path in dataset.paths],
        "urls": [str(path) for path in sorted(peers.tars(dataset).glob("*.tar"))],
        "deterministic": True,
    }


def _keras(backend: str, of: str, *, narrows: bool = False) -> Row:
    return Row(
        f"Keras on {backend}, as_dataset",
        "keras_dataset",
        backend,
        ("keras", backend),
        of,
        NUMBERS,
        backend=backend,
        narrows=narrows,
    )


def _peer(
    name: str, reader: str, needs: tuple[str, ...], kinds: frozenset[str] = ALL, **more: Any
) -> Row:
    return Row(name, reader, reader, needs, kinds=kinds, more=more, is_peer=True)


ROWS = (
    Row(STREAM, "torch_loader", "stream", ("torch",)),
    Row("PyTorch, as_loader", "torch_loader", "as_loader", ("torch",)),
    Row("PyTorch, as_loader in one worker", "torch_loader", "in_worker", ("torch",)),
    _keras("torch", STREAM),
    Row(JAX_STREAM, "jax_arrays", "stream", ("jax",), JAX_STREAM, NUMBERS, narrows=True),
    Row("JAX, as_arrays", "jax_arrays", "as_arrays", ("jax",), JAX_STREAM, NUMBERS, narrows=True),
    _keras("jax", JAX_STREAM, narrows=True),
    Row(TF_STREAM, "tf_dataset", "stream", ("tensorflow",), TF_STREAM),
    Row("TensorFlow, as_dataset", "tf_dataset", "as_dataset", ("tensorflow",), TF_STREAM),
    _keras("tensorflow", TF_STREAM),
    Row(RECORDS, "trainer_records", "stream", ("torch",), RECORDS, more=SINGLE),
    Row(
        "Hugging Face, as_dataset and collate",
        "trainer_records",
        "as_dataset",
        ("torch",),
        RECORDS,
        more=SINGLE,
    ),
    _peer("tf.data", "tf_data", ("tensorflow",)),
    _peer("DataLoader over tf.data", "torch_tf_data", ("torch", "tensorflow")),
    *(
        _peer(f"Grain, {workers} workers", "grain_dataset", ("grain",), workers=workers)
        for workers in WORKERS
    ),
    *(
        _peer(
            f"DataLoader over WebDataset, {workers} workers",
            "web_dataset",
            ("torch", "webdataset"),
            ALL - NUMBERS,
            workers=workers,
        )
        for workers in WORKERS
    ),
)


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
    versions = versions_by_python(peers)
    for line in skipped(versions, peers):
        click.echo(line)
    every = [
        case for kind, dataset in made.items() for case in cases(kind, dataset, peers, versions)
    ]
    judge = partial(judged, made)
    results = run(
        [case for case in every if selected(case, options["only"])], judge, options["repeat"]
    )
    text = as_markdown(results)
    click.echo(text)
    print_failures(results)
    if output is not None:
        sizes = {kind: dataset.facts() for kind, dataset in made.items()}
        content = facts(
            "adapters",
            datasets=sizes,
            frameworks=versions[sys.executable],
            peers=versions[peers.python],
            rows=rows(results),
        )
        write(output, "adapters", content, text)
    sys.exit(any(result.failures for result in results))


def judged(made: Mapping[str, Dataset], case: Case, report: Mapping[str, Any]) -> dict[str, float]:
    """Return what a case measured, if it has read the whole dataset."""
    return quantities(report, made[case.group])


def versions_by_python(peers: Peers) -> dict[str, Versions]:
    """Return the versions behind the modules that rows need, by interpreter."""
    needed = sorted({module for row in ROWS for module in row.needs})
    return {python: module_versions(python, needed) for python in {sys.executable, peers.python}}


def skipped(versions: Mapping[str, Versions], peers: Peers) -> Iterator[str]:
    """Yield a line for each row whose modules are not all there, with a remedy."""
    for row in ROWS:
        missing = row.missing(versions, peers)
        if missing:
            where, option = row.python(peers), " or name another --peers-python" * row.is_peer
            yield f"{row.name}: {where} lacks {' and '.join(missing)}; install it there{option}."


def cases(
    kind: str, dataset: Dataset, peers: Peers, versions: Mapping[str, Versions]
) -> Iterator[Case]:
    """Yield the cases of a dataset: streams, their adapters, and what else is installed."""
    for row in ROWS:
        if kind in row.kinds and not row.missing(versions, peers):
            yield row.case(kind, dataset, peers)


def as_markdown(results: Sequence[Result]) -> str:
    """Return a table with a row for each case."""
    head = ("", "MB/s", "least", "most", "of the stream", "first batch, s", "of it after that")
    return table(head, [_row(result, results) for result in results])


def _row(result: Result, results: Sequence[Result]) -> tuple[str, ...]:
    rates = result.values(RATE)
    if not rates:
        return (result.case.title, *[MISSING] * 6)
    (compared,) = result.case.comparisons
    shown = (
        result.median(RATE),
        min(rates),
        max(rates),
        ratio(result, compared, results),
        result.median("first_batch_seconds"),
        ratio(result, compared, results, f"{RATE}_after_first_batch"),
    )
    return (result.case.title, *map(number, shown))


if __name__ == "__main__":
    main()
