"""Batches over a socket, from a daemon or an engine process; README.md names the rooms."""
