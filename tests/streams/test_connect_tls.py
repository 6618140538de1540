"""A plain loop over a feeder that speaks TLS."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import ConfigError, FeederRefused
from tests.feeder.certificates import Authority, write_secret
from tests.feeder.fake_dataset import ROWS, FakeDataset
from tests.feeder.support import served, server_settings, until
from tests.support import asynchronous, open_fds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKEN = "t" * 16


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def address(authority: Authority, tmp_path: Path) -> Iterator[str]:
    tokens = [write_secret(tmp_path / "tokens", TOKEN)]
    settings = server_settings(tls=authority.server(asks=True), tokens=tokens)
    with served({"train": FakeDataset(steps=3)}, settings=settings) as feeder:
        yield f"{feeder.listen('tls://127.0.0.1:0')}/train"


@pytest.fixture
def arguments(authority: Authority, tmp_path: Path) -> dict[str, Any]:
    tls = {"ca": Path(authority.file), **authority.pair("client")}
    token = f"file:{write_secret(tmp_path / 'mine', TOKEN)}"
    return {"rank": 0, "world_size": 1, "tls": tls, "token": token}


@pytest.mark.parametrize("engine", ["thread", None])
def test_a_loop(
    address: str,
    arguments: dict[str, Any],
    engine: Any,
    started_threads: Callable[[], set[str]],
) -> None:
    before = open_fds()
    with sr.connect(address, engine=engine, **arguments) as stream:
        for epoch in range(2):
            numbers = [int(n) for batch in stream for n in batch["number"]]
            first = epoch * 3 * ROWS
            assert numbers == list(range(first, first + 3 * ROWS))
        state = stream.state_dict()
        assert state["step"] == 6
    assert "streamrec-bridge" not in started_threads()
    until(lambda: open_fds() <= before)
    if engine:
        with sr.connect(address, engine=engine, **arguments) as again:
            again.load_state_dict(state)
            assert int(next(iter(again))["number"][0]) == 6 * ROWS


@asynchronous
async def test_an_asynchronous_loop(address: str, arguments: dict[str, Any]) -> None:
    async with sr.connect(address, **arguments) as stream:
        assert len([batch async for batch in stream]) == 3


def test_refusals(address: str, arguments: dict[str, Any], authority: Authority) -> None:
    for change, code in (
        ({"token": "wrong"}, "token"),
        ({"tls": authority.file}, "certificate"),
        ({"tls": True}, "certificate"),
    ):
        with pytest.raises(FeederRefused) as caught:
            next(iter(sr.connect(address, engine="thread", **arguments | change)))
        assert caught.value.code == code
    with pytest.raises(ConfigError, match=r"tls: .*none holds no certificate"):
        next(iter(sr.connect(address, engine="thread", **arguments | {"tls": "none"})))


def test_arguments_are_checked_at_once(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="write tls:// in the address"):
        sr.connect("tcp://feeder:7070/train", **arguments)
    with pytest.raises(ConfigError, match="tls must be True"):
        sr.connect("tls://feeder:7070/train", **arguments | {"tls": {"certs": "a"}})
