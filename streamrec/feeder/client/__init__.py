"""The receiving side: connections of both kinds, feeds over them, failover, and shared memory.

``server`` and what stands above may import it, since a feeder's end of a connection is the same.
"""
