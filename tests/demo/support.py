"""A demo that takes no time, and its observer."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamrec.demo.plan import Plan

SMALL = Plan(shards=8, records_per_shard=4, lanes=4, batch_size=2, latency=0.0)


@dataclass
class Recorder:
    """A watcher that remembers."""

    notes: list[str] = field(default_factory=list)
    steps: list[tuple[str, int, int]] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, what: str, done: int, total: int) -> None:
        self.steps.append((what, done, total))
