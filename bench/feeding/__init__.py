"""The parts of :mod:`bench.feeder`: servers, the clients of each kind, and what is made of them."""

KEPT = 4
"""Number of ready batches that are sent again and again: more than a cache holds."""
