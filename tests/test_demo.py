from __future__ import annotations

import json
import threading
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec
from streamrec import demo
from streamrec.config import DatasetSettings, validate
from streamrec.datasets.sample_pictures import sample_pictures
from streamrec.demo import (
    FEATURES,
    DemoPlan,
    DemoRank,
    ReceivedRecords,
    Summary,
    run,
    start_feeder,
    start_store,
    write_shards,
)
from streamrec.errors import ConfigError, FeederLost, StreamrecError
from streamrec.feeder.operate.configuration import load
from streamrec.flow.child_process import ChildProcess
from streamrec.formats.examples.descriptions import from_description
from streamrec.pipeline.batch.batch import Batch
from streamrec.pipeline.batch.origin import Origin
from streamrec.values.columns import BytesColumn

if TYPE_CHECKING:
    from pathlib import Path

SMALL = DemoPlan(shards=8, records_per_shard=4, lanes=4, batch_size=2, latency=0.0)


def no_progress(what: str, done: int, total: int) -> None:
    """Show nothing."""


def test_shards(tmp_path: Path) -> None:
    said: list[int] = []
    size = write_shards(tmp_path, SMALL, said.append)
    assert said == [4 * (i + 1) for i in range(8)]
    paths = sorted(tmp_path.iterdir())
    assert paths[-1].name == "pictures-00007-of-00008.tfrecord"
    assert sum(path.stat().st_size for path in paths) == size
    images = sample_pictures()
    source = f"{tmp_path}/pictures-*"
    stream = streamrec.open(source, from_description(FEATURES), lanes=1, engine="thread")
    with stream:
        records = list(stream)
    assert [int(record["id"]) for record in records] == list(range(SMALL.records))
    assert all(record["image"] == images[int(record["label"])] for record in records)


def test_the_numbers_fit_together() -> None:
    plan = DemoPlan()
    assert plan.records == 1024
    assert plan.steps_per_epoch * plan.ranks * plan.batch_size == plan.records
    assert plan.lanes % plan.ranks == 0
    assert 0 < plan.stop_step < plan.steps_per_epoch
    assert plan.stopped_rank in range(plan.ranks)


def test_the_features_are_valid() -> None:
    assert sorted(from_description(FEATURES)) == ["id", "image", "label"]
    validate(DatasetSettings, {"source": "x", "features": FEATURES})


IMAGES = [b"one", b"four", b"seventh"]


def batch(*ids: int, epoch: int = 0, **wrong: Any) -> Batch:
    columns: Any = {
        "id": np.array(ids, np.int64),
        "label": np.array(wrong.get("label", [i % 3 for i in ids]), np.int64),
        "image": BytesColumn.of(wrong.get("image", [IMAGES[i % 3] for i in ids])),
    }
    nowhere = np.full(len(ids), -1)
    origin = Origin(nowhere.astype(np.int32), nowhere)
    return Batch(columns, len(ids), epoch, origin, None)  # type: ignore[arg-type]


class TestAccount:
    @given(st.lists(st.lists(st.integers(0, SMALL.records - 1), max_size=9), max_size=5))
    def test_it_counts(self, batches: list[list[int]]) -> None:
        received = ReceivedRecords(SMALL, IMAGES)
        for ids in batches:
            received.add(batch(*ids, epoch=1))
        everything = [number for ids in batches for number in ids]
        counts = np.bincount(np.array(everything, np.int64), minlength=SMALL.records)
        assert received.counts[1].tolist() == counts.tolist()
        assert not received.counts[0].any()
        assert received.records == len(everything)
        assert received.bytes == sum(16 + len(IMAGES[i % 3]) for i in everything)
        assert received.damaged == 0

    @pytest.mark.parametrize(
        "wrong",
        [
            batch(1, label=[0]),
            batch(1, image=[b"fouR"]),
            batch(1, image=[b""]),
            batch(SMALL.records),
            batch(-1),
            batch(1, epoch=SMALL.epochs),
        ],
    )
    def test_it_notices_what_is_not_as_written(self, wrong: Batch) -> None:
        received = ReceivedRecords(SMALL, IMAGES)
        received.add(wrong)
        assert (received.damaged, received.records) == (1, 1)
        assert not received.counts.any()


class FakeStream:
    """Five batches; the state is how many were taken."""

    def __init__(self, seen: list[Any]) -> None:
        self.step = 0
        self.seen = seen

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def __enter__(self) -> Self:
        self.seen.append(("opened", self.step))
        return self

    def __exit__(self, *_: object) -> None:
        self.seen.append(("closed", self.step))

    def __iter__(self) -> FakeStream:
        return self

    def __next__(self) -> Batch:
        if self.step == 15:
            raise StopIteration
        self.step += 1
        return batch(self.step)


class TestRank:
    @pytest.fixture
    def seen(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        seen: list[Any] = []

        def connect(address: str, *, rank: int, world_size: int, retry_for: float) -> FakeStream:
            assert (address, world_size, retry_for) == ("tcp://feeder", 2, 0.0)
            return FakeStream(seen)

        monkeypatch.setattr(demo, "connect", connect)
        return seen

    def rank(self, number: int) -> DemoRank:
        received = ReceivedRecords(SMALL, IMAGES)
        return DemoRank("tcp://feeder", number, SMALL, received, threading.Event())

    def test_one_runs_through(self, seen: list[Any]) -> None:
        rank = self.rank(0)
        rank.run()
        assert seen == [("opened", 0), ("closed", 15)]
        assert rank.resumed_at is None
        assert rank.received.counts[0, 1:16].tolist() == [1] * 15

    def test_one_is_stopped_and_resumed(self, seen: list[Any]) -> None:
        rank = self.rank(1)
        rank.run()
        stop = SMALL.stop_step
        assert seen == [("opened", 0), ("closed", stop), ("opened", stop), ("closed", 15)]
        assert rank.resumed_at == stop
        assert rank.received.counts[0, 1:16].tolist() == [1] * 15
        assert rank.first_batch is not None
        assert rank.finished > 0

    @pytest.mark.parametrize("number", [0, 1])
    def test_one_that_is_told_to_stop(self, seen: list[Any], number: int) -> None:
        rank = self.rank(number)
        rank.stopping.set()
        rank.run()
        assert seen == [("opened", 0), ("closed", 1)]

    def test_one_whose_feeder_is_gone_ends(self, tmp_path: Path) -> None:
        received = ReceivedRecords(SMALL, IMAGES)
        rank = DemoRank(f"unix://{tmp_path}/feeder#pictures", 0, SMALL, received, threading.Event())
        with pytest.raises(FeederLost):
            rank.run()


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine processes end late."""
    monkeypatch.setattr("streamrec.flow.child_process.GOODBYE", 60.0)


@pytest.mark.usefixtures("_patient")
def test_the_store(tmp_path: Path) -> None:
    (tmp_path / "buckets").mkdir()
    with start_store(tmp_path, SMALL) as child:
        answer = child.ready()
        assert answer["endpoint"].startswith("http://127.0.0.1:")
        assert answer["pid"] == child.process.pid
    assert child.process.returncode == 0


@pytest.mark.usefixtures("_patient")
def test_closing_again_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "buckets").mkdir()
    child = start_store(tmp_path, SMALL)
    child.ready()
    child.close()
    child.close()
    assert child.process.returncode == 0


@pytest.mark.usefixtures("_patient")
def test_the_feeder_and_its_reason_not_to_start(tmp_path: Path) -> None:
    (tmp_path / "buckets" / demo.BUCKET).mkdir(parents=True)
    with start_store(tmp_path, SMALL) as loopback:
        endpoint = loopback.ready()["endpoint"]
        with start_feeder(tmp_path, SMALL, endpoint) as child:
            with pytest.raises(StreamrecError, match=r"feeder process did not start.*no object"):
                child.ready()
    assert child.process.returncode == 0


def test_the_configuration_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "feeder.toml"
    path.write_text(demo._configuration(SMALL, "http://127.0.0.1:9000"))
    settings = load(str(path))
    dataset = settings.datasets["pictures"]
    assert (dataset.lanes, dataset.batch_size, dataset.shuffle) == (4, 2, True)
    assert dataset.steps_per_epoch == SMALL.steps_per_epoch
    assert set(dataset.features or ()) == {"id", "label", "image"}


def summary_of(*counts: int) -> Summary:
    """Return a summary where the first records of rank 0's first epoch arrived so often."""
    import threading

    ranks = [
        DemoRank(
            "tcp://feeder",
            i,
            SMALL,
            ReceivedRecords(SMALL, [b"x"]),
            threading.Event(),
            0.5 * i,
            3.0,
        )
        for i in range(SMALL.ranks)
    ]
    ranks[0].received.counts[:] = 1
    ranks[0].received.counts[0, : len(counts)] = counts
    for rank in ranks:
        rank.received.records, rank.received.bytes = 32, 1_000_000
    return demo._summary(SMALL, ranks, started=1.0, begun=0.0)


class TestSummary:
    def test_all_is_well(self) -> None:
        found = summary_of()
        assert (found.lost, found.repeated, found.damaged, found.ok) == (0, 0, 0, True)
        assert (found.records, found.bytes, found.epochs, found.ranks) == (64, 2_000_000, 2, 2)
        assert (found.first_batch_seconds, found.stream_seconds) == (0.5, 2.0)
        assert (found.megabytes_per_second, found.records_per_second) == (1.0, 32.0)

    def test_what_is_lost_or_repeated(self) -> None:
        found = summary_of(0, 1, 3, 0, 2)
        assert (found.lost, found.repeated, found.ok) == (2, 3, False)

    def test_what_is_damaged(self) -> None:
        assert not replace(summary_of(), damaged=1).ok

    def test_it_is_json(self) -> None:
        assert json.loads(json.dumps(asdict(summary_of())))["lost"] == 0


@pytest.mark.both_kernels
def test_the_whole_job(tmp_path: Path) -> None:
    notes: list[str] = []
    steps: list[tuple[str, int, int]] = []
    keep = tmp_path / "kept"
    found = run(notes.append, lambda *step: steps.append(step), plan=SMALL, keep=keep)
    assert found.ok
    assert found.records == SMALL.records * SMALL.epochs
    assert found.resumed_at_step == SMALL.stop_step
    assert [note.split()[0] for note in notes] == ["wrote", "started"]
    assert steps[-1] == ("streaming", found.records, found.records)
    kept = {path.name for path in (tmp_path / "kept").iterdir()}
    assert kept == {"buckets", "feeder.toml", "feeder.log", "store.log"}
    assert len(list((tmp_path / "kept" / "buckets").rglob("*.tfrecord"))) == SMALL.shards


def test_what_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    children: list[ChildProcess] = []

    def feeder(*arguments: object) -> ChildProcess:
        children.append(demo.start_store(*arguments[:2]))  # type: ignore[arg-type]
        return children[0]

    def ready(child: ChildProcess) -> dict[str, str]:
        if child in children:
            raise StreamrecError("no feeder today")
        return {"endpoint": "http://127.0.0.1:1"}

    monkeypatch.setattr(demo, "start_feeder", feeder)
    monkeypatch.setattr(ChildProcess, "ready", ready)
    with pytest.raises(StreamrecError, match="no feeder today"):
        run(print, no_progress, plan=SMALL)
    assert list(tmp_path.iterdir()) == []
    assert children[0].process.returncode is not None


def test_a_rank_that_fails_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(rank: DemoRank) -> None:
        if rank.number == 1:
            raise StreamrecError("rank 1 fails")
        rank.stopping.wait()

    monkeypatch.setattr(DemoRank, "run", fail)
    with pytest.raises(StreamrecError, match="rank 1 fails"):
        run(print, no_progress, plan=SMALL, keep=tmp_path)


def test_a_directory_that_is_in_use(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is not empty; name a new directory"):
        run(print, no_progress, plan=SMALL, keep=tmp_path)
    with pytest.raises(ConfigError, match="name a new directory"):
        run(print, no_progress, plan=SMALL, keep=tmp_path / "file")
