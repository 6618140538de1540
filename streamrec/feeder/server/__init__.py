"""The sending side: arrival, conversations, datasets, replicas, the shared budget, statistics.

``engine``, ``workers`` and ``operate`` may import it.
"""
