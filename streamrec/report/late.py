"""The rank that holds a job of several ranks back, and the sentence that says why. Pure.

The ranks of a training job step together: while one waits for its batch, the others wait for that
rank inside their step. So the rank whose loop waits longest for batches is the late one, and the
stages of its wait say why, by :func:`streamrec.report.verdict.judge` as everywhere.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from streamrec.flow.stages import RESOURCES, TABLE
from streamrec.report.verdict import LEAST, Evidence, judge
from streamrec.report.words import clip, duration, percent, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.report.pace import StreamPace

MOST_URL = 200
"""The most characters of a shard's URL in a sentence."""


def late_rank(paces: Mapping[int, StreamPace]) -> int | None:
    """Return the rank that holds the others back; ``None``: none does.

    Args:
        paces: The last period of each rank. Fewer than two ranks cannot be compared.
    """
    if len(paces) < 2:
        return None
    late = max(paces, key=lambda rank: paces[rank].waited)
    # Where all wait alike, the store or the network is slow, and no rank is.
    return late if paces[late].waited >= waited_by_others(paces, late) + LEAST else None


def waited_by_others(paces: Mapping[int, StreamPace], rank: int) -> float:
    """Return the part of the time for which the median of the other ranks waited."""
    return median(pace.waited for other, pace in paces.items() if other != rank)


def describe_late(rank: int, host: str, paces: Mapping[int, StreamPace]) -> str:
    """Return the sentence about a late rank.

    Args:
        rank: The rank.
        host: The name of its host.
        paces: The last period of each rank.
    """
    pace = paces[rank]
    others = percent(waited_by_others(paces, rank))
    return (
        f"rank {rank} on {clip(host)} waited {percent(pace.waited)} of the last "
        f"{duration(round(pace.seconds))}, the others {others}: {_cause(pace)}"
    )


def describe_silent(rank: int, host: str, age: float) -> str:
    """Return the sentence about a rank that no longer reports its figures.

    Args:
        rank: The rank.
        host: The name of its host.
        age: Seconds since its last report.
    """
    return (
        f"rank {rank} on {clip(host)} has reported nothing for {duration(age)}: its process is "
        "paused, overloaded or gone"
    )


def _cause(pace: StreamPace) -> str:
    """Return what a rank waited for longest."""
    blame = judge(
        Evidence(
            waits={stage: part * pace.seconds for stage, part in pace.waits.items()},
            seconds=pace.seconds,
            kept_back=pace.kept_back,
            requests=int(pace.counts.get("requests", 0)),
            throttled=int(pace.counts.get("throttled", 0)),
        )
    )
    stage = TABLE.get(blame.stage or "client")
    if stage is None or stage.box == "client":
        return "for which stage is not known yet"
    if stage.box != "fetch" or pace.shard is None:
        return stage.awaited
    times = "" if pace.first_byte_p99 is None else f", p99 {seconds(pace.first_byte_p99)}"
    meanwhile = RESOURCES[blame.resource].meanwhile if blame.resource else ""
    because = f"; meanwhile {meanwhile}" if meanwhile else ""
    return f"{stage.noun} from {clip(pace.shard, MOST_URL)}{times}{because}"
