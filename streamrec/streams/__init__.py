"""Streams: what a training job iterates, and who reads for it."""
