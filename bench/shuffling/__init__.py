"""The parts of :mod:`bench.shuffle`: orders, and figures of how well they mix."""
