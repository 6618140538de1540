"""Hostile bytes give messages, then at most a RemoteProtocolError, and cannot claim memory."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import RemoteProtocolError
from streamrec.kernel import crc32c
from streamrec.wire.messages import Hello, Kind
from streamrec.wire.protocol import Connection, Role
from tests.wire.support import BATCH, FROM_SERVER, HELLO, feed, joined, pair, plain

pytestmark = pytest.mark.both_kernels

GOOD = b"".join(joined(pair_end) for pair_end in [pair()[1].send(BATCH)])


def machines() -> list[Connection]:
    return [Connection(Role.CLIENT), Connection(Role.SERVER), *pair()]


@given(st.binary(max_size=500), st.integers(0, 3))
def test_random_bytes(data: bytes, which: int) -> None:
    machine = machines()[which]
    with contextlib.suppress(RemoteProtocolError):
        feed(machine, data)
        machine.receive_eof()


@given(st.data())
def test_flipped_bits_never_become_another_message(data: st.DataObject) -> None:
    bits = data.draw(
        st.lists(st.integers(0, len(GOOD) * 8 - 1), min_size=1, max_size=3, unique=True)
    )
    mutated = bytearray(GOOD)
    for bit in bits:
        mutated[bit // 8] ^= 1 << bit % 8
    client = pair()[0]
    with pytest.raises(RemoteProtocolError):
        assert feed(client, bytes(mutated)) == []
        client.receive_eof()


@given(
    st.sampled_from([0, 1, 2, 3]),
    st.integers(0, 255),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 64) - 1),
    st.binary(max_size=200),
)
def test_honest_headers_with_any_claims(
    which: int, kind: int, metadata: int, payload: int, rest: bytes
) -> None:
    machine = machines()[which]
    fields = struct.pack("<4sBBHIQ", b"SREC", 1, kind, 0, metadata, payload)
    with contextlib.suppress(RemoteProtocolError):
        feed(machine, fields + struct.pack("<I", crc32c(fields)) + rest)
        machine.receive_eof()


@pytest.mark.parametrize("kind", Kind)
def test_a_stranger_gets_no_memory(kind: Kind) -> None:
    fields = struct.pack("<4sBBHIQ", b"SREC", 1, kind, 0, 15 << 20, 3 << 30)
    header = fields + struct.pack("<I", crc32c(fields))
    machine = Connection(Role.SERVER)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            feed(machine, header)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(st.lists(st.integers(1, 400), max_size=20), st.integers(0, 2000))
def test_a_cut_stream_gives_a_prefix_of_its_messages(sizes: list[int], cut: int) -> None:
    client, server = pair()
    data = b"".join(joined(server.send(message)) for message in FROM_SERVER[1:3])
    received = []
    for size in [*sizes, 1 << 20]:
        piece, data = data[: min(size, cut)], data[min(size, cut) :]
        received += feed(client, piece)
        cut -= len(piece)
    assert received == [plain(message) for message in FROM_SERVER[1:3]][: len(received)]


def test_the_first_message_is_small() -> None:
    server = Connection(Role.SERVER)
    big = Hello(dataset="x" * 70_000, world_size=1)
    client = Connection(Role.CLIENT)
    with pytest.raises(Exception, match="too large to send"):
        client.send(big)
    assert feed(server, joined(client.send(HELLO))) == [HELLO]
