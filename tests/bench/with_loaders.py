"""The readers of ``bench.adapters``, each in every way; test_adapters.py runs them apart."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from bench.adapters import ROWS, Row

if TYPE_CHECKING:
    from bench.datasets import Dataset
    from bench.fetching.peers import Peers

HERE = [
    row
    for row in ROWS
    if row.reader not in {"tf_data", "web_dataset"}
    and "in one worker" not in row.name
    and not row.more.get("workers")
]
"""Rows that can be read in a process of tests: by ``time_way``, and without a fork beside JAX."""


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # TensorFlow's
@pytest.mark.parametrize("row", HERE, ids=lambda row: row.name)
def test_each_way_reads_every_record_once(row: Row, peers: Peers, dataset: Dataset) -> None:
    if dataset.kind not in row.kinds:
        pytest.skip(f"{row.name} has no form for {dataset.kind}")
    reader = reader_of(row)
    for case in row.cases(dataset.kind, dataset, peers):
        arguments = {**case.arguments, "engine": "thread"}
        ways = reader.WAYS | getattr(reader, "ALONE", {})
        counts = [reader.count(batch) for batch in ways[arguments["way"]](arguments)]
        records, label_sums = zip(*counts, strict=True)
        assert (sum(records), sum(label_sums)) == (dataset.records, dataset.label_sum)


def reader_of(row: Row) -> Any:
    for module in row.needs:
        pytest.importorskip(module)
    return import_module(f"bench.readers.{row.reader}")
