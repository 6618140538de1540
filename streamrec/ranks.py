"""Which part of the stream this process is to read, where nobody says so."""

from __future__ import annotations

import logging
import os
import sys
from typing import Literal, NamedTuple

from streamrec.errors import ConfigError

__all__ = ["Rank", "resolve"]

log = logging.getLogger("streamrec")


class Rank(NamedTuple):
    """A data-parallel group: not necessarily a process."""

    rank: int
    world_size: int


def resolve(rank: int | Literal["auto"], world_size: int | Literal["auto"]) -> Rank:
    """The rank and world size as given or, where both are ``"auto"``, as found.

    Looks at an initialised torch.distributed, an initialised JAX, then ``RANK`` and ``WORLD_SIZE``;
    else there is one rank. Imports and initialises nothing.

    Raises:
        ConfigError: One of the two is given and the other is not, or they contradict each other.
    """
    if (rank == "auto") != (world_size == "auto"):
        raise ConfigError("give both rank and world_size, or neither")
    if rank == "auto" or world_size == "auto":
        found, source = _torch() or _jax() or _environment() or (Rank(0, 1), "nothing else known")
        log.info("rank %d of %d (%s)", *found, source)
    else:
        found = Rank(rank, world_size)
    if not 0 <= found.rank < found.world_size:
        raise ConfigError(f"rank {found.rank} is not one of 0 to {found.world_size - 1}")
    return found


def _torch() -> tuple[Rank, str] | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Rank(distributed.get_rank(), distributed.get_world_size()), "torch.distributed"


def _jax() -> tuple[Rank, str] | None:
    jax = sys.modules.get("jax")
    distributed = getattr(jax, "distributed", None)
    if jax is None or not getattr(distributed, "is_initialized", bool)():
        return None
    return Rank(jax.process_index(), jax.process_count()), "jax.distributed"


def _environment() -> tuple[Rank, str] | None:
    names = ("RANK", "WORLD_SIZE")
    values = [os.environ.get(name) for name in names]
    if None in values:
        return None
    try:
        rank, world_size = (int(value or "") for value in values)
    except ValueError:
        raise ConfigError(
            f"RANK={values[0]!r} and WORLD_SIZE={values[1]!r} are no numbers"
        ) from None
    return Rank(rank, world_size), "RANK and WORLD_SIZE"
