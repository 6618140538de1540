"""Who else reads what a stream reads: workers of PyTorch's DataLoader.

A stream is one rank's part of a dataset, whoever iterates it. Several workers of a loader would
each give all of it. They are looked for in what is imported already.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from streamrec.ranks import Assignment

__all__ = ["Whereabouts", "check_workers", "here"]


class Whereabouts(NamedTuple):
    """A process, and which worker of a DataLoader it is."""

    process: int
    worker: int | None


def here() -> Whereabouts:
    """Return where this code runs."""
    info = _worker_info()
    return Whereabouts(os.getpid(), None if info is None else info.id)


def check_workers(assignment: Assignment) -> None:
    """Refuse a stream of which each of several workers would give everything.

    A stream that was made in this worker, with a rank of its own, is the user's division.

    Raises:
        ConfigError: This is one of several workers, and the stream is none of its own.
    """
    info = _worker_info()
    if info is None or info.num_workers < 2:
        return
    if not assignment.is_given or assignment.made_in != here():
        raise ConfigError(
            f"this is worker {info.id} of {info.num_workers} of a DataLoader, and each would give "
            "every record of the stream once more; a stream reads ahead by itself: set "
            "num_workers=0 or 1, or make the stream in the worker, with the rank= and world_size= "
            "of a division of your own"
        )


def _worker_info() -> Any:
    """Return what PyTorch knows of this DataLoader worker; ``None`` in any other process."""
    data = sys.modules.get("torch.utils.data")
    return getattr(data, "get_worker_info", lambda: None)()
