"""Tests with a fake of torch.distributed, and with the real one where it is installed."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.adapters.torch import agree, agree_at_first
from streamrec.errors import ConfigError
from streamrec.plan.state.fingerprint import RankSummary
from streamrec.streams import handle
from tests.adapters.torch_shards import FEW
from tests.by_day import at_night, is_day
from tests.pipeline.small_datasets import write, write_index
from tests.support import has_torch

if TYPE_CHECKING:
    from pathlib import Path

SHARDS = ((40,) * 9, (30,) * 8)
has_torchdata = pytest.mark.skipif(find_spec("torchdata") is None, reason="torchdata is not there")


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write(tmp_path / "raw", SHARDS)


def open_rank(source: str, rank: int, **values: Any) -> sr.Stream:
    values = {"batch_size": 2, "lanes": 2, "epochs": None, "engine": "thread", **FEW, **values}
    return sr.open(source, rank=rank, world_size=2, **values)


def fake_torch(
    monkeypatch: pytest.MonkeyPatch, others: list[str], initialized: bool = True
) -> None:
    """Fake a collective whose other processes have given these texts."""

    def all_gather_object(gathered: list[str | None], text: str) -> None:
        gathered[:] = [text, *others]

    distributed = ModuleType("torch.distributed")
    distributed.__dict__.update(
        is_available=lambda: True,
        is_initialized=lambda: initialized,
        get_rank=lambda: 0,
        get_world_size=lambda: 1 + len(others),
        all_gather_object=all_gather_object,
    )
    torch = ModuleType("torch")
    torch.__dict__["distributed"] = distributed
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)


def claim_of(source: str, rank: int, **values: Any) -> str:
    with open_rank(source, rank, **values) as stream:
        return handle.of(stream).summary().to_json()


class TestAgree:
    def test_two_ranks_of_one_stream(self, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
        other = claim_of(source, 1)
        fake_torch(monkeypatch, [other])
        with open_rank(source, 0) as stream:
            agree(stream)

    @pytest.mark.parametrize(
        ("rank", "values", "match"),
        [
            (1, {"shuffle": True, "shuffle_window": 10}, "shuffle is False in process 0 and True"),
            (1, {"batch_size": 3}, "global_batch is 4 in process 0 and 6 in process 1"),
            (1, {"epochs": 1, "steps_per_epoch": 3}, "steps_per_epoch is None in process 0 and 3"),
            (0, {}, "nobody reads rank 1 of 2"),
        ],
    )
    def test_what_differs_is_named(
        self,
        source: str,
        monkeypatch: pytest.MonkeyPatch,
        rank: int,
        values: dict[str, Any],
        match: str,
    ) -> None:
        fake_torch(monkeypatch, [claim_of(source, rank, **values)])
        with open_rank(source, 0) as stream, pytest.raises(ConfigError, match=match):
            agree(stream)

    def test_another_step(self, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
        fake_torch(monkeypatch, [claim_of(source, 1)])
        with open_rank(source, 0) as stream:
            next(stream)
            with pytest.raises(ConfigError, match="step is 1 in process 0 and 0 in process 1"):
                agree(stream)

    def test_nobody_to_agree_with(self, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
        fake_torch(monkeypatch, [], initialized=False)
        with open_rank(source, 0) as stream, pytest.raises(ConfigError, match="init_process_group"):
            agree(stream)

    def test_an_engine_process_tells_as_much(self, source: str) -> None:
        """And so does a feeder, which speaks the same protocol."""
        own = RankSummary.from_json(claim_of(source, 1, steps_per_epoch=3))
        assert (
            RankSummary.from_json(claim_of(source, 1, steps_per_epoch=3, engine="process")) == own
        )
        ends = {"epochs": None, "steps_per_epoch": 3, "remainder": None, "balance": None}
        assert own.ends == ends

    def test_it_must_be_open(self, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
        fake_torch(monkeypatch, [])
        with pytest.raises(ConfigError, match="enter it"):
            agree(open_rank(source, 0))


class TestAgreeAtFirst:
    """The ranks agree by themselves where the stream has its rank from them."""

    @pytest.mark.parametrize(
        ("ranks", "values", "agreed"),
        [
            (2, {}, True),
            (1, {}, False),
            (2, {"rank": 0, "world_size": 2}, False),
        ],
    )
    def test_where_the_stream_has_its_rank_from_them(
        self,
        source: str,
        monkeypatch: pytest.MonkeyPatch,
        ranks: int,
        values: dict[str, int],
        agreed: bool,
    ) -> None:
        others = [claim_of(source, rank) for rank in range(1, ranks)]
        fake_torch(monkeypatch, others)
        settings: dict[str, Any] = {
            "batch_size": 2,
            "lanes": 2,
            "epochs": None,
            "engine": "thread",
            **FEW,
            **values,
        }
        with closing(sr.open(source, **settings)) as stream:
            assert agree_at_first(stream) is agreed

    def test_differences_are_an_error(self, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
        fake_torch(monkeypatch, [claim_of(source, 1, batch_size=3)])
        with (
            sr.open(source, batch_size=2, lanes=2, epochs=None, engine="thread", **FEW) as stream,
            pytest.raises(ConfigError, match="global_batch is 4 in process 0 and 6 in process 1"),
        ):
            agree_at_first(stream)


PROGRAM = """
import sys
import streamrec as sr
from streamrec.adapters.torch import agree
from streamrec.streams import handle
from torch import distributed

source, place, rank, seed = sys.argv[1:]
distributed.init_process_group("gloo", init_method=place, rank=int(rank), world_size=2)
stream = sr.open(source, batch_size=2, lanes=2, epochs=None, engine="thread", shuffle=True,
                 shuffle_window=100, seed=int(seed), memory_budget="32MiB")
with stream:
    try:
        agree(stream)
        print("agreed, rank", stream.state_dict().get("rank", handle.of(stream).summary().rank))
    except sr.ConfigError as error:
        print(error)
distributed.destroy_process_group()
"""


@has_torch
@pytest.mark.parametrize("seed", [at_night(0), 5])
def test_with_real_processes(source: str, tmp_path: Path, seed: int) -> None:
    place = f"file://{tmp_path}/meeting"
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore",
                "-c",
                PROGRAM,
                source,
                place,
                str(rank),
                str(rank * seed),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=100)[0].strip() for process in processes]
    if seed == 0:
        assert said == ["agreed, rank 0", "agreed, rank 1"]
    else:
        assert said[0] == said[1]
        assert "seed is 0 in process 0 and 5 in process 1" in said[0]


LOADER = """
import json, sys
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader
import streamrec as sr

class Records(IterableDataset):
    def __init__(self, stream):
        self.stream = stream
    def __iter__(self):
        return iter(self.stream)

def same(batch):
    return batch.epoch, batch.origin.shards.tolist(), batch.origin.records.tolist()

def loader(workers):
    stream = sr.open(sys.argv[1], batch_size=3, lanes=2, shuffle=True, shuffle_window=200,
                     rank=0, world_size=1, engine="thread", index=sys.argv[2] == "record" or None)
    records = Records(stream)
    return StatefulDataLoader(records, batch_size=None, num_workers=workers, collate_fn=same)

for workers in (0, 1):
    whole = list(loader(workers))
    for k in sorted({*range(1, len(whole), int(sys.argv[3])), len(whole)}):
        first = loader(workers)
        head = [batch for _, batch in zip(range(k), first)]
        state = json.loads(json.dumps(first.state_dict()))
        second = loader(workers)
        second.load_state_dict(state)
        assert head + list(second) == whole, (workers, k)
    assert sorted(sum((list(zip(*batch[1:])) for batch in whole), [])) == sorted(
        (s, r) for s, n in ((0, 9), (1, 8)) for r in range(n))
print("exact")
"""


@has_torchdata
@pytest.mark.parametrize("by", [at_night("shard"), "record"])
def test_exact_through_torchdatas_stateful_dataloader(source: str, by: str) -> None:
    """The loader runs in the training process and in a worker that reads ahead."""
    write_index(source, 100)
    command = [sys.executable, "-W", "ignore", "-c", LOADER, source, by, "3" if is_day() else "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "exact", done.stderr
