"""Batches: the round robin over lanes, and columns."""
