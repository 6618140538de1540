"""What is measured: programs that read a dataset once and print one JSON line about it.

Each takes its order, a JSON object, as its only argument; see :mod:`bench.measure`.
"""
