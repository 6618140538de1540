"""The cases, tables and chart of :mod:`bench.kernel`."""
