"""Whole datasets: writing, converting, resharding, merging, comparing and checking their shards."""
