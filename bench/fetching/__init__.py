"""Streams from object stores, side by side with other ways: see :mod:`bench.remote`."""
