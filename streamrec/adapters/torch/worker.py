"""The state of a loader, and notices between a DataLoader's workers and the training process.

``torch.distributed.checkpoint`` loads the names that a state has at the time of loading, and saves
one copy of what has the same name on all ranks. So the state has one name, which is the rank's, and
its value is one text. The states of all ranks together have a name that says nothing of their
number, so that any number of ranks finds it in a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from streamrec.errors import ConfigError, MalformedPosition
from streamrec.masking import type_of
from streamrec.streams import handle

if TYPE_CHECKING:
    from streamrec.streams.ranks import Rank
    from streamrec.streams.stream import Stream


ENDED = "ended"
ALL = "all ranks"


def epoch_of(state: Mapping[str, Any]) -> int:
    """Return the epoch at which the run of a stream's state began."""
    return int(state.get("run_epoch", state.get("epoch", 0)))


def of_loader(state: Mapping[str, Any], rank: Rank, *, is_ended: bool) -> dict[str, Any]:
    """Return a loader's state.

    Args:
        state: The stream's state after the last batch given.
        rank: Whose state it is.
        is_ended: The run has ended there, and the trainer saw it.
    """
    ended = {ENDED: True} if is_ended else {}
    return {f"rank {rank.rank} of {rank.world_size}": json.dumps({**state, **ended})}


def of_all(own: Mapping[str, str], group: Any) -> dict[str, Any]:
    """Return the states of all ranks, as the same on each of them; each of them calls it.

    Args:
        own: The state of this rank's loader.
        group: The process group of the ranks; True: all of them.
    """
    from torch import distributed

    texts = list(own.values())
    if distributed.is_available() and distributed.is_initialized():
        group = None if group is True else group
        gathered: list[list[str]] = [[]] * distributed.get_world_size(group)
        distributed.all_gather_object(gathered, texts, group)
        texts = [text for some in gathered for text in some]
    # Replicas of one rank have one state.
    return {ALL: f"[{', '.join(sorted(set(texts)))}]"}


def from_loader(state: Any) -> tuple[list[dict[str, Any]], bool]:
    """Return the stream's states in a loader's, or in a list of them, and whether the run ended.

    Raises:
        MalformedPosition: The argument is not a state.
    """
    parts = state if isinstance(state, Sequence) and not isinstance(state, str) else [state]
    states = [one for part in parts for one in _states_in(part)]
    ends = [one.pop(ENDED, False) for one in states]
    return states, any(ends)


def _states_in(state: Any) -> list[dict[str, Any]]:
    plain = dict(state) if isinstance(state, Mapping) else {}
    if "version" in plain:
        return [plain]
    try:
        parsed = [json.loads(text) for text in plain.values()]
        states = [one for some in parsed for one in (some if isinstance(some, list) else [some])]
    except (TypeError, ValueError):
        states = []
    if not states or not all(isinstance(one, dict) for one in states):
        raise MalformedPosition(
            f"{type_of(state)} is not a state of a loader, or does not hold one; give what its "
            "state_dict() returned, or a stream's"
        )
    return states


class Notice:
    """A few numbers in memory that a loader shares with its copies in workers.

    A DataLoader starts a worker for each epoch from the training process, where the stream never
    moves. Without this, each of them would read the same epoch.
    """

    def __init__(self) -> None:
        # The next epoch, whether a worker has read, and how many states were loaded.
        numbers: Any = torch.tensor([-1, 0, 0])
        # Shared memory and not a queue: a worker may start at any time, and needs the latest alone.
        self._numbers = numbers.share_memory_()

    @property
    def next_epoch(self) -> int | None:
        """The epoch at which the next run of a worker begins; ``None``: where the stream is."""
        epoch = int(self._numbers[0])
        # A tensor holds no None.
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
        # An endless run has no epoch behind it: the next worker begins one epoch later.
        epochs = handle.of(stream).summary().ends["epochs"] or 1
        self.next_epoch = epoch_of(stream.state_dict()) + epochs
        self._numbers[1] = 1

    def note_load(self) -> int:
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
