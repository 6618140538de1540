"""The order of records: shards, lanes, windows, mixes; and how tasks and splits divide shards.

Every room above may import it. It knows nothing of ``state`` and ``reading``.
"""
