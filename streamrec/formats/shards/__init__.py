"""Shards: TFRecord frames, compression, the index, and the search after damage."""
