"""The path from byte ranges to batches: fetch, read records, lanes, round robin, decode."""
