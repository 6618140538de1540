"""The readers of ``bench.adapters``, each in every way; test_adapters.py runs them apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.adapters import ROWS, Row
from bench.readers.frameworks import FRAMEWORKS, Framework

if TYPE_CHECKING:
    from bench.datasets import Dataset
    from bench.peers import Peers

HERE = [
    row
    for row in ROWS
    if row.reader in FRAMEWORKS and "in one worker" not in row.name and not row.more.get("workers")
]
"""Rows that can be read in a process of tests: by a framework, without a fork beside JAX."""


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # TensorFlow's
@pytest.mark.parametrize("row", HERE, ids=lambda row: row.name)
def test_each_way_reads_every_record_once(row: Row, peers: Peers, dataset: Dataset) -> None:
    reader = reader_of(row)
    reader.prepare()
    arguments = {**row.case(dataset, peers).arguments, "engine": "thread"}
    counts = [reader.tally(batch) for batch in reader.ways[arguments["way"]](arguments)]
    records, label_sums = zip(*counts, strict=True)
    assert (sum(records), sum(label_sums)) == (dataset.records, dataset.label_sum)


def reader_of(row: Row) -> Framework:
    for module in row.needs:
        pytest.importorskip(module)
    return FRAMEWORKS[row.reader]
