"""The rank of this process: as given, or by a framework or the launcher."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from streamrec.config.environment import find_launched_rank, find_other_processes
from streamrec.errors import ConfigError
from streamrec.streams import workers

GIVEN = "as given"
NOTHING = "no launcher found"

log = logging.getLogger("streamrec")


class Rank(NamedTuple):
    """A data-parallel group: not necessarily a process."""

    rank: int
    world_size: int


@dataclass(frozen=True)
class Assignment:
    """The rank of a stream and its source; it travels with the stream to other processes."""

    rank: Rank
    source: str
    """The name of what told the rank."""
    made_in: workers.Whereabouts
    """The process and worker that made the stream."""
    is_logged: bool = False

    @property
    def is_given(self) -> bool:
        """True if the user gave it."""
        return self.source == GIVEN


def assign(rank: int | Literal["auto"], world_size: int | Literal["auto"]) -> Assignment:
    """Return the rank as given or, where both numbers are ``"auto"``, as the first source has it.

    Imports and initialises nothing.

    Raises:
        ConfigError: One of the two is given and the other is not, or they contradict each other.
    """
    if (rank == "auto") != (world_size == "auto"):
        raise ConfigError("give both rank and world_size, or neither")
    if rank == "auto" or world_size == "auto":
        group, source = _find() or (Rank(0, 1), NOTHING)
    else:
        group, source = Rank(rank, world_size), GIVEN
    if not 0 <= group.rank < group.world_size:
        raise ConfigError(
            f"rank must be from 0 to {group.world_size - 1}, not {group.rank} ({source})"
        )
    return Assignment(group, source, workers.here())


def confirm(assignment: Assignment, *, is_open: bool) -> Assignment:
    """Look for the rank once more when a stream is used, and return what holds from now on.

    Nothing contradicts a source that comes before it: where a rank starts processes, they may have
    an environment that speaks of machines, and not know what the rank knows.

    Args:
        assignment: The assignment from when the stream was made.
        is_open: The stream has begun to read, so that nothing else can hold any more.

    Raises:
        ConfigError: Something else was known before.
    """
    now = None if assignment.is_given else _find(assignment.source)
    if now is None or now[0] == assignment.rank:
        return assignment
    if assignment.source == NOTHING and not is_open:
        return replace(assign("auto", "auto"), made_in=assignment.made_in)
    (rank, world_size), source = now
    raise ConfigError(
        f"the stream was {'opened' if is_open else 'made'} as rank {assignment.rank.rank} of "
        f"{assignment.rank.world_size} ({assignment.source}), and now it would be rank {rank} of "
        f"{world_size} ({source}); make the stream when the rank is known, or give "
        "rank= and world_size="
    )


def log_assignment(assignment: Assignment) -> Assignment:
    """Log once which rank was found, and by what."""
    if not assignment.is_given and not assignment.is_logged:
        log.info("rank %d of %d (%s)", *assignment.rank, assignment.source)
        other = find_other_processes() if assignment.source == NOTHING else None
        if other is not None:
            log.warning(
                "%s tells of other processes, and nothing tells the rank of this one, so each of "
                "them reads all records; give rank= and world_size=, unless your framework "
                "divides the batches by itself",
                other,
            )
    return replace(assignment, is_logged=True)


def _torch() -> Rank | None:
    # Only what is imported already: a program that has not imported torch has no group of it.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Rank(distributed.get_rank(), distributed.get_world_size())


def _jax() -> Rank | None:
    jax = sys.modules.get("jax")
    distributed = getattr(jax, "distributed", None)
    # Older versions of jax have no is_initialized: bool() stands for it, which is False.
    if jax is None or not getattr(distributed, "is_initialized", bool)():
        return None
    # Only now: before jax.distributed is initialised, this would start a backend without it.
    return Rank(jax.process_index(), jax.process_count())


_FRAMEWORKS = {"torch.distributed": _torch, "jax.distributed": _jax}
"""The frameworks that may know the rank, before any launcher; the first that does decides."""


def _find(last: str = NOTHING) -> tuple[Rank, str] | None:
    """Return the rank and its source; look no further than the ``last`` one."""
    for source, look in _FRAMEWORKS.items():
        if (rank := look()) is not None:
            return rank, source
        if source == last:
            return None
    launch = find_launched_rank(last)
    return None if launch is None else (Rank(launch.rank, launch.world_size), launch.source)
