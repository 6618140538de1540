"""Who is let in, and who may read, over real connections: both ends, both event loops."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from contextlib import aclosing, asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.config import DatasetSettings
from streamrec.errors import (
    ConfigError,
    CorruptRecord,
    FeederDraining,
    FeederLost,
    FeederRefused,
    ObjectNotFound,
    OtherDataset,
    StreamrecError,
)
from streamrec.feeder.access.access import LOOK_EVERY, Access, client_context
from streamrec.feeder.access.address import Address
from streamrec.feeder.client.client import AsyncFeed, BlockingFeed
from streamrec.feeder.client.connection import AsyncConnection
from streamrec.feeder.server import arrival
from streamrec.feeder.server.server import Feeder
from streamrec.flow.channel import EndOfStream
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.state.position import VERSION
from streamrec.wire.messages import (
    BatchMessage,
    Credit,
    Fault,
    Hello,
    Message,
    Statistics,
    Subscribe,
    Welcome,
)
from streamrec.wire.protocol import Connection, Role, State
from tests.feeder import fake_dataset
from tests.feeder.certificates import EXPIRED, Authority, write_secret
from tests.feeder.fake_dataset import ROWS, FakeDataset
from tests.feeder.shards import write_shards
from tests.feeder.support import eventually, hello, on_both_loops, server_settings
from tests.feeder.support import served as serving
from tests.pipeline.fetch.test_inflating_queue import dataset_of, shard
from tests.pipeline.scripted_store import ScriptedStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


HERE = "tcp://127.0.0.1:0"
EXPECTED = [b"%d:%d" % (shard, record) for record in range(10) for shard in range(4)]


@on_both_loops
async def test_counters_come_before_the_end_and_before_a_fault() -> None:
    dataset = FakeDataset(steps=3, fail_at=4, error=CorruptRecord("the CRC differs"))
    dataset.counts = True
    async with Feeder({"train": dataset}) as feeder:
        address = f"{await feeder.listen(HERE)}/train"
        async with aclosing(await AsyncFeed.open(address)) as feed:
            assert feed.statistics() == {}
            for expected in (3, 4):
                with pytest.raises((EndOfStream, CorruptRecord)):
                    while True:
                        await feed.receive()
                assert feed.statistics() == {"requests": expected, "reason": "the start"}
                if expected == 3:
                    feed.subscribe()


@on_both_loops
async def test_welcome_describes_the_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Feeder({"train": FakeDataset()}) as feeder:
        address = f"{await feeder.listen(HERE)}/train"
        async with aclosing(await AsyncFeed.open(address)) as feed:
            assert feed.settings == {
                "batch_size": ROWS,
                "lanes": 4,
                "shard_count": 2,
                "shards": ["memory://double/a", "memory://double/b"],
                "features": None,
                "epochs": 1,
                "steps_per_epoch": None,
                "remainder": None,
                "contents": {
                    "rename": None,
                    "length_buckets": None,
                    "check_crc": True,
                    "on_corrupt": "raise",
                    "filter": None,
                    "map": None,
                    "transform": None,
                    "pack": None,
                    "window": None,
                    "balance": None,
                },
                "length": None,
                "surplus": None,
            }
        most = 2 * (len('"memory://double/a"') + len(", "))
        monkeypatch.setattr(arrival, "MOST_NAMES", most)
        async with aclosing(await AsyncFeed.open(address)) as feed:
            assert feed.settings["shards"] == ["memory://double/a", "memory://double/b"]
        monkeypatch.setattr(arrival, "MOST_NAMES", most - 1)
        async with aclosing(await AsyncFeed.open(address, batch_size=3)) as feed:
            assert feed.settings["shards"] is None
            assert feed.settings["batch_size"] == 3
            assert feed.fingerprint.global_batch == 3


class TestRealDatasets:
    """The real pipeline behind the feeder."""

    @staticmethod
    async def records(feed: AsyncFeed, batches: int | None = None) -> list[bytes]:
        taken: list[bytes] = []
        try:
            while batches is None or batches > 0:
                taken += (await feed.receive()).records.to_list()
                batches = None if batches is None else batches - 1
        except EndOfStream:
            pass
        return taken

    @staticmethod
    async def dataset(path: Path, **more: object) -> Dataset:
        shards = write_shards(path, shards=4, records=10)
        values = {"source": shards, "batch_size": 3, **more}
        return await Dataset.open(DatasetSettings.model_validate(values))

    @on_both_loops
    async def test_stop_anywhere_and_go_on(self, tmp_path: Path) -> None:
        dataset = await self.dataset(tmp_path)
        async with Feeder({"train": dataset}) as feeder:
            address = f"{await feeder.listen(HERE)}/train"
            for stop in range(15):
                async with aclosing(await AsyncFeed.open(address)) as feed:
                    head = await self.records(feed, stop)
                    state = json.loads(json.dumps(feed.position))
                async with aclosing(await AsyncFeed.open(address, position=state)) as feed:
                    assert head + await self.records(feed) == EXPECTED
        await dataset.aclose()

    @on_both_loops
    async def test_the_next_epoch_on_the_same_connection(self, tmp_path: Path) -> None:
        dataset = await self.dataset(tmp_path, shuffle=True, seed=5)
        async with (
            Feeder({"train": dataset}) as feeder,
            aclosing(await AsyncFeed.open(f"{await feeder.listen(HERE)}/train")) as feed,
        ):
            first = await self.records(feed)
            feed.subscribe()
            second = await self.records(feed)
        assert sorted(first) == sorted(second) == sorted(EXPECTED)
        assert first != second
        await dataset.aclose()

    @on_both_loops
    async def test_ranks_share_the_records(self, tmp_path: Path) -> None:
        dataset = await self.dataset(tmp_path, steps_per_epoch=6)
        taken: list[bytes] = []
        async with Feeder({"train": dataset}) as feeder:
            address = f"{await feeder.listen(HERE)}/train"
            for rank in range(2):
                async with aclosing(await AsyncFeed.open(address, rank=rank, world_size=2)) as feed:
                    taken += await self.records(feed)
            with pytest.raises(ConfigError, match="does not divide the 4 lanes"):
                async with aclosing(await AsyncFeed.open(address, world_size=3)) as feed:
                    await feed.receive()
        assert len(taken) == len(set(taken)) == 36
        await dataset.aclose()

    @on_both_loops
    async def test_the_first_cause_has_its_place(self, tmp_path: Path) -> None:
        shards = write_shards(tmp_path, shards=4, records=10)
        shard = tmp_path / "shard-2.tfrecord"
        data = bytearray(shard.read_bytes())
        data[-5] ^= 1
        shard.write_bytes(data)
        dataset = await Dataset.open(DatasetSettings(source=shards, batch_size=3))
        async with (
            Feeder({"train": dataset}) as feeder,
            aclosing(await AsyncFeed.open(f"{await feeder.listen(HERE)}/train")) as feed,
        ):
            with pytest.raises(CorruptRecord) as caught:
                await self.records(feed)
        assert (caught.value.record, caught.value.offset) == (9, len(data) - 19)
        await dataset.aclose()

    @on_both_loops
    async def test_nothing_is_read_before_there_is_credit(self) -> None:
        store = ScriptedStore({"s": shard([1000] * 20)})
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        async with Feeder({"train": dataset_of(store)}) as feeder:
            serving = asyncio.create_task(feeder.serve_socket(theirs))
            _, client = await loop.create_connection(
                lambda: AsyncConnection(Connection(Role.CLIENT)), sock=ours
            )
            client.post(Hello(dataset="train", world_size=1, position_version=VERSION))
            assert isinstance(await client.receive(), Welcome)
            client.post(Subscribe(0))
            (connection,) = feeder.admission.guests
            await eventually(lambda: connection.machine.state is State.STREAMING)
            for _ in range(20):
                await asyncio.sleep(0)
            assert store.asked == []
            client.post(Credit(1))
            assert isinstance(await client.receive(), Statistics)
            assert isinstance(await client.receive(), BatchMessage)
            await client.aclose()
            await serving

    @on_both_loops
    async def test_a_position_of_other_shards(self, tmp_path: Path) -> None:
        dataset = await self.dataset(tmp_path)
        async with Feeder({"train": dataset, "double": FakeDataset()}) as feeder:
            bound = await feeder.listen(HERE)
            async with aclosing(await AsyncFeed.open(f"{bound}/double")) as feed:
                await feed.receive()
                state = feed.position
            with pytest.raises(OtherDataset):
                await AsyncFeed.open(f"{bound}/train", position=state)
        await dataset.aclose()


A, B = "a" * 16, "b" * 16
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def served(
    *where: str, own: Any = None, dataset: FakeDataset | None = None, **settings: Any
) -> AsyncIterator[tuple[Any, ...]]:
    server = server_settings(**settings)
    access = Access(server, own)
    datasets = {"train": dataset or FakeDataset()}
    async with Feeder({**datasets}, server, access=access) as feeder:
        yield feeder, *[f"{await feeder.listen(one)}/train" for one in where]


TLS = "tls://127.0.0.1:0"
PLAIN = "tcp://127.0.0.1:0"


async def read(address: str, files: dict[str, str] | None = None, **options: Any) -> int:
    """Read a whole run; return the number of batches."""
    tls = None if files is None else await asyncio.to_thread(client_context, files)
    async with aclosing(await AsyncFeed.open(address, tls=tls, **options)) as feed:
        for count in range(1000):
            try:
                await feed.receive()
            except EndOfStream:
                return count
    raise AssertionError


def nothing_is_served(feeder: Feeder) -> bool:
    return not feeder.statistics.bytes and not feeder.statistics.subscriptions


class TestServed:
    @on_both_loops
    async def test_over_tls(self, authority: Authority) -> None:
        dataset = FakeDataset(steps=30, size=20_000)
        async with served(TLS, tls=authority.server(), dataset=dataset) as (feeder, address):
            assert address.startswith("tls://127.0.0.1:")
            assert await read(address, {"ca": authority.file}, credit_bytes=1 << 20) == 30
            assert await read(address.replace("127.0.0.1", "localhost"), {"ca": authority.file})
            await eventually(lambda: feeder.admission.clients == 0)

    @pytest.mark.parametrize("version", VERSIONS)
    @on_both_loops
    async def test_with_certificates_at_both_ends(
        self, authority: Authority, version: ssl.TLSVersion
    ) -> None:
        files = {"ca": authority.file, **authority.pair("client")}
        context = await asyncio.to_thread(client_context, files)
        context.maximum_version = version
        async with served(TLS, tls=authority.server(asks=True)) as (_, address):
            async with aclosing(await AsyncFeed.open(address, tls=context)) as feed:
                await feed.receive()

    @on_both_loops
    async def test_tls_and_plain_beside_each_other(self, authority: Authority) -> None:
        async with served(TLS, PLAIN, tls=authority.server()) as (_, safe, plain):
            for address, files in ((safe, {"ca": authority.file}), (plain, None)):
                assert await read(address, files) == 10

    @on_both_loops
    async def test_the_end_of_a_feeder(self, authority: Authority) -> None:
        async with served(TLS, tls=authority.server(), dataset=FakeDataset(hang_at=1)) as (
            feeder,
            address,
        ):
            context = await asyncio.to_thread(client_context, {"ca": authority.file})
            async with aclosing(await AsyncFeed.open(address, tls=context)) as feed:
                await feed.receive()
                draining = asyncio.create_task(feeder.drain(1000))
                with pytest.raises(FeederDraining):
                    await feed.receive()
                await feed.aclose()
                await draining


class TestRefusedByTheClient:
    @pytest.mark.parametrize(
        ("names", "until", "words"),
        [
            (("127.0.0.1",), EXPIRED, "certificate has expired"),
            (("elsewhere",), None, "IP address mismatch"),
            (("127.0.0.1",), None, "unable to get local issuer certificate"),
        ],
    )
    @on_both_loops
    async def test_a_wrong_certificate(
        self,
        authority: Authority,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
        names: Any,
        until: Any,
        words: str,
    ) -> None:
        theirs = Authority(tmp_path, "other") if words.startswith("unable") else authority
        settings = authority.server(*names, until=until)
        async with served(TLS, tls=settings) as (feeder, address):
            with pytest.raises(FeederRefused, match=words) as caught:
                await read(address, {"ca": theirs.file}, token=A)
            assert caught.value.code == "certificate"
            await eventually(lambda: not feeder.admission.handshakes)
            assert nothing_is_served(feeder)
            await eventually(lambda: feeder.statistics.dropped["tls"] == 1)
        told = [record for record in caplog.records if "client is refused" in record.getMessage()]
        assert len(told) == 1

    @on_both_loops
    async def test_a_plain_port(self) -> None:
        async with served(PLAIN) as (feeder, address):
            with pytest.raises(FeederRefused, match="does not speak TLS") as caught:
                await read(address.replace("tcp:", "tls:"), {})
            assert caught.value.code == "tls"
            await eventually(lambda: feeder.statistics.faults == {"RemoteProtocolError": 1})
            assert "the other end speaks TLS" in feeder.statistics.errors[0]["message"]

    @on_both_loops
    async def test_an_old_version(self, authority: Authority) -> None:
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with pytest.warns(DeprecationWarning, match="TLSv1 is deprecated"):
            old.minimum_version = ssl.TLSVersion.TLSv1
        with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        async with served(TLS, tls=authority.server()) as (feeder, address):
            with pytest.raises(FeederLost, match="protocol version"):
                await AsyncFeed.open(address, tls=old)
            await eventually(lambda: feeder.statistics.dropped["tls"] == 1)


class TestRefusedByTheFeeder:
    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize("shown", ["none", "stranger", "expired"])
    @on_both_loops
    async def test_a_wrong_certificate(
        self,
        authority: Authority,
        tmp_path: Path,
        shown: str,
        version: ssl.TLSVersion,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        pairs = {
            "none": dict[str, str](),
            "stranger": Authority(tmp_path, "other").pair("client"),
            "expired": authority.pair("client", until=EXPIRED),
        }
        files = {"ca": authority.file, **pairs[shown]}
        context = await asyncio.to_thread(client_context, files)
        context.maximum_version = version
        async with served(TLS, tls=authority.server(asks=True)) as (feeder, address):
            is_vague = version is ssl.TLSVersion.TLSv1_2 and shown == "none"
            with pytest.raises(FeederLost if is_vague else FeederRefused) as caught:
                await AsyncFeed.open(address, tls=context)
            if not is_vague:
                assert caught.value.code == "certificate"
                assert "refuses this client's certificate" in str(caught.value)
            await eventually(lambda: feeder.statistics.dropped["tls"] == 1)
            assert nothing_is_served(feeder)
        assert "a client is refused: the handshake of TLS failed: " in caplog.text

    @on_both_loops
    async def test_plain_tcp_at_a_port_for_tls(self, authority: Authority) -> None:
        async with served(TLS, tls=authority.server()) as (feeder, address):
            with pytest.raises(
                FeederRefused, match=r"this port needs TLS.*; connect to tls://"
            ) as caught:
                await read(address.replace("tls:", "tcp:"), token=A)
            assert caught.value.code == "tls"
            await eventually(lambda: not feeder.admission.handshakes)
            assert nothing_is_served(feeder)

    @pytest.mark.parametrize("junk", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + bytes(600), b""])
    @on_both_loops
    async def test_junk_at_a_port_for_tls(self, authority: Authority, junk: bytes) -> None:
        async with served(TLS, tls=authority.server()) as (feeder, address):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(address))
            writer.write(junk)
            if not junk:
                writer.write_eof()
            await reader.read()
            writer.close()
            await eventually(lambda: not feeder.admission.handshakes)
            assert feeder.statistics.dropped["tls"] == bool(junk)
            assert await read(address, {"ca": authority.file}) == 10

    @pytest.mark.parametrize("said", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"])
    @on_both_loops
    async def test_whoever_takes_too_long(self, authority: Authority, said: bytes) -> None:
        async with served(TLS, tls=authority.server(), handshake_timeout=0.05) as (feeder, address):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(address))
            writer.write(said)
            assert await reader.read() == b""
            writer.close()
            await eventually(lambda: feeder.statistics.dropped["handshake"] == 1)

    @on_both_loops
    async def test_a_silent_crowd_keeps_no_client_out(self, authority: Authority) -> None:
        async with served(TLS, tls=authority.server(), max_handshakes=3) as (feeder, address):
            silent = [socket.create_connection(("127.0.0.1", port_of(address))) for _ in range(9)]
            await eventually(lambda: feeder.statistics.dropped["crowd"] == 6)
            assert await read(address, {"ca": authority.file}) == 10
            for sock in silent:
                sock.close()
            await eventually(lambda: not feeder.admission.guests)

    @on_both_loops
    async def test_a_feeder_that_drains_waits_for_no_handshake(self, authority: Authority) -> None:
        async with served(TLS, tls=authority.server()) as (feeder, address):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(address))
            await eventually(lambda: feeder.admission.handshakes == 1)
            await feeder.drain(1000)
            assert await reader.read() == b""
            writer.close()


def port_of(address: str) -> int:
    return Address.parse(address).port or 0


class TestTokens:
    @pytest.mark.parametrize(("token", "words"), [(None, "is needed"), (B, "is wrong"), (A, "")])
    @on_both_loops
    async def test_right_and_wrong(
        self, authority: Authority, tmp_path: Path, token: str | None, words: str
    ) -> None:
        path = write_secret(tmp_path / "tokens", A)
        async with served(TLS, tls=authority.server(), tokens=[path]) as (feeder, address):
            reading = read(address, {"ca": authority.file}, token=token)
            if not words:
                assert await reading == 10
                return
            with pytest.raises(FeederRefused, match=words) as caught:
                await reading
            assert caught.value.code == "token"
            assert nothing_is_served(feeder)

    @on_both_loops
    async def test_one_is_replaced_while_the_feeder_runs(self, tmp_path: Path) -> None:
        path = tmp_path / "tokens"
        write_secret(path, A)
        async with served(PLAIN, tokens=[str(path)]) as (feeder, address):
            async with aclosing(await AsyncFeed.open(address, token=A)) as feed:
                for text, good in ((f"{A}\n{B}", (A, B)), (B, (B,))):
                    write_secret(path, text)
                    feeder.access._looked_at -= LOOK_EVERY
                    for token in good:
                        assert await read(address, token=token) == 10
                with pytest.raises(FeederRefused, match="or no longer"):
                    await read(address, token=A)
                assert (await feed.receive()).rows == fake_dataset.ROWS

    @on_both_loops
    async def test_a_dataset_with_tokens_of_its_own(self, tmp_path: Path) -> None:
        paths = [write_secret(tmp_path / token[0], token) for token in (A, B)]
        own = {"train": paths[:1], "hidden": paths[1:]}
        async with served(PLAIN, own=own) as (feeder, address):
            feeder.datasets["hidden"] = feeder.datasets["open"] = FakeDataset()
            assert await read(address, token=A) == 10
            assert await read(address.replace("train", "open")) == 10
            with pytest.raises(FeederRefused, match="does not open the dataset 'hidden'"):
                await read(address.replace("train", "hidden"), token=A)
            with pytest.raises(FeederRefused, match="there are: open, train") as caught:
                await read(address.replace("train", "none"), token=A)
            assert caught.value.code == "dataset"

    @on_both_loops
    async def test_one_that_came_in_plain_tcp(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def elsewhere(_: socket.socket) -> str:
            return "10.0.0.7"

        monkeypatch.setattr("streamrec.feeder.server.arrival.remote_host", elsewhere)
        async with served(PLAIN) as (feeder, address):
            with pytest.raises(FeederRefused, match="replace that token") as caught:
                await read(address, token=A)
            assert caught.value.code == "token"
            assert nothing_is_served(feeder)
            assert await read(address) == 10


@on_both_loops
async def test_a_foreign_position(authority: Authority) -> None:
    foreign = fake_dataset.position(3, fingerprint=fake_dataset.fingerprint(names="other"))
    async with served(TLS, tls=authority.server()) as (feeder, address):
        with pytest.raises(OtherDataset):
            await read(address, {"ca": authority.file}, position=foreign)
        await eventually(lambda: not feeder.admission.guests)
        assert nothing_is_served(feeder)


async def opened(feeder: Feeder, **options: Any) -> AsyncFeed:
    return await AsyncFeed.open(f"{await feeder.listen(PLAIN)}/train", **options)


async def raw_answer(feeder: Feeder, data: bytes) -> list[Message]:
    """Return a feeder's answer to some bytes, until it closes the connection."""
    ours, theirs = socket.socketpair()
    serving = asyncio.create_task(feeder.serve_socket(theirs))
    ours.setblocking(False)
    loop = asyncio.get_running_loop()
    machine = Connection(Role.CLIENT)
    machine.send(Hello(dataset="train", world_size=1))
    with ours:
        await loop.sock_sendall(ours, data)
        while count := await loop.sock_recv_into(ours, machine.get_buffer()):
            machine.buffer_updated(count)
    await serving
    return list(machine.events())


def said(message: Message) -> bytes:
    return b"".join(Connection(Role.CLIENT).send(message))


def fault_of(messages: list[Message]) -> dict[str, Any]:
    (fault,) = messages
    assert isinstance(fault, Fault)
    fields = json.loads(fault.fields)
    assert isinstance(fields, dict)
    return fields


class TestHandshake:
    @on_both_loops
    async def test_an_unknown_dataset(self) -> None:
        async with Feeder({"train": FakeDataset(), "eval": FakeDataset()}) as feeder:
            address = f"{await feeder.listen(PLAIN)}/test"
            with pytest.raises(
                FeederRefused, match="no dataset 'test' here; there are: eval, train"
            ):
                await AsyncFeed.open(address)

    @pytest.mark.parametrize(
        ("fields", "kind", "words"),
        [
            ({"protocol_versions": (7, 9)}, "FeederRefused", "[7, 9]"),
            ({"position_version": 0}, "FeederRefused", "positions up to 0"),
            ({"position_version": 2}, "FeederRefused", "positions up to 2"),
            ({"world_size": 0}, "ConfigError", "world_size must be 1 or more, not 0"),
        ],
    )
    @on_both_loops
    async def test_refusals(self, fields: dict[str, Any], kind: str, words: str) -> None:
        async with Feeder({"train": FakeDataset()}) as feeder:
            fault = fault_of(await raw_answer(feeder, said(hello(**fields))))
        assert fault["type"] == kind
        assert words in fault["message"]

    @on_both_loops
    async def test_junk(self) -> None:
        async with Feeder({"train": FakeDataset()}) as feeder:
            messages = await raw_answer(feeder, b"GET / HTTP/1.1\r\nHost: feeder\r\n\r\n")
            assert fault_of(messages)["type"] == "RemoteProtocolError"

    @on_both_loops
    async def test_a_client_that_says_nothing(self) -> None:
        ours, theirs = socket.socketpair()
        with ours:
            async with Feeder(
                {"train": FakeDataset()}, settings=server_settings(handshake_timeout=0.01)
            ) as feeder:
                await feeder.serve_socket(theirs)
                await eventually(lambda: feeder.admission.clients == 0)

    @on_both_loops
    async def test_too_many_clients(self) -> None:
        async with Feeder(
            {"train": FakeDataset(hang_at=0)}, settings=server_settings(max_connections=1)
        ) as feeder:
            address = f"{await feeder.listen(PLAIN)}/train"
            async with aclosing(await AsyncFeed.open(address)):
                with pytest.raises(FeederDraining, match="serves 1 clients already"):
                    await AsyncFeed.open(address)

    @on_both_loops
    async def test_one_address_with_too_many_clients(self, monkeypatch: pytest.MonkeyPatch) -> None:
        hosts = iter(["10.0.0.7", "10.0.0.7", "10.0.0.8"])
        monkeypatch.setattr(arrival, "remote_host", lambda _: next(hosts))
        settings = server_settings(max_connections_per_address=1)
        async with Feeder({"train": FakeDataset(hang_at=0)}, settings=settings) as feeder:
            address = f"{await feeder.listen(PLAIN)}/train"
            async with aclosing(await AsyncFeed.open(address)):
                with pytest.raises(FeederDraining, match=r"1 clients at 10\.0\.0\.7 already"):
                    await AsyncFeed.open(address)
                async with aclosing(await AsyncFeed.open(address)):
                    assert feeder.statistics.dropped["full"] == 1

    @on_both_loops
    async def test_a_dataset_that_opens_late(self) -> None:
        opening: asyncio.Future[FakeDataset] = asyncio.get_running_loop().create_future()
        async with Feeder({"train": opening}) as feeder:
            assert feeder.obstacle == "datasets are being opened"
            client = asyncio.create_task(opened(feeder))
            await eventually(lambda: feeder.admission.clients == 1)
            opening.set_result(FakeDataset())
            assert feeder.obstacle is None
            async with aclosing(await client) as feed:
                await feed.receive()

    @on_both_loops
    async def test_a_dataset_that_does_not_open(self) -> None:
        opening: asyncio.Future[FakeDataset] = asyncio.get_running_loop().create_future()
        opening.set_exception(ObjectNotFound("no shard", url="s3://b/x*"))
        async with Feeder({"train": opening}) as feeder:
            with pytest.raises(ObjectNotFound, match="s3://b/x"):
                await opened(feeder)
            assert feeder.obstacle is not None

    def test_an_error_from_outside_the_tree_is_named(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        dataset = FakeDataset(fail_at=0, error=ZeroDivisionError("oops"))
        with (
            serving({"train": dataset}) as feeder,
            closing(BlockingFeed.open(f"{feeder.listen(PLAIN)}/train")) as feed,
            pytest.raises(StreamrecError, match="ZeroDivisionError: oops"),
        ):
            feed.receive()
        assert "serving a client failed" in caplog.text


class TestSilentCrowds:
    """Connections that say nothing, a hundred of them."""

    @pytest.mark.parametrize("handshakes", [5, 100, 200])
    @on_both_loops
    async def test_keep_no_client_out(self, handshakes: int) -> None:
        settings = server_settings(max_connections=100, max_handshakes=handshakes)
        async with Feeder({"train": FakeDataset()}, settings=settings) as feeder:
            where = await feeder.listen(PLAIN)
            crowd = [socket.create_connection((where.host, where.port)) for _ in range(100)]
            await eventually(lambda: feeder.statistics.connections_total == 100)
            await eventually(lambda: feeder.admission.handshakes == min(handshakes, 100))
            assert feeder.admission.clients == 0
            assert feeder.obstacle is None
            async with aclosing(await AsyncFeed.open(f"{where}/train")) as feed:
                for _ in range(10):
                    await feed.receive()
            assert feeder.statistics.dropped["crowd"] == max(0, 101 - handshakes)
            for sock in crowd:
                sock.close()

    @on_both_loops
    async def test_the_oldest_are_cut(self) -> None:
        async with Feeder(
            {"train": FakeDataset()}, settings=server_settings(max_handshakes=2)
        ) as feeder:
            where = await feeder.listen(PLAIN)
            crowd: list[socket.socket] = []
            for _ in range(4):
                crowd.append(socket.create_connection((where.host, where.port)))
                await eventually(lambda: feeder.statistics.connections_total == len(crowd))
            for sock in crowd[:2]:
                sock.setblocking(False)
                assert await asyncio.get_running_loop().sock_recv(sock, 1) == b""
            assert feeder.admission.handshakes == 2
            for sock in crowd:
                sock.close()
