"""Streams of batches for training jobs, and their sessions; README.md names the files."""
