"""A real table: hours of a feeder's counters, measured by the repository's bench."""

from __future__ import annotations

import csv
from pathlib import Path

TABLE = Path(__file__).parents[3] / "bench" / "results" / "feeder_soak.csv"
NAMES, *ROWS = list(csv.reader(TABLE.read_text().splitlines()))
