"""Measurements: side by side in one run, each in a process of its own, in rounds."""
