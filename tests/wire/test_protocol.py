from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import LocalProtocolError, RemoteProtocolError
from streamrec.wire.frame import Header, frame_size, trailer
from streamrec.wire.messages import (
    BatchMessage,
    Credit,
    End,
    Fault,
    Goaway,
    Message,
    Ping,
    Pong,
    Subscribe,
    Welcome,
    encode,
    kind_of,
)
from streamrec.wire.protocol import MOST_CREDIT, MOST_REPLIES, Connection, Role, State
from tests.wire.support import (
    BATCH,
    FINAL,
    FROM_CLIENT,
    FROM_SERVER,
    HELLO,
    feed,
    joined,
    pair,
    pass_on,
    plain,
)


def raw(message: Message) -> bytes:
    """Return a message's bytes in any state."""
    metadata = encode(message)
    head = Header(kind_of(message), len(metadata), 0).pack()
    return head + metadata + trailer(metadata, ())


class TestDribble:
    """The same bytes, whole and in every cut, come to the same messages."""

    @pytest.mark.parametrize("step", [None, 1, 7, 64, 1000])
    def test_from_the_client(self, step: int | None) -> None:
        client, server = Connection(Role.CLIENT), Connection(Role.SERVER)
        assert feed(server, joined(client.send(HELLO)), step) == [HELLO]
        pass_on(server, client, FROM_SERVER[0])
        rest = FROM_CLIENT[1:]
        data = b"".join(joined(client.send(message)) for message in rest)
        assert feed(server, data, step) == rest

    @pytest.mark.parametrize("step", [None, 1, 7, 64, 1000])
    @pytest.mark.parametrize("final", FINAL)
    def test_from_the_feeder(self, step: int | None, final: Message) -> None:
        client, server = pair()
        messages = [*FROM_SERVER[1:], final]
        data = b"".join(joined(server.send(message)) for message in messages)
        assert feed(client, data, step) == [plain(message) for message in messages]
        assert client.state is State.FINISHED
        assert client.credit == server.credit

    def test_at_every_split(self) -> None:
        data = joined(pair()[1].send(BATCH)) + raw(End(b"p"))
        for split in range(len(data) + 1):
            client = pair()[0]
            received = feed(client, data[:split]) + feed(client, data[split:])
            assert received == [plain(BATCH), End(b"p")]

    @pytest.mark.parametrize("junk", [b"\x00" * 24, b"SREC" + bytes(20), b"GET / HTTP/1.1\r\n" * 3])
    def test_with_junk_behind(self, junk: bytes) -> None:
        client, server = pair()
        data = joined(server.send(BATCH)) + junk
        client.get_buffer()[: len(data)] = data
        client.buffer_updated(len(data))
        events = client.events()
        assert plain(next(events)) == plain(BATCH)
        with pytest.raises(RemoteProtocolError):
            next(events)


class TestStates:
    def test_the_course_of_a_connection(self) -> None:
        client, server = Connection(Role.CLIENT), Connection(Role.SERVER)
        course: list[tuple[Connection, Connection, Message, State]] = [
            (client, server, HELLO, State.GREETING),
            (server, client, Welcome(1, b"", b""), State.READY),
            (client, server, Subscribe(0), State.STREAMING),
            (client, server, Credit(1), State.STREAMING),
            (server, client, BATCH, State.STREAMING),
            (server, client, End(b""), State.READY),
            (client, server, Credit(1000), State.READY),
            (client, server, Subscribe(0), State.STREAMING),
            (server, client, Goaway(""), State.FINISHED),
        ]
        for source, target, message, state in course:
            assert not source.over
            assert pass_on(source, target, message) == [plain(message)]
            assert source.state is target.state is state
        assert client.over
        assert server.over

    @pytest.mark.parametrize("message", [*FROM_CLIENT, *FROM_SERVER, *FINAL, Pong(1)])
    @pytest.mark.parametrize("role", Role)
    def test_what_is_not_ours_to_send(self, role: Role, message: Message) -> None:
        machine = Connection(role)
        if role is Role.CLIENT and message is HELLO:
            machine.send(message)
        with pytest.raises(LocalProtocolError):
            machine.send(message)

    @pytest.mark.parametrize(
        ("role", "message"),
        [
            (Role.SERVER, Subscribe(0)),  # before HELLO
            (Role.SERVER, Ping(1)),
            (Role.SERVER, End(b"")),  # a feeder's
            (Role.CLIENT, HELLO),  # a client's
            (Role.CLIENT, Welcome(1, b"", b"")),  # before HELLO
        ],
    )
    def test_what_is_out_of_place(self, role: Role, message: Message) -> None:
        with pytest.raises(RemoteProtocolError, match="out of place"):
            feed(Connection(role), raw(message))

    @pytest.mark.parametrize("message", [HELLO, Subscribe(0)])
    def test_what_comes_twice(self, message: Message) -> None:
        with pytest.raises(RemoteProtocolError, match="out of place"):
            feed(pair()[1], raw(message))

    @pytest.mark.parametrize("final", FINAL)
    def test_what_the_client_sent_too_late_is_dropped(self, final: Message) -> None:
        client, server = pair()
        late = joined(client.send(Credit(5))) + joined(client.send(Ping(1)))
        pass_on(server, client, final)
        assert feed(server, late) == []
        assert server.replies() == []
        with pytest.raises(LocalProtocolError):
            client.send(Credit(1))

    @pytest.mark.parametrize("final", FINAL)
    def test_after_its_last_message_a_feeder_is_silent(self, final: Message) -> None:
        client, server = pair()
        data = joined(server.send(final))
        with pytest.raises(LocalProtocolError):
            server.send(End(b""))
        feed(client, data)
        with pytest.raises(RemoteProtocolError, match="out of place"):
            feed(client, raw(End(b"")))


class TestCredit:
    def test_one_batch_may_overdraw(self) -> None:
        client, server = pair(credit=1)
        assert pass_on(server, client, BATCH) == [plain(BATCH)]
        assert client.credit == server.credit == 1 - frame_size(10, 154)
        with pytest.raises(LocalProtocolError, match="no credit"):
            server.send(BATCH)
        pass_on(client, server, Credit(frame_size(10, 154)))
        assert server.credit == 1
        pass_on(server, client, BATCH)

    def test_none_is_given_by_default(self) -> None:
        with pytest.raises(LocalProtocolError, match="no credit"):
            pair(credit=0)[1].send(BATCH)

    def test_a_batch_without_credit_is_refused_by_its_header(self) -> None:
        client, server = pair(credit=0)
        server.credit = 1
        header = joined(server.send(BATCH))[:24]
        with pytest.raises(RemoteProtocolError, match="without credit"):
            feed(client, header)

    @pytest.mark.parametrize("amount", [0, MOST_CREDIT])
    def test_sums_stay_in_bounds(self, amount: int) -> None:
        client, server = pair(credit=1)
        with pytest.raises(LocalProtocolError, match="a credit of"):
            client.send(Credit(amount))
        assert client.credit == 1
        with pytest.raises(RemoteProtocolError, match="a credit of"):
            feed(server, raw(Credit(amount)))

    @given(st.lists(st.one_of(st.integers(1, 500), st.binary(max_size=300)), max_size=30))
    def test_both_sides_count_alike(self, steps: list[int | bytes]) -> None:
        client, server = pair(credit=1)
        for step in steps:
            if isinstance(step, int):
                pass_on(client, server, Credit(step))
            elif server.credit > 0:
                pass_on(server, client, BatchMessage(b"m", (memoryview(step),)))
            assert client.credit == server.credit


class TestPings:
    def test_are_answered(self) -> None:
        client, server = pair()
        for source, target in ((client, server), (server, client)):
            assert pass_on(source, target, Ping(5)) == [Ping(5)]
            assert feed(source, joined(target.replies())) == [Pong(5)]
            assert target.replies() == []
            source.send(Ping(5))

    def test_answers_go_before_the_next_message(self) -> None:
        client, server = pair()
        pass_on(client, server, Ping(5))
        assert feed(client, joined(server.send(End(b"")))) == [Pong(5), End(b"")]

    def test_one_with_the_same_nonce_is_not_sent(self) -> None:
        client = pair()[0]
        client.send(Ping(1))
        with pytest.raises(LocalProtocolError, match="not answered"):
            client.send(Ping(1))

    def test_answers_to_nothing_are_refused(self) -> None:
        with pytest.raises(RemoteProtocolError, match="no PING"):
            feed(pair()[0], raw(Pong(3)))

    def test_a_flood_is_refused(self) -> None:
        server = pair()[1]
        data = b"".join(raw(Ping(i)) for i in range(MOST_REPLIES))
        feed(server, data)
        with pytest.raises(RemoteProtocolError, match="does not read the answers"):
            feed(server, raw(Ping(99)))

    def test_are_answered_by_the_machine_alone(self) -> None:
        with pytest.raises(LocalProtocolError, match="by itself"):
            pair()[0].send(Pong(1))


class TestViolations:
    def test_kill_the_machine(self) -> None:
        client, server = pair()
        with pytest.raises(RemoteProtocolError, match="out of place"):
            feed(server, raw(HELLO))
        assert "dead" in repr(server)
        for use in (server.get_buffer, lambda: list(server.events())):
            with pytest.raises(RemoteProtocolError, match="out of place"):
                use()
        with pytest.raises(LocalProtocolError):
            server.send(End(b""))
        fault = Fault(b"{}", retryable=False)
        assert pass_on(server, client, fault) == [fault]
        with pytest.raises(LocalProtocolError):
            server.send(fault)

    @pytest.mark.parametrize("cut", [1, 23, 24, 30, 100, 200])
    def test_an_end_inside_a_frame(self, cut: int) -> None:
        client, server = pair()
        feed(client, joined(server.send(BATCH))[:cut])
        with pytest.raises(RemoteProtocolError, match=r"ended inside a (header|BATCH)"):
            client.receive_eof()
        assert client.state is State.CLOSED
        client.receive_eof()
        with pytest.raises(LocalProtocolError, match="closed"):
            client.get_buffer()

    def test_an_end_between_frames(self) -> None:
        client, server = pair()
        pass_on(server, client, BATCH)
        client.receive_eof()
        assert client.over

    def test_too_large_a_batch_is_neither_sent_nor_received(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client, server = pair()
        sent = joined(pair()[1].send(BATCH))
        monkeypatch.setattr("streamrec.wire.frame.PAYLOAD_CAP", 100)
        with pytest.raises(LocalProtocolError, match="too large to send"):
            server.send(BATCH)
        with pytest.raises(RemoteProtocolError, match="100 are allowed"):
            feed(client, sent[:24])

    def test_the_payload_is_sent_without_a_copy(self) -> None:
        buffers = pair()[1].send(BATCH)
        assert buffers[1] is BATCH.payload[0]
        assert buffers[2] is BATCH.payload[1]
