"""Whole datasets: writing, converting, resharding, merging, comparing and checking their shards.

Adapters, demo, measure and the command line may import it; sources are read by ``sources``.
"""
