"""The dataset for transformers' Trainer, with the real one, in processes of their own."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from tests.adapters.test_torch_training import source  # noqa: F401 - a fixture
from tests.adapters.test_torch_workers import PATIENCE, refused, two_ranks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.xdist_group("trainers"),  # the programs run once, in one worker
    pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not there"),
    pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not there"),
    pytest.mark.timeout(2 * PATIENCE),
]

MODULE = "huggingface_program"
EPOCH = 6
"""Batches."""


@pytest.fixture(scope="module")
def trained(trainers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return trainers["trained"]


@pytest.fixture(scope="module")
def epochs(trained: dict[str, Any]) -> list[list[int]]:
    """The batches of two epochs, each with its own shuffle."""
    assert trained["epoch 0"] != trained["epoch 1"]
    both: list[list[int]] = trained["epoch 0"] + trained["epoch 1"]
    return both


def test_each_record_of_each_epoch_once(trained: dict[str, Any], epochs: list[list[int]]) -> None:
    assert trained["whole"] == epochs


@pytest.mark.parametrize("k", [1, 5, 6, 8])
def test_it_resumes_exactly(trained: dict[str, Any], epochs: list[list[int]], k: int) -> None:
    assert trained[f"resumed {k}"] == epochs[k:]


def test_the_same_dataset_serves_again(trained: dict[str, Any], epochs: list[list[int]]) -> None:
    assert trained["same dataset"] == [epochs[:3], epochs[3:]]


def test_a_worker_reads_the_same(trained: dict[str, Any], epochs: list[list[int]]) -> None:
    assert trained["worker"] == epochs


def test_our_own_collator_gives_the_same(trained: dict[str, Any], epochs: list[list[int]]) -> None:
    assert trained["collated"] == epochs


def test_without_a_length_it_takes_steps(trained: dict[str, Any]) -> None:
    steps = trained["steps"]
    assert len(steps) == 8
    assert sorted(number for batch in steps[:EPOCH] for number in batch) == list(range(24))


class TestFeed:
    def test_each_batch_once(self, trained: dict[str, Any], epochs: list[list[int]]) -> None:
        assert trained["fed"] == epochs

    @pytest.mark.parametrize("k", [1, 5, 6, 8])
    def test_it_resumes_exactly_and_reads_nothing_again(
        self, trained: dict[str, Any], epochs: list[list[int]], k: int
    ) -> None:
        tail, taken = trained[f"fed, resumed {k}"]
        assert tail == epochs[k:]
        assert taken == len(tail)

    def test_steps_of_several_batches(
        self, trained: dict[str, Any], epochs: list[list[int]]
    ) -> None:
        """Two steps an epoch, the second of two batches: the third ends behind ten batches."""
        assert trained["fed, accumulated"] == epochs[10:]

    def test_a_checkpoint_without_a_state_is_refused(self, trained: dict[str, Any]) -> None:
        assert refused(trained["fed, no state"], "has no state of a stream")

    def test_a_dataset_beside_it_is_refused(self, trained: dict[str, Any]) -> None:
        assert refused(trained["fed, dataset"], "has a train_dataset", "leave it out")


def test_batches_are_refused(trained: dict[str, Any]) -> None:
    assert refused(trained["batches"], "open the stream without batch_size")


@pytest.mark.night  # by day Accelerate's own processes do
def test_two_processes_share_a_whole_stream(source: str, tmp_path: Path) -> None:  # noqa: F811
    ranks = two_ranks("ranks", source, module=MODULE, MEETING=tmp_path)
    seen = [rank["whole"] for rank in ranks]
    for epoch in range(2):
        part = slice(epoch * EPOCH // 2, (epoch + 1) * EPOCH // 2)
        numbers = [number for rank in seen for batch in rank[part] for number in batch]
        assert sorted(numbers) == list(range(24))
    for number, rank in enumerate(ranks):
        assert refused(rank["part"], f"rank {number} of 2", "divides it by 2 once more")
