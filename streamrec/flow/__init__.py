"""How values and memory flow: channel, pool, backoff, and the bridge to synchronous code."""
