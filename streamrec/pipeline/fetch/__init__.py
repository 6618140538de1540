"""Fetch: ranged reads for all lanes, and the bytes of each lane."""
