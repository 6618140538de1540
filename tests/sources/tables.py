"""A real table: half an hour of a feeder's counters."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = Path(__file__).with_name("feeder_soak.csv")
NAMES, *ROWS = list(csv.reader(TABLE.read_text().splitlines()))


def rows() -> Iterator[dict[str, float]]:
    """Yield the rows as records."""
    for row in ROWS:
        yield dict(zip(NAMES, map(float, row), strict=True))
