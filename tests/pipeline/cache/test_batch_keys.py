from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from streamrec import Pack
from streamrec.config import DatasetSettings
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.examples.specs import FixedLenFeature
from streamrec.pipeline.batch.batch import Batch, Origin
from streamrec.pipeline.cache.batch_keys import WITHOUT_EFFECT, BatchKeys
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.state.resume_point import Beginning
from streamrec.stores.base import ObjectInfo
from streamrec.stores.open import Stores
from tests.pipeline.small_datasets import settings_of

if TYPE_CHECKING:
    from streamrec.pipeline.run_plan import RunPlan

FEATURES = describe({"x": FixedLenFeature((), "int64"), "y": FixedLenFeature((2,), "float32")})
PLAIN: dict[str, Any] = {"features": FEATURES, "lanes": 2, "memory_budget": "512MiB"}
CHANGES: dict[str, Any] = {
    "features": describe({"x": FixedLenFeature((), "int64"), "y": FixedLenFeature((), "float32")}),
    "dtypes": "int32",
    "shuffle": True,
    "seed": 3,
    "shuffle_window": 1000,
    "weights": None,
    "exhausted": None,
    "ordered": None,
    "filter": None,
    "map": None,
    "pack": Pack(8),
    "length_buckets": 2,
    "check_crc": False,
    "on_corrupt": "skip",
    "corrupt_budget": 7,
    "compression": "gzip",
}
"""Another value of each setting that is in a key; ``None`` for those that are refused, or of mixes.
"""
WITH: dict[str, dict[str, Any]] = {
    "on_corrupt": {"corrupt_budget": 5},
    "corrupt_budget": {"on_corrupt": "skip"},
}


def plan_of(
    shards: int = 4, batch_size: int = 3, rank: int = 0, epoch: int = 0, **settings: Any
) -> RunPlan:
    world_size = 1 if rank == 0 else 2
    steps = {"steps_per_epoch": 9} if world_size > 1 else {}
    objects = [ObjectInfo(f"memory://x/{shard}", 1 << 20, '"1"') for shard in range(shards)]
    described = settings_of("x", **{**PLAIN, **steps, **settings})
    dataset = Dataset(described, Stores(), objects)
    run = dataset.run(
        rank=rank, world_size=world_size, batch_size=batch_size, position=Beginning(epoch)
    )
    return run._plan


def key_of(plan: RunPlan, version: str = "1") -> str:
    return BatchKeys(plan, [version]).key(plan.position)


def test_every_setting_is_in_the_key_or_known_to_have_no_effect() -> None:
    assert set(DatasetSettings.model_fields) == CHANGES.keys() | WITHOUT_EFFECT
    assert not CHANGES.keys() & WITHOUT_EFFECT


@pytest.mark.parametrize("name", [name for name in CHANGES if CHANGES[name] is not None])
def test_a_changed_setting_changes_the_key(name: str) -> None:
    changed = {**WITH.get(name, {}), name: CHANGES[name]}
    assert key_of(plan_of()) != key_of(plan_of(**changed))


@pytest.mark.parametrize(
    "change",
    [
        {"memory_budget": "64MiB"},
        {"prefetch": 3},
        {"transform": "math:sqrt"},
        {"storage_options": {"token": "secret"}},
        {"lanes": 2, "remainder": "keep"},
    ],
)
def test_what_has_no_effect_leaves_the_key(change: dict[str, Any]) -> None:
    assert key_of(plan_of()) == key_of(plan_of(**change))


@pytest.mark.parametrize(
    "change", [{"batch_size": 4}, {"rank": 1}, {"lanes": 4}, {"shards": 3}, {"remainder": "pad"}]
)
def test_ranks_batch_sizes_and_orders_have_keys_of_their_own(change: dict[str, Any]) -> None:
    assert key_of(plan_of()) != key_of(plan_of(**change))


def test_a_changed_shard_or_release_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    key = key_of(plan_of())
    assert key_of(plan_of(), "2") != key
    monkeypatch.setattr("streamrec.__version__", "0.0.0")
    assert key_of(plan_of()) != key


def test_the_step_is_left_out() -> None:
    plan = plan_of()
    later = replace(plan.position, step=1000)
    keys = BatchKeys(plan, [])
    assert keys.key(plan.position) == keys.key(later)


def test_a_later_epoch_has_the_same_keys_where_lanes_have_the_same_shards() -> None:
    assert key_of(plan_of(epoch=5)) == key_of(plan_of())
    assert key_of(plan_of(epoch=5, shards=5)) != key_of(plan_of(shards=5))
    assert key_of(plan_of(epoch=6, shards=5)) == key_of(plan_of(shards=5))


@pytest.mark.parametrize("change", [{"shuffle": True}, {"length_buckets": 2}])
def test_a_later_epoch_has_other_keys_where_the_order_is_drawn(change: dict[str, Any]) -> None:
    assert key_of(plan_of(epoch=5, **change)) != key_of(plan_of(**change))


def test_the_end_of_the_run_is_in_the_key() -> None:
    """A batch may hold records of the next epoch, or end with this one."""
    keys = [key_of(plan_of(epochs=epochs)) for epochs in (1, 2, None)]
    assert len(set(keys)) == 3
    # A number of steps ends a run between two batches.
    assert key_of(plan_of(epochs=2, steps_per_epoch=5)) == keys[2]


def test_an_endless_run_has_the_same_keys_wherever_it_began() -> None:
    plan = plan_of(epochs=None)
    keys = BatchKeys(plan, [])
    assert keys.key(plan.position) == keys.key(replace(plan.position, run_epoch=3))


def test_a_batch_is_kept_as_one_of_the_first_epoch_that_is_like_its_own() -> None:
    """With 5 shards in 2 lanes, every second epoch is alike."""
    plan = plan_of(epoch=5, shards=5)
    origin = Origin(np.zeros(0, np.int32), np.zeros(0, np.int64))
    batch = Batch({}, 0, 5, origin, plan.position)
    keys = BatchKeys(plan, [])
    kept = keys.kept(batch)
    assert (kept.epoch, kept.next_position.epoch) == (1, 1)
    assert kept.next_position.lanes.tolist() == plan_of(epoch=1, shards=5).position.lanes.tolist()
    restored = keys.restored(kept, replace(plan.position, step=plan.position.step + 7))
    assert (restored.epoch, restored.next_position.epoch) == (5, 5)
    assert restored.next_position == replace(plan.position, step=plan.position.step + 8)
