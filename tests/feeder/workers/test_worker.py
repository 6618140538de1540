from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

import pytest

from streamrec.errors import ConfigError, FeederDraining
from streamrec.feeder.workers import worker as module
from streamrec.feeder.workers.worker import NUMBER_BYTES, Link, Worker
from tests.feeder.support import eventually, on_both_loops


async def both() -> tuple[Link, Link]:
    one, other = socket.socketpair()
    return await Link.open(one), await Link.open(other)


@on_both_loops
async def test_messages_come_in_order_and_the_end_is_none() -> None:
    one, other = await both()
    one.send(a=1, text="two\nlines")
    one.send(b={"c": [None]})
    assert await other.receive() == {"a": 1, "text": "two\nlines"}
    assert await other.receive() == {"b": {"c": [None]}}
    assert one.unsent == 0
    await one.aclose()
    assert await other.receive() is None
    other.send(late=True)
    await other.aclose()
    other.send(later=True)


@on_both_loops
async def test_questions_have_answers_whatever_comes_between() -> None:
    one, other = await both()
    first, second = one.ask(of=1), one.ask(of=2)
    questions = [await other.receive() for _ in range(2)]
    assert [question["of"] for question in questions if question] == [1, 2]
    assert questions[0] is not None
    assert questions[1] is not None
    other.answer(questions[1], "two")
    other.send(between=True)
    other.answer(questions[0], FeederDraining("no room"))
    other.send(last=True)
    assert await one.receive() == {"between": True}
    assert await one.receive() == {"last": True}
    assert await second == "two"
    with pytest.raises(FeederDraining, match="no room"):
        await first
    await asyncio.gather(one.aclose(), other.aclose())


@on_both_loops
async def test_an_answer_that_nobody_waits_for() -> None:
    one, other = await both()
    one.ask(of=1).cancel()
    question = await other.receive()
    assert question is not None
    other.answer(question, 1)
    other.send(last=True)
    assert await one.receive() == {"last": True}
    await asyncio.gather(one.aclose(), other.aclose())


@on_both_loops
async def test_the_end_of_a_process_that_was_writing() -> None:
    one, other = socket.socketpair()
    link = await Link.open(other)
    with one:
        one.sendall(b'{"whole": 1}\n{"snapsh')
    assert await link.receive() == {"whole": 1}
    assert await link.receive() is None
    await link.aclose()


@on_both_loops
async def test_a_large_message() -> None:
    one, other = await both()
    one.send(text="x" * 3_000_000)
    message = await other.receive()
    assert message is not None
    assert len(message["text"]) == 3_000_000
    await asyncio.gather(one.aclose(), other.aclose())


CROWD = 2000
"""More connections than the channel holds."""


def idle_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)


class Idle:
    """A worker whose process waits for its standard input, and the other ends of its channels."""

    async def begin(self) -> Worker:
        ours, self.link = socket.socketpair()
        arrivals, self.arrivals = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for sock in (arrivals, self.arrivals):
            sock.setblocking(False)
        self.process = idle_process()
        return Worker(3, self.process, await Link.open(ours), arrivals)

    def close(self) -> None:
        assert self.process.stdin is not None
        for each in (self.link, self.arrivals, self.process.stdin):
            each.close()

    def arrived(self) -> tuple[int, socket.socket] | None:
        try:
            message, files, _, _ = socket.recv_fds(self.arrivals, NUMBER_BYTES, 1)
        except BlockingIOError:
            return None
        return int.from_bytes(message, "little"), socket.socket(fileno=files[0])


@on_both_loops
async def test_connections_are_handed_over() -> None:
    idle = Idle()
    worker = await idle.begin()
    ours, theirs = socket.socketpair()
    worker.hand_over(7, theirs)
    assert worker.connections == {7}
    assert repr(worker) == f"<Worker 3, process {idle.process.pid}, 1 connections>"
    number, received = idle.arrived() or (0, ours)
    assert number == 7
    with ours, received:
        received.send(b"here")
        assert ours.recv(9) == b"here"
    await worker.end()
    assert worker.outcome() == "was ended by SIGKILL"
    idle.close()


@on_both_loops
async def test_more_than_the_channel_holds_wait_in_their_order() -> None:
    idle = Idle()
    worker = await idle.begin()
    end = socket.socket()
    for number in range(CROWD):
        worker.hand_over(number, end.dup())
    waiting = len(worker._waiting)
    assert waiting > 0
    worker.cut(CROWD - 1)
    worker.cut(0)
    found: list[int] = []

    def take() -> bool:
        while (one := idle.arrived()) is not None:
            found.append(one[0])
            one[1].close()
        return len(found) == CROWD - 1

    await eventually(take)
    assert found == list(range(CROWD - 1)), "the one that was cut never came"
    end.close()
    assert idle.link.recv(99) == b'{"cut": 0}\n', "that one had been handed over"
    await worker.end()
    idle.close()


@on_both_loops
async def test_who_waits_is_closed_at_the_end() -> None:
    idle = Idle()
    worker = await idle.begin()
    idle.arrivals.close()
    ours, theirs = socket.socketpair()
    with ours:
        worker.hand_over(1, theirs)
        assert ours.recv(1) == b"", "the process is gone, and so is the client"
    assert idle.process.stdin is not None
    idle.process.stdin.write(b"\n")
    idle.process.stdin.flush()
    await worker.end(patience=20)
    assert worker.outcome() == "ended with exit code 0"
    idle.close()


@on_both_loops
async def test_one_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "child_command", lambda *_: ["/nowhere/python"])
    with pytest.raises(ConfigError, match="set workers = 1"):
        await Worker.start(1)


@on_both_loops
async def test_the_least_loaded_is_one_that_serves() -> None:
    both = Idle(), Idle()
    busy, starting = [await idle.begin() for idle in both]
    assert busy.load == starting.load
    busy.is_ready = True
    ours, theirs = socket.socketpair()
    busy.hand_over(1, theirs)
    assert busy.load < starting.load
    starting.is_ready = True
    assert starting.load < busy.load
    starting.heard_at -= 10
    assert busy.load < starting.load, "one that is silent would let a new client wait"
    ours.close()
    for worker, idle in zip((busy, starting), both, strict=True):
        await worker.end()
        idle.close()
