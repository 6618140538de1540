from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from bench.cases import measure
from bench.datasets import images, recsys, tokens
from bench.kernel_cases import (
    STREAMS,
    WHOLE,
    Setup,
    all_cases,
    memory_cases,
    rates,
    title,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from bench.cases import Case


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    datasets = (recsys(tmp_path, 0.01), tokens(tmp_path, 0.02), images(tmp_path, 1))
    return Setup(datasets, ("python",), sys.executable, seconds=0, epochs=1, tfrecord=True)


def test_titles_are_unique_and_what_is_compared_is_there(setup: Setup) -> None:
    cases = [*all_cases(setup), *memory_cases(setup)]
    titles = [case.title for case in cases]
    assert len(set(titles)) == len(titles)
    compared = {name for case in cases for one in case.comparisons for name in one.cases}
    assert compared <= set(titles)


def test_batches_are_of_512_records_or_64_images(setup: Setup) -> None:
    sizes = {(case.arguments["kind"], case.arguments["batch_size"]) for case in all_cases(setup)}
    assert sizes == {("recsys", 512), ("tokens", 512), ("images", 64)}


def test_without_tensorflow_there_are_streams_alone(tmp_path: Path) -> None:
    setup = Setup((tokens(tmp_path, 0.02),), ("python",), None, 0, 1, tfrecord=False)
    programs = [case.program for case in all_cases(setup) if case.group.startswith(WHOLE)]
    assert programs == ["readers.streams stream"] * len(STREAMS)


@pytest.mark.night
def test_a_stream_reads_everything(setup: Setup) -> None:
    [case] = [
        case
        for case in all_cases(setup)
        if case.title == title(WHOLE, "recsys", "sr.open, async for")
    ]

    def judge(case: Case, report: Mapping[str, Any]) -> dict[str, float]:
        return rates(case, report, setup.datasets[0])

    [result] = measure([case], judge, 1, lambda _: None)
    assert result.failures == []
    assert result.measurements[0]["records_per_second"] > 0
