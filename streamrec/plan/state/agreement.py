"""A check that all ranks are about to read the same stream, each its own part of it.

Ranks that read different orders would train on unnoticed; ranks that end at different steps would
wait for each other for ever. So every rank gathers the summaries of all ranks and compares them.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from streamrec.errors import ConfigError
from streamrec.plan.state.position import Fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ENDS = ("epochs", "steps_per_epoch", "remainder")
MOST_NAMED = 8
"""The most processes that a sentence names one by one."""


@dataclass(frozen=True)
class RankSummary:
    """A summary of the stream that one process is about to read."""

    fingerprint: Fingerprint
    rank: int
    world_size: int
    step: int
    """The step at which it begins."""
    ends: Mapping[str, Any]
    """The settings that decide where its runs end."""

    def to_json(self) -> str:
        """Encode as text, for a collective operation that gathers it."""
        return json.dumps({**asdict(self), "ends": dict(self.ends)})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Decode the text of :meth:`to_json` on another rank, which runs the same program."""
        data = json.loads(text)
        return cls(**{**data, "fingerprint": Fingerprint.from_dict(data["fingerprint"])})

    def facts(self) -> dict[str, Any]:
        """Return all that must be the same for every rank, by name."""
        order = asdict(self.fingerprint)
        names = order.pop("names")
        plain = {"the names of the shards": names, **order}
        plain |= {name: self.ends.get(name) for name in ENDS}
        return {**plain, "world_size": self.world_size, "step": self.step}


def disagreements(summaries: Sequence[RankSummary]) -> list[str]:
    """Return a sentence for each fact on which the processes disagree.

    Args:
        summaries: Those of all processes, in order.
    """
    facts = [summary.facts() for summary in summaries]
    faults = [_values(name, [fact[name] for fact in facts]) for name in facts[0]]
    faults.append(_ranks(summaries))
    return [fault for fault in faults if fault]


def check_agreement(summaries: Sequence[RankSummary]) -> None:
    """Check that the processes agree; where they do not, every one of them fails alike.

    Raises:
        ConfigError: They disagree; the message says which process differs in what.
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
    """Check that every rank is read, and by as many processes as every other."""
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
