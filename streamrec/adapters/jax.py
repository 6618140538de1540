"""With JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.plan.agreement import RankSummary, check_agreement

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.streams.stream import Stream

__all__ = ["agree"]


def agree(stream: Stream) -> None:
    """See to it that all processes read one stream, before the first batch.

    Call it on every process of JAX, with the stream open. Where they disagree, all of them raise
    the same error.

    Args:
        stream: Open: in its ``with`` or ``async with`` block.

    Raises:
        ConfigError: The streams differ, and in what.
    """
    from jax.experimental import multihost_utils

    texts = gather(stream.claim().to_json(), multihost_utils.process_allgather)
    check_agreement([RankSummary.from_json(text) for text in texts])


def gather(text: str, allgather: Callable[[Any], Any]) -> list[str]:
    """Gather the texts of all processes by a collective that takes arrays of one shape only.

    Args:
        text: Of this process.
        allgather: From an array to those of all processes, stacked.
    """
    data = np.frombuffer(text.encode(), np.uint8)
    sizes = np.asarray(allgather(np.array([len(data)], np.int32))).reshape(-1)
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: len(data)] = data
    rows = np.asarray(allgather(padded)).reshape(len(sizes), -1)
    return [bytes(row[:size]).decode() for row, size in zip(rows, sizes.tolist(), strict=True)]
