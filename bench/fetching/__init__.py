"""The parts of :mod:`bench.remote`: streams from object stores, beside other readers."""
