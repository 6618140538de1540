"""The clients of :mod:`bench.feeder_connections`, ``feeder_hostile`` and ``feeder_leaving``."""
