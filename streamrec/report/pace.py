"""The figures of a stream over a period, and the rank that holds a job of several ranks back."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from streamrec.flow.stages import RESOURCES, TABLE
from streamrec.flow.timings import first_bytes_of, growth, quantile
from streamrec.report.verdict import LEAST, Evidence, judge
from streamrec.report.words import clip, duration, percent, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

COUNTED: Final = (
    *("requests", "retries", "throttled", "hedges", "bytes_read", "cache_hits"),
    *("cached_batches", "cached_pictures", "cached_mapped"),
)
"""The counters that begin again with each run."""
TAKEN: Final = ("batches", "records", "seconds_blocked")
"""The counters of the loop, which go on over all runs."""


@dataclass(frozen=True, kw_only=True)
class StreamPace:
    """The figures of a stream over a period, as plain data."""

    seconds: float
    """The length of the period."""
    waited: float = 0.0
    """The part of the period for which the loop waited for batches, 0 to 1."""
    waits: Mapping[str, float] = field(default_factory=dict)
    """The parts of the period by stage, 0 to 1; ``"client"`` is the time of the loop itself."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """The growth of each counter."""
    kept_back: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each cause for which the engine asked for no more."""
    first_byte_p50: float | None = None
    """Seconds until the first byte of an answer; ``None``: there was no answer."""
    first_byte_p99: float | None = None
    shard: str | None = None
    """The URL of the shard whose bytes were waited for longest; ``None``: none was."""


def pace_between(before: Mapping[str, Any], now: Mapping[str, Any], seconds: float) -> StreamPace:
    """Return the figures of a period.

    Args:
        before: ``stream.statistics()`` at its beginning; empty: the stream had not begun.
        now: ``stream.statistics()`` at its end.
        seconds: The length of the period, above 0.
    """
    counts = _growth(_some(before, COUNTED), _some(now, COUNTED))
    counts |= {name: max(0.0, now.get(name, 0) - before.get(name, 0)) for name in TAKEN}
    waited = min(counts["seconds_blocked"] / seconds, 1.0)
    answers = _growth_of_histogram(_first_bytes(before), _first_bytes(now))
    awaited = now.get("awaited_shard")
    return StreamPace(
        seconds=seconds,
        waited=waited,
        waits=_waits(_growth(before.get("waits", {}), now.get("waits", {})), waited),
        counts=counts,
        kept_back=_growth(
            before.get("concurrency_seconds", {}), now.get("concurrency_seconds", {})
        ),
        first_byte_p50=quantile(answers, 0.5),
        first_byte_p99=quantile(answers, 0.99),
        shard=None if awaited is None else awaited["url"],
    )


def values_of(pace: StreamPace) -> dict[str, float]:
    """Return the figures by name, as trackers show them."""
    counts = {name: pace.counts.get(name, 0) for name in (*TAKEN[:2], *COUNTED)}
    # A tracker draws bytes a second, whoever reads them.
    rates = {name.removesuffix("_read"): count / pace.seconds for name, count in counts.items()}
    times = {"first_byte_p50": pace.first_byte_p50, "first_byte_p99": pace.first_byte_p99}
    return {
        **{f"{name}_per_second": rate for name, rate in rates.items()},
        "waited": pace.waited,
        **{f"wait/{stage}": part for stage, part in pace.waits.items() if stage != "client"},
        **{name: seconds for name, seconds in times.items() if seconds is not None},
    }


def _waits(grown: Mapping[str, float], waited: float) -> dict[str, float]:
    """Return the parts of the period by stage.

    The loop knows for how long it waited, and the run for which stages. Another process may also
    have waited while the loop still had batches, so only the shares of its stages count.
    """
    stages = {stage: seconds for stage, seconds in grown.items() if stage != "client"}
    whole = sum(stages.values())
    parts = {stage: waited * seconds / whole for stage, seconds in stages.items()}
    return {**parts, "client": 1.0 - waited}


def _growth(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Return what has grown; a counter that is lower than before has begun again at 0."""
    return growth({name: old for name, old in before.items() if old <= now.get(name, 0)}, now)


def _first_bytes(statistics: Mapping[str, Any]) -> list[int]:
    return first_bytes_of(statistics.get("timings", {}))


def _growth_of_histogram(before: list[int], now: list[int]) -> list[int]:
    # The next run counts from 0; and the first read makes the histogram, which was missing before.
    if not before or sum(before) > sum(now):
        return now
    return [count - old for count, old in zip(now, before, strict=True)]


def _some(statistics: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, float]:
    return {name: statistics[name] for name in names if name in statistics}


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
