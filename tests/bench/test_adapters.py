from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from bench.adapters import ROWS, Row, Versions, as_markdown, cases, skipped
from bench.cases import Result
from bench.machine import ROOT

if TYPE_CHECKING:
    from bench.cases import Case
    from bench.datasets import Dataset
    from bench.peers import Peers

MODULES = {module for row in ROWS for module in row.needs}
EVERYTHING: dict[str, Versions] = {sys.executable: dict.fromkeys(MODULES, "1.0")}


def all_cases(peers: Peers, dataset: Dataset) -> list[Case]:
    return list(cases(dataset, peers, EVERYTHING))


def test_each_row_is_compared_with_one_that_is_there(peers: Peers, dataset: Dataset) -> None:
    found = all_cases(peers, dataset)
    titles = [case.title for case in found]
    assert len(set(titles)) == len(titles)
    assert {name for case in found for one in case.comparisons for name in one.cases} <= set(titles)


def test_an_adapter_reads_the_stream_that_it_is_compared_with(
    peers: Peers, dataset: Dataset
) -> None:
    found = {case.name: case.arguments for case in all_cases(peers, dataset)}
    for row in ROWS:
        if row.name in found and not row.is_peer:
            assert {**found[row.name], "way": ""} == {**found[row.of], "way": ""}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_is_not_installed_is_skipped_with_a_reason(row: Row, peers: Peers) -> None:
    module = row.needs[0]
    there = {sys.executable: {**EVERYTHING[sys.executable], module: None}}
    lines = [line for line in skipped(there, peers) if line.startswith(f"{row.name}: ")]
    assert [f"lacks {module}" in line for line in lines] == [True]
    assert row.missing(there, peers) == [module]


def test_nothing_is_skipped_where_all_is_installed(peers: Peers) -> None:
    assert list(skipped(EVERYTHING, peers)) == []


def test_other_loaders_have_an_interpreter_of_their_own(peers: Peers, dataset: Dataset) -> None:
    theirs = replace(peers, python="/elsewhere/python")
    versions: dict[str, Versions] = {**EVERYTHING, theirs.python: dict.fromkeys(MODULES)}
    assert {case.python for case in cases(dataset, theirs, versions)} == {sys.executable}
    assert all("/elsewhere/python" in line for line in skipped(versions, theirs))


@pytest.mark.night
def test_each_way_reads_every_record_once() -> None:
    """In a process of its own: JAX warns of each fork of a process that has imported it."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "tests/bench/with_loaders.py"],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_table_compares_medians(peers: Peers, dataset: Dataset) -> None:
    stream, adapter = all_cases(peers, dataset)[:2]
    results = [
        Result(stream, [measured(800.0), measured(1000.0), measured(1200.0)]),
        Result(adapter, [measured(950.0)]),
    ]
    _, _, _, row = as_markdown(results).splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [adapter.title, "950", "950", "950", "0.95", "0.50", "0.95"]


def measured(rate: float) -> dict[str, float]:
    return {
        "megabytes_per_second": rate,
        "megabytes_per_second_after_first_batch": rate * 2,
        "first_batch_seconds": 0.5,
    }
