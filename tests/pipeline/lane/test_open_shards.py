"""Lanes that have several shards open at once: in a whole run, and in small."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from streamrec.errors import ConfigError, MalformedPosition, ObjectChanged, OtherOrder
from streamrec.flow.channel import EndOfStream
from streamrec.formats.shards.tfrecord import FrameScanner, frame
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.lane.open_shards import ShardTurn
from streamrec.pipeline.lane.record_span import RecordSpan
from streamrec.plan.order import window
from streamrec.plan.order.coordinates import Coordinates
from streamrec.plan.order.shard_order import Extent
from streamrec.plan.state.position import Position
from streamrec.plan.state.resume_point import Beginning
from tests.pipeline import user_functions
from tests.pipeline.small_datasets import (
    global_batches,
    identities,
    oracle,
    position_after,
    receive_all,
    receive_ranks,
    settings_of,
    write,
)
from tests.pipeline.test_run import FEW
from tests.support import asynchronous, examples

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.pipeline.batch.batch import Batch

Lengths = tuple[tuple[int, ...], ...]

SHARDS = st.lists(
    st.lists(st.integers(0, 300), max_size=9).map(tuple), min_size=2, max_size=12
).map(tuple)
ORDERS = st.fixed_dictionaries(
    {
        "lanes": st.integers(1, 3),
        "seed": st.integers(0, 9),
        "shuffle_window": st.integers(0, 5000),
        "batch_size": st.one_of(st.none(), st.integers(1, 12)),
    }
)
FEWER = effort(FEW, max_examples=examples(12))
"""Each example opens some tens of runs."""
UNEVEN: Lengths = ((50,) * 9, (10,) * 2, (), (20, 300, 4), (7,) * 5, (80,) * 4, (1,), (90,) * 3)


async def opened(directory: Path, shards: Lengths, **values: Any) -> Dataset:
    """Open a shuffled dataset of these shards."""
    source = write(directory / str(hash((shards, str(values)))), shards)
    values = {"shuffle": True, "shuffle_window": 1000, **values}
    return await Dataset.open(settings_of(source, **values))


def everything(shards: Lengths) -> Counter[tuple[int, int]]:
    return Counter((s, i) for s, lengths in enumerate(shards) for i in range(len(lengths)))


class TestARun:
    @pytest.fixture(autouse=True)
    def few_shards_a_window(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have shards count in the windows of about every second dataset."""
        monkeypatch.setattr(window, "MOST_SHARDS", 6)

    @FEW
    @given(SHARDS, ORDERS, st.integers(1, 3))
    def test_every_record_once_an_epoch_and_no_epoch_before_the_last_is_over(
        self, tmp_path: Path, shards: Lengths, order: dict[str, Any], epochs: int
    ) -> None:
        async def main() -> None:
            dataset = await opened(tmp_path, shards, **order, epochs=epochs)
            batches = await receive_all(dataset)
            plain = oracle(shards, dataset.settings, dataset.lanes)
            expected = plain.rank(0, 1, range(epochs))
            assert identities(batches) == [(shard, record) for _, shard, record in expected]
            assert Counter(expected) == Counter(
                (epoch, *pair) for epoch in range(epochs) for pair in everything(shards)
            )
            for lane in range(dataset.lanes):
                met = [epoch for epoch, _, _ in plain.lane(lane, range(epochs))]
                assert met == sorted(met)
            firsts = np.cumsum([0, *(len(batch) for batch in batches)])
            for batch, first in zip(batches, firsts.tolist(), strict=False):
                epochs_of = [epoch for epoch, _, _ in expected[first : first + len(batch)]]
                assert batch.epoch in epochs_of
                assert batch.components is None
            await dataset.aclose()

        asyncio.run(main())

    @FEWER
    @given(
        SHARDS,
        ORDERS,
        st.sampled_from(
            [
                {"epochs": 3},
                {"epochs": 2, "filter": user_functions.is_short},
                {"steps_per_epoch": 11, "epochs": 1},
                {"epochs": 2, "batch_size": 4, "length_buckets": 3},
            ]
        ),
    )
    def test_stop_at_every_k_and_resume(
        self, tmp_path: Path, shards: Lengths, order: dict[str, Any], more: dict[str, Any]
    ) -> None:
        async def main() -> None:
            dataset = await opened(tmp_path, (*shards, (10, 20)), **{**order, **more})
            whole = await receive_all(dataset)
            for k, batch in enumerate(whole, start=1):
                tail = await receive_all(dataset, position=position_after(batch))
                assert identities(whole[:k] + tail) == identities(whole)
                if dataset.settings.batch_size:
                    assert [b.next_position for b in tail] == [b.next_position for b in whole[k:]]
            await dataset.aclose()

        asyncio.run(main())

    @FEWER
    @given(SHARDS, ORDERS, st.integers(0, 3), st.permutations([1, 2, 4]), st.booleans())
    def test_every_world_size_goes_on_with_the_same_global_batches(
        self,
        tmp_path: Path,
        shards: Lengths,
        order: dict[str, Any],
        stop: int,
        sizes: list[int],
        filtered: bool,
    ) -> None:
        """The world size changes in the middle of an epoch, for instance from 4 to 2, then to 1."""
        shards = tuple((*shard, 10) for shard in (*shards, (), (), ()))
        source = write(tmp_path / str(hash((shards, str(order)))), shards)
        values = {"steps_per_epoch": 9, "filter": user_functions.is_short if filtered else None}
        settings = settings_of(source, shuffle=True, **{**order, **values, "lanes": 4})

        async def main() -> None:
            whole = global_batches(await receive_ranks(settings, 2, 12, most=9))
            positions: list[Position] = []
            seen: list[Any] = []
            for world_size, most in zip(sizes, [stop, 3, 6 - stop], strict=True):
                batches = await receive_ranks(settings, world_size, 12, positions, most=most)
                seen += global_batches(batches)
                positions = [position_after(mine[-1]) for mine in batches if mine] or []
            assert seen == whole

        asyncio.run(main())

    @FEWER
    @given(SHARDS, ORDERS)
    def test_a_run_after_a_run_goes_on_with_the_next_epoch(
        self, tmp_path: Path, shards: Lengths, order: dict[str, Any]
    ) -> None:
        async def main() -> None:
            dataset = await opened(tmp_path, shards, **order)
            plain = oracle(shards, dataset.settings, dataset.lanes)
            position: Position | None = None
            for epoch in range(4):
                received, position = await one_run(dataset, position)
                begun_there = replace(plain, order=plain.order.since(epoch))
                pairs = [(s, i) for _, s, i in begun_there.rank(0, 1, range(epoch, epoch + 1))]
                assert identities(received) == pairs
                begun = await receive_all(dataset, position=Beginning(epoch), most=1)
                assert identities(begun) == identities(received[:1])
            await dataset.aclose()

        asyncio.run(main())

    @asynchronous
    async def test_a_window_has_records_of_all_that_are_open(self, tmp_path: Path) -> None:
        """Any batch has about as many bytes of each of four shards, whatever their sizes."""
        shards = ((84,) * 200, (84,) * 200, (184,) * 100, (184,) * 100)
        dataset = await opened(tmp_path, shards, lanes=1, shuffle_window=16_000, batch_size=60)
        batches = await receive_all(dataset)
        for batch in batches[4:-4]:  # behind the windows that grow
            counts = np.bincount(batch.origin.shards, minlength=4)
            assert counts.tolist() == pytest.approx([20, 20, 10, 10], abs=3)
        await dataset.aclose()

    @asynchronous
    async def test_as_many_lanes_as_shards_have_one_open_each(self, tmp_path: Path) -> None:
        dataset = await opened(tmp_path, UNEVEN, lanes=len(UNEVEN), batch_size=4)
        batches = await receive_all(dataset, most=2)
        assert dataset.fingerprint(4, 1).order == "shard, few shards a window"
        assert not batches[-1].next_position.sources.size
        await dataset.aclose()

    @asynchronous
    async def test_compressed_shards(self, tmp_path: Path) -> None:
        plain = await opened(tmp_path, UNEVEN, lanes=2, batch_size=5, epochs=2)
        whole = identities(await receive_all(plain))
        compress(tmp_path)
        dataset = await Dataset.open(plain.settings)
        batches = await receive_all(dataset)
        assert identities(batches) == whole
        for k, batch in enumerate(batches, start=1):
            tail = await receive_all(dataset, position=position_after(batch))
            assert identities(batches[:k] + tail) == whole
        await plain.aclose()
        await dataset.aclose()

    @asynchronous
    async def test_first_come_first_served(self, tmp_path: Path) -> None:
        dataset = await opened(tmp_path, UNEVEN, lanes=2, batch_size=5, ordered=False)
        batches = await receive_all(dataset)
        assert Counter(identities(batches)) == everything(UNEVEN)
        assert (
            dataset.fingerprint(5, 1).order == "shard, 4 at once, few shards a window, as it comes"
        )
        rest = await receive_all(dataset, position=position_after(batches[1]))
        assert Counter(identities(batches[:2] + rest)) == everything(UNEVEN)
        await dataset.aclose()

    @asynchronous
    async def test_damaged_records_are_left_out(self, tmp_path: Path) -> None:
        values = {"on_corrupt": "skip", "corrupt_budget": 1.0, "lanes": 2, "batch_size": 5}
        whole = await opened(tmp_path, UNEVEN, **values)
        await whole.aclose()
        hit = damage(tmp_path, 0, record=4, size=50)
        dataset = await Dataset.open(whole.settings)
        batches = await receive_all(dataset)
        left = everything(UNEVEN)
        del left[hit]
        assert Counter(identities(batches)) == left
        for k, batch in enumerate(batches, start=1):
            tail = await receive_all(dataset, position=position_after(batch))
            assert identities(batches[:k] + tail) == identities(batches)
        await dataset.aclose()

    @pytest.mark.parametrize("values", [{"epochs": None}, {"steps_per_epoch": 3}])
    @asynchronous
    async def test_a_filter_that_keeps_nothing_is_an_error(
        self, tmp_path: Path, values: dict[str, Any]
    ) -> None:
        dataset = await opened(
            tmp_path, UNEVEN, lanes=2, batch_size=4, filter=user_functions.keep_nothing, **values
        )
        with pytest.raises(Exception, match="the filter has kept no record"):
            await receive_all(dataset)
        await dataset.aclose()

    @asynchronous
    async def test_statistics_do_not_speak_of_components(self, tmp_path: Path) -> None:
        dataset = await opened(tmp_path, UNEVEN, lanes=2, batch_size=4)
        async with dataset.run(rank=0, world_size=1, batch_size=4, position=None) as run:
            await run.receive()
            assert "components" not in run.statistics()
        await dataset.aclose()


class TestRefusals:
    @asynchronous
    async def test_a_state_of_lanes_with_one_shard_open(self, tmp_path: Path) -> None:
        dataset = await opened(tmp_path, UNEVEN, lanes=2, batch_size=4)
        fingerprint = dataset.fingerprint(4, 1)
        for lanes in (96, 2):
            former = {**fingerprint.to_dict(), "order": "shard", "lanes": lanes}
            saved = Position.start(
                type(fingerprint).from_dict(former), [0] * lanes, rank=0, world_size=1
            )
            with pytest.raises(OtherOrder, match=r"order was 'shard' and is .*; restore these"):
                dataset.run(rank=0, world_size=1, batch_size=4, position=saved)
        await dataset.aclose()

    @asynchronous
    async def test_positions_that_contradict_themselves(self, tmp_path: Path) -> None:
        dataset = await opened(tmp_path, UNEVEN, lanes=2, batch_size=4, epochs=9)
        fingerprint = dataset.fingerprint(4, 1)
        few = Position.start(fingerprint, [0] * 4, rank=0, world_size=1)
        with pytest.raises(MalformedPosition, match="a different number of components"):
            dataset.run(rank=0, world_size=1, batch_size=4, position=few)
        other = Position.start(fingerprint, [0] * 8, rank=0, world_size=1, epoch=2)
        with pytest.raises(MalformedPosition, match="another epoch than the shards it has open"):
            dataset.run(rank=0, world_size=1, batch_size=4, position=other)
        await dataset.aclose()

    @asynchronous
    async def test_another_version_of_any_of_the_open_shards(self, tmp_path: Path) -> None:
        dataset = await opened(tmp_path, ((40,) * 20,) * 3, lanes=1, batch_size=12)
        await dataset.aclose()
        for shard in range(3):
            dataset = await Dataset.open(dataset.settings)
            state = position_after((await receive_all(dataset, most=3))[-1])
            await dataset.aclose()
            rewrite(tmp_path, shard, 20, size=40)
            dataset = await Dataset.open(dataset.settings)
            with pytest.raises(ObjectChanged, match=f"part-0000{shard}"):
                await receive_all(dataset, position=state)
            await dataset.aclose()

    @asynchronous
    async def test_hostile_turns_go_on_somewhere(self, tmp_path: Path) -> None:
        dataset = await opened(tmp_path, UNEVEN, lanes=2, batch_size=4)
        start = (await receive_all(dataset, most=2))[-1].next_position
        for name in ("offset", "record"):
            start.lanes[name] = (1 << 48) - 1
        assert start.lanes["extent"].tolist() == [0, 0]
        assert len(identities(await receive_all(dataset, position=start))) <= 27
        await dataset.aclose()

    @asynchronous
    async def test_a_budget_without_room_for_the_beginnings(self, tmp_path: Path) -> None:
        memory = {"shuffle_window": "72MiB", "memory_budget": "88MiB"}
        dataset = await opened(tmp_path, ((1,),) * 200, lanes=1, **memory)
        with pytest.raises(ConfigError, match=r"\+ 144 open shards x 64 KiB"):
            dataset.fingerprint(None, 1)
        await dataset.aclose()


async def one_run(
    dataset: Dataset, position: Position | None
) -> tuple[list[Batch], Position | None]:
    """Receive all batches of a run, and return the next run's position too."""
    batch_size, batches = dataset.settings.batch_size, []
    run = dataset.run(rank=0, world_size=1, batch_size=batch_size, position=position)
    async with run:
        with contextlib.suppress(EndOfStream):
            while True:
                batches.append(await run.receive())
    return batches, Position.from_dict(run.position.to_dict())


def compress(directory: Path) -> None:
    """Compress all shards of a directory."""
    for path in directory.glob("*/*.tfrecord"):
        path.write_bytes(gzip.compress(path.read_bytes()))


def damage(directory: Path, shard: int, record: int, size: int) -> tuple[int, int]:
    """Flip a bit in a record of a shard of equal ones, and return which record it is."""
    (path,) = directory.glob(f"*/part-{shard:05}.tfrecord")
    data = bytearray(path.read_bytes())
    data[record * (size + 16) + 12 + size // 2] ^= 1
    path.write_bytes(data)
    return shard, record


def rewrite(directory: Path, shard: int, records: int, size: int) -> None:
    """Write a shard anew, with as many other records of the same size."""
    (path,) = directory.glob(f"*/part-{shard:05}.tfrecord")
    path.write_bytes(b"".join(frame(bytes([record]) * size) for record in range(records)))


class TestTurn:
    """Records of the second of three open shards, from byte 40 of its turn on."""

    EXTENT = Extent(4, 1, 6)

    @pytest.fixture
    def turn(self) -> RecordSpan:
        scanner = FrameScanner(url="", shard=6)
        data = b"".join(frame(b"x" * size) for size in (4, 0, 8))
        (block,), _ = scanner.scan(np.frombuffer(data, np.uint8), more=False)
        points = (1, 0, 0, 5), (4, 0, 0, 60), (2, 9, 9, 7)
        own = RecordSpan.of(self.EXTENT, block, np.arange(60, 64))
        taken = np.array([40, 60, 76, 100])
        turn = ShardTurn(self.EXTENT, own.places, own.numbers, taken, 7, 1, points)
        return RecordSpan(Extent(1, 1, -1), own.rows, own.lengths, turn, own.numbers)

    def at(self, taken: int, offset: int, record: int) -> Coordinates:
        points = (1, 0, 0, 5), (4, offset, record, 60 + record), (2, 9, 9, 7)
        return Coordinates(1, taken, 7, sources=points)

    def test_says_where_the_lane_stands(self, turn: RecordSpan) -> None:
        assert len(turn) == 3
        assert turn.before(0) == self.at(40, 0, 0)
        assert turn.after(0) == turn.before(1) == self.at(60, 20, 1)
        assert turn.after(2) == self.at(100, 60, 3)
        assert turn.ends.tolist() == [turn.after(row).numbers for row in range(3)]
        assert turn.lengths.tolist() == [4, 0, 8]

    def test_what_is_kept_stands_where_it_stood(self, turn: RecordSpan) -> None:
        kept = np.array([0, 2])
        few = turn.keep(kept, turn.rows.take(kept))
        assert few.after(0) == self.at(60, 20, 1)
        assert few.before(1) == self.at(76, 36, 2)
        assert few.ends.tolist() == [few.after(row).numbers for row in range(2)]
        assert few.extent == turn.extent
