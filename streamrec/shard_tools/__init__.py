"""Whole shards: writing one, and checking a dataset."""
