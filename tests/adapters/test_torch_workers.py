"""Loaders of PyTorch, torchdata and Accelerate over a stream: each record once, or one clear error.

All of it is real: workers, ranks and their collectives, on loopback. The programs are in
torch_programs.py.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.formats.shards.tfrecord import frame
from tests.by_day import at_night, pairwise, stops
from tests.pipeline.small_datasets import write_index

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
PATIENCE = 400
"""Seconds for a program, on a machine that has much else to do."""

pytestmark = [
    pytest.mark.xdist_group("torch_workers"),  # its programs run once, in one worker
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.timeout(2 * PATIENCE),
]
has_torchdata = pytest.mark.skipif(find_spec("torchdata") is None, reason="torchdata is not there")
has_accelerate = pytest.mark.skipif(
    find_spec("accelerate") is None, reason="accelerate is not there"
)

TOTAL = list(range(24))
ORDER = [number for pair in zip(range(12), range(12, 24), strict=True) for number in pair]
"""The order by record in two lanes: each shard belongs to one lane, and to one of two ranks."""
HALVES = [TOTAL[:12], TOTAL[12:]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two shards of twelve numbers each, and their index."""
    directory = tmp_path_factory.mktemp("numbers")
    for shard in range(2):
        records = [(12 * shard + i).to_bytes(8, "little") for i in range(12)]
        (directory / f"part-{shard}.tfrecord").write_bytes(b"".join(map(frame, records)))
    write_index(f"{directory}/part-*.tfrecord", 50)
    return f"{directory}/part-*.tfrecord"


def start(
    program: str, source: str, module: str = "torch_programs", **variables: object
) -> subprocess.Popen[str]:
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", f"tests.adapters.{module}", program, source],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def cases_of(*processes: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Return the objects that each of them printed; torch's own warnings are ignored."""
    said = [process.communicate(timeout=PATIENCE) for process in processes]
    for out, errors in said:
        assert out, errors
    lines = [line for out, _ in said for line in out.splitlines()]
    return [json.loads(line) for line in lines if line.startswith('{"')]


def two_ranks(program: str, source: str, **values: Any) -> list[dict[str, Any]]:
    """Run a program twice, with the environment that torchrun gives."""
    return ranks_of([program], source, **values)[program]


def ranks_of(
    programs: Sequence[str], source: str, **values: Any
) -> dict[str, list[dict[str, Any]]]:
    """Return what both ranks of each program say, behind two imports of torch for all of them."""
    with ExitStack() as stack:
        ports = []
        for _ in programs:
            place = stack.enter_context(socket.socket())
            # Bound and not listening: rank 0 may listen there, and nobody else is given the port.
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind(("127.0.0.1", 0))
            ports.append(place.getsockname()[1])
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ports[0]}
        values |= {"WORLD_SIZE": 2, "PORTS": ",".join(map(str, ports)), **master}
        names = ",".join(programs)
        ranks = [start(names, source, RANK=r, LOCAL_RANK=r, **values) for r in range(2)]
        cases = cases_of(*ranks)
    count = len(programs)
    return {name: [cases[i], cases[count + i]] for i, name in enumerate(programs)}


@pytest.fixture(scope="module")
def alone(source: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What programs that one process starts say, behind its import of torch; last both ranks."""
    programs = ["workers", *(["stateful"] if find_spec("torchdata") else []), "spawn"]
    meeting = tmp_path_factory.mktemp("spawned") / "meeting"
    return cases_of(start(",".join(programs), source, MEETING=meeting))


@pytest.fixture(scope="module")
def workers(alone: list[dict[str, Any]]) -> dict[str, Any]:
    return alone[0]


@pytest.fixture(scope="module")
def stateful(alone: list[dict[str, Any]]) -> dict[str, Any]:
    return alone[1]


@pytest.fixture(scope="module")
def ranks(source: str) -> dict[str, list[dict[str, Any]]]:
    programs = ["rank", "accelerate"] if find_spec("accelerate") else ["rank"]
    return ranks_of(programs, source)


@pytest.fixture(scope="module")
def torchrun(ranks: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return ranks["rank"]


@pytest.fixture(scope="module")
def spawned(alone: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(alone[-2:], key=lambda of: int(of["rank"]))


@pytest.fixture(scope="module")
def accelerated(ranks: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return ranks["accelerate"]


def refused(outcome: object, *words: str) -> bool:
    return str(outcome).startswith("ConfigError") and all(word in str(outcome) for word in words)


class TestWorkers:
    @pytest.mark.parametrize(
        "case", ["0", "1 fork", at_night("1 forkserver"), "1 spawn", "records, 1 fork"]
    )
    def test_one_process_reads_each_record_once(self, workers: dict[str, Any], case: str) -> None:
        assert workers[case] == ORDER

    @pytest.mark.parametrize(
        "case",
        [
            "2 fork",
            at_night("4 fork"),
            at_night("2 forkserver"),
            at_night("4 forkserver"),
            at_night("2 spawn"),
            at_night("4 spawn"),
            "records, 2 fork",
            "auto",
        ],
    )
    def test_several_workers_are_refused(self, workers: dict[str, Any], case: str) -> None:
        assert refused(workers[case], "of a DataLoader", "num_workers=0 or 1", "rank= and")

    @pytest.mark.parametrize("case", ["own, fork", at_night("own, forkserver")])
    def test_a_division_of_the_users_own_is_let_through(
        self, workers: dict[str, Any], case: str
    ) -> None:
        assert sorted(workers[case]) == TOTAL

    @pytest.mark.parametrize("engine", ["thread", "process"])
    def test_a_forked_worker_does_not_disturb_the_trainers_stream(
        self, workers: dict[str, Any], engine: str
    ) -> None:
        assert workers[f"open, {engine}"] == [ORDER[:5], ORDER[5:], ORDER[5:]]

    @pytest.mark.parametrize("case", ["epochs, persistent", "epochs, set"])
    def test_an_epoch_of_a_worker_is_the_streams(self, workers: dict[str, Any], case: str) -> None:
        first, second = workers[case]
        assert sorted(first) == sorted(second) == TOTAL
        assert first != second
        assert workers[case] == workers["epochs"]


@has_torchdata
class TestStatefulDataLoader:
    @pytest.mark.parametrize("count", [0, 1])
    def test_it_resumes_exactly_from_every_batch(
        self, stateful: dict[str, Any], count: int
    ) -> None:
        for k in stops(range(1, 7)):
            assert stateful[f"{count} {k}"] == [ORDER[: 4 * k], ORDER[4 * k :]]

    def test_two_workers_are_refused(self, stateful: dict[str, Any]) -> None:
        assert refused(stateful["2"], "of a DataLoader", "num_workers=0 or 1")


class TestRanks:
    @pytest.mark.parametrize(
        "case", ["made before", "made after, fork", at_night("made after, spawn")]
    )
    def test_with_the_environment_of_torchrun(
        self, torchrun: Sequence[dict[str, Any]], case: str
    ) -> None:
        assert [rank[case] for rank in torchrun] == HALVES

    @pytest.mark.parametrize(
        "case",
        [
            "made before, elsewhere",
            "made before",
            "made after, 0 fork",
            "made after, 1 fork",
            at_night("made after, 1 spawn"),
        ],
    )
    def test_started_by_spawn(self, spawned: Sequence[dict[str, Any]], case: str) -> None:
        """The environment says nothing, and in a worker that was spawned nobody else does."""
        assert [rank[case] for rank in spawned] == HALVES


@has_accelerate
class TestAccelerate:
    @pytest.mark.parametrize(
        ("split", "dispatch", "count"), pairwise((False, True), (None, True, False), (0, 1))
    )
    def test_it_divides_a_whole_stream(
        self,
        accelerated: Sequence[dict[str, Any]],
        dispatch: bool | None,
        split: bool,
        count: int,
    ) -> None:
        case = f"whole, dispatch {dispatch}, split {split}, workers {count}"
        assert sorted(accelerated[0][case] + accelerated[1][case]) == TOTAL

    @pytest.mark.parametrize(
        "case",
        [
            "dispatch None, split False, workers 0",
            "dispatch True, split False, workers 0",
            "dispatch True, split True, workers 0",
            "dispatch True, spawned",
            "dispatch False, split False, workers 0",
            "dispatch False, split False, workers 1",
            "dispatch False, split True, workers 0",
            "dispatch False, split True, workers 1",
            at_night("dispatch False, spawned"),
        ],
    )
    def test_it_does_not_divide_what_is_divided(
        self, accelerated: Sequence[dict[str, Any]], case: str
    ) -> None:
        for number, rank in enumerate(accelerated):
            assert refused(rank[case], f"rank {number} of 2", "Accelerate's", "by 2 once more")

    def test_the_rank_that_dispatches_from_a_forked_worker_says_so(
        self, accelerated: Sequence[dict[str, Any]]
    ) -> None:
        """The other one waits for it in a collective, and ends with it.

        Gloo finds the lost connection at its end or by a failed read, as the two processes happen
        to run; it has a text for each.
        """
        reader, other = (rank["dispatch True, forked"] for rank in accelerated)
        assert refused(reader, "Accelerate's DataLoaderDispatcher")
        assert "Connection closed by peer" in other or "Read error" in other

    def test_a_loader_that_is_not_prepared_reads_the_ranks_part(
        self, accelerated: Sequence[dict[str, Any]]
    ) -> None:
        assert [rank["not prepared"] for rank in accelerated] == HALVES
