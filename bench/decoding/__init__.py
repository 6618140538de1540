"""What :mod:`bench.kernel` measures, and how it is shown."""
