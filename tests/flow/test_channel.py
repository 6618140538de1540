from __future__ import annotations

import asyncio

import pytest

from streamrec.flow.channel import Channel, EndOfStream
from tests.support import asynchronous

MANY = 100
"""More values than wait in a test."""


async def settle() -> None:
    """Let every task that can run do so."""
    for _ in range(5):
        await asyncio.sleep(0)


@asynchronous
async def test_values_come_in_order_and_the_end_after_them() -> None:
    channel: Channel[int] = Channel(100, most=MANY)
    for value in range(3):
        await channel.send(value, 1)
    await channel.close()
    assert [await channel.receive() for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(EndOfStream):
            await channel.receive()


@asynchronous
async def test_a_closed_one_says_so_though_values_wait() -> None:
    channel: Channel[int] = Channel(10, most=MANY)
    await channel.send(1, 1)
    assert not channel.is_closed
    await channel.close()
    assert channel.is_closed
    assert await channel.receive() == 1


@asynchronous
async def test_an_error_comes_after_what_was_sent() -> None:
    channel: Channel[int] = Channel(100, most=MANY)
    await channel.send(1, 1)
    await channel.close(ValueError("cause"))
    await channel.close()
    assert await channel.receive() == 1
    with pytest.raises(ValueError, match="cause"):
        await channel.receive()


@asynchronous
async def test_bytes_bound_what_waits() -> None:
    channel: Channel[str] = Channel(10, most=MANY)
    await channel.send("a", 6)
    second = asyncio.create_task(channel.send("b", 6))
    await settle()
    assert not second.done()
    assert channel.waiting_bytes == 6
    assert await channel.receive() == "a"
    await second
    assert repr(channel) == "<Channel open, 1 waiting, 6 bytes>"


@asynchronous
async def test_one_value_larger_than_the_channel_may_wait_alone() -> None:
    channel: Channel[str] = Channel(10, most=MANY)
    await channel.send("large", 1000)
    second = asyncio.create_task(channel.send("b", 1))
    await settle()
    assert not second.done()
    assert await channel.receive() == "large"
    await second


@asynchronous
async def test_a_number_bounds_what_waits() -> None:
    channel: Channel[int] = Channel(1000, most=2)
    await channel.send(1, 1)
    await channel.send(2, 1)
    third = asyncio.create_task(channel.send(3, 1))
    await settle()
    assert not third.done()
    assert len(channel) == 2
    third.cancel()
    await asyncio.wait([third])


@asynchronous
async def test_closing_wakes_both_ends() -> None:
    channel: Channel[int] = Channel(1, most=MANY)
    receiver = asyncio.create_task(channel.receive())
    await settle()
    await channel.close()
    with pytest.raises(EndOfStream):
        await receiver
    full: Channel[int] = Channel(1, most=MANY)
    await full.send(1, 1)
    sender = asyncio.create_task(full.send(2, 1))
    await settle()
    await full.close()
    with pytest.raises(RuntimeError, match="closed"):
        await sender
    assert "closed by EndOfStream" in repr(full)


@asynchronous
async def test_a_cancelled_receiver_loses_nothing() -> None:
    channel: Channel[int] = Channel(1, most=MANY)
    receiver = asyncio.create_task(channel.receive())
    await settle()
    receiver.cancel()
    await asyncio.wait([receiver])
    await channel.send(1, 1)
    assert await channel.receive() == 1


@asynchronous
async def test_a_value_reaches_one_of_those_who_wait() -> None:
    channel: Channel[int] = Channel(100, most=MANY)
    receivers = [asyncio.create_task(channel.receive()) for _ in range(3)]
    await settle()
    await channel.send(1, 1)
    await settle()
    assert sum(receiver.done() for receiver in receivers) == 1
    await channel.send(2, 1)
    await channel.close()
    outcomes = await asyncio.gather(*receivers, return_exceptions=True)
    assert sorted(value for value in outcomes if isinstance(value, int)) == [1, 2]
    assert sum(isinstance(error, EndOfStream) for error in outcomes) == 1


@asynchronous
async def test_room_goes_to_one_of_those_who_wait_for_it() -> None:
    channel: Channel[int] = Channel(100, most=1)
    await channel.send(0, 1)
    senders = [asyncio.create_task(channel.send(value, 1)) for value in (1, 2)]
    await settle()
    for expected in range(3):
        assert len(channel) == 1
        assert sum(sender.done() for sender in senders) == max(0, expected)
        assert await channel.receive() == expected
        await settle()
    await asyncio.gather(*senders)


@asynchronous
async def test_what_is_taken_out_makes_room() -> None:
    channel: Channel[str] = Channel(10, most=MANY)
    await channel.send("a", 10)
    sender = asyncio.create_task(channel.send("b", 10))
    await settle()
    assert list(channel.take_all()) == [("a", 10)]
    await settle()
    assert sender.done()
    assert await channel.receive() == "b"


@asynchronous
async def test_room_is_waited_for_before_a_value_is_made() -> None:
    channel: Channel[str] = Channel(10, most=MANY)
    await channel.wait_for_room(1000)  # one may always wait alone
    await channel.send("a", 8)
    waiting = asyncio.create_task(channel.wait_for_room(3))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await channel.receive() == "a"
    await waiting
    await channel.send("b", 8)
    waiting = asyncio.create_task(channel.wait_for_room(3))
    await asyncio.sleep(0)
    await channel.close()
    with pytest.raises(RuntimeError, match="closed"):
        await waiting
