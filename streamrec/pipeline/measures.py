"""The measures of a run: what it counts, how long requests take, and where its time goes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from streamrec.flow.attribution import WaitClock
from streamrec.flow.timings import Timings


@dataclass
class Measures:
    """The measures of one run, from its start on; all its stages count on the same."""

    counts: Counter[str] = field(default_factory=Counter)
    timings: Timings = field(default_factory=Timings)
    waits: WaitClock = field(default_factory=WaitClock)
