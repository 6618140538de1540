"""Notices between a DataLoader's worker, the training process, and the workers that come later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from streamrec.adapters.torch.state import epoch_of
from streamrec.errors import ConfigError
from streamrec.streams import handle

if TYPE_CHECKING:
    from streamrec.streams.stream import Stream


class Notice:
    """A few numbers in memory that a loader shares with its copies in workers.

    A DataLoader starts a worker for each epoch from the training process, where the stream never
    moves. Without this, each of them would read the same epoch.
    """

    def __init__(self) -> None:
        numbers: Any = torch.tensor([-1, 0, 0])
        self._numbers = numbers.share_memory_()

    @property
    def next_epoch(self) -> int | None:
        """The epoch at which the next run of a worker begins; ``None``: where the stream is."""
        epoch = int(self._numbers[0])
        return None if epoch < 0 else epoch

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self._numbers[0] = epoch

    @property
    def is_read(self) -> bool:
        """True if a worker has given batches since the training process cleared the notice."""
        return bool(self._numbers[1])

    def begin(self, stream: Stream) -> None:
        """Note in a worker that a run has begun, and where the next one is to begin."""
        epochs = handle.of(stream).summary().ends["epochs"] or 1
        self.next_epoch = epoch_of(stream.state_dict()) + epochs
        self._numbers[1] = 1

    def loaded(self) -> int:
        """Note that the training process has loaded a state; return how many it has."""
        self.clear()
        self._numbers[2] += 1
        return int(self._numbers[2])

    def check(self, loads: int) -> None:
        """Refuse to go on in a worker that is older than the state that was loaded last.

        Args:
            loads: How many states had been loaded when the worker was started.

        Raises:
            ConfigError: There were more since.
        """
        if loads != int(self._numbers[2]):
            raise ConfigError(
                "a state was loaded in the training process after this worker had begun, so it "
                "would not go on from there; load the state before the first loop over the "
                "DataLoader, or leave out persistent_workers"
            )

    def clear(self) -> None:
        """Note that workers are to begin where the stream is."""
        self._numbers[0], self._numbers[1] = -1, 0
