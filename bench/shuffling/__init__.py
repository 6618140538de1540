"""The parts of ``bench.shuffle``: orders, and how well they mix."""
