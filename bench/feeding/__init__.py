"""The processes that :mod:`bench.feeder` starts."""

KEPT = 4
"""Number of ready batches that are sent again and again: more than a cache holds."""
