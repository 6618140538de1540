"""Streams of pictures that claim more than their records weigh."""

from __future__ import annotations

import gzip
import io
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image as Pillow

import streamrec as sr
from streamrec.config import DatasetSettings, validate
from streamrec.errors import BatchTooLarge, PictureTooLarge
from streamrec.flow.cores import Cores
from streamrec.formats.examples import image_columns
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.images.picture import fill_resized
from streamrec.formats.shards.compression import Decompressor
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.fetch import inflating_queue
from streamrec.pipeline.terms import memory_needs
from streamrec.pipeline.terms.memory_needs import RunCeiling
from tests.pipeline import user_functions
from tests.pipeline.small_datasets import settings_of
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrec.flow.cores import CoreShare

SIDE = 100
SIZE = SIDE * SIDE * 3
FEATURES = {"p": sr.Image()}


def encoded(side: int) -> bytes:
    file = io.BytesIO()
    Pillow.new("RGB", (side, side), (side, 2, 3)).save(file, "JPEG")
    return file.getvalue()


def shard(directory: Path, *sides: int) -> str:
    path = directory / "pictures.tfrecord"
    with sr.TFRecordWriter(str(path)) as writer:
        for side in sides:
            writer.write({"p": encoded(side)})
    return str(path)


def compress(path: Path) -> None:
    path.write_bytes(gzip.compress(path.read_bytes()))


def sides_of(stream: Any) -> list[int]:
    return [picture.shape[0] for batch in stream for picture in batch["p"]]


def opened(url: str, **settings: Any) -> Any:
    return sr.open(url, FEATURES, engine="thread", lanes=1, **settings)


def test_batches_up_to_the_limit_come_and_one_beyond_is_named(tmp_path: Path) -> None:
    url = shard(tmp_path, *[SIDE] * 8, SIDE + 1, SIDE)
    with opened(url, batch_size=2, max_bytes=2 * SIZE) as stream:
        batches = iter(stream)
        assert [next(batches)["p"][0].shape for _ in range(4)] == [(SIDE, SIDE, 3)] * 4
        with pytest.raises(BatchTooLarge, match="max_bytes") as caught:
            next(batches)
    assert caught.value.record == 8
    assert caught.value.url == url


def test_nothing_is_skipped_for_its_size(tmp_path: Path) -> None:
    url = shard(tmp_path, 9, 10)
    skip = {"on_corrupt": "skip", "corrupt_budget": 5}
    with opened(url, batch_size=1, max_pixels=99, **skip) as stream:
        with pytest.raises(PictureTooLarge, match="100 pixels"):
            list(stream)


def test_batches_wait_for_each_other_and_all_come(tmp_path: Path) -> None:
    sides = [SIDE + k for k in range(40)]
    # Half of the budget is less than one of the batches.
    settings = {"memory_budget": "8MiB", "max_bytes": "200MiB"}
    with opened(shard(tmp_path, *[700] * 12), batch_size=4, **settings) as stream:
        assert sides_of(stream) == [700] * 12
    with opened(shard(tmp_path, *sides), batch_size=3, **settings) as stream:
        assert sides_of(stream) == sides


def test_a_stream_that_is_left_while_batches_wait_ends(tmp_path: Path) -> None:
    settings = {"memory_budget": "8MiB", "max_bytes": "200MiB"}
    with opened(shard(tmp_path, *[700] * 40), batch_size=4, **settings) as stream:
        next(iter(stream))


def test_single_records_come_one_by_one_where_they_do_not_fit_together(tmp_path: Path) -> None:
    sides = [SIDE - k for k in range(30)]
    with opened(shard(tmp_path, *sides), max_bytes=SIZE) as stream:
        assert [record["p"].shape[0] for record in stream] == sides
    with opened(shard(tmp_path, *sides, SIDE + 1), max_bytes=SIZE) as stream:
        with pytest.raises(PictureTooLarge) as caught:
            list(stream)
    assert caught.value.record == len(sides)


def test_a_filter_gets_what_fits(tmp_path: Path) -> None:
    seen: list[int] = []

    def odd(columns: Any) -> Any:
        seen.append(len(columns["p"]))
        return np.array([picture.shape[0] % 2 == 1 for picture in columns["p"]])

    sides = [SIDE - k for k in range(30)]
    with opened(shard(tmp_path, *sides), batch_size=1, max_bytes=SIZE, filter=odd) as stream:
        assert sides_of(stream) == [side for side in sides if side % 2]
    assert sum(seen) == 30
    assert max(seen) < 30


def test_a_row_that_fills_up_all_others(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.tfrecord")
    with sr.TFRecordWriter(path) as writer:
        for length in [1] * 63 + [1000]:
            writer.write({"v": np.arange(length)})
    features = {"v": sr.FixedLenSequenceFeature((), "int64", allow_missing=True)}
    size = 64 * 1000 * 8
    for limit in (size, size - 1):
        with sr.open(path, features, batch_size=64, max_bytes=limit, engine="thread") as stream:
            if limit == size:
                assert next(iter(stream))["v"].shape == (64, 1000)
                continue
            with pytest.raises(BatchTooLarge, match="feature v: the column takes") as caught:
                next(iter(stream))
            assert caught.value.record == 63


@asynchronous
async def test_who_goes_on_after_an_interrupt_misses_nothing(tmp_path: Path) -> None:
    sides = [SIDE + k for k in range(40)]
    plain = {"source": shard(tmp_path, *sides), "features": describe(FEATURES), "lanes": 1}
    dataset = await Dataset.open(validate(DatasetSettings, plain))
    found: list[int] = []
    try:
        run = dataset.run(rank=0, world_size=1, batch_size=4, position=None)
        async with run:
            for k in range(10):
                batch: Any = await run.receive()
                found += [picture.shape[0] for picture in batch["p"]]
                if k % 3 == 1:
                    run.interrupt()
    finally:
        await dataset.aclose()
    assert found == sides


class WatchedCores(Cores):
    """Cores that note who works on them."""

    def __init__(self) -> None:
        super().__init__(1)
        self.at_work: list[int] = []
        self.most = 0

    def enter(self, share: CoreShare) -> float:
        began = super().enter(share)
        self.at_work.append(threading.get_native_id())
        self.most = max(self.most, len(self.at_work))
        return began

    def leave(self, share: CoreShare, began: float) -> None:
        self.at_work.remove(threading.get_native_id())
        super().leave(share, began)


@contextmanager
def decoding_only_at_work(watched: WatchedCores) -> Iterator[list[int]]:
    """Watch that pictures are decoded on the cores alone; yield the threads that decode."""
    threads: list[int] = []

    def fill(picture: Any, target: Any) -> None:
        thread = threading.get_native_id()
        assert thread in watched.at_work
        threads.append(thread)
        fill_resized(picture, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_columns, "fill_resized", fill)
        yield threads


@pytest.mark.parametrize("filtered", [False, True])
@asynchronous
async def test_pictures_of_all_runs_are_decoded_on_the_cores_of_the_feeder(
    tmp_path: Path, *, filtered: bool
) -> None:
    source = shard(tmp_path, *[SIDE] * 12)
    plain = {"source": source, "features": describe(FEATURES), "lanes": 1, "epochs": 1}
    keeps = {"filter": user_functions.of_high_pictures} if filtered else {}
    dataset = await Dataset.open(validate(DatasetSettings, {**plain, **keeps}))
    watched = WatchedCores()
    try:
        with decoding_only_at_work(watched) as threads:
            ceiling = RunCeiling(cores=watched)
            place: Any = {"rank": 0, "world_size": 1, "batch_size": 4, "position": None}
            runs = [dataset.run(**place, ceiling=ceiling) for _ in range(2)]
            async with runs[0], runs[1]:
                batches = [await run.receive() for _ in range(3) for run in runs]
    finally:
        await dataset.aclose()
    assert sum(map(len, batches)) == 24
    assert len(threads) == (48 if filtered else 24)
    assert (watched.most, watched.at_work) == (1, [])


@asynchronous
async def test_shards_of_all_runs_are_decompressed_on_the_cores_of_the_feeder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = shard(tmp_path, *[SIDE] * 12)
    compress(Path(source))
    watched, filled = WatchedCores(), Counter[bool]()

    class Watching(Decompressor):
        def fill(self, stored: memoryview, room: memoryview) -> tuple[int, int]:
            filled[threading.get_native_id() in watched.at_work] += 1
            return super().fill(stored, room)

    monkeypatch.setattr(inflating_queue, "Decompressor", Watching)
    dataset = await Dataset.open(settings_of(source, lanes=1))
    place: Any = {"rank": 0, "world_size": 1, "batch_size": 4, "position": None}
    runs = [dataset.run(**place, ceiling=RunCeiling(cores=watched)) for _ in range(2)]
    async with runs[0], runs[1]:
        batches = [await run.receive() for _ in range(3) for run in runs]
    await dataset.aclose()
    assert sum(map(len, batches)) == 24
    assert filled[True] >= 2
    assert not filled[False]
    assert (watched.most, watched.at_work) == (1, [])


@asynchronous
async def test_threads_of_a_feeder_step_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped: list[str] = []

    def step_back() -> None:
        stepped.append(threading.current_thread().name.rpartition("_")[0])

    monkeypatch.setattr(memory_needs, "step_back", step_back)
    plain = {"source": shard(tmp_path, SIDE), "features": describe(FEATURES), "lanes": 1}
    dataset = await Dataset.open(validate(DatasetSettings, plain))
    place: Any = {"rank": 0, "world_size": 1, "batch_size": 1, "position": None}
    try:
        async with dataset.run(**place) as run:
            await run.receive()
        assert stepped == []
        async with dataset.run(**place, ceiling=RunCeiling(cores=Cores(1))) as run:
            await run.receive()
        assert set(stepped) == {"streamrec-decode"}
    finally:
        await dataset.aclose()


@pytest.mark.parametrize("compressed", [False, True])
@asynchronous
async def test_sessions_of_a_feeder_start_no_threads_in_its_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, compressed: bool
) -> None:
    source = shard(tmp_path, *[SIDE] * 4)
    if compressed:
        compress(Path(source))
    plain = {"source": source, "features": describe(FEATURES), "lanes": 1}
    dataset = await Dataset.open(validate(DatasetSettings, plain))
    place: Any = {"rank": 0, "world_size": 1, "batch_size": 2, "position": None}
    starting: list[int] = []
    start = threading.Thread.start

    def note(thread: threading.Thread) -> None:
        starting.append(threading.get_ident())
        start(thread)

    try:
        for number in range(2):  # the first one starts threads of the store, which stay
            if number:
                monkeypatch.setattr(threading.Thread, "start", note)
            async with dataset.run(**place, ceiling=RunCeiling(cores=Cores(2))) as run:
                await run.receive()
        assert starting
        assert threading.get_ident() not in starting
    finally:
        await dataset.aclose()
