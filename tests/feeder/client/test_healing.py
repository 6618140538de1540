"""Feeds that heal, in plain code and in the loop of a thread: both look the same from outside."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from contextlib import ExitStack, aclosing, closing
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest

from streamrec.errors import (
    ConfigError,
    CorruptRecord,
    FeederDraining,
    FeederLost,
    FeederRefused,
    OtherDataset,
    OtherOrder,
    RemoteProtocolError,
    Stalled,
    StoreUnavailable,
)
from streamrec.feeder.access.access import Access, Certificates
from streamrec.feeder.client import failover, healing
from streamrec.feeder.client.client import BlockingFeed
from streamrec.feeder.client.healing import AsyncHealingFeed, BlockingHealingFeed
from streamrec.flow.channel import EndOfStream
from streamrec.pipeline.dataset import Dataset
from streamrec.streams.session import ThreadFeed
from tests.feeder import fake_dataset
from tests.feeder.certificates import Authority
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.proxy import Proxy
from tests.feeder.support import PATIENCE, ServedFeeder, eventually, served, server_settings, until
from tests.pipeline.small_datasets import settings_of, write
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Open = Any
"""One of the two classes."""
KINDS = [
    pytest.param(BlockingHealingFeed, id="plain"),
    pytest.param(ThreadFeed, id="asyncio"),
]
both = pytest.mark.parametrize("opened", KINDS)
NOWHERE = "127.0.0.1:1"


class Fleet:
    """Feeders behind one address."""

    def __init__(self, count: int, stack: ExitStack) -> None:
        self.datasets = [FakeDataset(steps=12) for _ in range(count)]
        self.feeders: list[ServedFeeder] = []
        self.places: list[str] = []
        for dataset in self.datasets:
            feeder = stack.enter_context(served({"train": dataset}))
            self.feeders.append(feeder)
            self.places.append(feeder.listen("tcp://127.0.0.1:0").removeprefix("tcp://"))

    @property
    def address(self) -> str:
        return f"tcp://{','.join(self.places)}/train"

    def end(self, number: int) -> None:
        """Cut all connections of a feeder at once, as if it were killed."""
        self.feeders[number].call(self.feeders[number].feeder.aclose())

    @property
    def users(self) -> list[int]:
        """The number of clients at each feeder."""
        return [feeder.feeder.admission.clients for feeder in self.feeders]


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(2, stack)


def steps(feed: Any, count: int) -> list[int]:
    return [feed.receive().next_position.step for _ in range(count)]


def rest(feed: Any) -> list[int]:
    """The steps until the end of the run."""
    found = []
    with contextlib.suppress(EndOfStream):
        while True:
            found.append(feed.receive().next_position.step)
    return found


@both
@pytest.mark.parametrize("at", [0, 1, 5])
def test_goes_on_behind_the_last_batch_where_a_feeder_is_cut(
    opened: Open, at: int, fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.datasets[0].hang_at = at
    with caplog.at_level(logging.INFO, "streamrec.connect"):
        with closing(opened(fleet.address)) as feed:
            assert feed.fingerprint == fake_dataset.fingerprint()
            assert steps(feed, at) == list(range(1, at + 1))
            assert feed.position == (fake_dataset.position(at).to_dict() if at else None)
            fleet.end(0)
            assert rest(feed) == list(range(at + 1, 13))
            assert feed.statistics()["reconnections"] == 1
            assert feed.position == fake_dataset.position(12).to_dict()
            assert fleet.users == [0, 1]
            feed.subscribe()
            assert feed.receive().next_position.step == 13
    assert f"rank 0 connects again, after step {at}: " in caplog.text
    assert "goes on after 1 failures" in caplog.text


@both
def test_moves_at_the_next_batch_where_a_feeder_drains(opened: Open, fleet: Fleet) -> None:
    fleet.datasets[0].hang_at = 6
    with closing(opened(fleet.address)) as feed:
        assert steps(feed, 3) == [1, 2, 3]
        feeder = fleet.feeders[0]
        draining = asyncio.run_coroutine_threadsafe(feeder.feeder.drain(PATIENCE), feeder.loop)
        assert rest(feed) == list(range(4, 13))
        draining.result(PATIENCE)
        assert fleet.users == [0, 1]


@both
def test_ranks_share_the_feeders(opened: Open, fleet: Fleet) -> None:
    with ExitStack() as stack:
        for rank in range(4):
            stack.enter_context(closing(opened(fleet.address, rank=rank, world_size=4)))
        assert fleet.users == [2, 2]


@both
def test_moves_to_a_feeder_that_is_added(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 of a fleet of one reads on at the second feeder, once the name stands for both."""
    monkeypatch.setattr(failover, "LOOK_EVERY", 0.0)
    machines, asked = ["127.0.0.1"], socket.getaddrinfo

    def answer(host: Any, port: Any, *more: Any, **options: Any) -> Any:
        if host != "feeders.test":
            return asked(host, port, *more, **options)
        return [one for ip in machines for one in asked(ip, port, type=socket.SOCK_STREAM)]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(served({"train": FakeDataset(steps=10**6)})) for _ in range(2)
        )
        port = one.listen("tcp://127.0.0.1:0").rpartition(":")[2]
        two.listen(f"tcp://127.0.0.2:{port}")
        order = sorted(["127.0.0.1", "127.0.0.2"], key=lambda ip: crc32(f"train {ip}".encode()))
        address, rank = f"tcp://feeders.test:{port}/train", order.index("127.0.0.2")
        with closing(opened(address, rank=rank, world_size=2)) as feed:
            assert steps(feed, 3) == [1, 2, 3]
            assert one.feeder.admission.clients == 1
            machines.append("127.0.0.2")
            step = 3
            while not two.feeder.admission.clients:
                step += 1
                assert feed.receive().next_position.step == step
            assert steps(feed, 3) == [step + 1, step + 2, step + 3]
            assert feed.statistics()["reconnections"] == 1


@both
def test_reads_from_afar_only_while_no_near_feeder_answers(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healing, "STAY_AFAR", 0.0)
    with ExitStack() as stack:
        near, far = (
            stack.enter_context(served({"train": FakeDataset(steps=10**6)})) for _ in range(2)
        )
        away = far.listen("tcp://127.0.0.1:0").removeprefix("tcp://")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        address = f"tcp://127.0.0.1:{port};{away}/train"
        with closing(opened(address)) as feed:
            assert steps(feed, 1) == [1]
            assert far.feeder.admission.clients == 1
            assert feed.statistics()["far_bytes"] > 0
            near.listen(f"tcp://127.0.0.1:{port}")
            step = 1
            while not near.feeder.admission.clients:
                step += 1
                assert feed.receive().next_position.step == step
            received = feed.statistics()["far_bytes"]
            assert steps(feed, 2) == [step + 1, step + 2]
            assert feed.statistics()["far_bytes"] == received


@both
def test_waits_for_a_feeder_that_is_started_again(opened: Open) -> None:
    with Proxy() as proxy, ExitStack() as stack:
        first = Fleet(1, stack)
        first.datasets[0].hang_at = 4
        proxy.upstream = int(first.places[0].rpartition(":")[2])
        with closing(opened(f"tcp://127.0.0.1:{proxy.port}/train")) as feed:
            assert steps(feed, 2) == [1, 2]
            second = Fleet(1, stack)
            proxy.upstream = 1
            accepted = proxy.accepted
            proxy.cut()

            def restart() -> None:
                until(lambda: proxy.accepted >= accepted + 3)
                proxy.upstream = int(second.places[0].rpartition(":")[2])

            thread = threading.Thread(target=restart)
            thread.start()
            assert rest(feed)[-1] == 12
            thread.join()
            assert feed.statistics()["reconnections"] == 1


@both
def test_goes_past_a_feeder_that_does_not_answer(opened: Open, fleet: Fleet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_place = f"127.0.0.1:{silent.getsockname()[1]}"
        address = f"tcp://{silent_place},{NOWHERE},{fleet.places[0]}/train"
        with closing(opened(address, connect_timeout=0.05)) as feed:
            assert rest(feed) == list(range(1, 13))


@both
def test_a_frozen_connection_is_lost(
    opened: Open, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healing, "PATIENCE", 0.2)
    fleet.datasets[0].hang_at = 4
    with Proxy(int(fleet.places[0].rpartition(":")[2])) as proxy:
        address = f"tcp://127.0.0.1:{proxy.port},{fleet.places[1]}/train"
        with closing(opened(address)) as feed:
            assert steps(feed, 4) == [1, 2, 3, 4]
            proxy.freeze()
            assert rest(feed) == list(range(5, 13))


@both
def test_bytes_that_change_on_the_way_are_asked_for_again(opened: Open) -> None:
    with ExitStack() as stack:
        fleet = Fleet(1, stack)
        fleet.datasets[0].size = 20_000
        proxy = stack.enter_context(Proxy(int(fleet.places[0].rpartition(":")[2])))
        feed = stack.enter_context(closing(_at(opened, proxy)))
        assert rest(feed) == list(range(1, 13))
        proxy.flips = True
        feed.subscribe()
        assert rest(feed) == list(range(13, 25))
        assert feed.statistics()["reconnections"] == 1


@both
def test_a_feeder_that_stalls_is_left_where_there_is_another(opened: Open, fleet: Fleet) -> None:
    fleet.datasets[0].hang_at = 3
    with closing(opened(fleet.address, stall_timeout=0.1)) as feed:
        assert rest(feed) == list(range(1, 13))


@both
@pytest.mark.parametrize("error", [FeederDraining("it is full"), StoreUnavailable("it is down")])
def test_what_a_feeder_lacks_for_a_while(opened: Open, error: Exception, fleet: Fleet) -> None:
    fleet.datasets[0].fail_at = 2
    fleet.datasets[0].error = error
    with closing(opened(fleet.address)) as feed:
        assert rest(feed) == list(range(1, 13))


PAGE = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 11\r\n\r\nBad Gateway, and some more words"


@both
@pytest.mark.parametrize("fault", [{"flips_hello": True}, {"page": PAGE}], ids=["flip", "page"])
def test_a_handshake_that_fails_is_tried_again_where_a_feeder_has_been(
    opened: Open, fault: dict[str, Any], fleet: Fleet
) -> None:
    fleet.datasets[0].hang_at = 4
    port = int(fleet.places[0].rpartition(":")[2])
    with Proxy(port) as proxy, closing(_at(opened, proxy)) as feed:
        assert steps(feed, 4) == [1, 2, 3, 4]
        ((name, value),) = fault.items()
        setattr(proxy, name, value)
        proxy.cut()
        # Behind the cut: else the rest could come before it.
        fleet.datasets[0].hang_at = 100
        assert rest(feed) == list(range(5, 13))
        assert not getattr(proxy, name)
        assert proxy.accepted == 3


@both
@pytest.mark.parametrize("fault", ["flips", "flips_hello"])
def test_a_bit_that_flips_in_the_first_handshake_heals(
    opened: Open, fault: str, fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "streamrec.connect")
    with Proxy(int(fleet.places[0].rpartition(":")[2])) as proxy:
        setattr(proxy, fault, True)
        with closing(_at(opened, proxy)) as feed:
            assert rest(feed) == list(range(1, 13))
        assert not getattr(proxy, fault)
        assert proxy.accepted == 2
    assert "rank 0 cannot connect yet, and tries again: " in caplog.text
    assert "connects again" not in caplog.text, "it was not connected before"


class OtherwiseSet(FakeDataset):
    """A dataset whose fingerprint, or the ends of whose runs, are not those of the others."""

    def __init__(self, **differing: Any) -> None:
        super().__init__(steps=12)
        self._differing = differing
        if "epochs" in differing:
            changed = {"epochs": differing.pop("epochs")}
            self.settings = self.settings.model_copy(update=changed)

    def fingerprint(self, batch_size: int | None, world_size: int, *, rank: int = 0) -> Any:
        values = {"global_batch": batch_size * world_size if batch_size else None}
        return fake_dataset.fingerprint(**{**values, **self._differing})


@both
@pytest.mark.parametrize(
    ("differing", "error", "words"),
    [
        ({"seed": 5}, OtherOrder, "seed was 0 and is 5"),
        ({"names": "others"}, OtherDataset, "their names differ"),
        ({"epochs": 7}, OtherOrder, "epochs was 1 and is 7"),
    ],
)
@pytest.mark.parametrize("taken", [0, 2])
def test_another_stream_is_refused_with_what_differs(
    opened: Open,
    taken: int,
    differing: dict[str, Any],
    error: type[Exception],
    words: str,
    fleet: Fleet,
) -> None:
    fleet.datasets[0].hang_at = taken
    fleet.feeders[1].feeder.datasets["train"] = OtherwiseSet(**differing)
    with closing(opened(fleet.address, retry_for=0.01)) as feed:
        steps(feed, taken)
        fleet.end(0)
        for _ in range(2):
            with pytest.raises(error, match=f"tcp://{fleet.places[1]}/train: .*{words}"):
                feed.receive()
        assert feed.position == (fake_dataset.position(taken).to_dict() if taken else None)


@both
def test_behind_a_feeder_of_another_stream_the_next_is_tried(opened: Open) -> None:
    with ExitStack() as stack:
        fleet = Fleet(3, stack)
        fleet.datasets[0].hang_at = 2
        fleet.feeders[1].feeder.datasets["train"] = OtherwiseSet(seed=5)
        with closing(opened(fleet.address)) as feed:
            assert steps(feed, 2) == [1, 2]
            fleet.end(0)
            assert rest(feed) == list(range(3, 13))
        assert fleet.feeders[1].feeder.statistics.connections_total == 1


@pytest.mark.parametrize("is_refused", [False, True])
def test_the_connection_of_a_feed_that_is_given_up_is_closed(
    is_refused: bool, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds: list[BlockingFeed] = []

    def opened(*arguments: Any, **options: Any) -> BlockingFeed:
        feeds.append(open_feed(*arguments, **options))
        return feeds[-1]

    open_feed = BlockingFeed.open
    monkeypatch.setattr(BlockingFeed, "open", opened)
    fleet.datasets[0].hang_at = 2
    if is_refused:
        fleet.feeders[1].feeder.datasets["train"] = OtherwiseSet(epochs=7)
    with closing(BlockingHealingFeed(fleet.address, retry_for=0.01)) as feed:
        assert steps(feed, 2) == [1, 2]
        fleet.end(0)
        with pytest.raises(OtherOrder) if is_refused else contextlib.nullcontext():
            feed.receive()
        open_sockets = [one._connection._socket.fileno() >= 0 for one in feeds]
    # A busy machine may let the address that is up be tried once more.
    assert not any(open_sockets[:-1])
    assert open_sockets[-1] is not is_refused


@both
def test_refusals_are_final_at_once(opened: Open, fleet: Fleet) -> None:
    fleet.feeders[0].feeder.datasets["other"] = fleet.feeders[0].feeder.datasets.pop("train")
    with pytest.raises(FeederRefused, match="there is no dataset 'train' here; there are: other"):
        opened(fleet.address)
    assert fleet.feeders[1].feeder.statistics.connections_total == 0


@both
def test_errors_of_the_data_are_final(opened: Open, fleet: Fleet) -> None:
    fleet.datasets[0].fail_at = 1
    fleet.datasets[0].error = CorruptRecord("the CRC is wrong", url="s3://b/a")
    with closing(opened(fleet.address)) as feed:
        feed.receive()
        for _ in range(2):
            with pytest.raises(CorruptRecord, match="the CRC is wrong"):
                feed.receive()
    assert fleet.feeders[1].feeder.statistics.connections_total == 0


@both
@pytest.mark.parametrize("position", [None, fake_dataset.position(3)])
def test_after_retry_for_the_error_says_what_was_tried(opened: Open, position: Any) -> None:
    with pytest.raises(FeederLost) as caught:
        opened(f"tcp://{NOWHERE},127.0.0.1:2/train", retry_for=0.2, position=position)
    assert caught.value.position == (position.to_dict() if position else None)
    words = str(caught.value)
    assert "(retry_for is 0.2 s); tried tcp://127.0.0.1:1/train (" in words
    assert "tcp://127.0.0.1:2/train (" in words
    assert "Connection refused" in words


@both
def test_without_retries_a_loss_is_an_error(opened: Open, fleet: Fleet) -> None:
    fleet.datasets[0].hang_at = 2
    with closing(opened(fleet.address, retry_for=0)) as feed:
        steps(feed, 2)
        fleet.end(0)
        for _ in range(2):
            with pytest.raises(FeederLost, match=r"closed by the other side|broke") as caught:
                feed.receive()
            assert caught.value.position == fake_dataset.position(2).to_dict()
        assert "step 2" in repr(feed) if opened is BlockingHealingFeed else True


@both
def test_the_only_feeder_that_stalls_is_an_error(opened: Open, fleet: Fleet) -> None:
    fleet.datasets[0].hang_at = 0
    address = f"tcp://{fleet.places[0]}/train"
    # It may stall before the feed is there, too, on a busy machine.
    with pytest.raises(Stalled), closing(opened(address, stall_timeout=0.05)) as feed:
        feed.receive()


@both
def test_whoever_is_no_feeder_is_an_error(opened: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as sock:
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                sock.recv(1000)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(RemoteProtocolError, match="is this the address of a streamrec feeder"):
            opened(f"tcp://127.0.0.1:{listener.getsockname()[1]}/train")
        thread.join()


@both
def test_a_token_is_read_again_for_each_connection(opened: Open, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    with ExitStack() as stack:
        fleet = Fleet(2, stack)
        for feeder, token in zip(fleet.feeders, ("first", "second"), strict=True):
            feeder.feeder.access = Access(server_settings(token=token))
        fleet.datasets[0].hang_at = 3
        with closing(opened(fleet.address, token=f"file:{file}")) as feed:
            assert steps(feed, 3) == [1, 2, 3]
            file.write_text("second")
            fleet.end(0)
            assert rest(feed) == list(range(4, 13))
    file.unlink()
    with pytest.raises(ConfigError, match="token cannot be read"):
        opened(fleet.address, token=f"file:{file}")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_speaks_tls_and_heals(fleet: Fleet, authority: Authority) -> None:
    server = Certificates(authority.server()).context
    fleet.datasets[0].hang_at = 3
    with ExitStack() as stack:
        ports = [int(place.rpartition(":")[2]) for place in fleet.places]
        proxies = [stack.enter_context(Proxy(port, server)) for port in ports]
        places = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
        files = {"ca": authority.file}
        feed = stack.enter_context(closing(ThreadFeed(f"tls://{places}/train", tls=files)))
        assert steps(feed, 3) == [1, 2, 3]
        proxies[0].cut()
        assert rest(feed) == list(range(4, 13))


@pytest.mark.parametrize(
    ("name", "trusted", "words"),
    [
        ("elsewhere", True, "not to be trusted: IP address mismatch"),
        ("127.0.0.1", False, "not to be trusted: unable to get local issuer certificate"),
        (None, True, "does not speak TLS"),
    ],
)
def test_who_is_not_to_be_trusted_is_refused_at_once(
    name: str | None, trusted: bool, words: str, fleet: Fleet, authority: Authority
) -> None:
    server = Certificates(authority.server(name)).context if name else None
    port = int(fleet.places[0].rpartition(":")[2])
    with Proxy(port, server) as proxy:
        address = f"tls://127.0.0.1:{proxy.port}/train"
        with pytest.raises(FeederRefused, match=f"{address} .*{words}|{address} {words}"):
            ThreadFeed(address, tls={"ca": authority.file} if trusted else {})


@both
def test_an_end_that_was_lost_is_no_new_epoch(opened: Open, tmp_path: Path) -> None:
    """Whoever has taken the last batch and not the end of the run is told the end, elsewhere."""
    source = write(tmp_path, ((10,) * 6,) * 2)
    with served({}) as feeder:
        settings = settings_of(source, batch_size=5, epochs=2)
        dataset = feeder.call(Dataset.open(settings))
        feeder.feeder.datasets["train"] = dataset
        port = int(feeder.listen("tcp://127.0.0.1:0").rpartition(":")[2])
        with Proxy(port) as proxy, closing(_at(opened, proxy)) as feed:
            whole = rest(feed)
        with Proxy(port) as proxy, closing(_at(opened, proxy)) as feed:
            assert steps(feed, len(whole)) == whole
            feed_inside = getattr(feed, "_session", feed)
            feed_inside._feed._connection._inbox.clear()
            proxy.cut()
            assert rest(feed) == []
            feed.subscribe()
            assert feed.receive().next_position.step == len(whole) + 1
        feeder.call(feeder.feeder.aclose())
        feeder.call(dataset.aclose())


def _at(opened: Open, proxy: Proxy) -> Any:
    return opened(f"tcp://127.0.0.1:{proxy.port}/train")


@asynchronous
async def test_a_cancelled_receive_does_not_begin_to_connect_anew() -> None:
    """As `asyncio.wait_for` cancels it, again and again."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        fleet = Fleet(1, stack)
        fleet.datasets[0].hang_at = 2
        silent = f"127.0.0.1:{listener.getsockname()[1]}"
        address = f"tcp://{fleet.places[0]},{silent}/train"
        async with aclosing(await AsyncHealingFeed.open(address)) as feed:
            for _ in range(2):
                await feed.receive()
            await asyncio.to_thread(fleet.end, 0)
            begun: Callable[[], bool] = lambda: feed._connecting is not None  # noqa: E731
            receiving = asyncio.create_task(feed.receive())
            await eventually(begun)
            connecting = feed._connecting
            for _ in range(3):
                receiving.cancel()
                await asyncio.wait([receiving])
                receiving = asyncio.create_task(feed.receive())
                await asyncio.sleep(0)
                assert feed._connecting is connecting
            receiving.cancel()
            await asyncio.wait([receiving])


@asynchronous
async def test_closing_cancels_the_attempt_to_connect() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}/train"
        opening = asyncio.create_task(AsyncHealingFeed.open(address))
        await eventually(lambda: len(asyncio.all_tasks()) > 2)
        opening.cancel()
        await asyncio.wait([opening])
        assert opening.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}
