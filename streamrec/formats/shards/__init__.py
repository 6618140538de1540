"""Shards: TFRecord frames, compression, the index, and the search behind damage."""
