"""Rows that ranks exchange so that their costs are even: ``balance``."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.config import DatasetSettings, validate
from tests.by_day import stops
from tests.cli.support import streamrec as cli
from tests.feeder.support import serving

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FEATURES = {"id": sr.FixedLenFeature((), "int64"), "tokens": sr.RaggedFeature("int64")}
GLOBAL = 256


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return shards of records whose lengths are lognormal, with their indexes."""
    folder, rng = tmp_path_factory.mktemp("lognormal"), np.random.default_rng(1)
    lengths = np.minimum(rng.lognormal(3, 1.2, 2_048).astype(int), 500)
    for shard in range(4):
        with sr.TFRecordWriter(folder / f"train-{shard:05}-of-00004.tfrecord") as writer:
            for i in range(512 * shard, 512 * (shard + 1)):
                writer.write({"id": i, "tokens": [i] * int(lengths[i])})
    pattern = f"{folder}/train-*.tfrecord"
    outcome = cli("index", pattern, "--chunk-size", "4KiB", "--lengths", "tokens")
    assert outcome.code == 0
    return pattern


ORDER = {
    "index": True,
    "lanes": 8,
    "shuffle": True,
    "seed": 3,
    "shuffle_window": "64KiB",
    "balance": "tokens",
}


def stream(source: str, rank: int, world_size: int, **settings: Any) -> sr.Stream[Any]:
    values = {**ORDER, "batch_size": GLOBAL // world_size, "engine": "thread", **settings}
    return sr.open(source, FEATURES, rank=rank, world_size=world_size, **values)


def ids(batch: Any) -> list[int]:
    return list(batch["id"].tolist())


def global_batches(
    source: str, world_size: int, states: Sequence[Any] = (), most: int | None = None, **more: Any
) -> tuple[list[list[Any]], list[Any]]:
    """Return the batches of each rank, step by step, and the ranks' states after the last."""
    with ExitStack() as stack:
        streams = [
            stack.enter_context(stream(source, rank, world_size, **more))
            for rank in range(world_size)
        ]
        for one in streams:
            if states:
                one.load_state_dict(list(states))
        steps = [
            list(batches)
            for batches in zip(
                *[sr.take(one, most) if most else one for one in streams], strict=True
            )
        ]
        return steps, [one.state_dict() for one in streams]


def sets_of(steps: list[list[Any]]) -> list[list[int]]:
    return [sorted(i for batch in batches for i in ids(batch)) for batches in steps]


def unevenness(steps: list[list[Any]]) -> float:
    """Return how much the costliest rank costs above the mean, on average over the steps."""
    costs = np.array([[len(batch["tokens"].values) for batch in batches] for batches in steps])
    return float((costs.max(axis=1) / costs.mean(axis=1)).mean())


def test_costs_are_even_and_global_batches_the_same(source: str) -> None:
    plain, _ = global_batches(source, 8, balance=None)
    dealt, _ = global_batches(source, 8)
    assert sets_of(plain) == sets_of(dealt)
    assert {len(batch) for batches in dealt for batch in batches} == {GLOBAL // 8}
    assert unevenness(dealt) <= 1.05 < 1.3 <= unevenness(plain)
    moved = sum(
        len(set(ids(a)) - set(ids(b)))
        for before, after in zip(plain, dealt, strict=True)
        for a, b in zip(before, after, strict=True)
    )
    assert 0 < moved < 0.1 * sum(map(len, sets_of(plain)))
    for batches in dealt:
        for batch in batches:
            rows = zip(ids(batch), batch["tokens"].to_list(), strict=True)
            assert all(set(tokens) <= {i} for i, tokens in rows)


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_origin_is_what_which_says(source: str, shuffle: bool) -> None:
    settings: dict[str, Any] = {"shuffle": shuffle, "epochs": 2}
    steps, _ = global_batches(source, 4, **settings)
    asked: dict[str, Any] = {"batch_size": 64, "world_size": 4, **ORDER, **settings}
    places = sr.which(source, range(len(steps)), **asked)
    told = {(p.rank, p.step, p.row): p for p in places}
    for step, batches in enumerate(steps):
        for rank, batch in enumerate(batches):
            for row, i in enumerate(ids(batch)):
                place = told.pop((rank, step, row))
                assert place.shard.endswith(f"train-{i // 512:05}-of-00004.tfrecord")
                assert place.record == batch.origin.records[row] == i % 512
                assert batch.origin.shards[row] == i // 512
    assert not told
    # The inverse: by the record, the rank that it is dealt to.
    batch = steps[2][1]
    for row in (0, 63):
        shard, record = divmod(ids(batch)[row], 512)
        find = (f"train-{shard:05}-of-00004.tfrecord", record)
        (place,) = sr.which(source, find=find, **asked)
        assert (place.step, place.rank, place.row) == (2, 1, row)


def test_through_an_engine_process(source: str) -> None:
    plain, _ = global_batches(source, 2, most=3)
    with stream(source, 1, 2, engine="process") as one:
        assert [ids(batch) for batch in sr.take(one, 3)] == [ids(b[1]) for b in plain]


def test_from_a_feeder(source: str) -> None:
    plain, _ = global_batches(source, 4, most=3)
    settings = {"source": source, "features": "infer", "batch_size": 64, **ORDER}
    with serving(validate(DatasetSettings, settings)) as address:
        for rank in range(4):
            with sr.connect(f"{address}/data", rank=rank, world_size=4, engine="thread") as one:
                found = [ids(batch) for batch in sr.take(one, 3)]
            assert found == [ids(batches[rank]) for batches in plain]


def test_stop_at_any_step_and_go_on_with_other_ranks(source: str) -> None:
    whole = sets_of(global_batches(source, 8)[0])
    for stop in stops(range(1, len(whole))):
        before, after = ((8, 2), (4, 1), (2, 4))[stop % 3]
        first, states = global_batches(source, before, most=stop)
        rest, _ = global_batches(source, after, states)
        assert sets_of(first) + sets_of(rest) == whole


def test_damaged_rows_keep_their_places_at_each_step(source: str, tmp_path: Path) -> None:
    damaged = {5, 600, 601, 1300}
    copied = damaged_copy(source, tmp_path, damaged)
    skip: dict[str, Any] = {"on_corrupt": "skip", "corrupt_budget": 8}
    whole, _ = global_batches(source, 4)
    for stop in stops(range(1, len(whole))):
        first, states = global_batches(copied, 4, most=stop, **skip)
        rest, _ = global_batches(copied, 4, states, **skip)
        for plain, dealt in zip(whole, first + rest, strict=True):
            for intact, batch in zip(plain, dealt, strict=True):
                assert batch.mask.tolist() == [i not in damaged for i in ids(intact)]
                assert np.array_equal(batch["id"][batch.mask], intact["id"][batch.mask])


def damaged_copy(source: str, folder: Path, damaged: Iterable[int]) -> str:
    """Copy shards with their indexes, flip a bit in some records, and return the pattern."""
    for path in Path(source).parent.iterdir():
        shutil.copy2(path, folder)
    for i in damaged:
        path = folder / f"train-{i // 512:05}-of-00004.tfrecord"
        octets, at = bytearray(path.read_bytes()), 0
        for _ in range(i % 512):
            at += 16 + int.from_bytes(octets[at : at + 8], "little")
        octets[at + 12] ^= 1
        times = path.stat()
        path.write_bytes(octets)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # else the index is stale
    return f"{folder}/train-*.tfrecord"


def test_a_state_does_not_depend_on_it(source: str) -> None:
    whole = sets_of(global_batches(source, 4)[0])
    first, states = global_batches(source, 4, most=3, balance=None)
    rest, states = global_batches(source, 4, states, most=3)
    last, _ = global_batches(source, 4, states, balance=sr.Balance("tokens", 0, 1))
    assert sets_of(first) + sets_of(rest) + sets_of(last) == whole


def test_attention_is_balanced_by_its_square(source: str) -> None:
    steps, _ = global_batches(source, 2, balance=sr.Balance("tokens", linear=10, quadratic=1))
    costs = np.array(
        [
            [sum(n * n + 10 * n for n in map(len, batch["tokens"].to_list())) for batch in batches]
            for batches in steps
        ]
    )
    assert (costs.max(axis=1) / costs.mean(axis=1)).mean() < 1.05


def test_equal_lengths_exchange_nothing(tmp_path: Path) -> None:
    """Also without an end, where a search for the next exchange would never come back."""
    with sr.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        writer.write_many({"id": i, "tokens": [i]} for i in range(400))
    cli("index", tmp_path / "a.tfrecord", "--chunk-size", "1KiB", "--lengths", "tokens")
    source = str(tmp_path / "a.tfrecord")
    plain, dealt = (
        global_batches(source, 2, most=4, epochs=None, balance=balance)[0]
        for balance in (None, "tokens")
    )
    assert [[ids(b) for b in s] for s in plain] == [[ids(b) for b in s] for s in dealt]


def test_excluded_rows_keep_their_places(source: str) -> None:
    listed = [("train-00001-of-00004.tfrecord", record) for record in range(0, 512, 5)]
    plain, _ = global_batches(source, 4)
    masked, _ = global_batches(source, 4, exclude=listed)
    for all_rows, rows in zip(plain, masked, strict=True):
        for whole, batch in zip(all_rows, rows, strict=True):
            excluded = [512 <= i < 1024 and (i - 512) % 5 == 0 for i in ids(whole)]
            assert batch.mask.tolist() == [not one for one in excluded]
            assert np.array_equal(batch["id"][batch.mask], whole["id"][batch.mask])


def test_each_rank_reads_little_more_than_its_part(source: str) -> None:
    read = [0, 0]
    for balanced in (0, 1):
        for rank in range(8):
            with stream(source, rank, 8, balance="tokens" if balanced else None) as one:
                for _ in one:
                    pass
                read[balanced] += one.statistics()["bytes_read"]
    assert read[0] < read[1] < 1.6 * read[0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"index": None}, r"`streamrec index \S+ --lengths tokens`"),
        ({"remainder": "pad"}, 'set remainder to "drop"'),
        ({"filter": len}, "leave out balance or filter"),
        ({"length_buckets": 4}, "leave out balance or length_buckets"),
        ({"ordered": False}, "needs an order"),
        ({"batch_size": None}, "set batch_size"),
        ({"balance": sr.Balance("tokens", 1 << 40, 1 << 50)}, "too much for the costs"),
        ({"cache": {"of": "batches", "size": "16MiB"}}, "whose rows balance deals anew"),
        ({"balance": 7}, "balance"),
    ],
)
def test_what_it_does_not_go_with_is_refused(
    source: str, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(sr.ConfigError, match=words), stream(source, 0, 4, **settings) as one:
        next(iter(one))


def test_missing_and_stale_lengths(source: str, tmp_path: Path) -> None:
    with (
        pytest.raises(sr.ObjectNotFound, match=r"`streamrec index \S+ --lengths id`"),
        stream(source, 0, 4, balance="id") as one,
    ):
        next(iter(one))
    path = tmp_path / "a.tfrecord"
    for count in (40, 48):
        with sr.TFRecordWriter(path) as writer:
            writer.write_many({"id": i, "tokens": [i] * i} for i in range(count))
        options = ["--lengths", "tokens"] if count == 40 else []
        assert cli("index", path, *options).code == 0
    with (
        pytest.raises(
            sr.StaleIndex, match=r"both again with `streamrec index \S+ --lengths tokens`"
        ),
        stream(str(path), 0, 4, batch_size=1) as one,
    ):
        next(iter(one))


def test_wrong_factors_are_refused() -> None:
    for wrong in ((1.5, 0), (-1, 0), (0, 0), (True, 0)):
        with pytest.raises(sr.ConfigError, match="one of them above 0"):
            sr.Balance("tokens", *wrong)
