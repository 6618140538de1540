"""A running job takes a new list of excluded records, on other ranks, while a feeder is killed."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamrec as sr
from streamrec.pipeline.dataset import Dataset
from tests.feeder.support import ServedFeeder, served
from tests.pipeline.small_datasets import settings_of
from tests.streams.test_stream_exclude import RECORDS, check, listed, made
from tests.support import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.streams.stream import Stream

pytestmark = pytest.mark.both_kernels

GLOBAL = 8
"""The rows of a step of all ranks."""
LANES = 8
ORDERS: list[dict[str, Any]] = [
    {"index": True, "remainder": "pad", "epochs": 2},
    {"index": True, "remainder": "pad", "epochs": 2, "shuffle": True, "shuffle_window": 0},
    {"index": True, "remainder": "pad", "epochs": 2, "shuffle": True, "shuffle_window": 500},
    {"steps_per_epoch": 4, "epochs": 2, "shuffle": True, "shuffle_window": 500},
    {"steps_per_epoch": 4, "epochs": 2},
]
WORLDS = st.sampled_from([1, 2, 4, 8])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return made(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True, scope="module")
def one_batch_ahead() -> Iterator[None]:
    """Have clients take one batch after the other, so that most are still to come at any time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamrec.feeder.client.session.CREDIT_BYTES", 1)
        yield


class TwoFeeders:
    """Two feeders of one dataset, to either of which a client may connect."""

    def __init__(self, stack: ExitStack, source: str, order: dict[str, Any]) -> None:
        dataset = settings_of(source, batch_size=GLOBAL, lanes=LANES, **order)
        self.feeders = [_serve(stack, dataset) for _ in range(2)]
        places = [feeder.listen("tcp://127.0.0.1:0") for feeder in self.feeders]
        hosts = ",".join(place.removeprefix("tcp://") for place in places)
        self.address = f"tcp://{hosts}/data"

    def connect(self, rank: int, world_size: int) -> Stream:
        return sr.connect(
            self.address,
            rank=rank,
            world_size=world_size,
            batch_size=GLOBAL // world_size,
            engine="thread",
            retry_for=10,
        )

    def kill(self, number: int) -> None:
        """Cut all connections of a feeder at once, as if it were killed."""
        feeder = self.feeders[number]
        feeder.call(feeder.feeder.aclose())


def _serve(stack: ExitStack, values: Any) -> ServedFeeder:
    feeder = stack.enter_context(served({}))
    dataset = feeder.call(Dataset.open(values))
    stack.callback(feeder.call, dataset.aclose())
    stack.callback(feeder.call, feeder.feeder.aclose())
    feeder.feeder.datasets["data"] = dataset
    return feeder


def opened(source: str, order: dict[str, Any], rank: int, world_size: int) -> Stream:
    return sr.open(
        source,
        lanes=LANES,
        memory_budget="32MiB",
        max_concurrency=8,
        engine="thread",
        rank=rank,
        world_size=world_size,
        batch_size=GLOBAL // world_size,
        **order,
    )


def undisturbed(
    source: str, order: dict[str, Any], stop: int, before: int, after: int
) -> tuple[list[dict[str, Any]], list[list[Batch]]]:
    """Return the states of all ranks after some steps, and what other ranks read from there."""
    states = []
    for rank in range(before):
        with opened(source, order, rank, before) as stream:
            list(sr.take(stream, stop))
            states.append(json.loads(json.dumps(stream.state_dict())))
    rest = []
    for rank in range(after):
        with opened(source, order, rank, after) as stream:
            stream.load_state_dict(states)
            rest.append(list(stream))
    return states, rest


@given(
    removed=st.sets(st.sampled_from(RECORDS), max_size=12),
    order=st.sampled_from(ORDERS),
    stop=st.integers(1, 5),
    before=WORLDS,
    after=WORLDS,
    victim=st.integers(0, 1),
    taken=st.integers(0, 3),
)
@settings(max_examples=examples(20), deadline=None)
def test_all_others_come_in_their_places(
    source: str,
    removed: set[tuple[int, int]],
    order: dict[str, Any],
    stop: int,
    before: int,
    after: int,
    victim: int,
    taken: int,
) -> None:
    states, rest = undisturbed(source, order, stop, before, after)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        exclude = {"exclude": listed(directory, removed)}
        feeders = TwoFeeders(stack, source, {**order, **exclude})
        streams = [stack.enter_context(feeders.connect(rank, after)) for rank in range(after)]
        heads = []
        for stream in streams:
            stream.load_state_dict(states)
            heads.append(list(sr.take(stream, taken)))
        feeders.kill(victim)
        for stream, head, whole in zip(streams, heads, rest, strict=True):
            check([*head, *stream], whole, removed)
