"""The writing half of stores of tests that are only read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn


class ReadOnly:
    """A base of stores that refuse to write."""

    def put(self, url: str, **_: bool) -> NoReturn:
        raise NotImplementedError(url)

    async def delete(self, url: str) -> None:
        raise NotImplementedError(url)
