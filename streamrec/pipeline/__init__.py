"""From ranges to batches: fetch, scan, lanes, round robin, decode."""
