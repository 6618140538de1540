from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from bench.datasets import images, recsys, tokens
from bench.harness import Run, measure
from bench.kernel_cases import (
    BATCH_SIZES,
    BY_SIZE,
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

    from bench.harness import Case


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


def test_batch_sizes_are_a_group_of_their_own(setup: Setup) -> None:
    chosen = Run(only=["by batch size"]).choose(all_cases(setup))
    assert {case.group for case in chosen} == {f"{BY_SIZE}, recsys", f"{BY_SIZE}, tokens"}
    found = [
        (case.arguments["kind"], case.arguments["batch_size"], case.program) for case in chosen
    ]
    assert found == [
        (kind, size, reader)
        for kind in ("recsys", "tokens")
        for size in BATCH_SIZES
        for reader in ("readers.streams stream", *["readers.tf_data dataset"] * 2)
    ]


def test_each_size_is_held_against_its_own(setup: Setup) -> None:
    cases = {case.title: case for case in all_cases(setup)}
    for case in cases.values():
        if case.group.startswith(BY_SIZE):
            labels = [one.label for one in case.comparisons]
            assert labels == ["of tf.data", "of tf.data, batched within files"]
            others = [cases[name] for one in case.comparisons for name in one.cases]
            assert [one.arguments["batch_size"] for one in others] == [
                case.arguments["batch_size"]
            ] * 2
            assert [one.arguments["within_files"] for one in others] == [False, True]


def test_elsewhere_batches_are_of_512_records_or_64_images(setup: Setup) -> None:
    sizes = {
        (case.arguments["kind"], case.arguments["batch_size"])
        for case in all_cases(setup)
        if not case.group.startswith(BY_SIZE)
    }
    assert sizes == {("recsys", 512), ("tokens", 512), ("images", 64)}


def test_the_same_stream_is_read_in_other_batches(setup: Setup) -> None:
    cases = {case.title: case for case in all_cases(setup)}
    whole = cases[title(WHOLE, "tokens", "sr.open, async for")]
    sized = cases[title(BY_SIZE, "tokens", "sr.open, async for, batches of 512")]
    assert (whole.program, whole.arguments) == (sized.program, sized.arguments)


def test_without_tensorflow_there_are_streams_alone(tmp_path: Path) -> None:
    setup = Setup((tokens(tmp_path, 0.02),), ("python",), None, 0, 1, tfrecord=False)
    programs = [case.program for case in all_cases(setup) if case.group.startswith(BY_SIZE)]
    assert programs == ["readers.streams stream"] * len(BATCH_SIZES)


@pytest.mark.night
def test_a_stream_of_other_batches_reads_everything(setup: Setup) -> None:
    [case] = [
        case
        for case in all_cases(setup)
        if case.title == title(BY_SIZE, "recsys", "sr.open, async for, batches of 128")
    ]

    def judge(case: Case, report: Mapping[str, Any]) -> dict[str, float]:
        return rates(case, report, setup.datasets[0])

    [result] = measure([case], judge, 1, lambda _: None)
    assert result.failures == []
    assert result.measurements[0]["records_per_second"] > 0
