"""Hypothesis strategies: small datasets, and orders over them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Shards = tuple[tuple[int, ...], ...]
"""The lengths of each shard's records, in bytes."""


def shards_of(shards: int, records: int, length: int) -> st.SearchStrategy[Shards]:
    """Draw the lengths of shards' records, one record at least."""
    one = st.lists(st.integers(0, length), max_size=records).map(tuple)
    return st.lists(one, min_size=1, max_size=shards).map(tuple).filter(any)


def orders(
    window: int, epochs: int, **more: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    """Draw settings that determine an order, with windows of at most ``window`` bytes."""
    return st.fixed_dictionaries(
        {
            "shuffle": st.booleans(),
            "seed": st.integers(0, 9),
            "shuffle_window": st.integers(0, window),
            "epochs": st.integers(1, epochs),
            **more,
        }
    )
