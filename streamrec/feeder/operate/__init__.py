"""The daemon, from its start to its end: reload, log, health, metrics, dump; and a worker process.

Only the rooms above the feeder may import it.
"""
