"""Ways to write shards anew, and the shards that they are given."""
