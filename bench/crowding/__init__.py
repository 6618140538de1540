"""The parts of :mod:`bench.feeder_connections` and :mod:`bench.feeder_hostile`: their clients."""
