"""A feeder that is configured otherwise: the same batches, or one clear error, for each setting."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.config import DatasetSettings, Pack, validate
from streamrec.errors import OtherOrder, StreamrecError
from streamrec.feeder.healing import BlockingHealingFeed
from streamrec.flow.channel import EndOfStream
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.examples.example import encode_example
from streamrec.formats.shards.tfrecord import frame
from tests.feeder.support import serving
from tests.pipeline.small_datasets import write_index

if TYPE_CHECKING:
    from pathlib import Path

FEATURES = {"x": sr.FixedLenFeature((), "int64"), "y": sr.RaggedFeature("int64")}


def is_even(columns: Any) -> Any:
    return columns["x"] % 2 == 0


def doubled(columns: Any) -> Any:
    return {**columns, "x": columns["x"] * 2}


def negated(batch: Any) -> Any:
    return {"x": -batch["x"], "y": batch["y"]}


MIX: dict[str, Any] = {
    "source": {"a": "part-0*", "b": "part-1*"},
    "weights": {"a": 0.5, "b": 0.5},
    "epochs": 1,
    "exhausted": "stop",
}
SKIPS: dict[str, Any] = {"on_corrupt": "skip", "corrupt_budget": 1}

OTHERS: dict[str, tuple[dict[str, Any], Any]] = {
    "source": ({}, "part-[012]*"),
    "features": ({}, describe({"x": FEATURES["x"]})),
    "dtypes": ({}, {"x": "int32"}),
    "batch_size": ({}, 5),
    "shuffle": ({}, True),
    "seed": ({"shuffle": True}, 5),
    "shuffle_window": ({"shuffle": True}, 1000),
    "lanes": ({}, 2),
    "index": ({}, True),
    "epochs": ({}, 3),
    "steps_per_epoch": ({}, 6),
    "remainder": ({}, "drop"),
    "weights": (MIX, {"a": 0.9, "b": 0.1}),
    "exhausted": (MIX, "rest"),
    "ordered": ({}, False),
    "filter": ({}, is_even),
    "map": ({}, doubled),
    "transform": ({}, negated),
    "pack": ({"features": describe({"y": FEATURES["y"]})}, Pack(8)),
    "length_buckets": ({"features": describe({"y": FEATURES["y"]})}, 2),
    "check_crc": ({}, False),
    "on_corrupt": ({}, "skip"),
    "corrupt_budget": (SKIPS, 2),
    "quarantine": ({**SKIPS, "on_corrupt": "quarantine", "quarantine": "kept"}, "kept-elsewhere"),
    "compression": ({}, "none"),
    "memory_budget": ({}, "32MiB"),
    "max_record_bytes": ({}, 1 << 20),
    "max_bytes": ({}, "8MiB"),
    "max_pixels": ({}, 10_000),
    "max_concurrency": ({}, 1),
    "prefetch": ({}, 1),
    "stall_timeout": ({}, 7.0),
    "cache": ({}, {"folder": "memory"}),
    "storage_options": ({}, {"anon": True}),
}
"""For each setting the other settings of both feeders, and its value at the second one."""

NAMED = ("dtypes", "features", "filter", "map", "on_corrupt", "transform", "check_crc")
"""The settings that no fingerprint tells: the error names them."""


def made(directory: Path, values: dict[str, Any]) -> DatasetSettings:
    values = {"features": describe(FEATURES), "source": "part-*", **values}
    if isinstance(source := values["source"], str):
        values["source"] = str(directory / source)
    else:
        values["source"] = {name: str(directory / part) for name, part in source.items()}
    if "quarantine" in values:
        values["quarantine"] = str(directory / values["quarantine"])
    base = {"batch_size": 4, "lanes": 4, "epochs": 2, "memory_budget": "64MiB"}
    base["shuffle_window"] = 4000
    return validate(DatasetSettings, {**base, **values})


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("shards")
    for shard in range(4):
        values = ({"x": 100 * shard + n, "y": list(range(n % 5 + 1))} for n in range(16))
        data = b"".join(frame(encode_example(value)) for value in values)
        (directory / f"part-{shard}.tfrecord").write_bytes(data)
    write_index(str(directory / "part-*"), 1000)
    return directory


def plain(batch: Any) -> dict[str, Any]:
    return {name: _list(column) for name, column in batch.columns.items()}


def _list(column: Any) -> Any:
    found = column if isinstance(column, np.ndarray) else column.to_list()
    return [str(found.dtype), found.tolist()] if isinstance(found, np.ndarray) else found


def taken(feed: Any, most: int) -> list[Any]:
    found: list[Any] = []
    try:
        while len(found) < most:
            found.append(plain(feed.receive()))
    except EndOfStream:
        pass
    return found


def test_each_setting_is_here() -> None:
    assert OTHERS.keys() == DatasetSettings.model_fields.keys()


@pytest.mark.parametrize("name", OTHERS)
def test_a_failover_gives_the_same_batches_or_one_error(name: str, shards: Path) -> None:
    common, other = OTHERS[name]
    also = SKIPS if name == "on_corrupt" else {}  # it needs a budget
    first, second = made(shards, common), made(shards, {**common, **also, name: other})
    assert getattr(first, name) != getattr(second, name)
    with serving(first) as where, closing(BlockingHealingFeed(f"{where}/data")) as feed:
        expected = taken(feed, 12)
    with ExitStack() as running, ExitStack() as stack:
        places = [running.enter_context(serving(first)), stack.enter_context(serving(second))]
        hosts = ",".join(place.removeprefix("tcp://") for place in places)
        opened: Any = BlockingHealingFeed
        address = f"tcp://{hosts}/data"
        feed = stack.enter_context(closing(opened(address, credit_bytes=1)))
        found = taken(feed, 2)
        running.close()
        try:
            found += taken(feed, 10)
        except StreamrecError as error:
            assert name not in NAMED or isinstance(error, OtherOrder)
            assert name not in NAMED or (name if name != "dtypes" else "feature 'x'") in str(error)
            return
    assert found == expected
    assert name not in NAMED, "other batches came, and look like those of before"
