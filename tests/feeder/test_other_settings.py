"""A feeder that is configured otherwise: the same batches, or one clear error, for each setting."""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.config import Balance, DatasetSettings, Pack, Window, validate
from streamrec.errors import OtherOrder, StreamrecError
from streamrec.feeder.client.healing import BlockingHealingFeed
from streamrec.flow.channel import EndOfStream
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.examples.example import encode_example
from streamrec.formats.shards.tfrecord import frame
from tests.cli.support import streamrec as cli
from tests.feeder.support import serving

if TYPE_CHECKING:
    from collections.abc import Callable

TFDS_FOLDER = str(Path(__file__).parents[1] / "data" / "tfds" / "frozen" / "1.0.0")
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
    "split": ({"source": TFDS_FOLDER, "features": None, "split": "train"}, "train[:50%]"),
    "rename": ({"features": describe({"y": FEATURES["y"]})}, {"x": "y"}),
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
    "window": ({"features": describe({"y": FEATURES["y"]})}, Window(2)),
    "length_buckets": ({"features": describe({"y": FEATURES["y"]})}, 2),
    "check_crc": ({}, False),
    "on_corrupt": ({}, "skip"),
    "corrupt_budget": (SKIPS, 2),
    "quarantine": ({**SKIPS, "on_corrupt": "quarantine", "quarantine": "kept"}, "kept-elsewhere"),
    "balance": ({"index": True}, Balance("y")),
    "exclude": ({"index": True}, [("part-0.tfrecord", 9), ("part-3.tfrecord", 2)]),
    "compression": ({}, "none"),
    "memory_budget": ({}, "32MiB"),
    "max_record_bytes": ({}, 1 << 20),
    "max_bytes": ({}, "8MiB"),
    "max_pixels": ({}, 10_000),
    "max_concurrency": ({}, 1),
    "fetch_processes": ({}, 2),
    "prefetch": ({}, 1),
    "stall_timeout": ({}, 7.0),
    "cache": ({}, {"folder": "memory"}),
    "storage_options": ({}, {"anon": True}),
}
"""For each setting the other settings of both feeders, and its value at the second one."""

NAMED = {"balance", "check_crc", "dtypes", "features", "filter", "map"}
NAMED |= {"on_corrupt", "rename", "transform"}
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
    index = cli("index", f"{directory}/part-*", "--chunk-size", "1000", "--lengths", "y")
    assert index.code == 0
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


def scaled(factor: int) -> Any:
    """Return a map, and a transform, that has the name of all others that are made here."""

    def scale(columns: Any) -> Any:
        return {"x": columns["x"] * factor, "y": columns["y"]}

    return scale


def chosen(rest: int) -> Any:
    """Return a filter that has the name of all others that are made here."""

    def choose(columns: Any) -> Any:
        return columns["x"] % 2 == rest

    return choose


CODES: dict[str, tuple[Any, Any]] = {
    "filter": (chosen(0), chosen(1)),
    "map": (scaled(2), scaled(3)),
    "transform": (scaled(2), scaled(3)),
}
"""For each setting that is a function, two of one name."""
CASES = [*(name for name in OTHERS if name != "exclude"), *(f"code of {name}" for name in CODES)]


def pair(name: str, directory: Path) -> tuple[DatasetSettings, DatasetSettings]:
    """Return the settings of the right feeder, and of one that is another in one setting."""
    if name.startswith("code of "):
        setting = name.removeprefix("code of ")
        one, two = ({setting: function} for function in CODES[setting])
        return made(directory, one), made(directory, two)
    common, other = OTHERS[name]
    also = SKIPS if name == "on_corrupt" else {}  # it needs a budget
    first, second = made(directory, common), made(directory, {**common, **also, name: other})
    assert getattr(first, name) != getattr(second, name)
    return first, second


def continued(settings: DatasetSettings, *others: DatasetSettings) -> tuple[list[Any], Any]:
    """Take batches of a feeder that ends after two of them, and what comes from others then.

    Returns:
        The batches, and the error that ended them, if one did.
    """
    with ExitStack() as running, ExitStack() as stack:
        places = [running.enter_context(serving(settings))]
        places += [stack.enter_context(serving(other)) for other in others]
        hosts = ",".join(place.removeprefix("tcp://") for place in places)
        opened: Any = BlockingHealingFeed
        options = {"credit_bytes": 1, "retry_for": 0.01}
        feed = stack.enter_context(closing(opened(f"tcp://{hosts}/data", **options)))
        found = taken(feed, 2)
        running.close()
        try:
            return found + taken(feed, 10), None
        except StreamrecError as error:
            return found, error


@pytest.fixture(scope="module")
def undisturbed(shards: Path) -> Callable[[str], list[Any]]:
    @cache
    def batches(name: str) -> list[Any]:
        with (
            serving(pair(name, shards)[0]) as where,
            closing(BlockingHealingFeed(f"{where}/data")) as feed,
        ):
            return taken(feed, 12)

    return batches


@pytest.mark.parametrize("name", CASES)
def test_a_failover_gives_the_same_batches_or_one_error(
    name: str, shards: Path, undisturbed: Callable[[str], list[Any]]
) -> None:
    first, second = pair(name, shards)
    found, error = continued(first, second, second)
    is_named = name in NAMED or name not in OTHERS
    if error is None:
        assert found == undisturbed(name)
        assert not is_named, "other batches came, and look like those of before"
    elif is_named:
        assert isinstance(error, OtherOrder)
        assert (name if name != "dtypes" else "feature 'x'") in str(error)


@pytest.mark.parametrize("name", CASES)
def test_a_right_feeder_behind_another_one_is_found(
    name: str, shards: Path, undisturbed: Callable[[str], list[Any]]
) -> None:
    first, second = pair(name, shards)
    found, error = continued(first, second, first)
    assert error is None
    assert found == undisturbed(name)


def test_another_list_of_excluded_records_holds_from_the_failover_on(shards: Path) -> None:
    first, second = pair("exclude", shards)
    (before, _), (after, _), (found, error) = (
        continued(one, other) for one, other in ((first, first), (second, second), (first, second))
    )
    assert error is None
    # A batch or two of the first feeder may have been on their way when it ended.
    assert found in [before[:step] + after[step:] for step in (2, 3, 4)]
    assert before[5:] != after[5:]
