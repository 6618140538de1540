"""Writers of TFRecord shards, side by side: the same records, each in a process of its own."""
