"""With fakes of PyTorch and Accelerate; tests/adapters/test_torch_workers.py has the real ones."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import ConfigError
from tests.pipeline.shards import write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., sr.Stream]:
    source = write(tmp_path / "raw", ((40,) * 4, (30,) * 4))

    def open_stream(**rank: Any) -> sr.Stream:
        return sr.open(source, batch_size=2, lanes=2, steps_per_epoch=2, engine="thread", **rank)

    return open_stream


def worker(monkeypatch: pytest.MonkeyPatch, number: int, of: int) -> None:
    """Make this process a worker of a DataLoader."""
    module = ModuleType("torch.utils.data")
    info = SimpleNamespace(id=number, num_workers=of)
    module.__dict__["get_worker_info"] = lambda: info
    monkeypatch.setitem(sys.modules, "torch.utils.data", module)


def taken(stream: sr.Stream) -> int:
    with stream:
        return sum(len(batch) for batch in stream)


class TestWorkers:
    def test_one_worker_reads_everything(
        self, opened: Callable[..., sr.Stream], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stream = opened()
        worker(monkeypatch, 0, of=1)
        assert taken(stream) == 4

    @pytest.mark.parametrize("rank", [{}, {"rank": 0, "world_size": 2}])
    @pytest.mark.parametrize("travels", [False, True])
    def test_several_do_not_share_a_stream(
        self,
        opened: Callable[..., sr.Stream],
        monkeypatch: pytest.MonkeyPatch,
        rank: dict[str, int],
        travels: bool,
    ) -> None:
        stream = opened(**rank)
        worker(monkeypatch, 1, of=2)
        if travels:
            stream = pickle.loads(pickle.dumps(stream))
        for use in (iter, aiter, next, taken):
            with pytest.raises(ConfigError, match=r"worker 1 of 2 .* num_workers=0 or 1"):
                use(stream)

    def test_a_stream_of_a_workers_own_needs_a_rank(
        self, opened: Callable[..., sr.Stream], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        worker(monkeypatch, 1, of=2)
        with pytest.raises(ConfigError, match="rank= and world_size="):
            iter(opened())
        assert taken(opened(rank=1, world_size=2)) == 4
