"""Boards on which the ranks of a job write for one another, beside the training.

They are the key-value stores by which torch.distributed and JAX found one another. Nothing here is
a collective: a rank that is late keeps no other from writing or reading.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Board(Protocol):
    """A board with a place for each rank."""

    @property
    def rank(self) -> int:
        """The rank of this process."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def write(self, text: str) -> None:
        """Put a text in this rank's place, instead of the last one."""

    def read(self, rank: int) -> str | None:
        """Return the text in a rank's place, at once; ``None``: there is none yet."""


class TorchBoard:
    """A board in the store of torch.distributed's default group.

    Args:
        topic: The name of what is written about, the same on all ranks.
        distributed: The module ``torch.distributed``, initialised.
    """

    def __init__(self, topic: str, distributed: Any) -> None:
        # The public way, a store of our own, would need a port that each rank is told.
        store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001
        # With a connection of its own where torch has that: another thread may wait in the store,
        # and lets no other call begin.
        self._store = store.clone() if hasattr(store, "clone") else store
        self._topic = topic
        self.rank: int = distributed.get_rank()
        self.size: int = distributed.get_world_size()

    def write(self, text: str) -> None:
        """Put a text in this rank's place."""
        self._store.set(self._key(self.rank), text)

    def read(self, rank: int) -> str | None:
        """Return the text in a rank's place."""
        # To get what is not there yet would wait for it.
        if not self._store.check([self._key(rank)]):
            return None
        text: bytes = self._store.get(self._key(rank))
        return text.decode()

    def _key(self, rank: int) -> str:
        return f"streamrec/{self._topic}/{rank}"


class JaxBoard:
    """A board in the store of ``jax.distributed``.

    Args:
        topic: The name of what is written about, the same on all ranks.
        jax: The module ``jax``, whose ``distributed`` is initialised.
    """

    def __init__(self, topic: str, jax: Any) -> None:
        # There is no public way to it; Orbax takes the same.
        self._client = jax._src.distributed.global_state.client  # noqa: SLF001
        self._folder = f"streamrec/{topic}"
        self.rank: int = jax.process_index()
        self.size: int = jax.process_count()

    def write(self, text: str) -> None:
        """Put a text in this rank's place."""
        key = f"{self._folder}/{self.rank}/now"
        self._client.key_value_set(key, text, allow_overwrite=True)

    def read(self, rank: int) -> str | None:
        """Return the text in a rank's place."""
        # All keys of a folder: to get a key that is not there yet would wait for it.
        entries = self._client.key_value_dir_get(f"{self._folder}/{rank}/")
        return next((text for _, text in entries), None)


def find_board(topic: str) -> Board | None:
    """Return the board of the framework that is initialised; ``None``: there is none.

    Imports and initialises nothing.

    Args:
        topic: The name of what is written about, the same on all ranks.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return TorchBoard(topic, distributed)
    jax = sys.modules.get("jax")
    is_initialized: Callable[[], bool] = getattr(
        getattr(jax, "distributed", None), "is_initialized", bool
    )
    return JaxBoard(topic, jax) if is_initialized() else None
