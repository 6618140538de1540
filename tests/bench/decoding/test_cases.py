from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from bench.console import wanted
from bench.datasets import images, recsys, tokens
from bench.decoding.cases import (
    BATCH_SIZES,
    BY_SIZE,
    WHOLE,
    Scene,
    all_cases,
    memory_cases,
    title,
)
from bench.decoding.rates import rates
from bench.measure import measure

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from bench.measure import Case


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    datasets = (recsys(tmp_path, 0.01), tokens(tmp_path, 0.02), images(tmp_path, 1))
    return Scene(datasets, ("python",), sys.executable, seconds=0, epochs=1, tfrecord=True)


def test_titles_are_unique_and_what_is_compared_is_there(scene: Scene) -> None:
    cases = [*all_cases(scene), *memory_cases(scene)]
    titles = [case.title for case in cases]
    assert len(set(titles)) == len(titles)
    compared = {name for case in cases for one in case.comparisons for name in one.cases}
    assert compared <= set(titles)


def test_batch_sizes_are_a_group_of_their_own(scene: Scene) -> None:
    chosen = [case for case in all_cases(scene) if wanted(case, ["by batch size"])]
    assert {case.group for case in chosen} == {f"{BY_SIZE}, recsys", f"{BY_SIZE}, tokens"}
    found = [
        (case.order["kind"], case.order["batch_size"], case.module.rpartition(".")[2])
        for case in chosen
    ]
    assert found == [
        (kind, size, reader)
        for kind in ("recsys", "tokens")
        for size in BATCH_SIZES
        for reader in ("stream", "tf_data", "tf_data")
    ]


def test_each_size_is_held_against_its_own(scene: Scene) -> None:
    cases = {case.title: case for case in all_cases(scene)}
    for case in cases.values():
        if case.group.startswith(BY_SIZE):
            labels = [one.label for one in case.comparisons]
            assert labels == ["of tf.data", "of tf.data, batched within files"]
            others = [cases[name] for one in case.comparisons for name in one.cases]
            assert [one.order["batch_size"] for one in others] == [case.order["batch_size"]] * 2
            assert [one.order["within_files"] for one in others] == [False, True]


def test_elsewhere_batches_are_of_512_records_or_64_images(scene: Scene) -> None:
    sizes = {
        (case.order["kind"], case.order["batch_size"])
        for case in all_cases(scene)
        if not case.group.startswith(BY_SIZE)
    }
    assert sizes == {("recsys", 512), ("tokens", 512), ("images", 64)}


def test_the_same_stream_is_read_in_other_batches(scene: Scene) -> None:
    cases = {case.title: case for case in all_cases(scene)}
    whole = cases[title(WHOLE, "tokens", "sr.open, async for")]
    sized = cases[title(BY_SIZE, "tokens", "sr.open, async for, batches of 512")]
    assert (whole.module, whole.order) == (sized.module, sized.order)


def test_without_tensorflow_there_are_streams_alone(tmp_path: Path) -> None:
    scene = Scene((tokens(tmp_path, 0.02),), ("python",), None, 0, 1, tfrecord=False)
    modules = [case.module for case in all_cases(scene) if case.group.startswith(BY_SIZE)]
    assert modules == ["bench.readers.stream"] * len(BATCH_SIZES)


def test_a_stream_of_other_batches_reads_everything(scene: Scene) -> None:
    [case] = [
        case
        for case in all_cases(scene)
        if case.title == title(BY_SIZE, "recsys", "sr.open, async for, batches of 128")
    ]

    def judge(case: Case, report: Mapping[str, Any]) -> dict[str, float]:
        return rates(case, report, scene.datasets[0])

    [result] = measure([case], judge, 1, lambda _: None)
    assert result.failures == []
    assert result.measurements[0]["records_per_second"] > 0
