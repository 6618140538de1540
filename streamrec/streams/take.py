"""``streamrec.take``: a few batches of a stream, and no more."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import TypeVar

from streamrec.config.arguments import count_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from streamrec.streams.stream import Stream

Item = TypeVar("Item", default=Any)


def take(stream: Stream[Item], count: int) -> Take[Item]:
    """Return the next ``count`` batches (or single records), for ``for`` and ``async for``.

    Nothing behind them is taken: the stream's state is that of the last of them, and the next
    loop goes on there. There are fewer where the run ends before.

    Args:
        stream: The stream to take from, as far as the loop gets.
        count: Number of batches (or single records), from 0.

    Raises:
        ConfigError: The count is not a number from 0 up.
    """
    return Take(stream, count_of(count, "count"))


class Take(Generic[Item]):
    """The next few batches of a stream; each loop over them takes as many again."""

    def __init__(self, stream: Stream[Item], count: int) -> None:
        self._stream = stream
        self._count = count

    def __repr__(self) -> str:
        return f"<the next {self._count} of {self._stream!r}>"

    def __iter__(self) -> Iterator[Item]:
        # Merely asking a stream for its iterator may start the next run.
        return islice(self._stream, self._count) if self._count else iter(())

    async def __aiter__(self) -> AsyncIterator[Item]:
        left = self._count
        if not left:
            return
        async for item in self._stream:
            yield item
            left -= 1
            if not left:
                return
