"""Hostile clients, with an honest one beside them that is served all the while."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import uvloop

from streamrec.feeder.access.access import client_context
from streamrec.feeder.access.address import Address
from streamrec.feeder.client.client import AsyncFeed
from streamrec.feeder.server.server import Feeder
from streamrec.kernel import crc32c
from streamrec.wire.messages import Credit, Kind, Ping, Release, Subscribe, encode
from tests.feeder.certificates import Authority
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.support import PATIENCE, eventually, hello, server_settings

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from streamrec.wire.messages import Message
    from tests.feeder.support import LoopFactory

TOKEN = "t" * 16
GREETING = hello(token=TOKEN)


def header(kind: int, metadata: int, payload: int = 0, version: int = 1) -> bytes:
    fields = struct.pack("<4sBBHIQ", b"SREC", version, kind, 0, metadata, payload)
    return fields + struct.pack("<I", crc32c(fields))


def frame(kind: Kind, message: Message) -> bytes:
    """Return a message as bytes, whatever the state allows."""
    metadata = encode(message)
    return header(kind, len(metadata)) + metadata + struct.pack("<I", crc32c(metadata))


HELLO = frame(Kind.HELLO, GREETING)
SUBSCRIBE = frame(Kind.SUBSCRIBE, Subscribe(0))
CREDIT = frame(Kind.CREDIT, Credit(1))
MOST_CREDIT = frame(Kind.CREDIT, Credit((1 << 63) - 1))

ATTACKS: dict[str, Iterable[bytes]] = {
    "garbage": [b"\x00" * 5000],
    "http": [b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"],
    "half a header": [HELLO[:11]],
    "half a message": [HELLO[:-3]],
    "slow bytes": (HELLO[i : i + 1] for i in range(len(HELLO) - 1)),
    "a huge HELLO": [header(Kind.HELLO, (1 << 32) - 1)],
    "a huge payload": [header(Kind.HELLO, 1, 1 << 62)],
    "a huge SUBSCRIBE": [HELLO, header(Kind.SUBSCRIBE, 16 << 20)],
    "another version of frames": [header(Kind.HELLO, 1, version=9)],
    "another version of the protocol": [
        frame(Kind.HELLO, hello(token=TOKEN, protocol_versions=(99,)))
    ],
    "an unknown kind": [header(99, 1)],
    "what a feeder sends": [HELLO, header(Kind.BATCH, 1, 1)],
    "HELLO again": [HELLO, HELLO],
    "HELLO with a wrong token, again and again": [frame(Kind.HELLO, hello(token="x"))] * 9,
    "SUBSCRIBE again": [HELLO, SUBSCRIBE, SUBSCRIBE],
    "SUBSCRIBE at nonsense": [HELLO, frame(Kind.SUBSCRIBE, Subscribe(0, b"[" * 99_999)), CREDIT],
    "too much credit": [HELLO, SUBSCRIBE, MOST_CREDIT, MOST_CREDIT],
    "no credit": [HELLO, SUBSCRIBE, frame(Kind.CREDIT, Credit(0))],
    "a flood of credit": [HELLO, SUBSCRIBE, *[CREDIT * 500] * 9],
    "a flood of pings": [HELLO, *(frame(Kind.PING, Ping(nonce)) for nonce in range(3000))],
    "places that were never shared": [HELLO, SUBSCRIBE, frame(Kind.RELEASE, Release((0, 4096)))],
    "a checksum that is wrong": [HELLO[:-1] + b"\x00"],
}


class Served:
    """A feeder, and how to reach it."""

    def __init__(self, feeder: Feeder, address: str, context: ssl.SSLContext | None) -> None:
        self.feeder, self.address, self.context = feeder, address, context

    async def attack(self, attack: Iterable[bytes]) -> None:
        """Say what an attack consists of, and return when the feeder has had enough."""
        place = Address.parse(self.address)
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(place.host, place.port, ssl=self.context)
            try:
                for piece in attack:
                    writer.write(piece)
                    await writer.drain()
                    # WELCOME, before which all others are out of place.
                    await (reader.read(1) if piece == HELLO else asyncio.sleep(0))
                await reader.read()
            finally:
                writer.close()
                await writer.wait_closed()


@asynccontextmanager
async def served(tmp_path: Path, *, tls: bool, patience: float) -> AsyncIterator[Served]:
    authority = Authority(tmp_path) if tls else None
    settings = server_settings(
        token=TOKEN, handshake_timeout=patience, tls=authority and authority.server()
    )
    context = None
    if authority:
        context = await asyncio.to_thread(client_context, {"ca": authority.file})
    dataset = FakeDataset(steps=1 << 30)
    async with Feeder({"train": dataset}, settings, linger=patience) as feeder:
        where = await feeder.listen("tls://127.0.0.1:0" if tls else "tcp://127.0.0.1:0")
        yield Served(feeder, f"{where}/train", context)


async def read(served: Served, numbers: list[int]) -> None:
    """Read until cancelled, as an honest client."""
    opened = await AsyncFeed.open(served.address, token=TOKEN, tls=served.context)
    async with aclosing(opened) as feed:
        while True:
            numbers.append(int((await feed.receive())["number"][0]))


@pytest.mark.parametrize(
    ("tls", "loop_factory"),
    [(False, uvloop.new_event_loop), (True, asyncio.new_event_loop)],
    ids=["tcp", "tls"],
)
def test_an_honest_client_is_served_beside_all_of_them(
    tls: bool, loop_factory: LoopFactory, tmp_path: Path
) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE), served(tmp_path, tls=tls, patience=1.0) as serving:
            numbers: list[int] = []
            honest = asyncio.create_task(read(serving, numbers))
            await eventually(lambda: len(numbers) > 0)
            before = len(numbers)
            async with asyncio.TaskGroup() as attacks:
                for attack in list(ATTACKS.values()):
                    attacks.create_task(serving.attack(list(attack)))
            await eventually(lambda: len(serving.feeder.admission.guests) == 1)
            assert not honest.done()
            await eventually(lambda: len(numbers) > before + 10)
            assert numbers == list(itertools.islice(itertools.count(0, 8), len(numbers)))
            # A feeder's own errors would be logged, and counted as what they are.
            kinds = serving.feeder.statistics.faults.keys()
            broken = {"RemoteProtocolError", "CorruptFrame"}
            assert kinds <= {*broken, "FeederRefused", "ConfigError", "StateError"}
            honest.cancel()
            await asyncio.gather(honest, return_exceptions=True)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_is_served_to_one(name: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE), served(tmp_path, tls=False, patience=0.1) as serving:
            await serving.attack(list(ATTACKS[name]))
            await eventually(lambda: not serving.feeder.admission.guests)
            # A single batch may go to whoever grants a single byte before it breaks the protocol.
            assert serving.feeder.statistics.batches.total() <= 1

    asyncio.run(main())
