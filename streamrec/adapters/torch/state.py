"""The state of a loader, in the form that PyTorch's checkpoints keep whole.

``torch.distributed.checkpoint`` loads the names that a state has at the time of loading, and saves
one copy of what has the same name on all ranks. So the state has one name, which is the rank's, and
its value is one text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streamrec.errors import MalformedPosition

if TYPE_CHECKING:
    from streamrec.streams.ranks import Rank

ENDED = "ended"


def epoch_of(state: Mapping[str, Any]) -> int:
    """Return the epoch at which the run of a stream's state began."""
    return int(state.get("run_epoch", state.get("epoch", 0)))


def of_loader(state: Mapping[str, Any], rank: Rank, *, is_ended: bool) -> dict[str, Any]:
    """Return a loader's state.

    Args:
        state: The stream's state behind the last batch given.
        rank: Whose state it is.
        is_ended: The run has ended there, and the trainer saw it.
    """
    ended = {ENDED: True} if is_ended else {}
    return {f"rank {rank.rank} of {rank.world_size}": json.dumps({**state, **ended})}


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
    try:
        if "version" in state:
            return [dict(state)]
        states = [json.loads(text) for text in state.values()]
    except (AttributeError, TypeError, ValueError):
        states = []
    if not states or not all(isinstance(one, dict) for one in states):
        raise MalformedPosition("this is not a state of a loader; give what state_dict() returned")
    return states
