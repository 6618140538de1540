"""Who may read, over real connections: both ends, both event loops."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.errors import FeederDraining, FeederLost, FeederRefused, OtherDataset
from streamrec.feeder.access.access import LOOK_EVERY, Access
from streamrec.feeder.access.address import Address
from streamrec.feeder.access.tls import client_context
from streamrec.feeder.client.client import AsyncFeed
from streamrec.feeder.server.server import Feeder
from streamrec.flow.channel import EndOfStream
from tests.feeder import fake_dataset
from tests.feeder.certificates import EXPIRED, Authority, write_secret
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.support import eventually, on_both_loops, server_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

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
            with pytest.raises(FeederRefused, match=r"port for TLS.*; connect to tls://") as caught:
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

        monkeypatch.setattr("streamrec.feeder.server.server.remote_host", elsewhere)
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
