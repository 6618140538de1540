"""Trainers that stop anywhere, and go on with another number of ranks: nothing lost, none repeated.

Each trainer is the real one, with ranks that are processes and talk by gloo. The global batches and
the curve of losses are, to the last bit, those of one rank that never stops. The programs are in
elastic_programs.py.
"""

from __future__ import annotations

import random
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from tests.adapters.test_torch_workers import PATIENCE, cases_of, start
from tests.adapters.torch_shards import ELASTIC, RATE, write_examples

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.xdist_group("elastic"),  # its programs run once, in one worker
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.timeout(2 * PATIENCE),
]

RECORDS, STEPS = 120, 20
"""Ten batches an epoch, and two epochs."""
RANKS = [2, 4, 1, 3, 2, 2]
"""The ranks of a chain: from two to four, to one, to three, to two, and to two again."""
TRAINERS = {
    "dcp": "torch",
    "dcp by shard": "torch",
    "megatron": "torch",
    "torchtitan": "torchtitan",
    "accelerate": "accelerate",
    "trainer": "transformers",
    "lightning": "lightning",
}
"""The programs, and what they import."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_examples(tmp_path_factory.mktemp("examples"), RECORDS)


BY_DAY = "1:10,2:15,1:20"
"""A chain that stops at the end of an epoch, and in the middle of one."""


def chain(seed: int) -> str:
    """Return a chain of ranks that stop at random steps."""
    stops = sorted(random.Random(seed).sample(range(1, STEPS), len(RANKS) - 1))
    return ",".join(f"{n}:{stop}" for n, stop in zip(RANKS, [*stops, STEPS], strict=True))


def run(source: str, place: Path, stops: str) -> dict[str, Any]:
    names = ",".join(name for name, library in TRAINERS.items() if find_spec(library))
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}  # the ranks meet in a file
    program = start(names, source, "elastic_programs", PLACE=place, CHAIN=stops, **master)
    return cases_of(program)[0]


@pytest.fixture(scope="module")
def trained(source: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(source, tmp_path_factory.mktemp("chain"), BY_DAY)


def alone(source: str, **order: Any) -> list[list[Any]]:
    """Return the ids and the loss of each step of one rank that never stops."""
    weight, steps = np.ones(2), []
    with sr.open(source, **{**ELASTIC, **order}, rank=0, world_size=1) as stream:
        for batch in sr.take(stream, STEPS):
            x = batch["x"].astype(np.float64)
            steps.append([sorted(batch["id"].tolist()), float((x @ weight).sum()).hex()])
            weight -= RATE * x.sum(axis=0)
    return steps


BY_SHARD: dict[str, Any] = {"index": None}
ORDERS = {"dcp by shard": BY_SHARD, "megatron": BY_SHARD, "accelerate": BY_SHARD}
"""The trainers that read by shard, where the states of all ranks count."""


@pytest.mark.parametrize("trainer", TRAINERS)
def test_it_trains_as_one_rank_that_never_stops(
    trained: dict[str, Any], source: str, trainer: str
) -> None:
    if trainer not in trained:
        pytest.skip(f"{TRAINERS[trainer]} is not installed")
    assert trained[trainer] == alone(source, **ORDERS.get(trainer, {}))


@pytest.mark.night
@pytest.mark.parametrize("seed", range(9))
def test_from_wherever_it_stopped(source: str, tmp_path: Path, seed: int) -> None:
    trained = run(source, tmp_path, chain(seed))
    for trainer in trained:
        assert trained[trainer] == alone(source, **ORDERS.get(trainer, {}))
