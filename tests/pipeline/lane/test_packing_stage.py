from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streamrec.config import Pack
from streamrec.errors import ConfigError, DataError, StoreUnavailable
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.examples.example import encode_example
from streamrec.formats.examples.packing import Packer
from streamrec.formats.examples.specs import RaggedFeature
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.fetch.fetcher import Fetcher
from streamrec.pipeline.lane.record_span import Segment
from streamrec.pipeline.lane.stages import PIECE, Packing
from streamrec.plan.order.coordinates import Coordinates
from streamrec.values.columns import BytesColumn, Ragged, offsets_of
from streamrec.values.record_rows import RecordRows
from tests.pipeline import user_functions
from tests.pipeline.small_datasets import position_after, receive_all, receive_ranks, settings_of
from tests.support import asynchronous, examples

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamrec.pipeline.batch.batch import Batch

FEATURES = describe({"tokens": RaggedFeature("int64")})
SHARDS = st.lists(st.lists(st.integers(0, 12), max_size=6).map(tuple), min_size=1, max_size=5).map(
    tuple
)
ORDERS = st.fixed_dictionaries(
    {
        "lanes": st.integers(1, 4),
        "shuffle": st.booleans(),
        "shuffle_window": st.integers(0, 900),
        "batch_size": st.integers(1, 5),
        "epochs": st.integers(1, 2),
        "filter": st.sampled_from([None, user_functions.has_even_number]),
        "map": st.sampled_from([None, user_functions.add_doubles]),
        "pack": st.sampled_from(
            [Pack(6, bins=1), Pack(8, bins=3), Pack(5, split=True), Pack(4, documents=1)]
        ),
    }
)
FEW = settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def tokens_of(shard: int, record: int, length: int) -> list[int]:
    return [1 + 10_000 * shard + 100 * record + k for k in range(length)]


def write(directory: Path, shards: tuple[tuple[int, ...], ...]) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    for shard, lengths in enumerate(shards):
        records = [
            encode_example({"tokens": tokens_of(shard, i, n)}) if n else b""
            for i, n in enumerate(lengths)
        ]
        (directory / f"part-{shard:05}.tfrecord").write_bytes(b"".join(map(frame, records)))
    return f"{directory}/part-*.tfrecord"


def contents(batches: list[Batch]) -> list[Any]:
    return [{name: batch[name].tolist() for name in batch} for batch in batches]


def delivered(batches: list[Batch]) -> list[int]:
    return sorted(
        token
        for batch in batches
        for token in batch["tokens"][batch["tokens_segment_ids"] > 0].tolist()
    )


AT_AN_EPOCHS_END = {
    "lanes": 1, "shuffle": False, "shuffle_window": 0, "batch_size": 1, "epochs": 2,
    "filter": None, "map": None, "pack": Pack(length=5, split=True, bins=16),
}  # fmt: skip
"""Order of twenty tokens: a pack ends with the epoch, and the state after it is at the very end."""


@FEW
@given(SHARDS, ORDERS)
@example(((6, 2, 12),), AT_AN_EPOCHS_END)
def test_every_token_once_an_epoch_and_every_resume_is_exact(
    tmp_path: Path, shards: tuple[tuple[int, ...], ...], order: dict[str, Any]
) -> None:
    async def main() -> None:
        source = write(tmp_path / str(abs(hash((shards, str(order))))), shards)
        dataset = await Dataset.open(settings_of(source, features=FEATURES, **order))
        whole = await receive_all(dataset)
        kept = [
            tokens_of(s, i, n)
            for s, lengths in enumerate(shards)
            for i, n in enumerate(lengths)
            if order["filter"] is None or n % 2 == 0
        ]
        pack = order["pack"]
        cut = None if pack.split else pack.length
        assert delivered(whole) == sorted([t for ts in kept for t in ts[:cut]] * order["epochs"])
        for k, batch in enumerate(whole, start=1):
            tail = await receive_all(dataset, position=position_after(batch))
            assert contents(whole[:k] + tail) == contents(whole)
            assert [b.next_position for b in tail] == [b.next_position for b in whole[k:]]
        await dataset.aclose()

    asyncio.run(main())


@FEW
@given(
    st.lists(st.lists(st.integers(1, 9), min_size=3, max_size=9), min_size=4, max_size=6),
    ORDERS,
    st.integers(0, 4),
    st.sampled_from([(1, 4), (4, 2), (2, 4)]),
)
def test_the_same_global_batches_for_every_world_size(
    tmp_path: Path,
    lengths: list[list[int]],
    order: dict[str, Any],
    stop: int,
    sizes: tuple[int, int],
) -> None:
    shards = tuple((*each, 2) for each in lengths)  # each lane keeps some

    def tokens_of_steps(ranks: Any) -> list[list[list[int]]]:
        steps = zip(*ranks, strict=True)
        return [sorted(row for b in step for row in b["tokens"].tolist()) for step in steps]

    async def main() -> None:
        source = write(tmp_path / str(abs(hash((shards, str(order), stop, sizes)))), shards)
        values = {**order, "lanes": 4, "steps_per_epoch": 7, "epochs": 1, "batch_size": 1}
        settings, (before, after) = settings_of(source, features=FEATURES, **values), sizes
        whole = tokens_of_steps(await receive_ranks(settings, before, 8, most=7))
        first = await receive_ranks(settings, before, 8, most=stop)
        positions = [batches[-1].next_position for batches in first] if stop else []
        rest = await receive_ranks(settings, after, 8, positions, most=7 - stop)
        assert tokens_of_steps(first) + tokens_of_steps(rest) == whole

    asyncio.run(main())


@asynchronous
async def test_the_last_batch_is_padded_with_masked_packs(tmp_path: Path) -> None:
    source = write(tmp_path, ((4,) * 3,))
    dataset = await Dataset.open(
        settings_of(source, features=FEATURES, pack=Pack(4), batch_size=2, remainder="pad")
    )
    batches = await receive_all(dataset)
    assert [batch["tokens"].shape for batch in batches] == [(2, 4), (2, 4)]
    masks = [batch.mask.tolist() for batch in batches if batch.mask is not None]
    assert masks == [[True, True], [True, False]]
    assert batches[1].origin.records.tolist() == [2, -1]
    assert all(batch["tokens"].flags.c_contiguous for batch in batches)
    assert all(batch["tokens"].flags.writeable for batch in batches)
    assert not np.shares_memory(batches[0]["tokens"], batches[1]["tokens"])
    await dataset.aclose()


@asynchronous
async def test_single_packs(tmp_path: Path) -> None:
    source = write(tmp_path, ((3,) * 5,))
    dataset = await Dataset.open(settings_of(source, features=FEATURES, pack=Pack(6)))
    batches = await receive_all(dataset)
    assert delivered(batches) == [t for i in range(5) for t in tokens_of(0, i, 3)]
    await dataset.aclose()


@asynchronous
async def test_what_was_left_out_is_counted(tmp_path: Path) -> None:
    source = write(tmp_path, ((3, 9, 3), (10,)))
    dataset = await Dataset.open(
        settings_of(source, features=FEATURES, pack=Pack(6, overlong="drop"), batch_size=2)
    )
    run = dataset.run(rank=0, world_size=1, batch_size=2, position=None)
    async with run:
        assert len(await run.receive()) == 1
        statistics = run.statistics()
    assert (statistics["documents_dropped"], statistics["values_dropped"]) == (2, 19)
    await dataset.aclose()


@asynchronous
async def test_an_endless_run_without_any_pack_is_an_error(tmp_path: Path) -> None:
    source = write(tmp_path, ((9, 9), (7,)))
    values: dict[str, Any] = {"pack": Pack(4, overlong="drop"), "batch_size": 2}
    dataset = await Dataset.open(settings_of(source, features=FEATURES, epochs=None, **values))
    with pytest.raises(DataError, match=r"gave no pack in several passes .* has no end"):
        await receive_all(dataset)
    await dataset.aclose()


@asynchronous
async def test_a_lane_at_its_end_waits_for_its_thread_in_peace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on, waits = threading.Event(), threading.Event(), []
    flush, wait_for = Packer.flush, Fetcher.wait_for

    def held(packer: Packer) -> Any:
        begun.set()
        may_go_on.wait()
        return flush(packer)

    def counted(fetcher: Fetcher, lane: int, **values: Any) -> Any:
        waits.append(lane)
        return wait_for(fetcher, lane, **values)

    monkeypatch.setattr(Packer, "flush", held)
    monkeypatch.setattr(Fetcher, "wait_for", counted)
    source = write(tmp_path, ((3,),))
    dataset = await Dataset.open(settings_of(source, features=FEATURES, pack=Pack(4)))
    async with dataset.run(rank=0, world_size=1, batch_size=None, position=None) as run:
        batch = asyncio.create_task(run.receive())
        await asyncio.to_thread(begun.wait)
        before = len(waits)
        for _ in range(100):
            await asyncio.sleep(0)
        waited = len(waits)
        may_go_on.set()
        assert waited <= before + 1
        assert delivered([await batch]) == tokens_of(0, 0, 3)
    await dataset.aclose()


@asynchronous
async def test_columns_that_cannot_be_packed(tmp_path: Path) -> None:
    source = write(tmp_path, ((3,),))
    dataset = await Dataset.open(settings_of(source, pack=Pack(4), batch_size=2))
    with pytest.raises(ConfigError, match="'records' is not a sequence of them; name"):
        await receive_all(dataset)
    await dataset.aclose()


@asynchronous
async def test_a_budget_that_the_packs_would_fill(tmp_path: Path) -> None:
    source = write(tmp_path, ((3,),))
    dataset = await Dataset.open(
        settings_of(source, features=FEATURES, pack=Pack(1 << 20), batch_size=1)
    )
    with pytest.raises(ConfigError, match=r"1 lanes fill take 512 MiB.*lower lanes or pack\.bins"):
        await receive_all(dataset)
    await dataset.aclose()


@asynchronous
async def test_the_fingerprint_names_the_packing(tmp_path: Path) -> None:
    source = write(tmp_path, ((3,),))
    dataset = await Dataset.open(settings_of(source, features=FEATURES, pack=Pack(4)))
    assert dataset.fingerprint(1, 1).stages == (
        "Pack(length=4, split=False, bins=16, overlong='truncate', documents=None, padding=0)"
    )
    await dataset.aclose()


def done(work: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(work())
    return future


def columns(rows: RecordRows, epoch: int = 0) -> dict[str, Any]:
    """Make a token of each byte of a record."""
    tokens = b"".join(bytes(p) for p in rows.payloads())
    return {"t": Ragged(np.frombuffer(tokens, np.uint8), offsets_of(rows.lengths))}


def segment(*records: bytes, at: int = 0) -> Segment:
    rows = RecordRows.from_column(BytesColumn.of(records))
    places = [Coordinates(at, 10 * k, k).numbers for k in range(1, len(records) + 1)]
    return Segment(rows, 0, places.__getitem__)


class TestPacking:
    def packing(self, submit: Any = done, length: int = 4) -> Packing:
        return Packing(Packer(Pack(length, bins=1)), columns, submit, Coordinates(0, 0, 0))

    def test_positions_name_the_record_before_the_next_pack(self) -> None:
        packing = self.packing()
        packing.put(segment(b"abc", b"d", b"ef", b"ghi"))
        packs = packing.pop()
        assert packs is not None
        assert len(packs.rows) == 2
        expected = Coordinates(0, 20, 2), Coordinates(0, 30, 3)
        assert [list(packs.end(k)) for k in (0, 1)] == [place.numbers for place in expected]
        assert packs.rows.ordinals.tolist() == [0, 2]
        assert packing.pop() is None
        packing.put(Coordinates(7, 0, 0))
        last = packing.pop()
        assert last is not None
        assert list(last.end(0)) == Coordinates(7, 0, 0).numbers
        assert not packing

    def test_a_group_may_begin_in_one_segment_and_end_in_another(self) -> None:
        packing = self.packing()
        packing.put(segment(b"ab", at=0))
        packing.put(segment(b"c", b"def", at=1))
        assert packing.full
        packs = packing.pop()
        assert packs is not None
        assert list(packs.end(0)) == Coordinates(1, 10, 1).numbers
        assert packs.rows.ordinals.tolist() == [0]

    def test_large_segments_are_packed_piece_by_piece(self) -> None:
        packing = self.packing(length=PIECE)
        packing.put(segment(*[b"x" * (PIECE - 10)] * 3))
        assert packing.pop() is not None
        assert packing.pop() is not None
        assert packing.pop() is None

    def test_an_error_comes_behind_what_is_being_packed_and_stays(self) -> None:
        future: Future[Any] = Future()
        packing = self.packing(lambda work: future)
        packing.put(segment(b"abcd", b"e"))
        assert packing.pop() is None
        packing.put(StoreUnavailable("gone"))
        assert packing.full
        assert packing.pop() is None
        future.set_result(None)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="gone"):
                packing.pop()
