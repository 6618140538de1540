"""The readers: programs that read a dataset once, and print a line of JSON about it.

``python -m bench.readers.MODULE NAME ARGUMENTS``; see :class:`bench.harness.Case`.
"""
