from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import LocalProtocolError, RemoteProtocolError
from streamrec.wire.messages import (
    BatchMessage,
    Credit,
    End,
    Fault,
    Goaway,
    Hello,
    Kind,
    Message,
    Ping,
    Pong,
    Subscribe,
    Welcome,
    decode,
    encode,
    kind_of,
)

uint32 = st.integers(0, (1 << 32) - 1)
uint64 = st.integers(0, (1 << 64) - 1)
MESSAGES = st.one_of(
    st.builds(
        Hello,
        dataset=st.text(),
        world_size=uint32,
        batch_size=uint32,
        position_version=uint32,
        protocol_versions=st.lists(uint32).map(tuple),
        token=st.text(),
    ),
    st.builds(Welcome, protocol_version=uint32, fingerprint=st.binary(), settings=st.binary()),
    st.builds(Subscribe, rank=uint32, position=st.binary()),
    st.builds(Credit, amount=uint64),
    st.builds(Ping, nonce=uint64),
    st.builds(Pong, nonce=uint64),
    st.builds(Goaway, text=st.text()),
    st.builds(End, position=st.binary()),
    st.builds(Fault, fields=st.binary(), retryable=st.booleans()),
    st.builds(BatchMessage, metadata=st.binary()),
)


@given(MESSAGES)
def test_what_is_encoded_is_decoded(message: Message) -> None:
    assert decode(kind_of(message), encode(message)) == message


@given(st.sampled_from(Kind), st.binary(max_size=100))
def test_foreign_metadata_is_decoded_or_refused(kind: Kind, metadata: bytes) -> None:
    try:
        message = decode(kind, metadata)
    except RemoteProtocolError as error:
        assert kind.name in error.message
    else:
        assert kind_of(message) is kind


def test_unknown_fields_are_ignored() -> None:
    later = encode(Credit(5)) + b"\xfa\x01\x03new"  # field 31, a string
    assert decode(Kind.CREDIT, later) == Credit(5)


@pytest.mark.parametrize(
    "message",
    [
        Credit(-1),
        Credit(1 << 64),
        Subscribe(1 << 32),
        Hello(dataset="a", world_size=1, token="\ud800"),
        Ping(-1),
    ],
)
def test_what_does_not_fit_is_not_sent(message: Message) -> None:
    with pytest.raises(LocalProtocolError, match="cannot be sent"):
        encode(message)


def test_text_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="GOAWAY"):
        decode(Kind.GOAWAY, b"\x0a\x02\xff\xfe")


def test_the_numbers_are_those_of_the_wire() -> None:
    numbers = {kind.name: kind.value for kind in Kind}
    assert numbers == {
        "HELLO": 1,
        "WELCOME": 2,
        "SUBSCRIBE": 3,
        "CREDIT": 4,
        "BATCH": 5,
        "PING": 6,
        "PONG": 7,
        "GOAWAY": 8,
        "END": 9,
        "FAULT": 10,
        "STATISTICS": 11,
        "SHARED": 12,
        "RELEASE": 13,
    }


def test_the_payload_is_measured_over_its_buffers() -> None:
    message = BatchMessage(b"", (memoryview(bytes(3)), memoryview(bytes(5))))
    assert message.payload_size == 8
