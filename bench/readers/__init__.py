"""The readers: programs that read a dataset once, and print a line of JSON about it.

Each takes a JSON object of arguments on its command line; see :mod:`bench.measure`.
"""
