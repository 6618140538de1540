"""The sending side: arrival, conversations over sources, replicas, shared limits, statistics.

``engine``, ``workers`` and ``operate`` may import it.
"""
