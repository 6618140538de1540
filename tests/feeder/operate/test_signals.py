from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from streamrec.config.daemon import DaemonSettings, ServedSettings
from streamrec.config.server_settings import ServerSettings
from streamrec.errors import ConfigError
from streamrec.feeder.access.access import Access
from streamrec.feeder.operate.log_format import RateLimit
from streamrec.feeder.operate.signals import Notifier, dump, dumping, reload, reloading
from streamrec.feeder.server.datasets import ServedDatasets
from streamrec.feeder.server.server import Feeder
from tests.feeder.certificates import Authority, write_secret
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.support import eventually, on_both_loops, server_settings
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from streamrec.config import DatasetSettings


class Manager:
    """A service manager's socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address.replace("@", "\0"))
        self.socket.setblocking(False)

    def told(self) -> list[str]:
        messages: list[str] = []
        while True:
            try:
                messages.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return messages


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    address = f"{tmp_path}/notify" if request.param == "path" else f"@{uuid4()}"
    found = Manager(address)
    with found.socket:
        yield found


def test_the_life_of_a_daemon(manager: Manager) -> None:
    notifier = Notifier.of({"NOTIFY_SOCKET": manager.address})
    notifier.ready()
    notifier.status("serves\n2 clients")
    notifier.status("serves\n2 clients")
    before = time.monotonic_ns() // 1000
    notifier.reloading()
    notifier.stopping()
    ready, status, reloading, stopping = manager.told()
    assert (ready, status, stopping) == ("READY=1", "STATUS=serves 2 clients", "STOPPING=1")
    first, second = reloading.splitlines()
    assert first == "RELOADING=1"
    assert before <= int(second.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000


@asynchronous
async def test_signs_of_life_and_the_state(manager: Manager) -> None:
    variables = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "2000"}
    notifier = Notifier.of({**variables, "WATCHDOG_PID": str(os.getpid())})
    state, told = "opens", list[str]()

    def has_come(*wanted: str) -> Callable[[], bool]:
        def look() -> bool:
            told.extend(manager.told())
            return set(wanted) <= set(told) and told.count("WATCHDOG=1") > 1

        return look

    async with notifier.reporting(lambda: state):
        await eventually(has_come("STATUS=opens"))
        state = "serves"
        await eventually(has_come("STATUS=opens", "STATUS=serves"))


@pytest.mark.parametrize(
    "variables", [{}, {"WATCHDOG_USEC": "2000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}]
)
@asynchronous
async def test_no_watchdog_is_asked_for(variables: dict[str, str], tmp_path: Path) -> None:
    manager = Manager(f"{tmp_path}/notify")
    with manager.socket:
        notifier = Notifier.of({"NOTIFY_SOCKET": manager.address, **variables})
        told: list[str] = []

        def has_come() -> bool:
            told.extend(manager.told())
            return bool(told)

        async with notifier.reporting(lambda: "serves"):
            await eventually(has_come)
        assert told == ["STATUS=serves"]


@pytest.mark.parametrize("variables", [{}, {"NOTIFY_SOCKET": "vsock:2:1"}])
@asynchronous
async def test_nobody_to_tell(variables: dict[str, str]) -> None:
    notifier = Notifier.of(variables)
    notifier.ready()
    async with notifier.reporting(lambda: pytest.fail("asked for nothing")):
        pass


def test_a_manager_that_has_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Notifier(f"{tmp_path}/none").ready()
    assert "cannot tell the service manager READY=1" in caplog.text


SECRET = "swordfish"


async def inner(event: asyncio.Event) -> None:
    await event.wait()


async def outer(event: asyncio.Event, secret: str) -> None:
    del secret
    await inner(event)


@asynccontextmanager
async def waiting(count: int, secret: str = "") -> AsyncIterator[None]:
    """Run tasks that stand at one place."""
    event = asyncio.Event()
    tasks = [asyncio.create_task(outer(event, secret), name=f"t{n}") for n in range(count)]
    await asyncio.sleep(0)
    yield
    event.set()
    await asyncio.gather(*tasks)


@asynchronous
async def test_tasks_are_shown_with_all_that_they_await() -> None:
    async with waiting(7):
        texts = dump(Feeder({}))
    (found,) = (text for text in texts if " outer: " in text)
    title, *places = found.splitlines()
    assert title == "7 tasks (t0, t1, t2, t3, t4, ...) at:"
    assert places[0].endswith("outer: await inner(event)")
    assert places[1].endswith("inner: await event.wait()")
    assert len(places) > 2  # in the event


@asynchronous
async def test_a_task_that_has_not_begun() -> None:
    task = asyncio.create_task(asyncio.sleep(0), name="young")
    assert any("(young)" in text for text in dump(Feeder({})))
    await task


@asynchronous
async def test_threads_and_numbers_are_shown() -> None:
    feeder = Feeder({"train": FakeDataset()})
    feeder.statistics.connections_total += 3
    begun, over = threading.Event(), threading.Event()

    def stand_still() -> None:
        begun.set()
        over.wait()

    thread = threading.Thread(target=stand_still, name="one that waits")
    thread.start()
    try:
        begun.wait()
        state, *others = dump(feeder)
    finally:
        over.set()
        thread.join()
    assert '"connections_opened": 3' in state
    assert '"obstacle": null' in state
    (found,) = (text for text in others if text.startswith("thread one that waits at:"))
    assert "stand_still: over.wait()" in found


@asynchronous
async def test_no_values_are_shown() -> None:
    feeder = Feeder({}, server_settings(token=SECRET))
    async with waiting(1, SECRET):
        assert SECRET not in "".join(dump(feeder))


@on_both_loops
async def test_a_signal_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with dumping(Feeder({})):
        os.kill(os.getpid(), signal.SIGUSR1)
        await eventually(lambda: "thread MainThread" in caplog.text)
    limit = RateLimit(most=0)
    assert all(limit.filter(record) for record in caplog.records)


def settings(
    *datasets: str, size: int = 8, own: dict[str, list[str]] | None = None, **server: Any
) -> DaemonSettings:
    made = {
        name: ServedSettings(source=name, batch_size=size, tokens=(own or {}).get(name, []))
        for name in datasets or ("train",)
    }
    return DaemonSettings(server=ServerSettings(**server), datasets=made)


async def opener(_: DatasetSettings) -> FakeDataset:
    return FakeDataset()


def access_of(start: DaemonSettings) -> Access:
    return Access(start.server, {name: one.tokens for name, one in start.datasets.items()})


@asynccontextmanager
async def running(start: DaemonSettings) -> AsyncIterator[tuple[Feeder, ServedDatasets]]:
    async with (
        ServedDatasets(start.datasets, opener) as datasets,
        Feeder({**datasets}, start.server, access=access_of(start)) as feeder,
    ):
        await datasets.wait_until_tried()
        yield feeder, datasets


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    """Gives the loggers' levels back."""
    loggers = [logging.getLogger(name) for name in ("", "streamrec")]
    before = [logger.level for logger in loggers]
    yield
    for logger, its_level in zip(loggers, before, strict=True):
        logger.setLevel(its_level)


@asynchronous
async def test_nothing_has_changed() -> None:
    async with running(settings()) as (feeder, datasets):
        assert await reload(feeder, datasets, settings()) == ["nothing has changed"]


@asynchronous
async def test_a_dataset_is_added_while_serving() -> None:
    async with running(settings()) as (feeder, datasets):
        done = await reload(feeder, datasets, settings("train", "more"))
        assert done == ["the dataset 'more' is added, and being opened"]
        added = await feeder.dataset("more")
        assert await reload(feeder, datasets, settings("train", "more")) == ["nothing has changed"]
    assert isinstance(added, FakeDataset)
    assert added.closed


@asynchronous
async def test_what_needs_a_restart_is_named_and_stays() -> None:
    async with running(settings("train", "old", grace=1)) as (feeder, datasets):
        old = await feeder.dataset("old")
        done = await reload(feeder, datasets, settings("train", size=9, grace=2, idle_timeout=3))
        assert done == [
            "server.grace has changed, which needs a restart",
            "server.idle_timeout has changed, which needs a restart",
            "the dataset 'train' has changed, which needs a restart",
            "the dataset 'old' is no longer in the file; it is served until a restart",
        ]
        assert feeder.settings.grace == 1
        assert await feeder.dataset("old") is old


@asynchronous
async def test_the_token_and_the_log_level() -> None:
    async with running(settings(token="old")) as (feeder, datasets):
        done = await reload(feeder, datasets, settings(token="new", log_level="error"))
        assert done == ["the log level is error", "the tokens have changed, for new clients"]
        assert feeder.settings.token is not None
        assert feeder.settings.token.get_secret_value() == "new"
        assert logging.getLogger("streamrec").level == logging.ERROR
        assert await reload(feeder, datasets, settings(log_level="error")) == [
            "the tokens have changed, for new clients"
        ]
        assert feeder.settings.token is None


@asynchronous
async def test_no_token_crosses_the_network_where_the_feeder_still_listens() -> None:
    exposed = settings(listen=["tcp://0.0.0.0:0"], insecure=True)
    async with running(exposed) as (feeder, datasets):
        listening, token = await reload(feeder, datasets, settings(token="new", insecure=True))
        assert listening == "server.listen has changed, which needs a restart"
        assert token.startswith("certificates and tokens stay as they were: tcp://0.0.0.0:0")
        assert feeder.settings.token is None


@asynchronous
async def test_certificates_and_tokens(tmp_path: Path) -> None:
    authority, old, new = Authority(tmp_path), "a" * 16, "b" * 16
    first: dict[str, Any] = {
        "tls": authority.server(),
        "tokens": [write_secret(tmp_path / "all", old)],
    }
    own = {"train": [write_secret(tmp_path / "own", old)]}
    async with running(settings(**first)) as (feeder, datasets):
        feeder.access = Access(feeder.settings)
        assert await reload(feeder, datasets, settings(**first)) == ["nothing has changed"]
        done = await reload(feeder, datasets, settings(own=own, **first))
        assert done == ["the tokens have changed, for new clients"]
        assert feeder.access.tokens.grant(old).own == {"train": True}
        authority.server()
        write_secret(tmp_path / "all", new)
        assert await reload(feeder, datasets, settings(own=own, **first)) == [
            "the tokens have changed, for new clients",
            "the certificates have changed, for new clients",
        ]
        assert feeder.access.tokens.grant(new).opens("any")
        before = feeder.access
        write_secret(tmp_path / "all", "")
        (sentence,) = await reload(feeder, datasets, settings(own=own, **first))
        assert sentence.startswith("certificates and tokens stay as they were: server.tokens: ")
        assert feeder.access is before


@asynchronous
async def test_a_dataset_that_has_left_the_file_keeps_its_tokens(tmp_path: Path) -> None:
    own = {"private": [write_secret(tmp_path / "own", "a" * 16)]}
    async with running(settings("train", "private", own=own)) as (feeder, datasets):
        (sentence,) = await reload(feeder, datasets, settings("train"))
        assert sentence == (
            "the dataset 'private' is no longer in the file; it is served until a restart"
        )
        assert not feeder.access.tokens.grant("").opens("private")
        assert feeder.access.tokens.grant("a" * 16).opens("private")


@asynchronous
async def test_a_dataset_is_not_added_without_its_tokens(tmp_path: Path) -> None:
    path = tmp_path / "own"
    more = settings("train", "private", own={"private": [str(path)]})
    async with running(settings("train")) as (feeder, datasets):
        access, dataset = await reload(feeder, datasets, more)
        assert access.startswith("certificates and tokens stay as they were: ")
        assert dataset == "the dataset 'private' is not added, because its tokens were refused"
        assert feeder.datasets.keys() == datasets.keys() == {"train"}
        write_secret(path, "a" * 16)
        assert await reload(feeder, datasets, more) == [
            "the tokens have changed, for new clients",
            "the dataset 'private' is added, and being opened",
        ]
        assert not feeder.access.tokens.grant("").opens("private")


@asynchronous
async def test_a_feeder_that_drains_takes_over_nothing() -> None:
    async with running(settings()) as (feeder, datasets):
        await feeder.drain(0)
        done = await reload(feeder, datasets, settings("train", "more"))
        assert done == ["the feeder is draining, so it reloads nothing"]
        assert "more" not in datasets


class Told(Notifier):
    """A notifier that keeps what it would say."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def _send(self, *lines: str) -> None:
        self.said.append(lines[0])


def failing(error: Exception) -> Callable[[], DaemonSettings]:
    def load() -> DaemonSettings:
        raise error

    return load


@on_both_loops
async def test_a_signal_reloads_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    notifier, new = Told(), [settings("train", "more"), settings("train", "more", "most")]
    async with (
        running(settings()) as (feeder, datasets),
        reloading(lambda: new.pop(0), feeder, datasets, notifier),
    ):
        for name in ("more", "most"):
            os.kill(os.getpid(), signal.SIGHUP)
            sentence = f"reload: the dataset '{name}' is added"
            await eventually(lambda sentence=sentence: sentence in caplog.text)  # type: ignore[misc]
    assert notifier.said == ["RELOADING=1", "READY=1"] * 2


@pytest.mark.parametrize("error", [ConfigError("a.toml: it is wrong"), ValueError("a bug")])
@on_both_loops
async def test_a_wrong_file_changes_nothing(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    notifier, start = Told(), settings()
    async with (
        running(start) as (feeder, datasets),
        reloading(failing(error), feeder, datasets, notifier),
    ):
        os.kill(os.getpid(), signal.SIGHUP)
        await eventually(lambda: notifier.said == ["RELOADING=1", "READY=1"])
        assert feeder.settings is start.server
        assert list(datasets) == ["train"]
    assert "nothing was reloaded" in caplog.text
    assert str(error) in caplog.text


@on_both_loops
async def test_nothing_is_left_behind() -> None:
    async with running(settings()) as (feeder, datasets):
        async with reloading(failing(ValueError()), feeder, datasets, Notifier()):
            await asyncio.sleep(0)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
