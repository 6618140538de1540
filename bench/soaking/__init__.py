"""The parts of :mod:`bench.soak`: a feeder, and clients that come and go."""
