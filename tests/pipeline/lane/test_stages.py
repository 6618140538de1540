from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamrec.errors import (
    CorruptRecord,
    DataError,
    FunctionFailed,
    StoreUnavailable,
    WrongFeatureType,
)
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.examples.example import SequenceExample, encode_example
from streamrec.formats.examples.specs import FixedLenFeature
from streamrec.formats.shards.tfrecord import HEADER
from streamrec.pipeline.batch.functions import Function
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.lane.record_span import BlockPlaces, RecordSpan
from streamrec.pipeline.lane.stages import Filter, FilterStage
from streamrec.plan.order.coordinates import Coordinates
from streamrec.plan.order.shard_order import Extent
from streamrec.values.record_rows import RecordRows
from tests.pipeline import user_functions
from tests.pipeline.small_datasets import (
    contents,
    global_batches,
    identities,
    oracle,
    payload,
    position_after,
    receive_all,
    receive_ranks,
    settings_of,
    write,
)
from tests.support import asynchronous, examples

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamrec.kernel.contract import Allocate

pytestmark = pytest.mark.both_kernels

SHARDS = st.lists(st.lists(st.integers(0, 300), max_size=9).map(tuple), min_size=1, max_size=7).map(
    tuple
)
ORDERS = st.fixed_dictionaries(
    {
        "lanes": st.integers(1, 6),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 9),
        "shuffle_window": st.integers(0, 3000),
        "batch_size": st.one_of(st.none(), st.integers(1, 12)),
        "epochs": st.integers(1, 2),
    }
)
FEW = settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def is_kept(length: int) -> bool:
    """Return whether ``user_functions.is_short`` keeps a record of this length."""
    return length % 3 != 0


class TestStreams:
    @FEW
    @given(SHARDS, ORDERS)
    def test_the_order_is_that_of_the_kept_records_and_every_resume_is_exact(
        self, tmp_path: Path, shards: tuple[tuple[int, ...], ...], order: dict[str, Any]
    ) -> None:
        async def main() -> None:
            source = write(tmp_path / str(hash((shards, str(order)))), shards)
            dataset = await Dataset.open(
                settings_of(source, filter=user_functions.is_short, **order)
            )
            epochs = range(order["epochs"])
            expected = [
                (shard, record)
                for _, shard, record in oracle(
                    shards, dataset.settings, dataset.lanes, is_kept
                ).rank(0, 1, epochs)
            ]
            whole = await receive_all(dataset)
            assert identities(whole) == expected
            assert contents(whole) == [payload(s, i, shards[s][i]) for s, i in expected]
            for k, batch in enumerate(whole, start=1):
                tail = await receive_all(dataset, position=position_after(batch))
                assert identities(whole[:k] + tail) == expected
                if order["batch_size"]:
                    assert [b.next_position for b in tail] == [b.next_position for b in whole[k:]]
            await dataset.aclose()

        asyncio.run(main())

    @FEW
    @given(SHARDS, st.booleans(), st.integers(0, 5), st.sampled_from([(1, 2), (4, 2), (2, 4)]))
    def test_the_same_global_batches_for_every_world_size(
        self,
        tmp_path: Path,
        shards: tuple[tuple[int, ...], ...],
        shuffle: bool,
        stop: int,
        sizes: tuple[int, int],
    ) -> None:
        shards = tuple((*lengths, 1) for lengths in shards)  # each lane keeps some, in the end

        async def main() -> None:
            source = write(tmp_path / str(hash((shards, shuffle, stop, sizes))), shards)
            values = {"lanes": 4, "steps_per_epoch": 9, "shuffle_window": 900, "shuffle": shuffle}
            settings = settings_of(source, filter=user_functions.is_short, batch_size=1, **values)
            before, after = sizes
            whole = global_batches(await receive_ranks(settings, before, 12, most=9))
            first = await receive_ranks(settings, before, 12, most=stop)
            positions = [batches[-1].next_position for batches in first] if stop else []
            rest = global_batches(
                await receive_ranks(settings, after, 12, positions, most=9 - stop)
            )
            assert global_batches(first) + rest == whole

        asyncio.run(main())

    @asynchronous
    async def test_an_endless_run_of_which_nothing_is_kept_is_an_error(
        self, tmp_path: Path
    ) -> None:
        source = write(tmp_path, ((5,) * 3, (), (7,)))
        values: dict[str, Any] = {"filter": user_functions.keep_nothing, "batch_size": 2}
        endless = await Dataset.open(settings_of(source, epochs=None, **values))
        with pytest.raises(DataError, match="the filter has kept no record of a lane"):
            await receive_all(endless)
        finite = await Dataset.open(settings_of(source, epochs=9, **values))
        assert await receive_all(finite) == []
        await endless.aclose()
        await finite.aclose()

    @asynchronous
    async def test_what_is_kept_before_damage_comes_first(self, tmp_path: Path) -> None:
        source = write(tmp_path, ((5,) * 3 + (6,) + (7,) * 3,))
        path = tmp_path / "part-00000.tfrecord"
        data = bytearray(path.read_bytes())
        data[-10] ^= 1
        path.write_bytes(data)
        dataset = await Dataset.open(
            settings_of(source, filter=user_functions.is_short, batch_size=1)
        )
        run = dataset.run(rank=0, world_size=1, batch_size=1, position=None)
        received = []
        async with run:
            with pytest.raises(CorruptRecord):
                while True:
                    received.append(await run.receive())
        assert identities(received) == [(0, i) for i in (0, 1, 2, 4, 5)]
        await dataset.aclose()

    @asynchronous
    async def test_a_failing_filter_says_where(self, tmp_path: Path) -> None:
        source = write(tmp_path, ((5,) * 3,))
        dataset = await Dataset.open(
            settings_of(source, filter=user_functions.return_a_list, batch_size=2)
        )
        with pytest.raises(
            FunctionFailed, match="user_functions:return_a_list returned a list"
        ) as caught:
            await receive_all(dataset)
        assert caught.value.setting == "filter"
        assert (caught.value.url, caught.value.record) == (dataset.shards[0], 0)
        await dataset.aclose()

    @asynchronous
    async def test_few_that_are_kept_hold_no_range(self, tmp_path: Path) -> None:
        """A window of records of which one in a hundred is kept fits into a small budget."""
        source = write(tmp_path, ((30_000,) * 99 + (29_999,),) * 20)
        values = {"shuffle": True, "shuffle_window": "1MiB", "lanes": 2, "batch_size": 3}
        dataset = await Dataset.open(settings_of(source, filter=user_functions.is_short, **values))
        run = dataset.run(rank=0, world_size=1, batch_size=3, position=None)
        seen = 0
        async with run:
            while seen < 20:
                seen += len(await run.receive())
            statistics = run.statistics()
            assert statistics["most_bytes_in_memory"] <= 32 << 20
        await dataset.aclose()


def span(records: list[bytes], number: int = 0) -> RecordSpan:
    rows, numbers = RecordRows.of(records), np.arange(len(records))
    places = BlockPlaces(
        100 * numbers + HEADER, rows.lengths, 0, 0, np.zeros(len(rows) + 1, np.int64)
    )
    return RecordSpan(Extent(number, 0, shard=0), rows, rows.lengths, places, numbers)


def no_memory(size: int) -> Any:
    raise AssertionError("nothing should be copied")


def fresh(size: int) -> Any:
    return np.empty(size, np.uint8)


class TestFilter:
    EXAMPLES = tuple(encode_example({"id": i, "name": f"n{i}"}) for i in range(10))
    FEATURES = describe({"id": FixedLenFeature((), "int64"), "name": FixedLenFeature((), "int64")})

    def apply(
        self,
        function: Callable[[Any], Any],
        features: Any = FEATURES,
        allocate: Allocate = fresh,
        records: tuple[bytes, ...] = EXAMPLES,
    ) -> list[int]:
        filtered = Filter(Function("filter", function), features, ["u"]).apply(
            span(list(records)), allocate
        )
        assert [bytes(p) for p in filtered.rows.payloads()] == [
            records[i] for i in filtered.rows.ordinals.tolist()
        ]
        begins = [filtered.before(row).offset for row in range(len(filtered))]
        assert begins == [100 * i for i in filtered.rows.ordinals.tolist()]
        numbers: list[int] = filtered.rows.ordinals.tolist()
        return numbers

    def test_some_are_kept_where_they_are_and_few_are_copied(self) -> None:
        assert self.apply(lambda c: c["id"] > 2, allocate=no_memory) == list(range(3, 10))
        assert self.apply(lambda c: c["id"] > 7) == [8, 9]
        assert self.apply(lambda c: c["id"] > 99) == []

    def test_all_are_kept(self) -> None:
        assert self.apply(lambda c: c["id"] >= 0, allocate=no_memory) == list(range(10))

    def test_what_it_does_not_look_at_is_not_parsed(self) -> None:
        assert self.apply(lambda c: c["id"] < 2) == [0, 1]
        with pytest.raises(WrongFeatureType, match=r"feature name: .* the spec says int64"):
            self.apply(lambda c: c["name"] == 0)

    def test_an_error_of_its_own_is_the_functions(self) -> None:
        def keep(columns: Any) -> Any:
            with contextlib.suppress(WrongFeatureType):
                columns["name"]
            raise ValueError("mine")

        with pytest.raises(FunctionFailed, match="raised ValueError: mine"):
            self.apply(keep)

    def test_the_mapping_of_columns(self) -> None:
        def keep(columns: Any) -> Any:
            assert sorted(columns) == ["id", "name"]
            assert len(columns) == 2
            assert columns.get("absent") is None
            assert columns["id"] is columns["id"]
            return columns["id"] < 5

        assert self.apply(keep) == list(range(5))

    def test_sequence_examples(self) -> None:
        features = describe(({"id": FixedLenFeature((), "int64")}, {}))
        message = SequenceExample()
        message.context.feature["id"].int64_list.value.append(4)
        records = (message.SerializeToString(),) * 3
        assert self.apply(lambda c: c["id"] == 4, features, records=records) == [0, 1, 2]

    def test_raw_records(self) -> None:
        assert self.apply(lambda c: np.array([r[-1] % 2 == 0 for r in c["records"]]), None) == [
            i for i, record in enumerate(self.EXAMPLES) if record[-1] % 2 == 0
        ]


class _Given:
    """A source that gives these items."""

    def __init__(self, *items: RecordSpan | Coordinates | StoreUnavailable) -> None:
        self.items = list(items)

    @property
    def ended(self) -> bool:
        return not self.items

    def pop(self) -> RecordSpan | Coordinates | None:
        item = self.items.pop(0) if self.items else None
        if isinstance(item, StoreUnavailable):
            raise item
        return item


class TestFilterStage:
    def test_keeps_the_order_whichever_thread_is_first(self) -> None:
        futures: list[Future[RecordSpan]] = []

        def submit(_: RecordSpan) -> Future[RecordSpan]:
            futures.append(Future())
            return futures[-1]

        one, two, following = span([b"a"]), span([b"b"]), Coordinates(1, 0, 0)
        source: Any = _Given(one, following, two)
        filter_stage = FilterStage(source, submit)
        assert filter_stage.pop() is None
        assert source.items == [two]  # one that is being filtered, and the next
        futures[0].set_result(one)
        assert filter_stage.pop() is one
        assert filter_stage.pop() is following
        assert filter_stage.pop() is None
        assert not filter_stage.ended
        futures[1].set_result(two)
        assert filter_stage.pop() is two
        assert filter_stage.ended

    def test_an_error_comes_behind_what_is_being_filtered_and_stays(self) -> None:
        future: Future[RecordSpan] = Future()
        source: Any = _Given(span([b"a"]), StoreUnavailable("gone"), span([b"b"]))
        filter_stage = FilterStage(source, lambda _: future)
        assert filter_stage.pop() is None
        future.set_result(span([b"a"]))
        assert filter_stage.pop() is not None
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="gone"):
                filter_stage.pop()
        assert len(source.items) == 1

    def test_patience_begins_anew_with_every_record(self) -> None:
        def done(span: RecordSpan) -> Future[RecordSpan]:
            future: Future[RecordSpan] = Future()
            future.set_result(span)
            return future

        spans = [span(rows, k) for k, rows in enumerate([[], [], [b"x"], [], [], []])]
        source: Any = _Given(*spans)
        filter_stage = FilterStage(source, done, patience=3)
        for _ in range(5):
            assert filter_stage.pop() is not None
        with pytest.raises(DataError, match="kept no record of a lane"):
            filter_stage.pop()
