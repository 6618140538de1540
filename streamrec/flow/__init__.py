"""The flow of values and memory: channel, pool, backoff, and the bridge to synchronous code."""
