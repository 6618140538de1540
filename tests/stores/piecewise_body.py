"""The base of test bodies that are read piece by piece."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PiecewiseBody"]


class PiecewiseBody(ABC):
    """A body that is read piece by piece."""

    @abstractmethod
    async def readinto(self, view: memoryview) -> int:
        """Fill the beginning of a view, which is not empty; return 0 at the range's end."""

    async def fill(self, view: memoryview, on_received: Callable[[int], None]) -> None:
        """Fill a view piece by piece."""
        while view and (count := await self.readinto(view)):
            view = view[count:]
            on_received(count)
