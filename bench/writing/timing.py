"""The timing of a conversion."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def timed(way: Callable[[dict[str, Any]], None], arguments: dict[str, Any]) -> None:
    """Convert as the arguments say, first a little to warm up, and print the report."""
    for name in ("dest", "warm_up"):
        Path(arguments[name]).mkdir(parents=True, exist_ok=True)
    way({"source": arguments["few"], "dest": arguments["warm_up"]})
    began, cpu = time.perf_counter(), _cpu_seconds()
    way(arguments)
    seconds = time.perf_counter() - began
    print()
    print(json.dumps({"seconds": seconds, "cpu_seconds": _cpu_seconds() - cpu}))


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its workers, which have ended."""
    return sum(os.times()[:4])
