from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.demo import ranks
from streamrec.demo.ranks import DemoRank, ReceivedRecords
from streamrec.errors import FeederLost
from streamrec.pipeline.batch.batch import Batch
from streamrec.pipeline.batch.origin import Origin
from streamrec.values.columns import BytesColumn
from tests.demo.support import SMALL

if TYPE_CHECKING:
    from pathlib import Path

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

        monkeypatch.setattr(ranks, "connect", connect)
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
