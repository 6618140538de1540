"""A real table: hours of a feeder's counters, measured by the repository's bench."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = Path(__file__).parents[2] / "bench" / "results" / "feeder_soak.csv"
NAMES, *ROWS = list(csv.reader(TABLE.read_text().splitlines()))


def rows() -> Iterator[dict[str, float]]:
    """Yield the rows as records."""
    for row in ROWS:
        yield dict(zip(NAMES, map(float, row), strict=True))
