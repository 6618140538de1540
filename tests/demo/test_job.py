from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import pytest

from streamrec.demo import job
from streamrec.demo.job import Summary, run, start_feeder, start_store
from streamrec.demo.ranks import DemoRank, ReceivedRecords
from streamrec.errors import ConfigError, StreamrecError
from streamrec.feeder.operate.configuration import load
from streamrec.flow.child_process import ChildProcess
from tests.demo.support import SMALL, no_progress

if TYPE_CHECKING:
    from pathlib import Path


def test_the_store(tmp_path: Path) -> None:
    (tmp_path / "buckets").mkdir()
    with start_store(tmp_path, SMALL) as child:
        answer = child.ready()
        assert answer["endpoint"].startswith("http://127.0.0.1:")
        assert answer["pid"] == child.process.pid
    assert child.process.returncode == 0


def test_closing_again_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "buckets").mkdir()
    child = start_store(tmp_path, SMALL)
    child.ready()
    child.close()
    child.close()
    assert child.process.returncode == 0


def test_the_feeder_and_its_reason_not_to_start(tmp_path: Path) -> None:
    (tmp_path / "buckets" / job.BUCKET).mkdir(parents=True)
    with start_store(tmp_path, SMALL) as loopback:
        endpoint = loopback.ready()["endpoint"]
        with start_feeder(tmp_path, SMALL, endpoint) as child:
            with pytest.raises(StreamrecError, match=r"feeder process did not start.*no object"):
                child.ready()
    assert child.process.returncode == 0


def test_the_configuration_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "feeder.toml"
    path.write_text(job._configuration(SMALL, "http://127.0.0.1:9000"))
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
    return job._summary(SMALL, ranks, started=1.0, begun=0.0)


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
        children.append(job.start_store(*arguments[:2]))  # type: ignore[arg-type]
        return children[0]

    def ready(child: ChildProcess) -> dict[str, str]:
        if child in children:
            raise StreamrecError("no feeder today")
        return {"endpoint": "http://127.0.0.1:1"}

    monkeypatch.setattr(job, "start_feeder", feeder)
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
