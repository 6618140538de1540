"""The loader as people train with it: each record once, and exact after a stop, or one clear error.

All of it is real: workers, ranks and their collectives on loopback, torchdata, Accelerate and
Lightning. The programs are in torch_loader_programs.py.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest

import streamrec as sr
from tests.adapters.test_torch_workers import (
    PATIENCE,
    cases_of,
    has_accelerate,
    has_torchdata,
    ranks_of,
    refused,
    start,
    two_ranks,
)
from tests.adapters.torch_shards import write_examples
from tests.by_day import at_night, is_day, stops

pytestmark = [
    pytest.mark.xdist_group("torch_training"),  # its programs run once, in one worker
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.timeout(2 * PATIENCE),
]
has_lightning = pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not there")

MODULE = "torch_loader_programs"
RECORDS, STEPS = 24, 4


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_examples(tmp_path_factory.mktemp("examples"), RECORDS)


ALONE = {"workers": "torch", "stateful": "torchdata", "accelerate alone": "accelerate"}
ALONE |= {} if is_day() else {"lightning": "lightning"}
"""Programs of one process, and what they import."""


@pytest.fixture(scope="module")
def alone(source: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What these programs say, behind one import of torch."""
    programs = [name for name, library in ALONE.items() if find_spec(library)]
    meeting = tmp_path_factory.mktemp("alone")
    cases = cases_of(start(",".join(programs), source, MODULE, MEETING=meeting))
    return dict(zip(programs, cases, strict=True))


@pytest.fixture(scope="module")
def workers(alone: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return alone["workers"]


@pytest.fixture(scope="module")
def stateful(alone: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return alone["stateful"]


@pytest.fixture(scope="module")
def both(source: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    programs = ["ranks", "accelerate"] if find_spec("accelerate") else ["ranks"]
    return ranks_of(programs, source, module=MODULE, MEETING=tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def ranks(both: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return both["ranks"]


@pytest.fixture(scope="module")
def spawned(source: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    meeting = tmp_path_factory.mktemp("spawned")
    cases = cases_of(start("spawn", source, MODULE, MEETING=meeting))
    return sorted(cases, key=lambda of: int(of["rank"]))


@pytest.fixture(scope="module")
def accelerated(both: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return both["accelerate"]


@pytest.fixture(scope="module")
def lightning(alone: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return alone["lightning"]


def halves(source: str, epochs: int = 1) -> list[list[list[int]]]:
    """Return the ids of the batches that the two ranks are to get."""
    settings: dict[str, Any] = {"batch_size": 6, "lanes": 2, "index": True, "engine": "thread"}
    settings |= {"shuffle": True, "shuffle_window": 300, "world_size": 2, "epochs": epochs}
    opened = partial(sr.open, source, {"id": sr.FixedLenFeature((), "int64")}, **settings)
    return [[batch["id"].tolist() for batch in opened(rank=rank)] for rank in range(2)]


class TestWorkers:
    @pytest.mark.parametrize("case", ["0", "fork", at_night("forkserver"), at_night("spawn")])
    def test_one_gives_what_the_loader_gives_itself(
        self, workers: dict[str, Any], case: str
    ) -> None:
        """Each column, the mask, the epoch, the origin and the position."""
        assert workers[case] == workers["direct"]

    @pytest.mark.parametrize("case", ["2 fork", at_night("2 spawn")])
    def test_several_are_refused(self, workers: dict[str, Any], case: str) -> None:
        assert refused(workers[case], "of a DataLoader", "num_workers=0 or 1")

    @pytest.mark.parametrize("case", ["fresh", "persistent"])
    def test_each_loop_is_the_next_epoch(self, workers: dict[str, Any], case: str) -> None:
        assert workers[f"epochs, {case}"] == workers["epochs"]

    @pytest.mark.parametrize("case", ["fresh", "persistent"])
    def test_after_a_break_too(self, workers: dict[str, Any], case: str) -> None:
        """The worker has read ahead, and does not know how far the trainer came."""
        assert workers[f"break, {case}"] == [epoch[:2] for epoch in workers["epochs"]]

    @pytest.mark.parametrize("case", ["fresh", "persistent"])
    def test_set_epoch_holds_for_a_worker(self, workers: dict[str, Any], case: str) -> None:
        assert workers[f"set, {case}"] == [workers["epochs"][epoch] for epoch in (2, 0, 1)]

    def test_a_worker_begins_where_the_loader_stands(self, workers: dict[str, Any]) -> None:
        head, tail = workers["loaded"]
        assert head + tail == workers["epochs"][0]

    def test_a_state_that_only_the_worker_knows_is_refused(self, workers: dict[str, Any]) -> None:
        assert refused(workers["state"], "next_position", "StatefulDataLoader", "num_workers=0")

    def test_a_state_that_comes_too_late_is_refused(self, workers: dict[str, Any]) -> None:
        assert refused(workers["loaded late"], "load the state before the first loop")

    def test_batches_are_not_collated_again(self, workers: dict[str, Any]) -> None:
        assert refused(workers["collated"], "batch_size=None")

    def test_pairs_come_out_of_one(self, workers: dict[str, Any]) -> None:
        assert workers["pairs, 1"] == workers["pairs"]
        assert len(workers["pairs"]) == len(workers["direct"])
        for (inputs, targets, mask), batch in zip(workers["pairs"], workers["direct"], strict=True):
            assert inputs == {"x": batch["x"], "id": batch["ids"]}
            assert (targets, mask) == (batch["ids"], batch["mask"])

    def test_pairs_are_not_collated_again(self, workers: dict[str, Any]) -> None:
        assert refused(workers["pairs, collated"], "batch_size=None")

    def test_a_worker_does_not_move_batches(self, workers: dict[str, Any]) -> None:
        assert refused(workers["device"], "leave out device=")


@has_torchdata
@pytest.mark.parametrize("count", [0, 1])
class TestStatefulDataLoader:
    @pytest.mark.parametrize("epoch", [0, 1])
    def test_it_resumes_exactly_from_every_batch(
        self, stateful: dict[str, Any], count: int, epoch: int
    ) -> None:
        epochs = stateful["epochs"]
        for k in stops(range(1, STEPS + 1)):
            head, tail = stateful[f"{count} {epoch} {k}"]
            assert head == [*epochs[:epoch], epochs[epoch][:k]]
            assert tail == epochs[epoch][k:]

    def test_behind_an_epoch_it_goes_on_with_the_next(
        self, stateful: dict[str, Any], count: int
    ) -> None:
        assert stateful[f"{count} ended"] == stateful["epochs"][1:]


class TestRanks:
    @pytest.mark.parametrize("case", ["made before", "made after", "worker", "fsdp"])
    def test_with_the_environment_of_torchrun(
        self, ranks: list[dict[str, Any]], source: str, case: str
    ) -> None:
        assert [rank[case] for rank in ranks] == halves(source)

    @pytest.mark.night  # by day those of test_torch_workers.py are spawned
    @pytest.mark.parametrize("case", ["made before", "made after", "worker"])
    def test_started_by_spawn(self, spawned: list[dict[str, Any]], source: str, case: str) -> None:
        assert [rank[case] for rank in spawned] == halves(source)

    def test_ranks_that_differ_are_refused_at_the_first_loop(
        self, ranks: list[dict[str, Any]]
    ) -> None:
        for rank in ranks:
            assert refused(rank["other seed"], "seed is 0 in process 0 and 1 in process 1")

    @pytest.mark.parametrize("case", ["True, 2", "None, 1", "None, 2", "None, 3"])
    def test_exact_through_torchs_distributed_checkpoint(
        self, ranks: list[dict[str, Any]], case: str
    ) -> None:
        for rank in ranks:
            resumed, whole = rank[f"checkpoint, {case}"]
            assert resumed == whole


@has_accelerate
class TestAccelerate:
    def test_the_loader_is_left_as_it_is(
        self, accelerated: list[dict[str, Any]], source: str
    ) -> None:
        assert all(rank["same"] for rank in accelerated)
        both = [rank["loader"][0] + rank["loader"][1] for rank in accelerated]
        assert both == halves(source, epochs=2)

    def test_a_ranks_part_is_not_dispatched(self, accelerated: list[dict[str, Any]]) -> None:
        for number, rank in enumerate(accelerated):
            outcome = rank["dispatch None, workers 0"]
            assert refused(outcome, f"rank {number} of 2", "DataLoaderDispatcher")

    @pytest.mark.parametrize("count", [0, 1])
    def test_nor_divided(self, accelerated: list[dict[str, Any]], count: int) -> None:
        """Accelerate itself divides no loader without a batch size."""
        for rank in accelerated:
            assert "TypeError" in rank[f"dispatch False, workers {count}"]

    def test_a_whole_stream_is_dispatched(self, accelerated: list[dict[str, Any]]) -> None:
        batches = accelerated[0]["whole"] + accelerated[1]["whole"]
        assert sorted(number for batch in batches for number in batch) == list(range(RECORDS))


@has_accelerate
def test_accelerate_in_one_process(alone: dict[str, dict[str, Any]]) -> None:
    cases = alone["accelerate alone"]
    assert cases["prepared"] == cases["direct"]
    assert refused(cases["later"], "set_epoch(0) would leave the state")


@has_lightning
@pytest.mark.night  # by day, test_elastic_training.py and test_evaluation.py do
class TestLightning:
    @pytest.mark.parametrize("case", ["known", "unknown"])
    def test_it_resumes_exactly_from_every_batch(
        self, lightning: dict[str, Any], case: str
    ) -> None:
        """Where the length is not known, Lightning has taken a batch more than it trained on."""
        epochs = [lightning[case][i : i + STEPS] for i in range(0, 3 * STEPS, STEPS)]
        assert len({str(epoch) for epoch in epochs}) == 3
        for k in stops(range(1, 2 * STEPS + 1)):
            resumed, whole = lightning[f"{case} {k}"]
            assert resumed == whole

    @pytest.mark.night  # by day those of Accelerate, and of torchrun, do
    def test_each_rank_reads_its_part(self, source: str) -> None:
        parts = two_ranks("lightning ranks", source, module=MODULE)
        assert [rank["loader"] for rank in parts] == halves(source, epochs=2)
