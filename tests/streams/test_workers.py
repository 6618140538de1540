"""Tests with fakes of PyTorch and Accelerate; tests/adapters has tests with the real ones."""

from __future__ import annotations

import contextlib
import pickle
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import ConfigError
from tests.pipeline.small_datasets import write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., sr.Stream]]:
    """Yield a function that opens streams; close them after the test."""
    source = write(tmp_path / "raw", ((40,) * 4, (30,) * 4))
    with contextlib.ExitStack() as streams:

        def make(**rank: Any) -> sr.Stream:
            stream = sr.open(
                source, batch_size=2, lanes=2, steps_per_epoch=2, engine="thread", **rank
            )
            streams.callback(stream.close)
            return stream

        yield make


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


class DataLoaderDispatcher:
    """A stand-in for Accelerate's: it iterates what one process reads, and sends each its part."""

    def __init__(self, stream: Any, count: int) -> None:
        self.stream = stream
        self.state = SimpleNamespace(num_processes=count)

    def __iter__(self) -> Iterator[Any]:
        yield from self.stream


class IterableDatasetShard:
    """A stand-in for Accelerate's: each process iterates everything, and keeps its part."""

    def __init__(self, stream: Any, count: int) -> None:
        self.stream = stream
        self.num_processes = count

    def __iter__(self) -> Iterator[Any]:
        yield from self.stream


class Pickling:
    """A dataset that is sent to a worker once it is iterated."""

    def __init__(self, stream: sr.Stream) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[Any]:
        yield pickle.dumps(self.stream)


class Inside:
    """A dataset that iterates its stream in a generator."""

    def __init__(self, stream: sr.Stream) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[Any]:
        yield from self.stream


@pytest.mark.parametrize("kind", [DataLoaderDispatcher, IterableDatasetShard])
class TestAccelerate:
    @pytest.fixture(autouse=True)
    def _imported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = ModuleType("accelerate.data_loader")
        for kind in (DataLoaderDispatcher, IterableDatasetShard):
            module.__dict__[kind.__name__] = kind
        monkeypatch.setitem(sys.modules, "accelerate.data_loader", module)

    @pytest.mark.parametrize("wrapped", [Pickling, Inside])
    def test_what_is_divided_is_not_divided_again(
        self, kind: Any, wrapped: Any, opened: Callable[..., sr.Stream]
    ) -> None:
        with opened(rank=0, world_size=2) as stream:
            with pytest.raises(ConfigError, match=rf"rank 0 of 2 .* {kind.__name__} .* by 3"):
                list(kind(wrapped(stream), 3))

    def test_an_accelerate_without_such_classes(
        self, kind: Any, opened: Callable[..., sr.Stream], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(sys.modules["accelerate.data_loader"], kind.__name__)
        assert len(list(kind(opened(rank=0, world_size=2), 2))) == 2

    def test_one_process_divides_nothing(self, kind: Any, opened: Callable[..., sr.Stream]) -> None:
        assert len(list(kind(opened(rank=0, world_size=2), 1))) == 2

    def test_a_whole_stream_may_be_divided(
        self, kind: Any, opened: Callable[..., sr.Stream]
    ) -> None:
        assert len(list(kind(opened(rank=0, world_size=1), 2))) == 2

    def test_another_loop_is_none_of_its(self, kind: Any, opened: Callable[..., sr.Stream]) -> None:
        for _ in kind([1], 2):
            assert taken(opened(rank=0, world_size=2)) == 4
