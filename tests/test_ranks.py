from __future__ import annotations

import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest

from streamrec.errors import ConfigError
from streamrec.ranks import Rank, resolve


@pytest.fixture(autouse=True)
def _nothing_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("torch.distributed", "jax"):
        monkeypatch.setitem(sys.modules, name, None)


def fake(monkeypatch: pytest.MonkeyPatch, name: str, **members: object) -> None:
    module = ModuleType(name)
    module.__dict__.update(members)
    monkeypatch.setitem(sys.modules, name, module)


def torch(monkeypatch: pytest.MonkeyPatch, initialized: bool) -> None:
    fake(
        monkeypatch,
        "torch.distributed",
        is_available=lambda: True,
        is_initialized=lambda: initialized,
        get_rank=lambda: 2,
        get_world_size=lambda: 4,
    )


def test_one_rank_where_nothing_is_known() -> None:
    assert resolve("auto", "auto") == Rank(0, 1)


def test_as_given() -> None:
    assert resolve(3, 8) == Rank(3, 8)


def test_the_environment(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with caplog.at_level(logging.INFO, "streamrec"):
        assert resolve("auto", "auto") == Rank(1, 2)
    assert "rank 1 of 2 (RANK and WORLD_SIZE)" in caplog.text


def test_a_broken_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "one")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="RANK='one'"):
        resolve("auto", "auto")


def test_torch_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "9")
    torch(monkeypatch, initialized=True)
    assert resolve("auto", "auto") == Rank(2, 4)
    torch(monkeypatch, initialized=False)
    assert resolve("auto", "auto") == Rank(0, 9)


@pytest.mark.parametrize(("initialized", "expected"), [(True, Rank(1, 3)), (False, Rank(0, 1))])
def test_jax(monkeypatch: pytest.MonkeyPatch, initialized: bool, expected: Rank) -> None:
    fake(
        monkeypatch,
        "jax",
        distributed=SimpleNamespace(is_initialized=lambda: initialized),
        process_index=lambda: 1,
        process_count=lambda: 3,
    )
    assert resolve("auto", "auto") == expected


def test_half_an_answer_is_refused() -> None:
    with pytest.raises(ConfigError, match="both"):
        resolve(1, "auto")
    with pytest.raises(ConfigError, match="rank 4 is not one of 0 to 3"):
        resolve(4, 4)
