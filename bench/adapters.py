"""The adapters side by side: the rate of a stream, and of the same stream in each framework's form.

Streams of local files against their adapters, each beside the stream itself in a process that has
the same framework, and against other loaders of the same records: tf.data, Grain, and DataLoaders
over tf.data. An adapter is to cost less than 5 % of the stream's rate. The part of
that rate that the framework alone would leave, if its loop over ready arrays of the same shapes
came on top of reading, says how much of an adapter's cost is not its own. Rows whose packages are
not installed are skipped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import click

from bench import datasets
from bench.cases import RATE, Case, Comparison, Result, ratio
from bench.datasets import Dataset, reading_figures
from bench.harness import PEERS, Column, Report, Run, benchmark, table_of
from bench.machine import module_versions
from bench.peers import Peers, find_peers

MEGABYTES, BATCH_SIZE = 272.0, 512
"""Size of the data with ``--size 1``, and records of a batch: small records, which cost most."""
STREAM = "stream"
JAX_STREAM = "stream of int32, beside JAX"
TF_STREAM = "stream, beside TensorFlow"
RECORDS = "stream of single records"
SINGLE: Mapping[str, Any] = {"batch_size": None}
WORKERS = 2
"""Processes of Grain: without them it reads half as fast, which takes minutes."""
ALONE = "with the framework alone"
Versions = dict[str, str | None]


class Row(NamedTuple):
    """A reader, and what it takes part in.

    Args:
        reader: Framework of :mod:`bench.readers.frameworks`, or another program of readers.
        way: The reader's way to read.
        needs: Modules that the interpreter must have.
        alone: The reader's way to loop over ready arrays by the framework alone.
        of: Row whose rate this one's is compared with.
        more: More arguments of the reader.
        is_peer: True for other loaders, which have an interpreter of their own.
        narrows: True where the stream delivers integers of 64 bits as 32, which is JAX's default.
    """

    name: str
    reader: str
    way: str
    needs: tuple[str, ...]
    alone: str = ""
    of: str = STREAM
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

    def cases(self, dataset: Dataset, peers: Peers) -> Iterator[Case]:
        """Yield the case of this row for a dataset, and that of the framework alone."""
        case = self._case(dataset, peers)
        stream = Comparison("of the stream", (f"{dataset.kind}: {self.of}",))
        if not self.alone:
            yield replace(case, comparisons=(stream,))
            return
        arguments = {**case.arguments, "way": self.alone}
        alone = replace(case, name=f"{case.name}, {ALONE}", arguments=arguments)
        yield replace(case, comparisons=(stream, Comparison(ALONE, (alone.title,))))
        yield alone

    def _case(self, dataset: Dataset, peers: Peers) -> Case:
        arguments = {
            "features": dataset.features,
            "batch_size": BATCH_SIZE,
            "source": dataset.pattern,
            "paths": [str(path) for path in dataset.paths],
            "deterministic": True,
            "way": self.way,
            **self.more,
        }
        if self.narrows:
            longs = [name for name, plain in dataset.features.items() if plain["dtype"] == "int64"]
            arguments["settings"] = {"dtypes": dict.fromkeys(longs, "int32")}
        program = self.reader if "." in self.reader else f"readers.frameworks {self.reader}"
        environment = {"KERAS_BACKEND": self.backend} if self.backend else {}
        return Case(dataset.kind, self.name, program, arguments, self.python(peers), environment)


def _jax(name: str, way: str, alone: str = "") -> Row:
    return Row(name, "jax", way, ("jax",), alone, JAX_STREAM, narrows=True)


def _keras(backend: str, of: str, *, narrows: bool = False) -> Row:
    name, needs, alone = f"Keras on {backend}, as_dataset", ("keras", backend), f"{backend}_alone"
    return Row(name, "keras", backend, needs, alone, of, {}, backend, narrows=narrows)


def _peer(name: str, reader: str, needs: tuple[str, ...], **more: Any) -> Row:
    return Row(name, reader, reader, needs, more=more, is_peer=True)


TORCH, TENSORFLOW = ("torch",), ("tensorflow",)
ROWS = (
    Row(STREAM, "torch", "stream", TORCH),
    Row("PyTorch, as_loader", "torch", "as_loader", TORCH, "alone"),
    Row("PyTorch, as_loader in one worker", "torch", "in_worker", TORCH, "worker_alone"),
    _keras("torch", STREAM),
    _jax(JAX_STREAM, "stream"),
    _jax("JAX, as_arrays", "as_arrays", "alone"),
    _keras("jax", JAX_STREAM, narrows=True),
    Row(TF_STREAM, "tensorflow", "stream", TENSORFLOW, of=TF_STREAM),
    Row("TensorFlow, as_dataset", "tensorflow", "as_dataset", TENSORFLOW, "alone", TF_STREAM),
    _keras("tensorflow", TF_STREAM),
    Row(RECORDS, "huggingface", "stream", TORCH, of=RECORDS, more=SINGLE),
    Row(
        *("Hugging Face, as_dataset and collate", "huggingface", "as_dataset", TORCH),
        of=RECORDS,
        more=SINGLE,
    ),
    _peer("tf.data", "readers.tf_data dataset", TENSORFLOW),
    _peer("DataLoader over tf.data", "torch_tf_data", ("torch", "tensorflow")),
    _peer(f"Grain, {WORKERS} workers", "grain", ("grain",), workers=WORKERS),
)


@benchmark("adapters", repeat=3, only=True, data=True)
@click.option("--size", default=1.0, show_default=True, help="Size of the data; 1 is 0.3 GB.")
@PEERS
def main(run: Run, *, size: float, peers_python: str) -> Report:
    dataset = datasets.recsys(run.data, size * MEGABYTES)
    peers = find_peers(peers_python, run.data)
    datasets.read_into_page_cache([dataset])
    versions = versions_by_python(peers)
    run.skipped += skipped(versions, peers)
    every = list(cases(dataset, peers, versions))
    run.measure(every, lambda _, report: reading_figures(report, dataset))
    facts = {
        "dataset": dataset.facts(),
        "frameworks": versions[sys.executable],
        "peers": versions[peers.python],
    }
    return Report(as_markdown(run.results), facts)


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


def cases(dataset: Dataset, peers: Peers, versions: Mapping[str, Versions]) -> Iterator[Case]:
    """Yield the cases of a dataset: streams, adapters, frameworks alone, and other loaders."""
    for row in ROWS:
        if not row.missing(versions, peers):
            yield from row.cases(dataset, peers)


def as_markdown(results: Sequence[Result]) -> str:
    """Return a table with a row for each case, but those that it is only compared with."""

    def of_stream(result: Result, rate: str = RATE) -> float | None:
        return ratio(result, result.case.comparisons[0], results, rate)

    def left(result: Result) -> float | None:
        """Return the part of the stream's rate that is left where the framework's is added."""
        found = [ratio(result, one, results) for one in result.case.comparisons]
        part, alone = (*found, None)[:2]
        return None if part is None or alone is None else part / (part + alone)

    columns = (
        Column("", lambda result: result.case.title, str),
        Column("MB/s", RATE),
        Column("least", lambda result: min(result.values(RATE), default=None)),
        Column("most", lambda result: max(result.values(RATE), default=None)),
        Column("of the stream", of_stream),
        Column(ALONE, left),
        Column("first batch, s", "first_batch_seconds"),
        Column("of it after that", lambda result: of_stream(result, f"{RATE}_after_first_batch")),
    )
    return table_of(columns, [result for result in results if result.case.comparisons])


if __name__ == "__main__":
    main()
