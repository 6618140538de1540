"""The names of the metrics that a feeder exports, and those that a text asks for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.deploy.dockerfile import ROOT

if TYPE_CHECKING:
    from pathlib import Path

METRICS = ROOT / "docs" / "reference" / "metrics.md"
PARTS_OF_A_HISTOGRAM = ("_bucket", "_count", "_sum")


def exported() -> set[str]:
    """Return all names; a test holds the page against what the code exports."""
    rows = re.findall(r"^\| `(streamrec_\w+)` \| (\w+) \|", METRICS.read_text(), re.MULTILINE)
    names = {name for name, _ in rows}
    histograms = [name for name, kind in rows if kind == "histogram"]
    return names | {name + part for name in histograms for part in PARTS_OF_A_HISTOGRAM}


def wanted(path: Path) -> set[str]:
    """Return the names that a file contains."""
    return set(re.findall(r"\bstreamrec_\w+", path.read_text()))
