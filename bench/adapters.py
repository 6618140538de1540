"""The adapters side by side: the rate of a stream, and of the same stream in each framework's form.

Streams of local files against their adapters, each beside the stream itself in a process that has
the same framework, and against other loaders of the same records: tf.data, Grain, and DataLoaders
over tf.data. An adapter is to cost less than 5 % of the stream's rate. Rows whose
packages are not installed are skipped.
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
Versions = dict[str, str | None]


class Row(NamedTuple):
    """A reader, and what it takes part in.

    Args:
        reader: Framework of :mod:`bench.readers.frameworks`, or another program of readers.
        way: The reader's way to read.
        needs: Modules that the interpreter must have.
        of: Row whose rate this one's is compared with.
        more: More arguments of the reader.
        is_peer: True for other loaders, which have an interpreter of their own.
        narrows: True where the stream delivers integers of 64 bits as 32, which is JAX's default.
    """

    name: str
    reader: str
    way: str
    needs: tuple[str, ...]
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

    def case(self, dataset: Dataset, peers: Peers) -> Case:
        """Return the case of this row for a dataset."""
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
        stream = Comparison("of the stream", (f"{dataset.kind}: {self.of}",))
        python = self.python(peers)
        case = Case(dataset.kind, self.name, program, arguments, python, environment)
        return replace(case, comparisons=(stream,))


def _jax(name: str, way: str) -> Row:
    return Row(name, "jax", way, ("jax",), JAX_STREAM, narrows=True)


def _keras(backend: str, of: str, *, narrows: bool = False) -> Row:
    name, needs = f"Keras on {backend}, as_dataset", ("keras", backend)
    return Row(name, "keras", backend, needs, of, {}, backend, narrows=narrows)


def _peer(name: str, reader: str, needs: tuple[str, ...], **more: Any) -> Row:
    return Row(name, reader, reader, needs, more=more, is_peer=True)


TORCH, TENSORFLOW = ("torch",), ("tensorflow",)
ROWS = (
    Row(STREAM, "torch", "stream", TORCH),
    Row("PyTorch, as_loader", "torch", "as_loader", TORCH),
    Row("PyTorch, as_loader in one worker", "torch", "in_worker", TORCH),
    _keras("torch", STREAM),
    _jax(JAX_STREAM, "stream"),
    _jax("JAX, as_arrays", "as_arrays"),
    _keras("jax", JAX_STREAM, narrows=True),
    Row(TF_STREAM, "tensorflow", "stream", TENSORFLOW, of=TF_STREAM),
    Row("TensorFlow, as_dataset", "tensorflow", "as_dataset", TENSORFLOW, TF_STREAM),
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
    """Yield the cases of a dataset: streams, adapters, and other loaders."""
    for row in ROWS:
        if not row.missing(versions, peers):
            yield row.case(dataset, peers)


def as_markdown(results: Sequence[Result]) -> str:
    """Return a table with a row for each case."""

    def of_stream(result: Result, rate: str = RATE) -> float | None:
        return ratio(result, result.case.comparisons[0], results, rate)

    columns = (
        Column("", lambda result: result.case.title, str),
        Column("MB/s", RATE),
        Column("least", lambda result: min(result.values(RATE), default=None)),
        Column("most", lambda result: max(result.values(RATE), default=None)),
        Column("of the stream", of_stream),
        Column("first batch, s", "first_batch_seconds"),
        Column("of it after that", lambda result: of_stream(result, f"{RATE}_after_first_batch")),
    )
    return table_of(columns, results)


if __name__ == "__main__":
    main()
