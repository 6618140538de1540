"""States through torchdata's StatefulDataLoader, at the places where its own tests take them."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import pytest

import streamrec as sr
from streamrec.adapters.torch import as_loader
from tests.adapters.torch_shards import write_examples
from tests.support import IN_TORCHS_WORKER, Deferred

stateful: Any = Deferred("torchdata.stateful_dataloader")
# torchdata calls a function of torch that is deprecated.
pytestmark = [
    pytest.mark.skipif(find_spec("torchdata") is None, reason="torchdata is not installed"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    IN_TORCHS_WORKER,
]
RECORDS, STEPS = 22, 6


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_examples(tmp_path_factory.mktemp("examples"), RECORDS)


def loader_of(source: str) -> Any:
    stream = sr.open(
        source,
        {"id": sr.FixedLenFeature((), "int64")},
        batch_size=4,
        lanes=2,
        index=True,
        shuffle=True,
        shuffle_window=300,
        engine="thread",
    )
    return stateful.StatefulDataLoader(as_loader(stream), batch_size=None)


def ids(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


@pytest.mark.parametrize("place", [0, 1, STEPS - 1])
def test_a_state_within_an_epoch(source: str, place: int) -> None:
    loader = loader_of(source)
    batches = iter(loader)
    for _ in range(place):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = ids(batches)
    assert len(rest) == STEPS - place
    other = loader_of(source)
    other.load_state_dict(state)
    assert ids(other) == rest
    assert ids(other) == ids(loader)  # and the next epoch


def test_a_state_at_the_end_begins_the_next_epoch(source: str) -> None:
    loader = loader_of(source)
    first = ids(loader)
    state = loader.state_dict()
    second = ids(loader)
    other = loader_of(source)
    next(iter(other))  # a loop that is left
    other.load_state_dict(state)
    assert ids(other) == second != first


def test_a_state_that_was_loaded_is_given_again(source: str) -> None:
    loader = loader_of(source)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    other = loader_of(source)
    other.load_state_dict(state)
    again = loader_of(source)
    again.load_state_dict(other.state_dict())
    assert ids(again) == ids(batches)
