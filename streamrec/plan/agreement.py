"""Whether all ranks are about to read the same stream, each its own part of it.

Two ranks that read two orders train on, and nobody notices; two that end at different steps wait
for each other for ever. So each says what it is about to read, and every one compares all of them.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from streamrec.errors import ConfigError
from streamrec.plan.position import Fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["RankSummary", "check_agreement", "disagreements"]

ENDS = ("epochs", "steps_per_epoch", "remainder")
MOST_NAMED = 8
"""Processes that a sentence names one by one."""


@dataclass(frozen=True)
class RankSummary:
    """What one process is about to read."""

    fingerprint: Fingerprint
    rank: int
    world_size: int
    step: int
    """Where it begins."""
    ends: Mapping[str, Any]
    """The settings that decide where its runs end."""

    def to_json(self) -> str:
        """As text, to be gathered."""
        return json.dumps({**asdict(self), "ends": dict(self.ends)})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` gave on another rank, which runs the same program."""
        data = json.loads(text)
        return cls(**{**data, "fingerprint": Fingerprint.from_dict(data["fingerprint"])})

    def facts(self) -> dict[str, Any]:
        """All that must be the same everywhere."""
        order = asdict(self.fingerprint)
        names = order.pop("names")
        plain = {"the names of the shards": names, **order}
        plain |= {name: self.ends.get(name) for name in ENDS}
        return {**plain, "world_size": self.world_size, "step": self.step}


def disagreements(summaries: Sequence[RankSummary]) -> list[str]:
    """What the processes do not agree on, a sentence each; none if all is well.

    Args:
        summaries: Of every process, in their order.
    """
    facts = [summary.facts() for summary in summaries]
    faults = [_values(name, [fact[name] for fact in facts]) for name in facts[0]]
    faults.append(_ranks(summaries))
    return [fault for fault in faults if fault]


def check_agreement(summaries: Sequence[RankSummary]) -> None:
    """Refuse to begin where the processes disagree: on all of them alike.

    Raises:
        ConfigError: They do; the sentence says which process differs in what.
    """
    faults = disagreements(summaries)
    if faults:
        raise ConfigError(
            f"the {len(summaries)} processes would not read one stream: {'; '.join(faults)}; "
            "give all of them the same settings, and each its own rank"
        )


def _values(name: str, values: Sequence[Any]) -> str | None:
    by_value: dict[str, list[int]] = {}
    for process, value in enumerate(values):
        by_value.setdefault(repr(value), []).append(process)
    if len(by_value) == 1:
        return None
    groups = sorted(by_value.items(), key=lambda item: -len(item[1]))
    return f"{name} is " + " and ".join(f"{value} {_where(group)}" for value, group in groups)


def _where(processes: Sequence[int]) -> str:
    if len(processes) > MOST_NAMED:
        return f"in {len(processes)} processes"
    return f"in process{'es' if processes[1:] else ''} {', '.join(map(str, processes))}"


def _ranks(summaries: Sequence[RankSummary]) -> str | None:
    """Ranks are groups: several processes may share one, but then all of them are shared alike."""
    world_size = summaries[0].world_size
    times = Counter(summary.rank for summary in summaries)
    missing = [rank for rank in range(world_size) if rank not in times]
    if missing:
        some = ", ".join(map(str, missing[:MOST_NAMED])) + (", ..." if missing[MOST_NAMED:] else "")
        return f"nobody reads rank {some} of {world_size}"
    (most, often), (least, seldom) = times.most_common()[0], times.most_common()[-1]
    if often == seldom:
        return None
    return f"rank {most} is read by {often} processes and rank {least} by {seldom}"
