from __future__ import annotations

import logging
import pickle
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import ConfigError
from streamrec.streams import handle
from streamrec.streams.ranks import Rank, assign, confirm, log_assignment
from tests.pipeline.small_datasets import write
from tests.support import without_launchers

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _nothing_around(monkeypatch: pytest.MonkeyPatch) -> None:
    without_launchers(monkeypatch)
    for name in ("torch.distributed", "jax"):
        monkeypatch.setitem(sys.modules, name, None)


def fake(monkeypatch: pytest.MonkeyPatch, name: str, **members: object) -> None:
    module = ModuleType(name)
    module.__dict__.update(members)
    monkeypatch.setitem(sys.modules, name, module)


def torch(
    monkeypatch: pytest.MonkeyPatch, initialized: bool = True, rank: int = 2, world_size: int = 4
) -> None:
    fake(
        monkeypatch,
        "torch.distributed",
        is_available=lambda: True,
        is_initialized=lambda: initialized,
        get_rank=lambda: rank,
        get_world_size=lambda: world_size,
    )


def found() -> Rank:
    return assign("auto", "auto").rank


def environment(monkeypatch: pytest.MonkeyPatch, **variables: object) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


class TestWhatIsFound:
    def test_one_rank_where_nothing_is_known(self) -> None:
        assert found() == Rank(0, 1)

    def test_as_given(self) -> None:
        assert assign(3, 8).rank == Rank(3, 8)

    def test_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        environment(monkeypatch, RANK=1, WORLD_SIZE=2)
        assert found() == Rank(1, 2)

    @pytest.mark.parametrize(("there", "missing"), [("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")])
    def test_half_an_environment(
        self, monkeypatch: pytest.MonkeyPatch, there: str, missing: str
    ) -> None:
        environment(monkeypatch, **{there: 2})
        with pytest.raises(ConfigError, match=f"has {there}='2' and no {missing}"):
            found()
        assert assign(1, 2).rank == Rank(1, 2)

    def test_a_launcher(self, monkeypatch: pytest.MonkeyPatch) -> None:
        environment(monkeypatch, OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=2)
        assert found() == Rank(1, 2)
        assert assign(0, 1).rank == Rank(0, 1)

    def test_torch_comes_before_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        environment(monkeypatch, RANK=0, WORLD_SIZE=9)
        torch(monkeypatch)
        assert found() == Rank(2, 4)
        torch(monkeypatch, initialized=False)
        assert found() == Rank(0, 9)

    @pytest.mark.parametrize(("initialized", "expected"), [(True, Rank(1, 3)), (False, Rank(0, 1))])
    def test_jax(self, monkeypatch: pytest.MonkeyPatch, initialized: bool, expected: Rank) -> None:
        fake(
            monkeypatch,
            "jax",
            distributed=SimpleNamespace(is_initialized=lambda: initialized),
            process_index=lambda: 1,
            process_count=lambda: 3,
        )
        assert found() == expected

    def test_half_an_answer_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="both"):
            assign(1, "auto")
        with pytest.raises(ConfigError, match="rank must be from 0 to 3, not 4"):
            assign(4, 4)


class TestConfirm:
    def test_what_is_known_only_now_holds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        alone = assign("auto", "auto")
        assert confirm(alone, is_open=False) == alone
        torch(monkeypatch)
        assert confirm(alone, is_open=False).rank == Rank(2, 4)

    def test_what_was_known_holds_where_nothing_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The rank holds in a worker without fork, where torch.distributed is not initialised."""
        torch(monkeypatch)
        known = assign("auto", "auto")
        torch(monkeypatch, initialized=False)
        assert confirm(known, is_open=False).rank == Rank(2, 4)

    def test_two_answers_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        environment(monkeypatch, RANK=0, WORLD_SIZE=2)
        known = assign("auto", "auto")
        torch(monkeypatch)
        with pytest.raises(ConfigError) as caught:
            confirm(known, is_open=False)
        assert "made as rank 0 of 2 (RANK and WORLD_SIZE)" in str(caught.value)
        assert "rank 2 of 4 (torch.distributed)" in str(caught.value)
        assert "give rank= and world_size=" in str(caught.value)

    def test_the_environment_does_not_contradict_torch(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The environment may number machines, and a worker of a rank knows nothing else."""
        torch(monkeypatch)
        known = assign("auto", "auto")
        torch(monkeypatch, initialized=False)
        environment(monkeypatch, RANK=0, WORLD_SIZE=2)
        assert confirm(known, is_open=False) == known
        monkeypatch.delenv("RANK")
        assert confirm(known, is_open=True) == known

    def test_a_stream_that_is_open_changes_no_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        alone = assign("auto", "auto")
        torch(monkeypatch)
        with pytest.raises(ConfigError, match=r"opened as rank 0 of 1 \(no launcher found\)"):
            confirm(alone, is_open=True)

    def test_what_is_given_is_not_looked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given = assign(0, 1)
        torch(monkeypatch)
        assert confirm(given, is_open=True) == given


def test_it_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environment(monkeypatch, RANK=1, WORLD_SIZE=2)
    with caplog.at_level(logging.INFO, "streamrec"):
        log_assignment(log_assignment(assign("auto", "auto")))
        log_assignment(assign(1, 2))
    assert caplog.messages == ["rank 1 of 2 (RANK and WORLD_SIZE)"]


def test_other_processes_without_a_rank_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SM_HOSTS", '["algo-1", "algo-2"]')
    log_assignment(assign(0, 1))
    assert not caplog.messages
    log_assignment(assign("auto", "auto"))
    (message,) = caplog.messages
    assert message.startswith("SM_HOSTS tells of other processes, and nothing tells the rank of ")


class TestOfAStream:
    @pytest.fixture
    def stream(self, tmp_path: Path) -> Any:
        source = write(tmp_path / "raw", ((40,) * 4, (30,) * 4))

        def open_stream() -> sr.Stream:
            return sr.open(source, batch_size=2, lanes=2, epochs=None, engine="thread")

        return open_stream

    def rank(self, stream: sr.Stream) -> tuple[int, int]:
        with stream:
            summary = handle.of(stream).summary()
        return summary.rank, summary.world_size

    def test_it_is_known_where_the_stream_is_made(
        self, stream: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The rank travels to a worker in which nothing is known."""
        torch(monkeypatch, rank=1, world_size=2)
        pickled = pickle.dumps(stream())
        torch(monkeypatch, initialized=False)
        assert self.rank(pickle.loads(pickled)) == (1, 2)

    def test_a_process_that_learns_its_rank_later_has_it(
        self, stream: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pickled = pickle.dumps(stream())
        torch(monkeypatch, rank=1, world_size=2)
        assert self.rank(pickle.loads(pickled)) == (1, 2)

    def test_what_was_open_before_is_refused(
        self, stream: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with stream() as alone:
            next(alone)
            torch(monkeypatch, rank=1, world_size=2)
            with pytest.raises(ConfigError, match="opened as rank 0 of 1"):
                iter(alone)

    def test_what_is_wrong_is_told_when_it_is_made(
        self, stream: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        environment(monkeypatch, WORLD_SIZE=2)
        with pytest.raises(ConfigError, match="no RANK"):
            stream()
