from __future__ import annotations

import asyncio

import pytest

from streamrec.measure.together import together
from tests.support import asynchronous


async def number(value: int) -> int:
    await asyncio.sleep(0)
    return value


@asynchronous
async def test_results_are_in_order() -> None:
    assert await together(number(value) for value in range(5)) == [0, 1, 2, 3, 4]
    assert await together([]) == []


@asynchronous
async def test_an_error_ends_the_others_and_comes_alone() -> None:
    ended: list[str] = []

    async def hang() -> int:
        try:
            await asyncio.Event().wait()
            return 0
        finally:
            ended.append("hang")

    async def fail() -> int:
        await asyncio.sleep(0)
        raise KeyError("no")

    with pytest.raises(KeyError, match="no"):
        await together([hang(), fail(), hang()])
    assert ended == ["hang", "hang"]
