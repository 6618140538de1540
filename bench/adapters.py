"""The adapters side by side: the rate of a stream, and of the same stream in each framework's form.

::

    python -m bench.adapters --peers-python PATH --output bench/results

Streams of local files against their adapters, each beside the stream itself in a process that has
the same framework, and against other loaders of the same records: tf.data, Grain, and DataLoaders
over tf.data and WebDataset. An adapter is to cost less than 5 % of the stream's rate. The part of
that rate that the framework alone would leave, if its loop over ready arrays of the same shapes
came on top of reading, says how much of an adapter's cost is not its own. Rows whose packages are
not installed are skipped.
"""

from __future__ import annotations

import sys
from dataclasses import replace
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
ALONE = "with the framework alone"
Versions = dict[str, str | None]


class Row(NamedTuple):
    """A reader, and what it takes part in.

    Args:
        name: Name of the row.
        reader: Module in :mod:`bench.readers`.
        way: The reader's way to read.
        needs: Modules that the interpreter must have.
        alone: The reader's way to loop over ready arrays by the framework alone.
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
    alone: str = ""
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

    def cases(self, kind: str, dataset: Dataset, peers: Peers) -> Iterator[Case]:
        """Yield the case of this row for a dataset, and that of the framework alone."""
        case = self._case(kind, dataset, peers)
        stream = Comparison("of the stream", (f"{kind}: {self.of}",))
        if not self.alone:
            yield replace(case, comparisons=(stream,))
            return
        arguments = {**case.arguments, "way": self.alone}
        alone = replace(case, name=f"{case.name}, {ALONE}", arguments=arguments)
        yield replace(case, comparisons=(stream, Comparison(ALONE, (alone.title,))))
        yield alone

    def _case(self, kind: str, dataset: Dataset, peers: Peers) -> Case:
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


def _jax(name: str, way: str, alone: str = "") -> Row:
    return Row(name, "jax_arrays", way, ("jax",), alone, JAX_STREAM, NUMBERS, narrows=True)


def _keras(backend: str, of: str, *, narrows: bool = False) -> Row:
    return Row(
        f"Keras on {backend}, as_dataset",
        "keras_dataset",
        backend,
        ("keras", backend),
        f"{backend}_alone",
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
    Row("PyTorch, as_loader", "torch_loader", "as_loader", ("torch",), "alone"),
    Row(
        "PyTorch, as_loader in one worker", "torch_loader", "in_worker", ("torch",), "worker_alone"
    ),
    _keras("torch", STREAM),
    _jax(JAX_STREAM, "stream"),
    _jax("JAX, as_arrays", "as_arrays", "alone"),
    _keras("jax", JAX_STREAM, narrows=True),
    Row(TF_STREAM, "tf_dataset", "stream", ("tensorflow",), of=TF_STREAM),
    Row("TensorFlow, as_dataset", "tf_dataset", "as_dataset", ("tensorflow",), "alone", TF_STREAM),
    _keras("tensorflow", TF_STREAM),
    Row(RECORDS, "trainer_records", "stream", ("torch",), of=RECORDS, more=SINGLE),
    Row(
        "Hugging Face, as_dataset and collate",
        "trainer_records",
        "as_dataset",
        ("torch",),
        of=RECORDS,
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
    """Yield the cases of a dataset: streams, adapters, frameworks alone, and other loaders."""
    for row in ROWS:
        if kind in row.kinds and not row.missing(versions, peers):
            yield from row.cases(kind, dataset, peers)


def as_markdown(results: Sequence[Result]) -> str:
    """Return a table with a row for each case, but those that it is only compared with."""
    head = ("", "MB/s", "least", "most", "of the stream", ALONE)
    more = ("first batch, s", "of it after that")
    shown = [result for result in results if result.case.comparisons]
    return table((*head, *more), [_row(result, results) for result in shown])


def _row(result: Result, results: Sequence[Result]) -> tuple[str, ...]:
    rates = result.values(RATE)
    if not rates:
        return (result.case.title, *[MISSING] * 7)
    stream, *alone = result.case.comparisons
    shown = (
        result.median(RATE),
        min(rates),
        max(rates),
        ratio(result, stream, results),
        _left(result, results) if alone else None,
        result.median("first_batch_seconds"),
        ratio(result, stream, results, f"{RATE}_after_first_batch"),
    )
    return (result.case.title, *map(number, shown))


def _left(result: Result, results: Sequence[Result]) -> float | None:
    """Return the part of the stream's rate that is left where the framework's time is added."""
    of_stream, of_alone = (ratio(result, one, results) for one in result.case.comparisons)
    if of_stream is None or of_alone is None:
        return None
    return of_stream / (of_stream + of_alone)


if __name__ == "__main__":
    main()
