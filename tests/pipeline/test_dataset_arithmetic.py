from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from streamrec.errors import MalformedPosition, OtherOrder
from streamrec.pipeline.dataset import Dataset
from tests.pipeline.lane.test_mix_source import CODE, ENDLESS, WEB
from tests.pipeline.mixes import mix_of
from tests.pipeline.small_datasets import identities, position_after, receive_all
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.plan.state.position import Position

TWO: dict[str, Any] = {"web": WEB, "code": CODE}
WEIGHTS = {"web": 0.5, "code": 0.5}


async def saved(tmp_path: Path, **values: Any) -> Position:
    dataset = await Dataset.open(mix_of(tmp_path, TWO, WEIGHTS, **{**ENDLESS, **values}))
    state = position_after((await receive_all(dataset, most=3))[-1])
    await dataset.aclose()
    return state


async def of_three(tmp_path: Path) -> Dataset:
    parts, weights = {**TWO, "books": ((8, 8), (9,))}, {**WEIGHTS, "books": 0}
    return await Dataset.open(mix_of(tmp_path, parts, weights, **ENDLESS))


@asynchronous
async def test_a_state_gets_the_beginning_of_a_new_component(tmp_path: Path) -> None:
    state = await saved(tmp_path)
    dataset = await of_three(tmp_path)
    joined = dataset.position(6, 0, 1, state)
    assert joined.sources.shape == joined.sizes.shape == (2, 3)
    assert (joined.sources[:, 1:] == state.sources).all()
    assert (joined.sizes[:, 1:] == state.sizes).all()
    assert joined.sources[:, 0].tolist() == [(0, 0, 0, 0)] * 2
    assert dataset.position(6, 0, 1, joined) == joined
    rest = await receive_all(dataset, position=state, most=2)
    assert rest[0].origin.shards.min() >= 2  # those of books are the first two
    assert identities(rest)
    await dataset.aclose()


@asynchronous
async def test_what_else_differs_is_told(tmp_path: Path) -> None:
    state = await saved(tmp_path, seed=5)
    dataset = await of_three(tmp_path)
    with pytest.raises(OtherOrder, match="another order: seed was 5 and is 0; restore"):
        dataset.position(6, 0, 1, state)
    await dataset.aclose()


@asynchronous
async def test_a_state_of_another_number_of_components_than_it_names(tmp_path: Path) -> None:
    state = await saved(tmp_path)
    forged = replace(state, sources=state.sources[:, :1], sizes=np.zeros((2, 1), np.int64))
    dataset = await of_three(tmp_path)
    with pytest.raises(MalformedPosition, match="a different number of components than its mix"):
        dataset.position(6, 0, 1, forged)
    await dataset.aclose()
