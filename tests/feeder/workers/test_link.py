from __future__ import annotations

import asyncio
import socket

import pytest

from streamrec.errors import FeederDraining
from streamrec.feeder.workers.link import Link
from tests.feeder.support import on_both_loops


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
