"""Mixes together with damage, compression, filters, packs and the budget."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.config import Pack
from streamrec.errors import DataError
from streamrec.flow.channel import EndOfStream
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.reading.concurrency import Hedging
from tests.pipeline import user_functions
from tests.pipeline.lane.test_mix_source import (
    CODE,
    ENDLESS,
    FEWER,
    MIXES,
    ORDERS,
    WEB,
    expected,
    written,
)
from tests.pipeline.lane.test_packing_stage import FEATURES
from tests.pipeline.lane.test_packing_stage import contents as packs
from tests.pipeline.lane.test_packing_stage import write as write_tokens
from tests.pipeline.mixes import mix_of
from tests.pipeline.small_datasets import identities, position_after, receive_all, settings_of
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = ((3, 4, 9, 1), (2, 2, 5), (7, 1, 6))


class TestBehindTheMix:
    @FEWER
    @given(MIXES, ORDERS, st.sampled_from(["stop", "rest"]))
    def test_a_filter_sees_the_mixed_records(
        self, tmp_path: Path, mix: Any, order: dict[str, Any], exhausted: str
    ) -> None:
        async def main() -> None:
            values = {**order, "exhausted": exhausted, "filter": user_functions.is_short}
            components, settings = written(tmp_path, mix, values)
            dataset = await Dataset.open(settings)
            whole = await receive_all(dataset)
            assert identities(whole) == expected(components, dataset, keep=lambda n: n % 3 != 0)
            for k, batch in enumerate(whole, start=1):
                tail = await receive_all(dataset, position=position_after(batch))
                assert identities(whole[:k] + tail) == identities(whole)
            await dataset.aclose()

        asyncio.run(main())

    @asynchronous
    async def test_a_filter_that_keeps_nothing_of_an_endless_mix_is_an_error(
        self, tmp_path: Path
    ) -> None:
        values = {**ENDLESS, "filter": user_functions.keep_nothing}
        settings = mix_of(tmp_path, {"web": WEB, "code": CODE}, {"web": 2, "code": 1}, **values)
        dataset = await Dataset.open(settings)
        with pytest.raises(DataError, match="the filter has kept no record"):
            await receive_all(dataset)
        await dataset.aclose()

    @FEWER
    @given(
        st.booleans(),
        st.sampled_from([Pack(6, bins=1), Pack(8, bins=3), Pack(5, split=True)]),
        st.sampled_from(
            [{"exhausted": "rest"}, {"steps_per_epoch": 6}, {"steps_per_epoch": 6, "lanes": 1}]
        ),
        st.integers(0, 9),
    )
    def test_packs_of_the_mixed_records(
        self, tmp_path: Path, shuffle: bool, pack: Pack, more: dict[str, Any], seed: int
    ) -> None:
        async def main() -> None:
            directory = tmp_path / str(abs(hash((shuffle, str(pack), str(more), seed))))
            source: Any = {
                "web": write_tokens(directory / "web", TOKENS),
                "code": write_tokens(directory / "code", TOKENS[:2]),
            }
            values = {"lanes": 2, "batch_size": 2, "shuffle": shuffle, "seed": seed, **more}
            weights = {"web": 0.6, "code": 0.4}
            dataset = await Dataset.open(
                settings_of(
                    source,
                    weights=weights,
                    features=FEATURES,
                    pack=pack,
                    shuffle_window=300,
                    **values,
                )
            )
            whole = await receive_all(dataset)
            for k, batch in enumerate(whole, start=1):
                tail = await receive_all(dataset, position=position_after(batch))
                assert packs(whole[:k] + tail) == packs(whole)
                assert [b.next_position for b in tail] == [b.next_position for b in whole[k:]]
            if "exhausted" in more and pack.split:
                count = sum(map(sum, TOKENS)) + sum(map(sum, TOKENS[:2]))
                ids = [batch["tokens_segment_ids"] for batch in whole]
                assert sum(int((one > 0).sum()) for one in ids) == count
            await dataset.aclose()

        asyncio.run(main())

    @asynchronous
    async def test_damage_that_is_skipped(self, tmp_path: Path) -> None:
        values = {"exhausted": "rest", "on_corrupt": "skip", "corrupt_budget": 3, "batch_size": 4}
        settings = mix_of(tmp_path, {"web": WEB, "code": CODE}, {"web": 2, "code": 1}, **values)
        path = tmp_path / "web" / "part-00000.tfrecord"
        data = bytearray(path.read_bytes())
        data[2 * 21 + 13] ^= 1  # in the third record's payload
        path.write_bytes(data)
        dataset = await Dataset.open(settings)
        whole = await receive_all(dataset)
        lengths = [(shard, len(records)) for shard, records in enumerate(CODE + WEB)]
        everything = [(shard, i) for shard, count in lengths for i in range(count)]
        assert sorted(identities(whole)) == [pair for pair in everything if pair != (2, 2)]
        for k, batch in enumerate(whole, start=1):
            tail = await receive_all(dataset, position=position_after(batch))
            assert identities(whole[:k] + tail) == identities(whole)
        await dataset.aclose()

    @pytest.mark.parametrize("before", [{"on_corrupt": "raise"}, {"check_crc": False}])
    @asynchronous
    async def test_a_window_with_damage_that_another_run_began(
        self, tmp_path: Path, before: dict[str, Any]
    ) -> None:
        """A draw is of a damaged record, too, so all others are of the same windows."""
        values = {"exhausted": "rest", "batch_size": 1, "shuffle": True, "shuffle_window": 600}
        settings = mix_of(tmp_path, {"web": WEB, "code": CODE}, {"web": 2, "code": 1}, **values)
        path = tmp_path / "web" / "part-00000.tfrecord"
        data = bytearray(path.read_bytes())
        data[2 * 21 + 13] ^= 1  # in the third record's payload
        path.write_bytes(data)
        first = await Dataset.open(settings.model_copy(update=before))
        run, begun = first.run(rank=0, world_size=1, batch_size=1, position=None), []
        with contextlib.suppress(DataError, EndOfStream):
            async with run:
                while True:
                    begun.append(await run.receive())
        skips = {"on_corrupt": "skip", "corrupt_budget": 1}
        second = await Dataset.open(settings.model_copy(update=skips))
        whole = identities(await receive_all(second))
        assert len(whole) == sum(map(len, CODE + WEB)) - 1
        for k, batch in enumerate(begun, start=1):
            tail = identities(await receive_all(second, position=position_after(batch)))
            given = [pair for pair in identities(begun[:k]) if pair != (2, 2)]
            assert sorted(given + tail) == sorted(whole)
        await first.aclose()
        await second.aclose()

    @asynchronous
    async def test_damage_ends_the_run_behind_what_was_drawn_before(self, tmp_path: Path) -> None:
        values = {"exhausted": "rest", "batch_size": 1, "lanes": 1}
        settings = mix_of(tmp_path, {"web": WEB, "code": CODE}, {"web": 2, "code": 1}, **values)
        intact = await Dataset.open(settings)
        pairs = identities(await receive_all(intact))
        await intact.aclose()
        path = tmp_path / "web" / "part-00001.tfrecord"
        path.write_bytes(path.read_bytes()[:-1])  # its last record is cut
        dataset = await Dataset.open(settings)
        run = dataset.run(rank=0, world_size=1, batch_size=1, position=None)
        received = []
        async with run:
            with pytest.raises(DataError, match=r"web/part-00001\.tfrecord"):
                while True:
                    received.append(await run.receive())
        assert identities(received) == pairs[: pairs.index((3, 1))]
        await dataset.aclose()


@asynchronous
async def test_compressed_components(tmp_path: Path) -> None:
    values = {"exhausted": "rest", "batch_size": 4, "shuffle": True, "shuffle_window": 200}
    settings = mix_of(tmp_path, {"web": WEB, "code": CODE}, {"web": 2, "code": 1}, **values)
    plain_dataset = await Dataset.open(settings)
    pairs = identities(await receive_all(plain_dataset))
    await plain_dataset.aclose()
    for path in (tmp_path / "code").iterdir():
        path.write_bytes(gzip.compress(path.read_bytes()))
    dataset = await Dataset.open(settings)
    whole = await receive_all(dataset)
    assert identities(whole) == pairs
    for k, batch in enumerate(whole, start=1):
        tail = await receive_all(dataset, position=position_after(batch))
        assert identities(whole[:k] + tail) == pairs
    await dataset.aclose()


@asynchronous
async def test_a_small_budget_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One component gives nearly all records, the other hardly any, and windows hold both.

    A hedge of the range that is waited for may exceed the budget, so nothing is hedged.
    """
    monkeypatch.setattr(Hedging, "allows", lambda *_, **__: False)
    large = {"web": ((60_000,) * 60,) * 4, "code": ((30_000,) * 60,) * 4}
    values = {"shuffle": True, "shuffle_window": "4MiB", "batch_size": 20, "lanes": 4}
    more = {"memory_budget": "16MiB", "epochs": None}
    weights = {"web": 0.95, "code": 0.05}
    dataset = await Dataset.open(mix_of(tmp_path, large, weights, **values, **more))
    run = dataset.run(rank=0, world_size=1, batch_size=20, position=None)
    async with run:
        for _ in range(30):
            await run.receive()
        assert run.statistics()["most_bytes_in_memory"] <= 16 << 20
    await dataset.aclose()
