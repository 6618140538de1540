"""The ranks of a job name the one that holds them back."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.report.pace import StreamPace
from streamrec.streams import rank_watch
from streamrec.streams.rank_watch import (
    BEATS,
    JaxBoard,
    LastBeats,
    RankWatch,
    TorchBoard,
    beats_of,
    find_board,
)
from tests.by_day import at_night
from tests.streams.simulated_job import FAULTS, HEALTHY, MemoryBoard, play

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PERIOD = 30.0
BEAT = 10.0
ENOUGH = 0.95
"""The part of jobs that must be judged right."""
JOBS = 17
"""Jobs with each kind of fault: about a hundred in all. As many healthy ones take 170 minutes."""


def pace(waited: float) -> StreamPace:
    waits = {"decode": waited, "client": 1 - waited}
    return StreamPace(seconds=PERIOD, waited=waited, waits=waits)


class Ranks:
    """Watches of some ranks over one another, on one clock."""

    def __init__(self, count: int, period: float = PERIOD) -> None:
        self.now = 0.0
        places: dict[int, str] = {}
        self.watches = [
            RankWatch(MemoryBoard(rank, places, count), period, f"host-{rank}", lambda: self.now)
            for rank in range(count)
        ]

    def look(self, waited: Iterable[float | None]) -> dict[int, str]:
        """Have ranks look, a beat later; return what they say. ``None``: one is paused."""
        self.now += BEAT
        lines = {
            rank: self.watches[rank].look(pace(part))
            for rank, part in enumerate(waited)
            if part is not None
        }
        return {rank: line for rank, line in lines.items() if line is not None}


def test_one_rank_names_the_late_one() -> None:
    ranks = Ranks(3)
    ranks.look([0.0, 0.5, 0.0])
    [(judge, line)] = ranks.look([0.0, 0.5, 0.0]).items()
    assert judge == 0
    assert line.startswith("rank 1 on host-1 waited 50% of the last 30 s, the others 0%: decoding")


def test_none_is_named_if_all_wait_alike() -> None:
    ranks = Ranks(3)
    assert [ranks.look([0.6, 0.5, 0.55]) for _ in range(3)] == [{}] * 3


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_a_rank_that_tells_nothing_is_named_by_the_first_that_does(silent: int) -> None:
    ranks = Ranks(3)
    ranks.look([0.0] * 3)
    waited = [None if rank == silent else 0.0 for rank in range(3)]
    lines = [ranks.look(waited) for _ in range(BEATS + 1)]
    # The first rank to look sees in a beat what others wrote in the one before.
    *before, named = lines[: BEATS + (silent > 0)]
    assert not any(before)
    [(judge, line)] = named.items()
    assert judge == int(silent == 0)
    assert line.startswith(f"rank {silent} on host-{silent} has reported nothing for 30 s")


@pytest.mark.parametrize("period", [PERIOD, 3 * PERIOD])
def test_a_rank_is_named_once_a_period(period: float) -> None:
    ranks = Ranks(3, period)
    said = [bool(ranks.look([0.0, 0.5, 0.0])) for _ in range(20)]
    beats = int(period / BEAT)
    assert said == [number % beats == 1 for number in range(20)]


@pytest.mark.parametrize(
    ("period", "beat"), [(30.0, 10.0), (3.0, 1.0), (60.0, 10.0), (45.0, 9.0), (0.003, 0.001)]
)
def test_a_beat_is_a_part_of_the_period_and_no_longer_than_ten_seconds(
    period: float, beat: float
) -> None:
    assert period / beats_of(period) == pytest.approx(beat)


def statistics(batches: int, blocked: float) -> dict[str, float]:
    return {"batches": batches, "records": batches, "seconds_blocked": blocked}


def windows(*counters: tuple[int, float]) -> list[float | None]:
    """Return the part waited in each window, of counters of batches and seconds blocked."""
    seconds = iter(range(0, 1000, int(BEAT)))
    window = LastBeats(lambda: next(seconds))
    paces = [window.beat(statistics(*one)) for one in counters]
    return [None if one is None else one.waited for one in paces]


def test_a_window_is_three_beats() -> None:
    counters = [(1, 0.0), (2, 0.0), (3, 3.0), (4, 6.0), (5, 6.0), (6, 6.0)]
    assert windows(*counters) == [None, None, None, 0.2, 0.2, pytest.approx(0.1)]


def test_the_first_batch_is_in_no_window() -> None:
    counters = [(0, 9.0), (1, 19.0), (2, 19.0), (3, 19.0), (4, 22.0)]
    assert windows(*counters) == [None, None, None, None, 0.1]


def test_a_stream_that_does_not_begin_is_compared() -> None:
    counters = [(0, 10.0), (0, 20.0), (0, 30.0), (0, 40.0)]
    assert windows(*counters)[-1] == 1.0


def test_a_rank_that_has_just_begun_is_neither_compared_nor_missed() -> None:
    ranks = Ranks(2)
    for _ in range(2 * BEATS):
        ranks.now += BEAT
        assert [ranks.watches[0].look(pace(0.9)), ranks.watches[1].look(None)] == [None, None]


def test_a_rank_whose_weights_changed_in_another_way_is_named() -> None:
    """Once the calls of all ranks have had time to be made."""
    ranks = Ranks(3)

    def look(*changes: str) -> list[str]:
        ranks.now += BEAT
        zipped = zip(ranks.watches, changes, strict=True)
        return [line for watch, own in zipped if (line := watch.look(pace(0.0), own)) is not None]

    for _ in range(2 * BEATS):
        assert look("", "", "") == []
    assert look("a", "", "") == look("a", "", "a") == look("a", "a", "a") == []
    for _ in range(2 * BEATS):
        assert look("a", "a", "a") == []
    lines = [line for _ in range(BEATS + 2) for line in look("a", "a", "b")]
    assert lines == [
        "rank 2 on host-2 has other changes of the mix's weights than rank 0, so the ranks do not "
        "read one order; stop the job, and go on from a state before the change, with the same "
        "calls of set_weights on all ranks"
    ]
    # Again once a period, as long as it is so.
    assert len([line for _ in range(2 * BEATS) for line in look("a", "a", "b")]) == 2


def test_a_rank_that_is_back_is_not_named() -> None:
    ranks = Ranks(3)
    ranks.look([0.0] * 3)
    for _ in range(5):
        ranks.look([0.0, None, 0.0])
    ranks.look([0.0] * 3)  # the judge may have looked before that rank told
    assert ranks.look([0.0] * 3) == {}


def test_a_judge_that_was_paused_names_nobody_for_that() -> None:
    ranks = Ranks(3)
    ranks.look([0.0] * 3)
    for _ in range(5):
        ranks.look([None] * 3)
    assert ranks.look([0.0] * 3) == {}


def test_a_rank_whose_stream_is_closed_is_not_missed() -> None:
    ranks = Ranks(3)
    ranks.look([0.0] * 3)
    ranks.watches[0].leave()
    ranks.watches[2].leave()
    assert [ranks.look([None, 0.5, None]) for _ in range(5)] == [{}] * 5


def test_a_rank_that_never_told_anything_is_not_missed() -> None:
    ranks = Ranks(3)
    lines = [ranks.look([None, 0.5, 0.0]) for _ in range(5)]
    assert [list(line) for line in lines] == [[], [1], [], [], [1]]


@pytest.mark.parametrize("kind", [*map(at_night, (*FAULTS[:-1], HEALTHY)), FAULTS[-1]])
def test_a_planted_fault_is_named_and_nothing_else(kind: str) -> None:
    job = play(kind, 0)
    assert job.is_right, (job.fault, job.lines)


@pytest.mark.night
@pytest.mark.timeout(3600)
def test_95_of_100_faults_are_named_right_and_no_healthy_rank() -> None:
    jobs = [play(kind, seed) for kind in FAULTS for seed in range(JOBS)]
    assert sum(job.is_right for job in jobs) >= ENOUGH * len(jobs)
    healthy = [play(HEALTHY, seed) for seed in range(JOBS)]
    assert [job.lines for job in healthy] == [[]] * JOBS


class Store:
    """A store of torch.distributed, as far as it is used; to get a missing key would hang."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        return self.values[key]


class Client:
    """The client of jax.distributed, as far as it is used."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def key_value_set(self, key: str, value: str, *, allow_overwrite: bool) -> None:
        assert allow_overwrite
        self.values[key] = value

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        return [item for item in self.values.items() if item[0].startswith(folder)]


def torch_board(store: Any, rank: int) -> TorchBoard:
    inner = SimpleNamespace(_get_default_store=lambda: store)
    distributed = SimpleNamespace(
        distributed_c10d=inner, get_rank=lambda: rank, get_world_size=lambda: 12
    )
    return TorchBoard("train", distributed)


def jax_board(client: Any, rank: int) -> JaxBoard:
    state = SimpleNamespace(global_state=SimpleNamespace(client=client))
    jax = SimpleNamespace(
        _src=SimpleNamespace(distributed=state),
        process_index=lambda: rank,
        process_count=lambda: 12,
    )
    return JaxBoard("train", jax)


@pytest.mark.parametrize(("make", "store"), [(torch_board, Store), (jax_board, Client)])
def test_each_rank_has_a_place(make: Any, store: Any) -> None:
    shared = store()
    one, eleven = make(shared, 1), make(shared, 11)
    assert (one.rank, one.size) == (1, 12)
    assert one.read(1) is None
    eleven.write("late")
    assert one.read(1) is None
    one.write("well")
    one.write("late, too")
    assert (eleven.read(1), one.read(11)) == ("late, too", "late")


def test_a_store_is_asked_over_a_connection_of_our_own() -> None:
    class Cloned(Store):
        def clone(self) -> Store:
            return Store()

    shared = Cloned()
    torch_board(shared, 0).write("well")
    assert shared.values == {}


def test_without_a_framework_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch.distributed", "jax"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert find_board("train") is None
    # One that is imported and not initialised knows no other ranks either.
    torch = ModuleType("torch.distributed")
    torch.__dict__.update(is_available=lambda: True, is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch.distributed", torch)
    monkeypatch.setitem(sys.modules, "jax", ModuleType("jax"))
    assert find_board("train") is None


def test_torch_comes_before_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch_board(Store(), 3)
    monkeypatch.setattr(
        rank_watch, "TorchBoard", lambda topic, _: made if topic == "train" else None
    )
    torch = ModuleType("torch.distributed")
    torch.__dict__.update(is_available=lambda: True, is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "torch.distributed", torch)
    assert find_board("train") is made


TORCH = """
import sys
import torch.distributed as distributed
from streamrec.streams.rank_watch import find_board
place, rank = sys.argv[1:]
distributed.init_process_group("gloo", init_method=place, rank=int(rank), world_size=2)
board = find_board("train")
assert board.read(1 - board.rank) is None or board.rank == 1
distributed.barrier()
board.write(f"rank {board.rank}")
distributed.barrier()
print(board.size, board.read(1 - board.rank))
distributed.barrier()
distributed.destroy_process_group()
"""
JAX = """
import sys
import jax
from streamrec.streams.rank_watch import find_board
place, rank = sys.argv[1:]
jax.distributed.initialize(place, 2, int(rank))
board = find_board("train")
board.write("the first word")
board.write(f"rank {board.rank}")
client = jax._src.distributed.global_state.client
client.wait_at_barrier("written", 60_000)
print(board.size, board.read(1 - board.rank))
assert board.read(5) is None
client.wait_at_barrier("read", 60_000)
jax.distributed.shutdown()
"""


def played(program: str, place: str) -> list[str]:
    """Run a program as two ranks; return what each printed."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, place, str(rank)], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    return [rank.communicate(timeout=100)[0].strip() for rank in ranks]


@pytest.mark.night
@pytest.mark.timeout(200)
def test_the_real_store_of_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed")
    assert played(TORCH, f"file://{tmp_path}/store") == ["2 rank 1", "2 rank 0"]


@pytest.mark.night
@pytest.mark.timeout(200)
def test_the_real_store_of_jax() -> None:
    pytest.importorskip("jax")
    address = f"127.0.0.1:{free_port()}"
    assert played(JAX, address) == ["2 rank 1", "2 rank 0"]


def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
