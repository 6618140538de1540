"""The feed of an engine process: batches that a process of the stream's own reads.

The trainer's interpreter lock cannot slow that process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.config.memory_budget import memory_budget
from streamrec.feeder.client import BlockingFeed
from streamrec.feeder.engine import Engine, order_for
from streamrec.plan.ranges import sent_bytes

if TYPE_CHECKING:
    from streamrec.config import DatasetSettings
    from streamrec.plan.resume_point import ResumePoint
    from streamrec.streams.ranks import Rank

__all__ = ["call_engine", "open_engine"]

PATIENCE = 300.0
"""Seconds: an engine process that dies closes its socket, so this is only for one that hangs."""


def call_engine(settings: DatasetSettings, rank: Rank, order: bytes) -> BlockingFeed:
    """Start an engine process, and return its feed at once; the process waits for ``begin``.

    Args:
        settings: Those of the dataset that it reads.
        rank: The part of it to read.
        order: The message of ``order_for`` for these settings.

    Raises:
        ConfigError: No process can be started.
    """
    engine = Engine.start(order)
    try:
        return BlockingFeed.call(
            engine.socket,
            patience=PATIENCE,
            engine=engine,
            inbox=engine.inbox,
            rank=rank.rank,
            world_size=rank.world_size,
            batch_size=settings.batch_size,
            credit_bytes=sent_bytes(memory_budget(settings)),
        )
    except BaseException:
        engine.close()
        raise


def open_engine(settings: DatasetSettings, rank: Rank, position: ResumePoint) -> BlockingFeed:
    """Start an engine process, and have it read.

    Raises:
        StreamrecError: The dataset cannot be opened, or the position does not fit it.
    """
    feed = call_engine(settings, rank, order_for(settings))
    feed.begin(position)
    return feed
