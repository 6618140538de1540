"""Checks for loaders that divide a stream again: PyTorch's DataLoader and those of Accelerate.

A stream is one rank's part of a dataset, whoever iterates it. Several workers of a loader would
each give all of it, and a loader that divides between processes would leave out most. Both are
looked for in what is imported already.
"""

from __future__ import annotations

import os
import sys
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrec.errors import ConfigError
from streamrec.flow import callers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

AS_LOADER = "streamrec.adapters.torch.as_loader(stream)"
PARTS = {
    "DataLoaderDispatcher": attrgetter("state.num_processes"),
    "IterableDatasetShard": attrgetter("num_processes"),
}
"""Classes of ``accelerate.data_loader`` that divide what they iterate, and by how many."""


class Whereabouts(NamedTuple):
    """A process, and which worker of a DataLoader it is."""

    process: int
    worker: int | None


def here() -> Whereabouts:
    """Return where this code runs."""
    info = _worker_info()
    return Whereabouts(os.getpid(), None if info is None else info.id)


def check_sampler() -> None:
    """Refuse to be taken by torch's sampler for a data set whose items have numbers.

    A TypeError would be told, but Lightning takes it for a length that is not known, and then
    fails with an error of its own.

    Raises:
        ConfigError: The caller of the caller is a sampler.
    """
    if callers.module_of(2) == "torch.utils.data.sampler":
        raise ConfigError(
            "a DataLoader of PyTorch asks for items by number, which a stream does not have; in "
            f"its place take {AS_LOADER}; the stream itself batches, shuffles and reads ahead"
        )


def check_workers(divided_in: Whereabouts | None) -> None:
    """Refuse a stream that each of several workers would read in full.

    A stream that was made in this worker, with a rank of its own, is the user's division.

    Args:
        divided_in: The process and worker that made the stream, if the user gave its rank.

    Raises:
        ConfigError: This is one of several workers, and the stream was made outside it, or
            without a rank of its own.
    """
    info = _worker_info()
    if info is None or info.num_workers < 2:
        return
    # A stream that came here by fork or pickle was made elsewhere, whatever rank it was given.
    if divided_in != here():
        raise ConfigError(
            f"this is worker {info.id} of {info.num_workers} of a DataLoader, and each would give "
            "every record of the stream once more; a stream reads ahead by itself: set "
            "num_workers=0 or 1, or make the stream in the worker, with the rank= and world_size= "
            "of a division of your own"
        )


def check_loader(rank: int, world_size: int) -> None:
    """Refuse a rank's stream to a loader of Accelerate that divides between processes itself.

    Raises:
        ConfigError: Such a loader iterates, or pickles, a stream of one of several ranks.
    """
    if world_size == 1:
        return
    # The first of them is enough: it raises.
    for name, parts in _dividing():
        raise ConfigError(
            f"the stream is rank {rank} of {world_size} already, and Accelerate's {name} "
            f"divides it by {parts} once more; do not prepare the loader, or make the stream with "
            "rank=0 and world_size=1"
        )


def _worker_info() -> Any:
    """Return what PyTorch knows of this DataLoader worker; ``None`` in any other process."""
    data = sys.modules.get("torch.utils.data")
    return getattr(data, "get_worker_info", lambda: None)()


def _dividing() -> Iterator[tuple[str, int]]:
    """Find the iterators of Accelerate that run in this thread, and by how much they divide.

    Each calls the stream that it iterates, so it is among the callers of this function.
    """
    module = sys.modules.get("accelerate.data_loader")
    if module is None:
        return
    dividers = {_code_of(getattr(module, name, None)): name for name in PARTS}
    for name, divider in callers.running(dividers):
        if (parts := PARTS[name](divider)) > 1:
            yield name, parts


def _code_of(kind: Any) -> CodeType | None:
    """Return the code of an iterator's frame, where Accelerate still has such a class."""
    return getattr(getattr(kind, "__iter__", None), "__code__", None)
